"""What a model's weights and KV cache take in memory, from its GGUF metadata. Pure; shared by engine plugins."""

from collections.abc import Mapping
from typing import Final

from llmgw.facts import Footprint, WeightsFact
from llmgw.units import Bytes

GUESS_FACTOR: Final = 1.2
"""Memory per byte of file, where nothing is known but the size."""

KV_TYPES: Final[Mapping[str, float]] = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes per element of the types that llama.cpp's KV cache can have (block sizes: ggml/src/ggml-common.h)."""


def guess(weights: WeightsFact, *, devices: int = 0) -> Footprint:
    """From the file's size alone."""
    return guess_of(weights.size, devices=devices)


def guess_of(size: int, *, devices: int = 0) -> Footprint:
    """For files of that size: where accelerators hold them, the host has what comes on top."""
    total = int(size * GUESS_FACTOR)
    if not devices:
        return Footprint(host=Bytes(total), source="guess")
    return Footprint(host=Bytes(total - size), device=Bytes(total), source="guess")


def kv_cache(
    metadata: Mapping[str, str | int | float], *, tokens: int, type_k: str = "f16", type_v: str = "f16"
) -> Bytes | None:
    """Bytes of the KV cache for `tokens` over all slots, or None when the metadata does not tell.

    As llama.cpp reckons (src/llama-kv-cache.cpp): for each layer, tokens x KV heads x head length, once for keys and
    once for values; with multi-head latent attention the keys hold the values too. Sliding windows make the truth
    smaller; it is never larger.
    """
    layers = number(metadata, "block_count")
    heads = _over_layers(metadata, "attention.head_count", layers or 0)
    width = number(metadata, "embedding_length")
    if not layers or not heads or not width:
        return None
    kv_heads = _over_layers(metadata, "attention.head_count_kv", layers)
    if kv_heads is None:
        kv_heads = heads
    key_length = number(metadata, "attention.key_length") or width / (heads / layers)
    value_length = number(metadata, "attention.value_length") or width / (heads / layers)
    if number(metadata, "attention.key_length_mla"):
        value_length = 0
    per_head = key_length * KV_TYPES[type_k] + value_length * KV_TYPES[type_v]
    return Bytes(int(tokens * kv_heads * per_head))


def _over_layers(metadata: Mapping[str, str | int | float], key: str, layers: float) -> float | None:
    """The sum over all layers of a figure that is one for all, or an array with one for each (0: no attention)."""
    one = number(metadata, key)
    return number(metadata, f"{key}.sum") if one is None else one * layers


def number(metadata: Mapping[str, str | int | float], key: str) -> float | None:
    """The architecture's own figure: `llama.block_count` for `block_count` in a llama file."""
    value = metadata.get(f"{metadata.get('general.architecture')}.{key}")
    return float(value) if isinstance(value, int | float) else None
