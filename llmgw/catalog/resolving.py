"""What moving revisions of weights sources were resolved to, and what sources told of their sizes. Pure.

A catalog in force names commits. What the documents say stays beside them, so that the next one goes on with the same.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from llmgw.catalog.files import each_file
from llmgw.catalog.spec import Catalog, ModelSpec, WeightsSpec, canonical_json
from llmgw.ids import Digest
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


def files_of(catalog: Catalog) -> Iterator[WeightsSpec]:
    """Every file that it wants at any level."""
    for model in catalog.models.values():
        for profile in model.profiles:
            yield from profile.every_file


def resolutions_of(catalog: Catalog | None) -> dict[str, Resolution]:
    """Those that it was put in force with."""
    return {
        spec.written or spec.source: Resolution(source=spec.source, size=spec.found)
        for spec in (() if catalog is None else files_of(catalog))
        if spec.written is not None or spec.found is not None
    }


def resolved(catalog: Catalog, known: Resolutions) -> Catalog:
    """With what is known of its sources. One that was resolved before is left as it is.

    Its digest is another for each set of revisions, and the documents' own where no source moves.
    """
    if moved(catalog):
        return catalog

    def change(spec: WeightsSpec) -> WeightsSpec:
        found = known.get(spec.source)
        if found is None:
            return spec
        written = spec.source if found.source != spec.source else None
        return replace(spec, source=found.source, written=written, found=found.size, untold=found.trouble)

    models = {
        name: each_file(model, change) if _names_any(model, known) else model for name, model in catalog.models.items()
    }
    made = replace(catalog, models=models)
    return replace(made, digest=digest_with(catalog.digest, moved(made)))


def _names_any(model: ModelSpec, known: Resolutions) -> bool:
    return any(spec.source in known for profile in model.profiles for spec in profile.every_file)


def at(revisions: Mapping[str, str]) -> dict[str, Resolution]:
    """What `moved` told of."""
    return {written: Resolution(source=source) for written, source in revisions.items()}


def moved(catalog: Catalog) -> dict[str, str]:
    """What its sources were resolved to, by what its documents call them."""
    return {spec.written: spec.source for spec in files_of(catalog) if spec.written is not None}


def digest_with(documents: Digest, moved: Mapping[str, str]) -> Digest:
    """Of a catalog whose documents have that digest, at these revisions."""
    if not moved:
        return documents
    return Digest(hashlib.sha256(canonical_json([documents, sorted(moved.items())])).hexdigest())
