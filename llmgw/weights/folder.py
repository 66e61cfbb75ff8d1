"""A directory that holds one model in Hugging Face layout, served in place: told from its headers alone.

Metadata: `config.*` are figures of config.json (of its text part, for models that also see or hear), `adapter.rank` is
a LoRA's, `safetensors.*` sums the headers of the tensor files. No tensor is read, so a look costs milliseconds.
Format of the headers: https://github.com/huggingface/safetensors#format
"""

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

from llmgw.weights.gguf import Scalar

MOST_FILES: Final = 4096
"""More than this is no model: somebody named the wrong directory."""

_DEEPEST: Final = 4
_LONGEST_HEADER: Final = 100_000_000  #: bytes; the format's own limit
_LONGEST_CONFIG: Final = 4 * 1024 * 1024
_INDEX: Final = "model.safetensors.index.json"
_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config")
_FIGURES: Final = (
    "model_type", "dtype", "torch_dtype", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "sliding_window",
    "kv_lora_rank", "qk_rope_head_dim", "num_experts", "num_local_experts",
)  # fmt: skip

Stamp = tuple[tuple[str, int, int], ...]
"""Every file's path, size and time of change: equal stamps mean unchanged content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """What a look at a directory found. `problem`: why it cannot be used."""

    size: int = 0  #: bytes of all its files
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    problem: str | None = None


class Folders:
    """Looks at directories, and again only at what changed since."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, Folder]] = {}

    def look(self, path: Path) -> Folder:
        """Never raises: what cannot be read is a problem."""
        try:
            stamp = tuple(_files(path))
            if not stamp:
                return Folder(problem=f"{path} is an empty directory")
            if not any(size for _, size, _ in stamp):
                return Folder(problem=f"{path} holds 0 bytes, so that it is no model")
            known = self._known.get(path)
            if known is None or known[0] != stamp:
                known = (stamp, _read(path, stamp))
                self._known[path] = known
        except (OSError, ValueError) as error:
            self._known.pop(path, None)
            return Folder(problem=f"{path} cannot be used: {error}")
        return known[1]


def read_metadata(path: Path) -> dict[str, Scalar]:
    """The figures of the model in `path`. Raises OSError, and ValueError when a file is damaged or missing."""
    found = _config(path)
    files = tensor_files(path)
    kinds: Counter[str] = Counter()
    for file in files:
        for kind, size in _tensor_bytes(file).items():
            kinds[kind] += size
    if files:
        found["safetensors.bytes"] = sum(kinds.values())
        found["safetensors.files"] = len(files)
        found["safetensors.dtype"] = max(kinds, key=lambda kind: (kinds[kind], kind), default="F32")
    return found


def tensor_files(path: Path) -> list[Path]:
    """The tensor files that make up the model: those that the index names, else all. Raises ValueError, OSError.

    Some repositories hold a second copy in another layout; the index tells which is the model.
    """
    if not (path / _INDEX).exists():
        return sorted(path.glob("*.safetensors"))
    names = _json(path / _INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) and "/" not in name for name in names.values()):
        raise ValueError(f"{_INDEX} names no files")
    wanted = sorted(set(names.values()))
    missing = [name for name in wanted if not (path / name).exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{_INDEX} names {missing[0]}{more}, which is not there: was it copied whole?")
    return [path / name for name in wanted]


def _read(path: Path, stamp: Stamp) -> Folder:
    return Folder(size=sum(size for _, size, _ in stamp), metadata=read_metadata(path))


def _files(root: Path) -> Iterator[tuple[str, int, int]]:
    """Files below `root`, links to files followed, hidden directories and links to directories left out."""
    count = 0
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if folder.count("/") - str(root).count("/") >= _DEEPEST:
            folders.clear()
        for name in sorted(names):
            path = os.path.join(folder, name)
            found = os.stat(path)
            count += 1
            if count > MOST_FILES:
                raise ValueError(f"it holds more than {MOST_FILES:,} files: name the directory of one model")
            if stat.S_ISREG(found.st_mode):
                yield path, found.st_size, found.st_mtime_ns


def _raise(error: OSError) -> None:
    raise error


def _tensor_bytes(path: Path) -> dict[str, int]:
    """Bytes of tensors by element type, from the file's header. Raises ValueError when it is damaged or cut short."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_LONGEST_HEADER, size - 8):
            raise ValueError(f"{path.name} is cut short or no safetensors file")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path.name} has a damaged header") from error
    found: Counter[str] = Counter()
    end = 0
    for name, tensor in header.items() if isinstance(header, dict) else ():
        if name == "__metadata__":
            continue
        try:
            first, last = tensor["data_offsets"]
            found[str(tensor["dtype"])] += last - first
            end = max(end, last)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name} has a damaged header") from error
    if 8 + length + end > size:
        raise ValueError(f"{path.name} is cut short: {size} bytes, its header speaks of {8 + length + end}")
    return dict(found)


def _config(path: Path) -> dict[str, Scalar]:
    config = _json(path / "config.json") if (path / "config.json").exists() else {}
    text: dict[str, Any] = next((config[name] for name in _TEXT_PARTS if isinstance(config.get(name), dict)), {})
    found: dict[str, Scalar] = {}
    for name in _FIGURES:
        value = text.get(name, config.get(name))
        if _is_short(value):
            found[f"config.{name}"] = value
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures and _is_short(architectures[0]):
        found["config.architecture"] = architectures[0]
    quantization = config.get("quantization_config", text.get("quantization_config"))
    if isinstance(quantization, dict) and _is_short(quantization.get("quant_method")):
        found["config.quantization"] = quantization["quant_method"]
    kinds = text.get("layer_types", config.get("layer_types"))
    if isinstance(kinds, list):
        for kind, count in Counter(kind for kind in kinds if _is_short(kind)).items():
            found[f"config.layers.{kind}"] = count
    adapter = _json(path / "adapter_config.json") if (path / "adapter_config.json").exists() else {}
    if isinstance(adapter.get("r"), int):
        found["adapter.rank"] = adapter["r"]
    return found


def _is_short(value: Any) -> TypeGuard[Scalar]:
    if isinstance(value, str):
        return 0 < len(value) <= 100
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**63


def _json(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(_LONGEST_CONFIG + 1) if path.name != _INDEX else file.read(_LONGEST_HEADER + 1)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is no valid JSON") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return value
