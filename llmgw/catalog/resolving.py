"""What moving revisions of weights sources were resolved to, and what sources told of their sizes. Pure.

A catalog in force names commits. What the documents say stays beside them, so that the next one goes on with the same.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from llmgw.catalog.files import each_file
from llmgw.catalog.spec import Catalog, ModelSpec, WeightsSpec, canonical_json
from llmgw.ids import Digest, ModelName
from llmgw.memo import Kept, Once
from llmgw.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Of a source as a document names it: what it is called at its revision, and its size where that is known.
    `trouble`: why it told nothing when it was asked last."""

    source: str
    size: Bytes | None = None
    trouble: str | None = None


Resolutions = Mapping[str, Resolution]
"""By the canonical source as documents name it."""


def _files(model: ModelSpec) -> tuple[WeightsSpec, ...]:
    return tuple(spec for profile in model.profiles for spec in profile.every_file)


files_of_model: Final = Once(_files)
"""Every file that it wants at any level."""


def files_of(catalog: Catalog) -> Iterator[WeightsSpec]:
    """The same, of all models."""
    for model in catalog.models.values():
        yield from files_of_model(model)


def _resolutions(model: ModelSpec) -> dict[str, Resolution]:
    return {
        spec.written or spec.source: Resolution(source=spec.source, size=spec.found)
        for spec in files_of_model(model)
        if spec.written is not None or spec.found is not None
    }


_resolutions_of_model: Final = Once(_resolutions)


def resolutions_of(catalog: Catalog | None) -> dict[str, Resolution]:
    """Those that it was put in force with."""
    found: dict[str, Resolution] = {}
    for model in () if catalog is None else catalog.models.values():
        found.update(_resolutions_of_model(model))
    return found


def resolved(catalog: Catalog, known: Resolutions) -> Catalog:
    """With what is known of its sources. One that was resolved before is left as it is.

    Its digest is another for each set of revisions, and the documents' own where no source moves.
    """
    if not known or moved(catalog):
        return catalog
    models = {name: _with_those_of(name, model, known) for name, model in catalog.models.items()}
    made = replace(catalog, models=models)
    revisions = moved(made)
    if not revisions:
        return made
    return replace(made, digest=digest_with(catalog.digest, revisions), documents=catalog.digest)


def _with_those_of(name: ModelName, model: ModelSpec, known: Resolutions) -> ModelSpec:
    found = tuple((spec.source, known[spec.source]) for spec in files_of_model(model) if spec.source in known)
    return _resolved_model.of(name, model, found) if found else model


def _with(model: ModelSpec, found: tuple[tuple[str, Resolution], ...]) -> ModelSpec:
    known = dict(found)

    def change(spec: WeightsSpec) -> WeightsSpec:
        at = known.get(spec.source)
        if at is None:
            return spec
        written = spec.source if at.source != spec.source else None
        return replace(spec, source=at.source, written=written, found=at.size, untold=at.trouble)

    return each_file(model, change)


_resolved_model: Final[Kept[ModelName, ModelSpec]] = Kept(_with)


def at(revisions: Mapping[str, str]) -> dict[str, Resolution]:
    """What `moved` told of."""
    return {written: Resolution(source=source) for written, source in revisions.items()}


def moved(catalog: Catalog) -> dict[str, str]:
    """What its sources were resolved to, by what its documents call them."""
    found: dict[str, str] = {}
    for model in catalog.models.values():
        found.update(_moved_of_model(model))
    return found


def _moved(model: ModelSpec) -> dict[str, str]:
    return {spec.written: spec.source for spec in files_of_model(model) if spec.written is not None}


_moved_of_model: Final = Once(_moved)


def digest_with(documents: Digest, moved: Mapping[str, str]) -> Digest:
    """Of a catalog whose documents have that digest, at these revisions."""
    if not moved:
        return documents
    return Digest(hashlib.sha256(canonical_json([documents, sorted(moved.items())])).hexdigest())
