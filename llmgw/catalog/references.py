"""What documents say of one another: fallbacks, drafts that are models, placement among the Cluster's nodes. Pure."""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmgw.catalog.document import Document, as_list, as_mapping, quoted
from llmgw.catalog.member import Member
from llmgw.catalog.schemas import did_you_mean
from llmgw.errors import Problem

DEFAULT_POOL: Final = "default"
"""The pool of a node that names none, and of one that is not listed: always there."""


@dataclass(frozen=True, slots=True)
class _Names:
    """The models that there are, and which model an alias is of. `complete`: no document could not be read."""

    models: Mapping[str, Member]
    aliases: Mapping[str, str]
    complete: bool

    def missing(self, wanted: str) -> str | None:
        """What is wrong with a model's name, in words; None: nothing, or nothing can be said."""
        if wanted in self.models:
            return None
        if wanted in self.aliases:
            return f"{quoted(wanted)} is an alias: write the model's name, {quoted(self.aliases[wanted])}"
        if not self.complete:
            return None
        near = did_you_mean(wanted, self.models) or self._of_alias(wanted)
        return f"no model {quoted(wanted)}{near}"

    def _of_alias(self, wanted: str) -> str:
        """Where it looks like an alias: the name that is to be written."""
        close = difflib.get_close_matches(wanted, self.aliases, n=1)
        return f"; did you mean {quoted(self.aliases[close[0]])}, of the alias {quoted(close[0])}?" if close else ""


def check(models: Sequence[Member], clusters: Sequence[Document], *, complete: bool) -> Iterator[Problem]:
    """Every name that a document uses of another. `complete`: all documents are here; else a name that is missing may
    well be in one that could not be read."""
    naming = [member for member in models if member.fallback is not None or member.drafts]
    if naming:
        names = _names(models, complete)
        yield from _fallbacks(naming, names)
        yield from _drafts(naming, names)
    nodes = as_mapping(as_mapping(clusters[0].value).get("nodes")) if clusters else {}
    if complete:
        for member in models:
            if member.placement is not None:
                yield from _placement(member, nodes)


def doubts(models: Sequence[Member], clusters: Sequence[Document]) -> Iterator[Problem]:
    """Of a valid catalog: placement that no node fulfils, groups that keep nothing apart."""
    nodes = as_mapping(as_mapping(clusters[0].value).get("nodes")) if clusters else {}
    anywhere = _may_fit({}, nodes)
    for member in models:
        if not (anywhere if member.placement is None else _may_fit(member.placement, nodes)):
            message = "no node that the Cluster document lists fulfils all of it: the model can be placed nowhere"
            yield member.document.problem(("placement",), message)
    yield from _lonely_groups(models)


def _lonely_groups(models: Sequence[Member]) -> Iterator[Problem]:
    members = Counter(group for member in models for _, group in member.groups)
    for member in models:
        for path, group in member.groups:
            if members[group] == 1:
                hint = did_you_mean(group, members.keys() - {group})
                yield member.document.problem(path, f"no other model is in the group {quoted(group)}{hint}")


def _names(models: Sequence[Member], complete: bool) -> _Names:
    by_name: dict[str, Member] = {}
    aliases: dict[str, str] = {}
    for member in models:
        if member.name is not None:
            by_name.setdefault(member.name, member)
            for _, alias in member.aliases:
                aliases.setdefault(alias, member.name)
    return _Names(by_name, aliases, complete)


def _fallbacks(models: Sequence[Member], names: _Names) -> Iterator[Problem]:
    edges: dict[str, str] = {}
    for member in models:
        name, document, wanted = member.name, member.document, member.fallback
        if wanted is None:
            continue
        if wanted == name:
            yield document.problem(("fallback",), "a model cannot stand in for itself")
        elif (message := names.missing(wanted)) is not None:
            yield document.problem(("fallback",), message)
        elif name is not None and names.models.get(name) is member:
            edges[name] = wanted
    for cycle in _cycles(edges):
        message = f"fallbacks that lead back to where they began: {' -> '.join((*cycle, cycle[0]))}"
        yield names.models[cycle[0]].document.problem(("fallback",), message)


def _cycles(edges: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Each cycle once, from its first name on; every name has one edge at most."""
    done: set[str] = set()
    for start in sorted(edges):
        walk: list[str] = []
        at: str | None = start
        while at is not None and at not in done:
            done.add(at)
            walk.append(at)
            at = edges.get(at)
        if at in walk:
            cycle = walk[walk.index(at) :]
            first = cycle.index(min(cycle))
            yield (*cycle[first:], *cycle[:first])


def _drafts(models: Sequence[Member], names: _Names) -> Iterator[Problem]:
    for member in models:
        name, document = member.name, member.document
        for path, draft in member.drafts:
            wanted = draft.get("model")
            if not isinstance(wanted, str):
                continue
            at = (*path, "model")
            if wanted == name:
                yield document.problem(at, "a model cannot draft for itself")
            elif (message := names.missing(wanted)) is not None:
                yield document.problem(at, message)
            elif wanted in names.models and names.models[wanted].external:
                yield document.problem(at, f"{quoted(wanted)} is run elsewhere: what drafts runs on the same node")
            elif wanted in names.models and (own := names.models[wanted].drafts):
                where = names.models[wanted].document.where(own[0][0], at_key=True)
                yield document.problem(
                    at, f"{quoted(wanted)} has a draft of its own ({where}): one that drafts has none"
                )
            elif wanted in names.models and (shared := _groups(member) & _groups(names.models[wanted])):
                yield document.problem(
                    at,
                    f"{quoted(wanted)} shares the group {quoted(min(shared))}: they could never run beside each other",
                )


def _groups(member: Member) -> set[str]:
    return {group for _, group in member.groups}


def _placement(member: Member, nodes: Mapping[str, Any]) -> Iterator[Problem]:
    document, wanted = member.document, member.placement or {}
    pools = {DEFAULT_POOL, *(_pool(as_mapping(node)) for node in nodes.values())}
    for key, known in ("pools", pools), ("nodes", nodes.keys()):
        if key == "nodes" and not nodes:
            continue  # a catalog need not list its nodes
        for index, name in enumerate(as_list(wanted.get(key))):
            if isinstance(name, str) and name not in known:
                hint = did_you_mean(name, known) or f" (there are: {', '.join(sorted(known)[:20])})"
                message = f"no {key[:-1]} {quoted(name)} in the Cluster document{hint}"
                yield document.problem(("placement", key, index), message)


def _pool(node: Mapping[str, Any]) -> str:
    pool = node.get("pool", DEFAULT_POOL)
    return pool if isinstance(pool, str) else DEFAULT_POOL


def _may_fit(wanted: Mapping[str, Any], nodes: Mapping[str, Any]) -> bool:
    """Whether some listed node fulfils it, or one that is not listed may: such are in the default pool, without
    labels."""
    unlisted = not wanted.get("labels") and DEFAULT_POOL in (wanted.get("pools") or [DEFAULT_POOL])
    if unlisted and not (nodes and wanted.get("nodes")):
        return True
    return any(_fits(wanted, name, as_mapping(node)) for name, node in nodes.items())


def _fits(wanted: Mapping[str, Any], name: str, node: Mapping[str, Any]) -> bool:
    labels = as_mapping(node.get("labels"))
    return (
        _pool(node) in (wanted.get("pools") or [_pool(node)])
        and name in (wanted.get("nodes") or [name])
        and all(labels.get(key) == value for key, value in as_mapping(wanted.get("labels")).items())
    )
