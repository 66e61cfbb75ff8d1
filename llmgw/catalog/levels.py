"""What a profile is shrunk to: its blocks `degraded` and `minimal`, each merged over the profile. Pure.

After `expand` a block holds the whole of the shrunk profile, so that the rules judge it and `build` makes it as any
other. What a block inherits stands at the block's own place: that is where a person has to change something.
"""

from collections.abc import Mapping
from typing import Any, Final

from llmgw.catalog.document import Document, as_list, as_mapping
from llmgw.catalog.node import Node, Place, list_of, with_items

LEVELS: Final = ("degraded", "minimal")

OF_THE_ENGINE: Final = ("options", "args", "draft", "files")
"""What one engine reads and another does not: dropped by a block that changes `engine`."""

MERGED: Final = ("options", "env", "files")
"""Maps that are merged by key; whatever else a block gives replaces what the profile says."""


def expand(document: Document) -> Document:
    """The Model document with its blocks made whole. The document itself stays as it is."""
    if not as_list(as_mapping(document.value).get("profiles")):
        return document
    profiles = document.root.items["profiles"]
    done = [_profile(profiles.items[index]) for index in range(len(profiles.value))]
    return document.with_root(with_items(document.root, {"profiles": list_of(done, profiles)}))


def _profile(profile: Node) -> Node:
    """Blocks that are no mappings stay as they are: their shape is at fault already."""
    if not isinstance(profile.value, dict):
        return profile
    blocks = {key: profile.items[key] for key in LEVELS if isinstance(profile.value.get(key), dict)}
    return with_items(profile, {key: _whole(profile, block) for key, block in blocks.items()})


def _whole(profile: Node, block: Node) -> Node:
    dropped = _dropped(as_mapping(profile.value), block.value)
    kept = {key: node for key, node in profile.items.items() if key not in dropped}
    items = {key: _placed(node, block.place) for key, node in kept.items()}
    for key, node in block.items.items():
        name = str(key)
        items[key] = _over(kept.get(key), node, deep=name == "options") if name in MERGED else node
    return _mapping(items, block)


def _dropped(profile: Mapping[str, Any], block: Mapping[str, Any]) -> set[str | int]:
    """The profile's keys that the block does not inherit."""
    dropped: set[str | int] = {*LEVELS}
    if block.get("engine", profile.get("engine")) != profile.get("engine"):
        dropped.update(OF_THE_ENGINE)
    if block.get("devices") == 0:
        dropped.add("exclusive")  # it is about devices
    return dropped


def _over(below: Node | None, node: Node, *, deep: bool) -> Node:
    """A map merged over another by key. `deep`: maps within it too; a file or a secret is one value."""
    if below is None or not isinstance(below.value, dict) or not isinstance(node.value, dict):
        return node
    items = {key: _placed(inner, node.place) for key, inner in below.items.items()}
    for key, inner in node.items.items():
        items[key] = _over(below.items.get(key), inner, deep=True) if deep else inner
    return _mapping(items, node)


def _mapping(items: Mapping[str | int, Node], at: Node) -> Node:
    return Node({key: inner.value for key, inner in items.items()}, at.place, dict(items), at.keys, at.size)


def _placed(node: Node, place: Place) -> Node:
    """The same value, with all that it holds at one place."""
    items = {key: _placed(inner, place) for key, inner in node.items.items()}
    return Node(node.value, place, items, dict.fromkeys(node.keys, place), node.size)
