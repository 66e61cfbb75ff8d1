"""How a value is written: JSON with `v`, its format's version.

A reader keeps what it does not know (`keep`) and refuses what is newer than itself.
"""

import weakref
from typing import Any, Final, TypeVar

import msgspec

from llmgw.errors import NewerFormat, TerminalError

T = TypeVar("T")

VERSION: Final = 1


def encode(value: Any, *, keep: bytes | None = None) -> bytes:
    """The stored form of a dataclass. Top-level fields of `keep` (the value it replaces) that we do not know stay."""
    fields: dict[str, Any] = msgspec.to_builtins(value, str_keys=True)
    if keep is not None:
        fields = {**msgspec.json.decode(keep), **fields}
    return msgspec.json.encode({"v": VERSION, **fields}, order="deterministic")


def decode(raw: bytes, kind: type[T], *, where: str = "a stored value") -> T:
    """The value of type `kind`.

    Raises NewerFormat when a newer llmgw wrote it, TerminalError when it is no such value.
    """
    try:
        check_version(raw, where=where)
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise TerminalError(f"{where} cannot be read as {kind.__name__}: {error}") from error


def check_version(raw: bytes, *, where: str) -> None:
    """Raises NewerFormat as `decode`, and MsgspecError when it is no value at all."""
    version = msgspec.json.decode(raw, type=_Version).v
    if version > VERSION:
        raise NewerFormat(f"{where} has format {version}, this llmgw reads up to {VERSION}: upgrade llmgw")


def decode_shared(raw: bytes, kind: type[T]) -> T:
    """The same for values that many ask for again and again, while their bytes are the same: each of a catalog's models
    is read by all that happens, and most models are those of the catalog before. Not for what changes all the time,
    which would only fill the memory. Nobody may change the value."""
    shared: T | None = _shared.get((kind, raw))
    if shared is None:
        shared = _shared[kind, raw] = decode(raw, kind)
    return shared


_shared: Final["weakref.WeakValueDictionary[tuple[type[Any], bytes], Any]"] = weakref.WeakValueDictionary()


class _Version(msgspec.Struct):
    v: int = VERSION
