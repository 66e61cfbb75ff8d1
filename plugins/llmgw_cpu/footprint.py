"""Memory of one `cpu` engine process, estimated. Pure. Calibrated against peak RSS (tests/engines)."""

from typing import Final

from llmgw.engine import Footprint, ProfileSpec, WeightsFact
from llmgw.units import MIB, Bytes
from llmgw.weights.footprint import guess, kv_cache, number
from llmgw_cpu.options import UBATCH

BASE: Final = 55 * MIB
"""Python, llama.cpp's code, the tokenizer and the HTTP server, with no model data (measured: 48-52 MiB)."""

_PADDING: Final = 256
"""llama.cpp rounds a slot's context up to a multiple of this (src/llama-context.cpp)."""


def estimate(profile: ProfileSpec, weights: WeightsFact) -> Footprint:
    """Weights file + KV cache + compute buffers + the process itself; the file's size alone gives a guess."""
    options = profile.options
    context = -(-profile.context // _PADDING) * _PADDING
    kv = kv_cache(
        weights.metadata,
        tokens=context * profile.parallel,
        type_k=options.get("cache_type_k", "f16"),
        type_v=options.get("cache_type_v", "f16"),
    )
    if kv is None:
        return guess(weights)
    if number(weights.metadata, "attention.causal") == 0:  # an encoder keeps no cache
        kv = Bytes(0)
    total = weights.size + kv + _compute(profile, weights, context) + BASE
    return Footprint(host=Bytes(total + options.get("prompt_cache_mib", 0) * MIB))


def _compute(profile: ProfileSpec, weights: WeightsFact, context: int) -> int:
    """llama.cpp's compute and output buffers: activations of one micro-batch, its attention mask, the logits.

    It prints the true figures at verbosity 5 (`compute buffer size`); for SmolLM2 these are 4 % high.
    """

    def figure(key: str) -> int:
        return int(number(weights.metadata, key) or 0)

    tokens = int(profile.options.get("ubatch_size", UBATCH))
    width = figure("embedding_length")
    per_token = 4 * (5 * width + 3 * (figure("feed_forward_length") or 4 * width)) + 2 * context
    if profile.options.get("flash_attn") == "off":  # the whole attention matrix is laid out
        per_token += 4 * figure("attention.head_count") * context
    vocabulary = int(weights.metadata.get("tokenizer.ggml.tokens.length", 0))
    # Embeddings: a row for every token of the micro-batch, computed and then kept; else one for each slot.
    logits = 2 * tokens if profile.options.get("embeddings") else profile.parallel
    return tokens * per_token + 4 * vocabulary * logits
