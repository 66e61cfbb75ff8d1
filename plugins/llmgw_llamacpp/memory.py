"""Memory of llama.cpp models, estimated from GGUF metadata. Pure. Calibrated against peak RSS (bench/footprint)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from llmgw.engine import WeightsFact
from llmgw.units import Bytes
from llmgw.weights.footprint import kv_cache, number
from llmgw.weights.gguf import TENSORS, TYPE, Scalar

_REPACKED: Final = (2, 10, 12, 20, 39)
"""ggml types whose matrices x86 builds copy into another layout when they load (ggml/src/ggml-cpu/repack.cpp): Q4_0,
Q2_K, Q4_K, IQ4_NL, MXFP4. The mapped file stays in memory beside the copy until somebody else wants the room."""

_PADDING: Final = 256
"""llama.cpp rounds a slot's context up to a multiple of this (src/llama-context.cpp)."""


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes in host memory, and on accelerators in total."""

    host: int = 0
    device: int = 0

    def __add__(self, other: "Share") -> "Share":
        return Share(self.host + other.host, self.device + other.device)


def padded(context: int) -> int:
    return -(-context // _PADDING) * _PADDING


def cache(fact: WeightsFact, *, context: int, parallel: int, type_k: str, type_v: str) -> Bytes | None:
    """The KV cache over all slots; 0 for an encoder, which keeps none; None: the metadata does not tell."""
    if number(fact.metadata, "attention.causal") == 0:
        return Bytes(0)
    return kv_cache(fact.metadata, tokens=padded(context) * parallel, type_k=type_k, type_v=type_v)


def compute(
    fact: WeightsFact, *, context: int, parallel: int, ubatch: int, flash: bool, all_outputs: bool = False
) -> int:
    """llama.cpp's compute and output buffers: activations of one micro-batch, its attention mask, the logits.

    It prints the true figures at verbosity 5 (`compute buffer size`); for SmolLM2 these are 4 % high. `all_outputs`:
    a row for every token of the micro-batch, computed and then kept (embeddings); else one for each slot.
    """

    def figure(key: str) -> int:
        return int(number(fact.metadata, key) or 0)

    width = figure("embedding_length")
    per_token = 4 * (5 * width + 3 * (figure("feed_forward_length") or 4 * width)) + 2 * padded(context)
    if not flash:  # the whole attention matrix is laid out
        per_token += 4 * figure("attention.head_count") * padded(context)
    vocabulary = int(fact.metadata.get("tokenizer.ggml.tokens.length", 0))
    return ubatch * per_token + 4 * vocabulary * (2 * ubatch if all_outputs else parallel)


def layers_on_devices(fact: WeightsFact, wanted: int | None) -> int | None:
    """How many of the layers, the output counting as one, accelerators hold. None: the metadata does not tell."""
    layers = number(fact.metadata, "block_count")
    if layers is None:
        return None
    return int(layers) + 1 if wanted is None else min(wanted, int(layers) + 1)


def weights(fact: WeightsFact, *, on_devices: int, kept: Sequence[tuple[str, str]]) -> Share:
    """Where the tensors go when accelerators hold `on_devices` layers.

    As llama.cpp places them (src/llama-model.cpp): the last layers and the output first, the token embedding never;
    a tensor that a pattern of `kept` matches goes where that says, the first match counting.
    """
    if on_devices == 0 and not kept:
        return Share(host=fact.size)
    layers = int(number(fact.metadata, "block_count") or 0)
    found = list(_tensors(fact.metadata, layers))
    if not found:  # nothing is known of the tensors: each layer has the same share
        device = fact.size * on_devices // (layers + 1)
        return Share(fact.size - device, device)
    total = Share()
    first = layers + 1 - on_devices
    for name, layer, size in found:
        buffer = next((buffer for pattern, buffer in kept if re.search(pattern, name)), None)
        held = layer >= first if buffer is None else not re.match(r"CPU|.*_Host$", buffer)
        total += Share(device=size) if held and on_devices else Share(host=size)
    if on_devices and f"{TENSORS}output.weight" not in fact.metadata:  # tied: the output's own copy of the embedding
        total += Share(device=int(fact.metadata.get(f"{TENSORS}token_embd.weight", 0)))
    return total


def repacked(fact: WeightsFact, host: int) -> int:
    """Bytes that the processor's own copy of the weights takes, where `host` bytes of them are in host memory."""
    copied = sum(int(fact.metadata.get(f"{TYPE}{kind}", 0)) for kind in _REPACKED)
    return copied * min(host, fact.size) // max(1, fact.size)


def _tensors(metadata: Mapping[str, Scalar], layers: int) -> Iterator[tuple[str, int, int]]:
    """(name, layer, bytes) of each tensor that takes much. Layer -1 is the input's, `layers` the output's."""
    for key, value in metadata.items():
        if not key.startswith(TENSORS) or key.startswith(TYPE) or key.endswith(".layers") or isinstance(value, str):
            continue
        name, size = key.removeprefix(TENSORS), int(value)
        if "blk.*." not in name:
            yield name, -1 if name.startswith(("token_embd", "per_layer_token_embd")) else layers, size
            continue
        count = int(metadata.get(f"{key}.layers", layers)) or 1
        # Where not every layer has it (experts after dense layers), the last ones do.
        for layer in range(max(0, layers - count), layers):
            yield name.replace("blk.*.", f"blk.{layer}."), layer, size // count
