"""Models that come as several GGUF files: `NAME-00001-of-00003.gguf` is the first of three, and names them all."""

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final, TypeVar

from llmgw.weights.gguf import TENSORS, Scalar, read_metadata, read_tensors

_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MOST_PARTS: Final = 1000

P = TypeVar("P", bound=PurePath)


def parts(path: P) -> tuple[P, ...]:
    """All files of the model of which `path` is a part, the first part first; `path` alone where it is not split.
    Pure."""
    match = _PART.fullmatch(path.name)
    count = int(match["count"]) if match is not None else 1
    if match is None or not 1 < count <= _MOST_PARTS:
        return (path,)
    return tuple(path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1))


def problem(path: Path) -> str | None:
    """What keeps the file `path`, and its further parts, from being used; None: nothing."""
    found = parts(path)
    if len(found) > 1 and path != found[0]:
        return f"{path} is not the first of its {len(found)} parts: name {found[0].name}"
    missing = [part.name for part in found if not part.is_file()]
    if missing:
        return f"{path.parent} lacks {len(missing)} of the model's {len(found)} parts: {', '.join(missing[:3])}"
    empty = [part for part in found if part.stat().st_size == 0]
    if empty:
        return f"{empty[0]} has 0 bytes, so that it is no model"
    denied = [part for part in found if not os.access(part, os.R_OK)]
    return f"{denied[0]} cannot be read by this user" if denied else None


def metadata(found: Sequence[Path]) -> dict[str, Scalar]:
    """The first part's scalars, and the tensors of all. Raises ValueError, OSError."""
    scalars = read_metadata(found[0])
    tensors: dict[str, int] = {}
    for path in found:
        for name, figure in read_tensors(path).items():
            tensors[name] = tensors.get(name, 0) + figure
    assert all(name.startswith(TENSORS) for name in tensors)
    return {**scalars, **tensors}
