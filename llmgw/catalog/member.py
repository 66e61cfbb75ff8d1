"""A Model document among the others: what it says of them, picked out once. Pure.

The rules across files ask every document at each loading. What they ask for lies here at hand, since looking through
ten thousand documents for it would take most of the time that a loading after a small change does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmgw.catalog.document import Document, Path, as_list, as_mapping
from llmgw.catalog.levels import LEVELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Of a document of whatever shape; what is not of its shape is not here. Paths lead to what is said."""

    document: Document
    name: str | None = None
    aliases: tuple[tuple[Path, str], ...] = ()  #: and variants, which are further names too
    extends: str | None = None
    fallback: str | None = None
    drafts: tuple[tuple[Path, Mapping[str, Any]], ...] = ()
    """The `draft` of each profile and level's block that gives itself one."""
    groups: tuple[tuple[Path, str], ...] = ()
    placement: Mapping[str, Any] | None = None
    external: bool = False
    windows: bool = False  #: its scaling has some

    @classmethod
    def of(cls, document: Document) -> "Member":
        value = as_mapping(document.value)
        return cls(
            document=document,
            name=_text(value.get("name")),
            aliases=tuple(_aliases(value)),
            extends=_text(value.get("extends")),
            fallback=_text(value.get("fallback")),
            drafts=tuple(_draft_blocks(document)),
            groups=tuple(
                (("groups", index), group)
                for index, group in enumerate(as_list(value.get("groups")))
                if isinstance(group, str)
            ),
            placement=as_mapping(value.get("placement")) or None,
            external="external" in value,
            windows=bool(as_mapping(value.get("scaling")).get("schedule")),
        )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _aliases(value: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for index, alias in enumerate(as_list(value.get("aliases"))):
        if isinstance(alias, str):
            yield ("aliases", index), alias
    for index, variant in enumerate(as_list(value.get("variants"))):
        if isinstance(name := as_mapping(variant).get("name"), str):
            yield ("variants", index, "name"), name


def _draft_blocks(document: Document) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    profiles = document.root.items.get("profiles") if isinstance(document.value, dict) else None
    for index, profile in (profiles.items if profiles is not None else {}).items():
        for path, node in ((), profile), *(((level,), profile.items.get(level)) for level in LEVELS):
            if node is not None and "draft" in node.keys:
                yield ("profiles", index, *path, "draft"), as_mapping(node.items["draft"].value)
