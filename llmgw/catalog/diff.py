"""What differs between two catalogs, and what each difference does to what runs. Pure.

Profiles are told apart by their names. One that only has another name restarts nothing, as its engines are launched
from the same (`spec_digest`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from llmgw.catalog import leaves
from llmgw.catalog.leaves import Effect, Leaf, Path, dotted
from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest
from llmgw.ids import ModelName, ProfileName


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference. `model` None: of the Cluster document. `path` empty: the model as a whole.

    `old` and `new`: as a document would say it, secrets hidden; None where there is none.
    """

    model: ModelName | None
    path: str
    kind: ChangeKind
    effect: Effect
    old: str | None = None
    new: str | None = None


def diff(old: Catalog, new: Catalog) -> tuple[Change, ...]:
    """Models in name order, then the Cluster document. Equal contents give none, whatever the revisions."""
    return (*_models(old, new), *_cluster(old, new))


def _models(old: Catalog, new: Catalog) -> Iterator[Change]:
    for name in sorted(old.models.keys() | new.models.keys()):
        before, after = old.models.get(name), new.models.get(name)
        if before is None and after is not None:
            yield _whole(name, ChangeKind.ADDED, _of_whole(after, Effect.PLACEMENT), new=_summary(after))
        elif after is None and before is not None:
            yield _whole(name, ChangeKind.REMOVED, _of_whole(before, Effect.STOP), old=_summary(before))
        elif before is not None and after is not None:
            yield from _compare(name, (), leaves.of_model(before), leaves.of_model(after))
            yield from _profiles(before, after)


def _of_whole(model: ModelSpec, effect: Effect) -> Effect:
    """What others run has no engine here that could start or end."""
    return effect if model.external is None else Effect.ROUTING


def _whole(
    name: ModelName, kind: ChangeKind, effect: Effect, *, old: str | None = None, new: str | None = None
) -> Change:
    return Change(model=name, path="", kind=kind, effect=effect, old=old, new=new)


def _summary(model: ModelSpec) -> str:
    """`2 profiles: gpu (vllm), cpu (cpu)`"""
    if model.external is not None:
        return f"external: {model.external.url}"
    named = ", ".join(f"{profile.name} ({profile.engine})" for profile in model.profiles)
    return f"{len(model.profiles)} profile{'s' if len(model.profiles) > 1 else ''}: {named}"


def _profiles(old: ModelSpec, new: ModelSpec) -> Iterator[Change]:
    before = {profile.name: profile for profile in old.profiles}
    after = {profile.name: profile for profile in new.profiles}
    partner = _partners(old, new)
    order = [name for name in before if name in partner], [name for name in after if name in partner.values()]
    if [partner[name] for name in order[0]] != order[1]:
        yield Change(
            model=new.name, path="profiles", kind=ChangeKind.CHANGED, effect=Effect.PLACEMENT,
            old=", ".join(order[0]), new=", ".join(order[1]),
        )  # fmt: skip
    for name, profile in before.items():
        path = ("profiles", name)
        if name not in partner:
            yield Change(
                model=new.name, path=dotted(path), kind=ChangeKind.REMOVED, effect=Effect.RESTART, old=profile.engine
            )
            continue
        other = after[partner[name]]
        if other.name != name:
            yield Change(
                model=new.name, path=dotted((*path, "name")), kind=ChangeKind.CHANGED, effect=Effect.NOTHING,
                old=name, new=other.name,
            )  # fmt: skip
        yield from _compare(new.name, path, leaves.of_profile(profile), leaves.of_profile(other))
    for name, profile in after.items():
        if name not in partner.values():
            yield Change(
                model=new.name, path=dotted(("profiles", name)), kind=ChangeKind.ADDED, effect=Effect.PLACEMENT,
                new=profile.engine,
            )  # fmt: skip


def _partners(old: ModelSpec, new: ModelSpec) -> Mapping[ProfileName, ProfileName]:
    """Which profile each has become: the one of its name, else one that launches the very same."""
    names = {profile.name for profile in new.profiles}
    partner = {profile.name: profile.name for profile in old.profiles if profile.name in names}
    free = {_digest(new, profile): profile.name for profile in reversed(new.profiles) if profile.name not in partner}
    for profile in old.profiles:
        if profile.name not in partner and (found := free.pop(_digest(old, profile), None)) is not None:
            partner[profile.name] = found
    return partner


def _digest(model: ModelSpec, profile: ProfileSpec) -> str:
    return spec_digest(model.name, profile)


def _cluster(old: Catalog, new: Catalog) -> Iterator[Change]:
    yield from _compare(None, (), leaves.of_cluster(old.cluster), leaves.of_cluster(new.cluster))
    for name in sorted(old.cluster.nodes.keys() | new.cluster.nodes.keys()):
        yield from _compare(None, (), leaves.of_node(old.cluster, name), leaves.of_node(new.cluster, name))


def _compare(
    model: ModelName | None, prefix: Path, old: Mapping[Path, Leaf], new: Mapping[Path, Leaf]
) -> Iterator[Change]:
    for path in dict.fromkeys((*old, *new)):
        before, after = old.get(path), new.get(path)
        if before is not None and after is not None and before.text == after.text:
            continue
        kind = ChangeKind.ADDED if before is None else ChangeKind.REMOVED if after is None else ChangeKind.CHANGED
        yield Change(
            model=model,
            path=dotted((*prefix, *path)),
            kind=kind,
            effect=(after or before).effect,  # type: ignore[union-attr]
            old=before.shown if before is not None else None,
            new=after.shown if after is not None else None,
        )
