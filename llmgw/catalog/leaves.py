"""A catalog's values taken apart into single figures: where each stands in a document, how it would be written there,
and what a change of it does. Pure."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from llmgw.catalog.spec import (
    LAUNCH_FIELDS,
    ClusterSpec,
    ModelSpec,
    NotifySpec,
    ProfileSpec,
    SecretRef,
    VariantSpec,
    WeightsSpec,
    Window,
)
from llmgw.catalog.windows import describe
from llmgw.ids import NodeName
from llmgw.units import Bytes, Seconds

Path = tuple[str, ...]

HIDDEN: Final = "(hidden)"
"""In place of what may be a secret."""

_SECRET_WORDS: Final = frozenset(
    {"key", "keys", "apikey", "token", "secret", "password", "passwd", "credential", "credentials", "authorization"}
)
_SIZES: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_TIMES: Final = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


class Effect(StrEnum):
    """What a change does to what runs."""

    RESTART = "restart"  #: the model's engines are replaced
    STOP = "stop"  #: they are ended: the model is gone
    LEVEL = "level"  #: those engines are replaced that run shrunk to that level
    PLACEMENT = "placement"  #: how many run, and where, is decided again
    ROUTING = "routing"  #: only requests are treated otherwise
    LATER = "later"  #: nothing now: it counts at the next start, failure, collection or revision
    NOTHING = "nothing"  #: it is for people


OF_MODEL: Final[Mapping[str, Effect]] = {
    "description": Effect.NOTHING, "labels": Effect.NOTHING,
    "aliases": Effect.ROUTING, "fallback": Effect.ROUTING, "external": Effect.ROUTING, "variants": Effect.ROUTING,
    "strip_params": Effect.ROUTING, "set_params": Effect.ROUTING, "default_params": Effect.ROUTING,
    "affinity": Effect.ROUTING, "stream_comments": Effect.ROUTING,
    "priority": Effect.PLACEMENT, "pinned": Effect.PLACEMENT, "suspend": Effect.PLACEMENT,
    "scaling": Effect.PLACEMENT, "placement": Effect.PLACEMENT, "groups": Effect.PLACEMENT,
    "protect": Effect.LATER,
}  # fmt: skip

OF_PROFILE: Final[Mapping[str, Effect]] = {
    **dict.fromkeys(LAUNCH_FIELDS, Effect.RESTART),
    "weight": Effect.ROUTING, "tier": Effect.ROUTING, "max_requests": Effect.ROUTING,
    "exclusive": Effect.PLACEMENT, "memory": Effect.PLACEMENT, "host_memory": Effect.PLACEMENT,
    "start_timeout": Effect.LATER, "degraded": Effect.LEVEL, "minimal": Effect.LEVEL,
}  # fmt: skip

OF_CLUSTER: Final[Mapping[str, Effect]] = {
    "name": Effect.NOTHING, "gateway": Effect.ROUTING, "recovery": Effect.LATER, "weights": Effect.LATER,
    "supervision": Effect.LATER,
    "time_zone": Effect.PLACEMENT, "scaling": Effect.PLACEMENT, "nodes": Effect.PLACEMENT, "defaults": Effect.LATER,
    "sync": Effect.LATER, "protect": Effect.LATER, "notify": Effect.LATER,
}  # fmt: skip

_WRITTEN_AS: Final = {"draft_model": ("draft", "model"), "windows": ("schedule",)}
"""Where a document calls a field otherwise."""

_NOT_TEXT: Final = r"[-+]?[\d.].*|true|false|null|none"
"""Text that without quotes could be taken for a number, or for no text at all."""

_OF_FETCHING: Final = frozenset({"token", "insecure"})
"""Of a file: how it comes, not what it is."""

_LEVELS: Final = ("degraded", "minimal")


@dataclass(frozen=True, slots=True)
class Leaf:
    """`text`: to compare by; `shown`: for people, without what may be a secret."""

    text: str
    shown: str
    effect: Effect


Leaves = dict[Path, Leaf]


def of_model(model: ModelSpec) -> Leaves:
    """All but its name and profiles."""
    return _of(model, OF_MODEL)


def of_profile(profile: ProfileSpec) -> Leaves:
    """All but its name. Of a level only what differs from the profile."""
    leaves = _of(profile, {field: effect for field, effect in OF_PROFILE.items() if field not in _LEVELS})
    whole = dict(leaves)
    for level in _LEVELS:
        shrunk: ProfileSpec | None = getattr(profile, level)
        if shrunk is not None:
            leaves.update(_of_level(level, of_profile(shrunk), whole))
    return leaves


def of_cluster(cluster: ClusterSpec) -> Leaves:
    """All but its nodes, each of which has settings also where it is not listed."""
    leaves = _of(cluster, {field: effect for field, effect in OF_CLUSTER.items() if field != "nodes"})
    idle = ("defaults", "idle_timeout")
    return leaves | {idle: dataclasses.replace(leaves[idle], effect=Effect.PLACEMENT)}


def of_node(cluster: ClusterSpec, name: NodeName) -> Leaves:
    return _leaves(cluster.node(name), ("nodes", name), OF_CLUSTER["nodes"])


def dotted(path: Path) -> str:
    """`profiles.gpu.options.threads`; a part that is no plain word is quoted: `labels["a.b"]`."""
    text = ""
    for part in path:
        plain = re.fullmatch(r"[A-Za-z0-9_-]+", part) is not None
        text += (f".{part}" if text else part) if plain else f"[{json.dumps(part, ensure_ascii=False)}]"
    return text


def _of(value: Any, effects: Mapping[str, Effect]) -> Leaves:
    leaves: Leaves = {}
    for name, effect in effects.items():
        leaves.update(_field(value, name, (), effect))
    return leaves


def _of_level(level: str, shrunk: Leaves, whole: Leaves) -> Iterator[tuple[Path, Leaf]]:
    for path in dict.fromkeys((*shrunk, *whole)):
        mine, its = shrunk.get(path), whole.get(path)
        if mine is None or its is None or mine.text != its.text:
            text, shown = (mine.text, mine.shown) if mine is not None else ("none", "none")
            effect = OF_PROFILE[path[0]]
            yield (level, *path), Leaf(text, shown, Effect.LEVEL if effect is Effect.RESTART else effect)


def _field(owner: Any, name: str, path: Path, effect: Effect) -> Leaves:
    value, at = getattr(owner, name), (*path, *_WRITTEN_AS.get(name, (name,)))
    if value is None or value == {} or (name == "windows" and not value):
        return {}
    if isinstance(owner, WeightsSpec) and name in ("endpoint", "written", "found", "untold"):
        return {}  # the Cluster document's, where it is told once; what became of the source
    if isinstance(owner, WeightsSpec) and name in _OF_FETCHING:
        if value is False:
            return {}
        effect = Effect.LATER
    unit = _units(owner.__class__).get(name)
    if unit is not None:
        text = _size(value) if unit is Bytes else _duration(value)
        return {at: Leaf(text, text, effect)}
    return _leaves(value, at, effect)


def _leaves(value: Any, path: Path, effect: Effect) -> Leaves:
    match value:
        case SecretRef():
            text = f"{{from_env: {value.from_env}}}" if value.from_env else f"{{from_file: {value.from_file}}}"
            return {path: Leaf(text, text, effect)}
        case tuple() if value and isinstance(value[0], (VariantSpec, NotifySpec)):
            found: Leaves = {}
            for each in value:
                found.update(_inner(each, (*path, each.name), effect))
            return found
        case tuple() if value and isinstance(value[0], Window):
            return {(*path, describe(each)): _bounds(each, effect) for each in value}
        case tuple() | list():
            shown = json.dumps(_without_secrets(value), ensure_ascii=False)
            return {path: Leaf(json.dumps(value, ensure_ascii=False), shown, effect)}
        case _:
            return _inner(value, path, effect)


def _inner(value: Any, path: Path, effect: Effect) -> Leaves:
    leaves: Leaves = {}
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            leaves.update(_field(value, field.name, path, effect))
    elif isinstance(value, Mapping) and value:
        for key, inner in value.items():
            leaves.update(_leaves(inner, (*path, str(key)), effect))
    else:
        secret = isinstance(value, str) and (path[0] == "env" or any(map(is_secret, path[1:])))
        leaves[path] = Leaf(json.dumps(value), HIDDEN if secret else _plain(value), effect)
    return leaves


def _plain(value: Any) -> str:
    """Text as it is, in quotes where it would read as something else."""
    if isinstance(value, str) and value and value.isprintable() and re.fullmatch(_NOT_TEXT, value) is None:
        return value
    return json.dumps(value, ensure_ascii=False)


def _bounds(window: Window, effect: Effect) -> Leaf:
    text = f"min {window.min}" + (f", max {window.max}" if window.max else "")
    return Leaf(text, text, effect)


@cache
def _units(kind: Any) -> Mapping[str, object]:
    """Which fields are sizes or durations."""
    found: dict[str, object] = {}
    for name, hint in get_type_hints(kind).items():
        for unit in (Bytes, Seconds):
            if unit in (hint, *get_args(hint)):
                found[name] = unit
    return found


def is_secret(name: str) -> bool:
    """Whether a setting of that name, or a command line's flag, is likely to hold a secret."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


def _without_secrets(value: Any) -> Any:
    """Also of command lines: `--api-key x` and `--api-key=x`."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if is_secret(key) else _without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, str) or not isinstance(value, Sequence):
        return value
    shown: list[Any] = []
    follows = False
    for word in value:
        flag, equals, _ = word.partition("=") if isinstance(word, str) else ("", "", "")
        if follows and not flag.startswith("-"):
            shown.append(HIDDEN)
        else:
            shown.append(f"{flag}={HIDDEN}" if equals and is_secret(flag) else _without_secrets(word))
        follows = flag.startswith("-") and not equals and is_secret(flag)
    return shown


def _size(size: int) -> str:
    """As a document would say it, and exactly."""
    return next((f"{size // unit}{name}" for name, unit in _SIZES if size and size % unit == 0), str(size))


def _duration(duration: float) -> str:
    """As a document would say it, and exactly."""
    whole, parts = round(duration), []
    if whole != duration or not whole:
        return f"{duration:g}s"
    for name, unit in _TIMES:
        count, whole = divmod(whole, unit)
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts)
