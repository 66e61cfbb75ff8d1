"""GGUF files made out of a real one: split, of another quantisation, an adapter or a projector for it, damaged ones."""

import itertools
import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from llmgw.weights import gguf

ALIGNMENT: Final = 32
F32: Final = 0
Q4_0: Final = 2
Q4_1: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    kind: int
    data: bytes


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, value: str | int | float) -> bytes:
    match value:
        case str():
            return text(key) + struct.pack("<I", 8) + text(value)
        case int():
            return text(key) + struct.pack("<II", 4, value)
        case float():
            return text(key) + struct.pack("<If", 6, value)


def flag(key: str, value: bool) -> bytes:
    return text(key) + struct.pack("<I?", 7, value)


def numbers(key: str, *values: float) -> bytes:
    """An array of 32-bit floats."""
    return text(key) + struct.pack(f"<IIQ{len(values)}f", 9, 6, len(values), *values)


def short(key: str, value: int) -> bytes:
    """A 16-bit number, as the keys of split files are."""
    return text(key) + struct.pack("<IH", 2, value)


def write(path: Path, pairs: list[bytes], tensors: list[Tensor]) -> Path:
    """One GGUF file of these key-value pairs (encoded) and tensors."""
    infos, offset = b"", 0
    for each in tensors:
        infos += text(each.name) + struct.pack("<I", len(each.shape))
        infos += struct.pack(f"<{len(each.shape)}QIQ", *each.shape, each.kind, offset)
        offset += len(each.data) + -len(each.data) % ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    with path.open("wb") as file:
        for part in (head, *(each.data for each in tensors)):
            file.write(part)
            file.write(bytes(-len(part) % ALIGNMENT))
    return path


def read(path: Path) -> tuple[list[bytes], list[Tensor]]:
    """The key-value pairs, each as it is encoded, and the tensors."""
    whole = path.read_bytes()
    with path.open("rb") as file:
        _, _, count, keys = struct.unpack("<IIQQ", file.read(24))
        pairs = []
        for _ in range(keys):
            begin = file.tell()
            gguf._string(file)
            kind = gguf._fixed(file, "<I")
            _skip(file, kind)
            pairs.append(whole[begin : file.tell()])
        infos = [_info(file) for _ in range(count)]
        base = file.tell() + -file.tell() % ALIGNMENT
    offsets = [*sorted(offset for *_, offset in infos), len(whole) - base]
    ends = dict(itertools.pairwise(offsets))
    return pairs, [
        Tensor(name=name, shape=shape, kind=kind, data=whole[base + offset : base + ends[offset]])
        for name, shape, kind, offset in infos
    ]


def _skip(file: Any, kind: int) -> None:
    if kind == 9:
        gguf._skip_array(file, gguf._fixed(file, "<I"), gguf._fixed(file, "<Q"))
    elif kind == 8:
        gguf._string(file)
    else:
        gguf._fixed(file, gguf._format(kind))


def _info(file: Any) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = gguf._string(file), gguf._fixed(file, "<I")
    shape = struct.unpack(f"<{dimensions}Q", file.read(8 * dimensions))
    return name, shape, gguf._fixed(file, "<I"), gguf._fixed(file, "<Q")


