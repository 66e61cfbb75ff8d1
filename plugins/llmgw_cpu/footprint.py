"""Memory of one `cpu` engine process, estimated. Pure. Calibrated against peak RSS (tests/engines)."""

from typing import Final

from llmgw.engine import Footprint, ProfileSpec, WeightsFact
from llmgw.units import MIB, Bytes
from llmgw.weights.footprint import guess
from llmgw_llamacpp import memory
from llmgw_llamacpp.batches import UBATCH, cpu_batch

BASE: Final = 55 * MIB
"""Python, llama.cpp's code, the tokenizer and the HTTP server, with no model data (measured: 48-52 MiB)."""


def estimate(profile: ProfileSpec, weights: WeightsFact) -> Footprint:
    """Weights file + KV cache + compute buffers + the process itself; the file's size alone gives a guess."""
    options, context, parallel = profile.options, profile.context, profile.parallel
    kv = memory.cache(
        weights,
        context=context,
        parallel=parallel,
        type_k=options.get("cache_type_k", "f16"),
        type_v=options.get("cache_type_v", "f16"),
    )
    if kv is None:
        return guess(weights)
    embeds, ubatch = bool(options.get("embeddings")), options.get("ubatch_size")
    batch = options.get("batch_size") or cpu_batch(parallel, ubatch)
    compute = memory.compute(
        weights,
        context=context,
        parallel=parallel,
        ubatch=(ubatch or UBATCH) if embeds else min(ubatch or UBATCH, batch),
        flash=options.get("flash_attn") != "off",
        all_outputs=embeds,
    )
    held = weights.size + memory.repacked(weights, weights.size)
    return Footprint(host=Bytes(held + kv + compute + BASE + options.get("prompt_cache_mib", 0) * MIB))
