"""Reads the key-value header of a GGUF file, and nothing else of it: milliseconds whatever the file's size.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

import math
import struct
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

Scalar = str | int | float

_FIXED: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9
_MOST_KEYS: Final = 65_536
_LONGEST_STRING: Final = 16 * 1024 * 1024
_LONGEST_ARRAY: Final = 16 * 1024 * 1024  #: elements; the largest vocabulary known has a quarter of a million


def read_metadata(path: Path) -> dict[str, Scalar]:
    """The header's scalars by key (a boolean is 0 or 1); an array gives its length as `<key>.length`.

    Raises ValueError when the file is no GGUF or its header is cut short, OSError when it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        try:
            return _read_header(file)
        except (struct.error, EOFError, OverflowError) as error:
            raise ValueError(f"{path} has a damaged or truncated GGUF header") from error


def _read_header(file: BufferedReader) -> dict[str, Scalar]:
    version = _fixed(file, "<I")
    if version not in (2, 3):
        raise ValueError(f"{file.name} has GGUF version {version}; versions 2 and 3 (little endian) are read")
    _fixed(file, "<Q")  # number of tensors
    keys = _fixed(file, "<Q")
    if keys > _MOST_KEYS:
        raise EOFError
    found: dict[str, Scalar] = {}
    for _ in range(keys):
        key, kind = _string(file), _fixed(file, "<I")
        if kind == _ARRAY:
            found[f"{key}.length"] = _skip_array(file)
        elif kind == _STRING:
            found[key] = _string(file)
        else:
            value = _fixed(file, _format(kind))
            if not isinstance(value, float) or math.isfinite(value):  # JSON has no word for the others
                found[key] = value
    return found


def _format(kind: int) -> str:
    if kind not in _FIXED:
        raise EOFError
    return _FIXED[kind]


def _fixed(file: BufferedReader, layout: str) -> Any:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))[0]


def _string(file: BufferedReader) -> str:
    length = _fixed(file, "<Q")
    if length > _LONGEST_STRING:
        raise EOFError
    data = file.read(length)
    if len(data) < length:
        raise EOFError
    return data.decode(errors="replace")


def _skip_array(file: BufferedReader) -> int:
    kind, length = _fixed(file, "<I"), int(_fixed(file, "<Q"))
    if length > _LONGEST_ARRAY:
        raise EOFError
    if kind == _STRING:
        for _ in range(length):
            size = _fixed(file, "<Q")
            if size > _LONGEST_STRING:
                raise EOFError
            file.seek(size, 1)
    else:  # an array of arrays is in no file known, and no format: refused
        file.seek(length * struct.calcsize(_format(kind)), 1)
    return length
