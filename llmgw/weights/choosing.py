"""Which of the files of a repository or a folder a source means, and what of them an engine is given. Pure."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from llmgw.weights import split
from llmgw.weights.api import RemoteFile

MOST_FILES: Final = 4096
"""More than this is no model."""

COPIES: Final = (
    "*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5", "*.ot", "*.onnx", "*.onnx_data", "*.tflite", "*.gguf",
    "*.mlmodel", "original/*",
)  # fmt: skip
"""Other copies of the same tensors: left out where a repository has safetensors, unless they are asked for."""

_PATTERN: Final = frozenset("*[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`files`: by where they lie there; the main one first. `folder`: what an engine is given is this folder of them
    ("": all of them); None: it is given the first file."""

    files: tuple[RemoteFile, ...]
    folder: str | None = None


def choose(files: Sequence[RemoteFile], path: str, *, allow: Sequence[str] = (), ignore: Sequence[str] = ()) -> Choice:
    """What `path` (a file, a folder, a pattern; empty: everything) means among `files`.

    A file means all of its parts, where it is the first of several. Patterns are those of the shell, where `*` also
    stands for a slash. Raises ValueError with advice.
    """
    by_path = {file.path: file for file in files}
    if path in by_path:
        return Choice(files=_with_parts(by_path, path))
    found = _below(by_path, path)
    if not found:
        raise ValueError(f"there is no file {path}{_near(path, by_path)}")
    found = _allowed(found, allow, ignore)
    if not found:
        raise ValueError("`allow` and `ignore` leave no file of it")
    if len(found) > MOST_FILES:
        raise ValueError(f"it holds more than {MOST_FILES:,} files: choose among them with `allow`")
    models = _gguf_models(found)
    if models and not any(name.endswith(".safetensors") for name in found):
        if len(models) > 1:
            raise ValueError(f"it holds {len(models)} models, and one is to be named: {_some(models)}")
        return Choice(files=_with_parts(by_path, models[0]))
    if _is_pattern(path) and len(found) == 1:
        return Choice(files=tuple(by_path[name] for name in found))
    return Choice(files=tuple(by_path[name] for name in found), folder="" if _is_pattern(path) else path)


def _below(by_path: Mapping[str, RemoteFile], path: str) -> list[str]:
    if not path:
        found = list(by_path)
    elif _is_pattern(path):
        found = [name for name in by_path if fnmatchcase(name, path)]
    else:
        found = [name for name in by_path if name.startswith(f"{path}/")]
    return sorted(name for name in found if not any(part.startswith(".") for part in name.split("/")))


def _allowed(names: Sequence[str], allow: Sequence[str], ignore: Sequence[str]) -> list[str]:
    found = [name for name in names if not allow or _matches(name, allow)]
    if not allow and any(name.endswith(".safetensors") for name in found):
        found = [name for name in found if not _matches(name, COPIES)]
    return [name for name in found if not _matches(name, ignore)]


def _gguf_models(names: Iterable[str]) -> list[str]:
    """The first file of each."""
    found = [PurePosixPath(name) for name in names if name.endswith(".gguf")]
    return sorted({str(split.parts(path)[0]) for path in found})


def _with_parts(by_path: Mapping[str, RemoteFile], path: str) -> tuple[RemoteFile, ...]:
    parts = [str(part) for part in split.parts(PurePosixPath(path))]
    if len(parts) > 1 and path != parts[0]:
        raise ValueError(f"{path} is not the first of its {len(parts)} parts: name {PurePosixPath(parts[0]).name}")
    missing = [part for part in parts if part not in by_path]
    if missing:
        raise ValueError(f"it lacks {len(missing)} of the model's {len(parts)} parts: {_some(missing)}")
    return tuple(by_path[part] for part in parts)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns)


def _is_pattern(path: str) -> bool:
    return not _PATTERN.isdisjoint(path)


def _near(path: str, by_path: Mapping[str, RemoteFile]) -> str:
    near = difflib.get_close_matches(path, by_path, n=3, cutoff=0.4) or sorted(
        by_path, key=lambda name: -(by_path[name].size or 0)
    )
    return f"; it has {_some(near)}" if near else ": it is empty"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
