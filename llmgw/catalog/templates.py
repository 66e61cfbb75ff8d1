"""Templates: what many models have in common, written once. Pure.

A document that `extends` a Template is merged over it before it is judged: maps by key, lists replaced. Three things
are not as plain as that, since what people mean by them is not: `profiles` are the document's own list, each merged
over the template's profile of its name; a file with a `source` of its own takes no checksum or size from the template;
a secret is one value. `null` takes away what the template says. A value keeps the place where it was written.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmgw.catalog import schemas
from llmgw.catalog.document import Document, as_mapping, quoted
from llmgw.catalog.levels import OF_THE_ENGINE
from llmgw.catalog.member import Member
from llmgw.catalog.node import Elsewhere, Node, list_of
from llmgw.catalog.partial import NOT_SHARED
from llmgw.catalog.schemas import did_you_mean
from llmgw.errors import Problem

MAX_CHAIN: Final = 8  #: templates that extend one another
_SURELY: Final = 0.8
"""How alike a name must be to a template's for a document to be judged over that; what is less alike is asked about."""
_SHOWN: Final = 20  #: templates named in a message

_OWN: Final = frozenset({"apiVersion", "kind", "name", "extends"})
"""Keys of a template itself, which nobody inherits."""
_BLAMED: Final = frozenset(NOT_SHARED)
"""Keys that a template must not have, and is blamed for itself."""
_OF_A_FILE: Final = ("sha256", "size")
_SECRET: Final = frozenset({"from_env", "from_file"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A document over its template. `whole` false: of what it extends not all is known, so that what it lacks may be
    there. `found` false: not what it names is under it."""

    document: Document
    whole: bool = True
    found: bool = True


@dataclass(frozen=True, slots=True)
class _Base:
    """A template's values, each at its place. `whole` false: the chain of what it extends breaks."""

    node: Node
    whole: bool = True


class Templates:
    """The Template documents of a catalog. `problems`: what is wrong with them. `complete`: all documents are here;
    else one that is missing may well be in a file that could not be read."""

    def __init__(self, documents: Sequence[Document], *, complete: bool = True) -> None:
        self.problems: list[Problem] = []
        self.documents = tuple(documents)
        self.complete = complete
        self._by_name: dict[str, Document] = {}
        self._bases: dict[str, _Base] = {}
        for document in documents:
            self.problems += schemas.check(without_nulls(document), "Template")
            name = as_mapping(document.value).get("name")
            if not isinstance(name, str):
                continue
            if name in self._by_name:
                first = self._by_name[name].where(("name",))
                self.problems.append(document.problem(("name",), f"{quoted(name)} is already the template at {first}"))
            self._by_name.setdefault(name, document)
        for name in self._by_name:
            self._base(name, ())

    def merge(self, document: Document) -> Merged:
        """The document merged over the template that it extends. Where there is none of that name: over that which was
        surely meant, so that its other problems are told at once."""
        wanted = as_mapping(document.value).get("extends")
        if wanted is None:
            return Merged(document=document)
        meant = self._meant(wanted) if isinstance(wanted, str) else None
        if meant is None:
            return Merged(document=without_nulls(document), whole=False, found=False)
        base = self._base(meant, ())
        merged = document.with_root(_merged(base.node, document.root), plain=self._all_plain())
        if not base.whole:
            return Merged(document=without_nulls(merged), whole=False, found=False)
        return Merged(document=merged, found=meant == wanted)

    def missing(self, models: Sequence[Member]) -> Iterator[Problem]:
        """Each document whose template is not there. Asked anew each time, since it names models."""
        known: frozenset[str] | None = None
        extending = [(each, wanted) for each in self.documents if (wanted := _extended(each)) is not None]
        extending += [(each.document, each.extends) for each in models if each.extends is not None]
        for document, wanted in extending if self.complete else ():
            if wanted not in self._by_name:
                known = known or frozenset(each.name for each in models if each.name is not None)
                yield self._no_template(document, wanted, known)

    def unused(self, models: Sequence[Member]) -> Iterator[Problem]:
        """A warning for each template that nothing extends."""
        used = {*map(_extended, self.documents), *(each.extends for each in models)}
        for name, document in self._by_name.items():
            if name not in used:
                yield document.problem(("name",), f"nothing extends the template {quoted(name)}")

    def _all_plain(self) -> bool:
        return all(document.plain for document in self.documents)

    def _meant(self, wanted: str) -> str | None:
        if wanted in self._by_name:
            return wanted
        near = difflib.get_close_matches(wanted[:100], self._by_name, n=1, cutoff=_SURELY) if self.complete else []
        return near[0] if near else None

    def _no_template(self, document: Document, wanted: str, models: Collection[str]) -> Problem:
        if wanted in models:
            message = (
                f"{quoted(wanted)} is a model, and only a Template can be extended: write what they have in common "
                "into a document of `kind: Template`, and let both extend that"
            )
        else:
            there = ", ".join(sorted(self._by_name)[:_SHOWN])
            hint = did_you_mean(wanted, self._by_name) or (f" (there are: {there})" if there else " (there is none)")
            message = f"no template {quoted(wanted)}{hint}"
        return document.problem(("extends",), message)

    def _base(self, name: str, chain: tuple[str, ...]) -> _Base:
        """A template's values, each at its place, merged over those of the one that it extends."""
        if name not in self._bases:
            self._bases[name] = self._resolve(name, chain)
        return self._bases[name]

    def _resolve(self, name: str, chain: tuple[str, ...]) -> _Base:
        document, here = self._by_name[name], (*chain, name)
        wanted = document.value.get("extends")
        own = _placed(document.root, document.file)
        if not isinstance(wanted, str):
            return _Base(own)
        if wanted in here:
            round_trip = " -> ".join((*here[here.index(wanted) :], wanted))
            self.problems.append(document.problem(("extends",), f"the template extends itself: {round_trip}"))
            return _Base(own, whole=False)
        if len(here) >= MAX_CHAIN:
            message = f"more than {MAX_CHAIN} templates that extend one another"
            self.problems.append(document.problem(("extends",), message))
            return _Base(own, whole=False)
        if wanted not in self._by_name:
            return _Base(own, whole=False)
        below = self._base(wanted, here)
        return _Base(_merged(below.node, own), whole=below.whole)


def without_nulls(document: Document) -> Document:
    """A part of a model without what takes away what another part says."""
    return document.with_root(_without_nulls(document.root))


def _without_nulls(node: Node) -> Node:
    if isinstance(node.value, list):
        return list_of([_without_nulls(inner) for inner in node.items.values()], node)
    if not isinstance(node.value, dict):
        return node
    items = {key: _without_nulls(inner) for key, inner in node.items.items() if inner.value is not None}
    return Node({key: inner.value for key, inner in items.items()}, node.place, items, node.keys, node.size)


def _extended(document: Document) -> str | None:
    wanted = as_mapping(document.value).get("extends")
    return wanted if isinstance(wanted, str) else None


def _placed(node: Node, file: str) -> Node:
    """The same values, their places in `file`."""
    items = {key: _placed(inner, file) for key, inner in node.items.items()}
    keys = {key: Elsewhere.of(place, file) for key, place in node.keys.items()}
    return Node(node.value, Elsewhere.of(node.place, file), items, dict(keys), node.size)


def _merged(base: Node, over: Node) -> Node:
    """A document over a template."""
    inherited = {key: node for key, node in base.items.items() if key not in _OWN | _BLAMED}
    return _map_over(inherited, base, over, top=True)


def _map_over(inherited: Mapping[str | int, Node], base: Node, over: Node, *, top: bool = False) -> Node:
    items = dict(inherited)
    for key, inner in over.items.items():
        below = items.get(key)
        if below is None:
            items[key] = inner
        elif inner.value is None:
            del items[key]
        elif top and key == "profiles":
            items[key] = _profiles_over(below, inner)
        else:
            items[key] = _over(below, inner)
    keys = {**base.keys, **over.keys}
    return Node(
        {key: node.value for key, node in items.items()},
        over.place,
        items,
        {str(key): keys[str(key)] for key in items if str(key) in keys},
        over.size,
    )


def _over(below: Node, node: Node) -> Node:
    """One value over another."""
    if not isinstance(below.value, dict) or not isinstance(node.value, dict):
        return node
    if _is_one_value(below) or _is_one_value(node) or _is_other_draft(below, node):
        return node
    dropped = _OF_A_FILE if "source" in node.value else ()
    return _map_over({key: inner for key, inner in below.items.items() if key not in dropped}, below, node)


def _is_other_draft(below: Node, node: Node) -> bool:
    """A file where the template has a model, or a model where it has a file."""
    return ("model" in node.value and "source" in below.value) or ("source" in node.value and "model" in below.value)


def _is_one_value(node: Node) -> bool:
    return bool(node.value) and node.value.keys() <= _SECRET


def _profiles_over(below: Node, node: Node) -> Node:
    """The document's list; each profile over the template's of that name."""
    if not isinstance(below.value, list) or not isinstance(node.value, list):
        return node
    named = {_name(each): each for each in reversed(below.items.values())}
    return list_of([_profile_over(named.get(_name(each)), each) for each in node.items.values()], node)


def _name(profile: Node) -> Any:
    name = as_mapping(profile.value).get("name")
    return name if isinstance(name, str) else None


def _profile_over(below: Node | None, node: Node) -> Node:
    if below is None or _name(node) is None:
        return node
    engine = below.value.get("engine")
    dropped = OF_THE_ENGINE if node.value.get("engine", engine) != engine else ()
    return _map_over({key: inner for key, inner in below.items.items() if key not in dropped}, below, node)
