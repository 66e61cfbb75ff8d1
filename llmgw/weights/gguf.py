"""Reads the header of a GGUF file, and nothing else of it: milliseconds whatever the file's size.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

import math
import re
import struct
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

Scalar = str | int | float

_FIXED: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_INTEGERS: Final = frozenset({0, 1, 2, 3, 4, 5, 7, 10, 11})
_STRING: Final = 8
_ARRAY: Final = 9
_MOST_KEYS: Final = 65_536
_LONGEST_STRING: Final = 16 * 1024 * 1024
_LONGEST_ARRAY: Final = 16 * 1024 * 1024  #: elements; the largest vocabulary known has a quarter of a million
_MOST_LAYERS: Final = 4096  #: an array of so many integers may hold a figure for each layer
_MOST_TENSORS: Final = 1_000_000
_ALIGNMENT: Final = 32
_BLOCK: Final = re.compile(r"^(enc\.|dec\.)?blk\.\d+\.")
_TELLING: Final = 1 / 1000
"""Tensors that together take a smaller share of the file than this (norms, biases) are not told apart."""

TENSORS: Final = "tensors."
"""Prefix of what `read_tensors` finds; no key of the format starts like this."""

TYPE: Final = f"{TENSORS}type."


def read_metadata(path: Path) -> dict[str, Scalar]:
    """The header's scalars by key (a boolean is 0 or 1); an array gives its length as `<key>.length`, and one of
    integers, a figure for each layer, their sum as `<key>.sum`.

    Raises ValueError when the file is no GGUF or its header is cut short, OSError when it cannot be read.
    """
    with path.open("rb") as file:
        try:
            return _read_header(file)[0]
        except (struct.error, EOFError, OverflowError) as error:
            raise ValueError(f"{path} has a damaged or truncated GGUF header") from error


def read_tensors(path: Path) -> dict[str, int]:
    """Bytes of the tensors by name, those of all layers taken together: `tensors.blk.*.ffn_up.weight`.

    `<name>.layers` says in how many layers it is, `tensors.rest` what all the small ones take, and
    `tensors.type.<ggml type>` what those of the layers take that are of one type. Sizes come from the offsets, so they
    hold for types that nobody here knows. Raises as `read_metadata`.
    """
    with path.open("rb") as file:
        try:
            metadata, count = _read_header(file)
            found = _read_offsets(file, count)
        except (struct.error, EOFError, OverflowError) as error:
            raise ValueError(f"{path} has a damaged or truncated GGUF header") from error
        alignment = int(metadata.get("general.alignment", _ALIGNMENT)) or _ALIGNMENT
        data = -(-file.tell() // alignment) * alignment
        end = max(0, file.seek(0, 2) - data)
    found.sort()
    sizes: dict[str, list[int]] = {}
    types: dict[str, int] = {}
    for (offset, name, kind), (following, _, _) in zip(found, [*found[1:], (end, "", 0)], strict=True):
        size = max(0, following - offset)
        sizes.setdefault(_BLOCK.sub(r"\1blk.*.", name), []).append(size)
        if _BLOCK.match(name):
            types[f"{TYPE}{kind}"] = types.get(f"{TYPE}{kind}", 0) + size
    return _told_apart(sizes) | types


def _told_apart(sizes: dict[str, list[int]]) -> dict[str, int]:
    least = _TELLING * sum(sum(each) for each in sizes.values())
    told, rest = {}, 0
    for name, each in sizes.items():
        if sum(each) < least:
            rest += sum(each)
            continue
        told[f"{TENSORS}{name}"] = sum(each)
        if "blk.*." in name:
            told[f"{TENSORS}{name}.layers"] = len(each)
    return told | {f"{TENSORS}rest": rest} if sizes else {}


def _read_offsets(file: BufferedReader, count: int) -> list[tuple[int, str, int]]:
    if count > _MOST_TENSORS:
        raise EOFError
    found = []
    for _ in range(count):
        name, dimensions = _string(file), _fixed(file, "<I")
        if dimensions > 8:
            raise EOFError
        file.seek(8 * dimensions, 1)
        kind, offset = _fixed(file, "<I"), int(_fixed(file, "<Q"))
        found.append((offset, name, kind))
    return found


def _read_header(file: BufferedReader) -> tuple[dict[str, Scalar], int]:
    """The scalars, and the number of tensors."""
    if file.read(4) != b"GGUF":
        raise ValueError(f"{file.name} is not a GGUF file")
    version = _fixed(file, "<I")
    if version not in (2, 3):
        raise ValueError(f"{file.name} has GGUF version {version}; versions 2 and 3 (little endian) are read")
    tensors = int(_fixed(file, "<Q"))
    keys = _fixed(file, "<Q")
    if keys > _MOST_KEYS:
        raise EOFError
    found: dict[str, Scalar] = {}
    for _ in range(keys):
        key, kind = _string(file), _fixed(file, "<I")
        if kind == _ARRAY:
            found |= _array(file, key)
        elif kind == _STRING:
            found[key] = _string(file)
        else:
            value = _fixed(file, _format(kind))
            if not isinstance(value, float) or math.isfinite(value):  # JSON has no word for the others
                found[key] = value
    return found, tensors


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


def _array(file: BufferedReader, key: str) -> dict[str, int]:
    kind, length = _fixed(file, "<I"), int(_fixed(file, "<Q"))
    if length > _LONGEST_ARRAY:
        raise EOFError
    told = {f"{key}.length": length}
    if kind in _INTEGERS and length <= _MOST_LAYERS:
        data = file.read(length * struct.calcsize(_FIXED[kind]))
        return told | {f"{key}.sum": sum(struct.unpack(f"<{length}{_FIXED[kind][1]}", data))}
    _skip_array(file, kind, length)
    return told


def _skip_array(file: BufferedReader, kind: int, length: int) -> None:
    if kind == _STRING:
        for _ in range(length):
            size = _fixed(file, "<Q")
            if size > _LONGEST_STRING:
                raise EOFError
            file.seek(size, 1)
    else:  # an array of arrays is in no file known, and no format: refused
        file.seek(length * struct.calcsize(_format(kind)), 1)
