"""History entries, packed where they are large: of ten thousand models their sources alone would be more than the store
takes in one value."""

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from llmgw.errors import TerminalError
from llmgw.ids import Digest
from llmgw.store.codec import decode, encode
from llmgw.store.values import HistoryEntry
from llmgw.units import KIB, MIB

LARGE: Final = 256 * KIB  #: an entry of more is packed
MOST: Final = 256 * MIB  #: that one may unpack to


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """What is packed. `sources` are those of all models, and not kept."""

    models: dict[str, tuple[str, ...]] = field(default_factory=dict)
    resolved: dict[str, str] = field(default_factory=dict)


def encode_entry(entry: HistoryEntry) -> bytes:
    whole = encode(entry)
    if len(whole) <= LARGE:
        return whole
    # What moving sources were at is asked for of every entry at each change, so it is packed where it must be.
    every = len(encode(replace(entry, sources=(), models={}))) > LARGE
    inner = _Packed(models=dict(entry.models), resolved=dict(entry.resolved) if every else {})
    packed = base64.b64encode(zlib.compress(msgspec.json.encode(inner, order="deterministic"))).decode()
    rest = replace(entry, resolved={}) if every else entry
    return encode(replace(rest, sources=(), models={}, packed=packed, all_packed=every))


def decode_entry(raw: bytes, *, where: str) -> HistoryEntry:
    """The entry as it was before `encode_entry`. Raises as `codec.decode`."""
    entry = decode(raw, HistoryEntry, where=where)
    if not entry.packed:
        return entry
    inner = _unpacked(entry, where)
    sources = sorted({source for each in inner.models.values() for source in each})
    resolved = inner.resolved if entry.all_packed else entry.resolved
    return replace(entry, sources=tuple(sources), models=inner.models, resolved=resolved, packed="", all_packed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """As much of an entry as every change of the catalog asks for."""

    number: int
    digest: Digest
    resolved: Mapping[str, str]
    documents: Digest | None


def decode_past(raw: bytes, *, where: str) -> Past:
    """Raises as `codec.decode`."""
    entry = decode(raw, HistoryEntry, where=where)
    resolved = _unpacked(entry, where).resolved if entry.all_packed else entry.resolved
    return Past(number=entry.number, digest=entry.digest, resolved=resolved, documents=entry.documents)


def _unpacked(entry: HistoryEntry, where: str) -> _Packed:
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(entry.packed, validate=True), MOST)
        if not unpacking.eof:
            raise TerminalError(f"{where} cannot be unpacked: its end is missing, or it is too large")
        return msgspec.json.decode(data, type=_Packed)
    except (binascii.Error, zlib.error, msgspec.MsgspecError) as error:
        raise TerminalError(f"{where} cannot be unpacked: {error}") from error
