"""Catalogs by their content: each model's spec lies under a key made of its bytes, and so do the lists of them.

A list of all models would be large, so it is in parts, and `catalog/applied` names those of the catalog in force. What
lies under such a key never changes. So of two catalogs that differ in one model only its spec, one part and
`catalog/applied` are written and read; and whoever reads finds the whole of the catalog that `catalog/applied` named
when it was read, whatever is put in force meanwhile, or notices that it cannot.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmgw.catalog.spec import ModelSpec
from llmgw.errors import TerminalError
from llmgw.ids import ContentId, ModelName
from llmgw.memo import Once
from llmgw.store import keys
from llmgw.store.api import Entry, Store
from llmgw.store.codec import decode, decode_shared, encode
from llmgw.store.values import Applied, CatalogPart

PART: Final = 128
"""Models of a part, on average. Where one ends is up to the names: one model more or less changes one part or two.
Of a hundred thousand models the parts' names are 27 kB in `catalog/applied`."""

LONGEST: Final = 2048
"""Models that a part has at most, 210 kB of it: far below what a store takes at once."""

FEW: Final = 32
"""Keys that are read one by one; of more, all that lies beside them is listed at one go."""


class NotWhole(TerminalError):
    """Not all of the catalog in force is there (yet): whoever knows another goes on with it."""


# -- writing


def content_of(raw: bytes) -> ContentId:
    """128 bits of SHA-256, in hex."""
    return ContentId(hashlib.sha256(raw).hexdigest()[:32])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a catalog consists of in the store. `parts` for `catalog/applied`; `values`: by key, specs before parts."""

    parts: tuple[ContentId, ...]
    values: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filed:
    content: ContentId
    key: str
    raw: bytes
    ends: bool  #: a part, after this model


def _file(model: ModelSpec) -> _Filed:
    raw = encode(model)
    content = content_of(raw)
    hashed = hashlib.sha256(model.name.encode()).digest()
    ends = int.from_bytes(hashed[:4], "big") % PART == 0
    return _Filed(content=content, key=keys.spec(model.name, content), raw=raw, ends=ends)


_filed: Final = Once(_file)


def contents_of(models: Mapping[ModelName, ModelSpec]) -> Contents:
    """Pure. Equal models make equal contents, in whatever order they come."""
    values: dict[str, bytes] = {}
    lists: list[dict[ModelName, ContentId]] = [{}]
    for name in sorted(models):
        filed = _filed(models[name])
        values[filed.key] = filed.raw
        lists[-1][name] = filed.content
        if filed.ends or len(lists[-1]) == LONGEST:
            lists.append({})
    encoded = [encode(CatalogPart(models=each)) for each in lists if each]
    parts = tuple(map(content_of, encoded))
    values.update(zip(map(keys.part, parts), encoded, strict=True))
    return Contents(parts=parts, values=values)


def keys_of(part: CatalogPart) -> tuple[str, ...]:
    """Where its models lie."""
    return tuple(keys.spec(name, content) for name, content in part.models.items())


# -- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The catalog in force. `models`: all that can be read, in name order; nobody may change them. `unreadable`: the
    others, and why."""

    applied: Applied
    models: Mapping[ModelName, ModelSpec]
    unreadable: Mapping[ModelName, TerminalError] = field(default_factory=dict)

    def check(self) -> "InForce":
        """Itself, where all models can be read. Raises what `codec.decode` raises."""
        for error in self.unreadable.values():
            raise error
        return self


class Catalogs:
    """Reads catalogs of any store, and what changed of them since it last did: what is the same is not read again."""

    def __init__(self) -> None:
        self._lists: dict[ContentId, CatalogPart] = {}
        self._specs: dict[str, ModelSpec | TerminalError] = {}
        self._last: tuple[tuple[ContentId, ...], _Models] | None = None

    async def in_force(self, store: Store) -> InForce | None:
        """None: nothing is. The same models are the same objects, and all of them one, as long as they are the same.

        Raises NotWhole, RetryableError where the store is away, and what `codec.decode` raises of all but models.
        """
        entry = await store.get(keys.APPLIED)
        while entry is not None:
            applied = decode(entry.value, Applied, where=entry.key)
            found = await (self._former(store, applied) if applied.parts is None else self._read(store, applied.parts))
            if found is None or applied.parts is None:  # its models may have gone between the two reads
                before, entry = entry, await store.get(keys.APPLIED)
                if entry != before:
                    continue
            if found is None:
                raise NotWhole(f"not all models of the catalog {applied.revision} are in the store")
            return InForce(applied=applied, models=found.models, unreadable=found.unreadable)
        return None

    async def _read(self, store: Store, parts: tuple[ContentId, ...]) -> "_Models | None":
        """None: something is missing."""
        if self._last is not None and self._last[0] == parts:
            return self._last[1]
        lists = {part: self._lists[part] for part in parts if part in self._lists}
        lacking = [keys.part(part) for part in parts if part not in lists]
        for key, raw in (await _fetched(store, keys.PARTS, lacking)).items():
            lists[ContentId(keys.last(key))] = decode(raw, CatalogPart, where=key)
        if not all(part in lists for part in parts):
            return None
        named = {name: keys.spec(name, content) for part in parts for name, content in lists[part].models.items()}
        specs = {key: self._specs[key] for key in named.values() if key in self._specs}
        missing = [key for key in named.values() if key not in specs]
        for key, raw in (await _fetched(store, keys.SPECS, missing)).items():
            specs[key] = _decoded(key, raw)
        if len(specs) < len(named):
            return None
        found = _Models.of({name: specs[key] for name, key in named.items()})
        self._lists, self._specs, self._last = lists, specs, (parts, found)
        return found

    async def _former(self, store: Store, applied: Applied) -> "_Models | None":
        """As an earlier llmgw keeps them: under the catalog's digest, whose models go once another is in force."""
        entries = (await store.list(f"{keys.MODELS}{applied.digest}/")).entries
        found = _Models.of({ModelName(keys.last(each.key)): _decoded(each.key, each.value) for each in entries})
        return found if entries else None


@dataclass(frozen=True, slots=True)
class _Models:
    models: Mapping[ModelName, ModelSpec]
    unreadable: Mapping[ModelName, TerminalError]

    @classmethod
    def of(cls, read: Mapping[ModelName, ModelSpec | TerminalError]) -> "_Models":
        models = {name: each for name, each in read.items() if isinstance(each, ModelSpec)}
        return cls(models, {name: each for name, each in read.items() if isinstance(each, TerminalError)})


def _decoded(key: str, raw: bytes) -> ModelSpec | TerminalError:
    try:
        return decode_shared(raw, ModelSpec)
    except TerminalError as error:
        return type(error)(f"{key}: {error}")


async def _fetched(store: Store, prefix: str, wanted: Sequence[str]) -> dict[str, bytes]:
    """Those of `wanted` that are there, and are what their keys say."""
    entries: Sequence[Entry | None]
    if len(wanted) > FEW:
        among = frozenset(wanted)
        entries = [entry for entry in (await store.list(prefix)).entries if entry.key in among]
    else:
        entries = [await store.get(key) for key in wanted]
    return {
        entry.key: entry.value
        for entry in entries
        if entry is not None and keys.last(entry.key) == content_of(entry.value)
    }
