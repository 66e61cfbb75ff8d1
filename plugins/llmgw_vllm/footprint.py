"""Memory of one vLLM: its tensors, a KV cache of a known size, and what Python and torch take. Pure.

The KV cache is not left to vLLM, which takes whatever a share of the memory leaves: `launch` asks for the bytes that
are estimated here, so that the estimate is what is taken.
"""

from collections.abc import Mapping
from typing import Any, Final

from llmgw.engine import Footprint, ProfileSpec, WeightsFact
from llmgw.units import GIB, MIB, Bytes
from llmgw_vllm.options import KV_TYPES

Metadata = Mapping[str, str | int | float]

BASE: Final = 1850 * MIB
"""API server, engine core and one worker on the CPU, with no model. Resident, at the peak of a full context in every
slot, less what is added below: 1650 MiB with a model of 0.5 M parameters, 1920 to 1970 with one of 250 M (0.32.0)."""
HOST_BASE: Final = 1 * GIB
"""API server and engine core, where workers are on accelerators. Not measured: no accelerator was at hand."""
HOST_PER_DEVICE: Final = 3 * GIB
"""A worker's own host memory. Not measured."""
DEVICE_BASE: Final = 1 * GIB
"""CUDA's context, libraries and graphs on each accelerator. Not measured."""
GUESS_FACTOR: Final = 1.2

_BLOCK: Final = 128
"""vLLM's CPU backend keeps the cache in blocks of this many tokens (platforms/cpu.py); elsewhere they are smaller."""
_BATCHED: Final = 4096
"""Tokens of one step, where the profile does not say: vLLM's default depends on the machine."""
_SIZES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}
_STORED: Final[Mapping[str, int]] = {"F32": 4, "BF16": 2, "F16": 2}


def estimate(profile: ProfileSpec, files: Mapping[str, WeightsFact]) -> Footprint | None:
    """None: it depends on the machine (a share of its memory), or on files that are not here yet."""
    if "weights" not in files or "gpu_memory_utilization" in profile.options:
        return None
    if set(profile.roles) - set(files):
        return None
    loaded = sum(tensors(profile, fact) for role, fact in files.items() if role != "chat_template")
    kv = kv_cache(profile, {role: fact.metadata for role, fact in files.items()})
    known = kv is not None and "safetensors.bytes" in files["weights"].metadata
    model = loaded + (kv or 0) + _compute(profile, files["weights"].metadata)
    if not known:
        model = int(loaded * GUESS_FACTOR) + (kv or 0)
    source = "estimate" if known else "guess"
    if not profile.devices:
        return Footprint(host=Bytes(model + BASE), source=source)
    host = HOST_BASE + profile.devices * HOST_PER_DEVICE
    return Footprint(host=Bytes(host), device=Bytes(model + profile.devices * DEVICE_BASE), source=source)


def kv_cache(profile: ProfileSpec, metadata: Mapping[str, Metadata]) -> int | None:
    """Bytes of KV cache over all accelerators: as the options say, else for every request's whole context.

    `metadata` by role; a draft model has a cache too. None: the figures are not there.
    """
    if (declared := profile.options.get("kv_cache_mib")) is not None:
        return int(declared) * MIB
    # vLLM keeps one block back.
    tokens = (-(-profile.context // _BLOCK) * profile.parallel + 1) * _BLOCK
    found = [_per_token(profile, metadata[role]) for role in ("weights", "draft") if role in metadata]
    known = [figure for figure in found if figure is not None]
    return None if len(known) < len(found) or not known else int(sum(known) * tokens)


def _per_token(profile: ProfileSpec, metadata: Metadata) -> float | None:
    """Layers x heads x head length, for keys and for values. Windows and layers without attention are counted whole."""
    layers = _number(metadata, "num_hidden_layers")
    if not layers:
        return None
    size = KV_TYPES[profile.options.get("kv_cache_dtype", "auto")] or element_size(profile, metadata)
    if latent := _number(metadata, "kv_lora_rank"):  # one compressed vector for keys and values alike
        return layers * (latent + (_number(metadata, "qk_rope_head_dim") or 0)) * size
    heads, width = _number(metadata, "num_attention_heads"), _number(metadata, "hidden_size")
    length = _number(metadata, "head_dim") or (width / heads if heads and width else None)
    kv_heads = _number(metadata, "num_key_value_heads") or heads
    if not length or not kv_heads:
        return None
    # With more accelerators than heads each has a copy of one.
    kv_heads = max(kv_heads, profile.devices // int(profile.options.get("pipeline_parallel", 1)))
    return layers * 2 * kv_heads * length * size


def element_size(profile: ProfileSpec, metadata: Metadata) -> int:
    """Bytes of one number that the model computes with. vLLM's `auto` makes 32 bits 16."""
    return _SIZES.get(profile.options.get("dtype", "auto"), 2)


def tensors(profile: ProfileSpec, fact: WeightsFact) -> int:
    """Bytes of a role's tensors once loaded: numbers that are stored plain are converted."""
    stored = fact.metadata.get("safetensors.bytes")
    if not isinstance(stored, int):
        return fact.size
    plain = _STORED.get(str(fact.metadata.get("safetensors.dtype")))
    return stored if plain is None else stored * element_size(profile, fact.metadata) // plain


def _compute(profile: ProfileSpec, metadata: Metadata) -> int:
    """Activations of one step, and the logits of every request in float32, twice: one copy is sorted."""

    def figure(key: str) -> int:
        return int(_number(metadata, key) or 0)

    options: Mapping[str, Any] = profile.options
    tokens = min(int(options.get("max_num_batched_tokens", _BATCHED)), profile.context * profile.parallel)
    width = figure("hidden_size")
    per_token = (6 * width + 3 * (figure("intermediate_size") or 4 * width)) * element_size(profile, metadata)
    sequences = int(options.get("max_num_seqs", profile.parallel))
    return tokens * per_token + 2 * 4 * figure("vocab_size") * sequences


def _number(metadata: Metadata, key: str) -> float | None:
    value = metadata.get(f"config.{key}")
    return float(value) if isinstance(value, int | float) else None