def split(model: Path, directory: Path, count: int) -> list[Path]:
    """The model in `count` files, as llama-gguf-split makes them."""
    pairs, tensors = read(model)
    per = -(-len(tensors) // count)
    found = []
    for number in range(count):
        marks = [short("split.no", number), short("split.count", count)]
        marks.append(text("split.tensors.count") + struct.pack("<Ii", 5, len(tensors)))
        path = directory / f"model-{number + 1:05}-of-{count:05}.gguf"
        found.append(write(path, [*(pairs if number == 0 else []), *marks], tensors[number * per : (number + 1) * per]))
    return found


def requantised(model: Path, path: Path) -> Path:
    """The model with its Q4_1 tensors as Q4_0 of the same size class, with random content: it answers nonsense."""
    pairs, tensors = read(model)
    some = [struct.pack("<e", 0.01) + os.urandom(16) for _ in range(4096)]

    def turn(each: Tensor) -> Tensor:
        if each.kind != Q4_1:
            return each
        blocks = each.shape[0] * (each.shape[1] if len(each.shape) > 1 else 1) // 32
        times, rest = divmod(blocks, len(some))
        return replace(each, kind=Q4_0, data=b"".join(some) * times + b"".join(some[:rest]))

    return write(path, pairs, [turn(each) for each in tensors])


def adapter(path: Path, *, width: int = 576, layers: int = 30, rank: int = 8, architecture: str = "llama") -> Path:
    """A LoRA adapter for the attention's output of a model of that width; it changes next to nothing."""
    pairs = [
        pair("general.architecture", architecture), pair("general.type", "adapter"), pair("adapter.type", "lora"),
        pair("adapter.lora.alpha", float(rank)),
    ]  # fmt: skip
    ones = struct.pack("<f", 1e-6) * (width * rank)
    tensors = []
    for layer in range(layers):
        name = f"blk.{layer}.attn_output.weight"
        tensors.append(Tensor(name=f"{name}.lora_a", shape=(width, rank), kind=F32, data=ones))
        tensors.append(Tensor(name=f"{name}.lora_b", shape=(rank, width), kind=F32, data=ones))
    return write(path, pairs, tensors)


def projector(path: Path, *, width: int = 576) -> Path:
    """A multimodal projector (LLaVA's kind, one layer) for a model of that width: pictures of 32 x 32 pixels become
    16 tokens that mean nothing."""
    inner, picture, patch = 32, 32, 8
    sizes = {
        "image_size": picture, "patch_size": patch, "embedding_length": inner, "feed_forward_length": inner,
        "projection_dim": width, "block_count": 1, "attention.head_count": 2,
    }  # fmt: skip
    pairs = [
        pair("general.architecture", "clip"), pair("clip.projector_type", "mlp"),
        flag("clip.has_vision_encoder", True), flag("clip.use_gelu", True),
        numbers("clip.vision.image_mean", 0.5, 0.5, 0.5), numbers("clip.vision.image_std", 0.5, 0.5, 0.5),
        pair("clip.vision.attention.layer_norm_epsilon", 1e-5),
        *(pair(f"clip.vision.{name}", value) for name, value in sizes.items()),
    ]  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (patch, patch, 3, inner), "v.position_embd.weight": (inner, (picture // patch) ** 2),
        "v.post_ln.weight": (inner,), "v.post_ln.bias": (inner,),
        "mm.0.weight": (inner, width), "mm.0.bias": (width,), "mm.2.weight": (width, width), "mm.2.bias": (width,),
    }  # fmt: skip
    for name in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down", "ln1", "ln2"):
        shapes |= {f"v.blk.0.{name}.weight": (inner,) if name.startswith("ln") else (inner, inner)}
        shapes |= {f"v.blk.0.{name}.bias": (inner,)}
    filled = {name: struct.pack("<f", 0.01) * math.prod(shape) for name, shape in shapes.items()}
    return write(path, pairs, [Tensor(name=n, shape=shapes[n], kind=F32, data=data) for n, data in filled.items()])


def mixture(path: Path, *, layers: int, dense: int, expert_bytes: int, other_bytes: int) -> Path:
    """The header of a model with experts in all layers but the first `dense`; its content is nothing."""
    pairs = [pair("general.architecture", "moe"), pair("moe.block_count", layers)]
    tensors = [Tensor(name="token_embd.weight", shape=(8,), kind=F32, data=bytes(other_bytes))]
    for layer in range(layers):
        tensors.append(Tensor(name=f"blk.{layer}.attn_q.weight", shape=(8,), kind=F32, data=bytes(other_bytes)))
        kind = "ffn_up" if layer < dense else "ffn_up_exps"
        size = other_bytes if layer < dense else expert_bytes
        tensors.append(Tensor(name=f"blk.{layer}.{kind}.weight", shape=(8,), kind=F32, data=bytes(size)))
    tensors.append(Tensor(name="output.weight", shape=(8,), kind=F32, data=bytes(other_bytes)))
    return write(path, pairs, tensors)


def _missing(model: Path, directory: Path) -> Path:
    return directory / "nowhere.gguf"


def _made(name: str, content: Callable[[bytes], bytes]) -> Callable[[Path, Path], Path]:
    def make(model: Path, directory: Path) -> Path:
        path = directory / name
        path.write_bytes(content(model.read_bytes()))
        return path

    return make


def _rotten(data: bytes) -> bytes:
    """Scales that are not numbers, in the middle of the tensors."""
    middle = len(data) // 2
    return data[:middle] + b"\xff" * 65_536 + data[middle + 65_536 :]


def _of_another_architecture(data: bytes) -> bytes:
    key = b"general.architecture" + struct.pack("<IQ", 8, 5)
    return data.replace(key + b"llama", key + b"hydra", 1)


DAMAGES: Final[Mapping[str, Callable[[Path, Path], Path]]] = {
    "missing": _missing,
    "garbage": _made("garbage.gguf", lambda _: b"\x00\x01not a model" * 1000),
    "empty": _made("empty.gguf", lambda _: b""),
    "truncated": _made("truncated.gguf", lambda data: data[: len(data) // 2]),
    "truncated header": _made("header.gguf", lambda data: data[:5000]),
    "rotten": _made("rotten.gguf", _rotten),
    "architecture": _made("architecture.gguf", _of_another_architecture),
}
"""What can be wrong with a model's file: (model, directory) -> the file."""


def damaged(kind: str, model: Path, directory: Path) -> Path:
    return DAMAGES[kind](model, directory)
