"""Memory of one llama-server process, estimated. Pure. Calibrated against peak RSS (bench/footprint)."""

from collections.abc import Mapping
from typing import Final

from llmgw.engine import Footprint, ProfileSpec, WeightsFact
from llmgw.units import MIB, Bytes
from llmgw.weights.footprint import guess
from llmgw_llamacpp import memory
from llmgw_llamacpp.args import Settings, settings
from llmgw_llamacpp.memory import Share

BASE: Final = 30 * MIB
"""llama.cpp's code, the tokenizer and the HTTP server, with no model data (measured: 24-32 MiB)."""

DEVICE_BASE: Final = Share(host=300 * MIB, device=450 * MIB)
"""What CUDA takes for its context and kernels, for each accelerator; from llama.cpp users' reports, not measured."""

_PROJECTOR: Final = 128 * MIB
"""An allowance for encoding one image."""


def estimate(profile: ProfileSpec, files: Mapping[str, WeightsFact]) -> Footprint | None:
    """Weights + KV cache + compute buffers of the model and its draft, the files beside it, the process itself.

    None while a file is not on the node; from the sizes alone, a guess.
    """
    if "weights" not in files or any(role not in files for role in profile.roles):
        return None
    said = settings(profile)
    main = _model(profile, files["weights"], said, layers=said.gpu_layers, types=(said.type_k, said.type_v))
    if main is None:
        return guess(files["weights"], devices=profile.devices)
    total = main + Share(host=BASE + said.cache_ram_mib * MIB)
    for _ in range(profile.devices):
        total += DEVICE_BASE
    for role, fact in files.items():
        total += _beside(profile, role, fact, said)
    return Footprint(host=Bytes(total.host), device=Bytes(total.device))


def _beside(profile: ProfileSpec, role: str, fact: WeightsFact, said: Settings) -> Share:
    """What a file besides the weights takes."""
    if role == "draft":
        types = (said.draft_type_k, said.draft_type_v)
        model = _model(profile, fact, said, layers=said.draft_gpu_layers, types=types, draft=True)
        return Share(host=int(fact.size * 1.2)) if model is None else model
    if role == "mmproj":
        size = fact.size + _PROJECTOR
        return Share(device=size) if profile.devices and said.mmproj_offload else Share(host=size)
    if role.startswith("lora"):
        return Share(device=fact.size) if profile.devices else Share(host=fact.size)
    return Share()


def _model(
    profile: ProfileSpec,
    fact: WeightsFact,
    said: Settings,
    *,
    layers: int | None,
    types: tuple[str, str],
    draft: bool = False,
) -> Share | None:
    all_layers = memory.layers_on_devices(fact, None)
    on_devices = memory.layers_on_devices(fact, layers) if profile.devices else 0
    context, parallel = profile.context, profile.parallel
    kv = memory.cache(fact, context=context, parallel=parallel, type_k=types[0], type_v=types[1])
    if all_layers is None or on_devices is None or kv is None:
        return None
    compute = memory.compute(
        fact,
        context=context,
        parallel=parallel,
        ubatch=said.ubatch,
        flash=said.flash,
        all_outputs=bool(profile.options.get("embeddings") or profile.options.get("rerank")),
    )
    placed = memory.weights(fact, on_devices=on_devices, kept=() if draft else said.kept)
    if said.repack:
        placed += Share(host=memory.repacked(fact, placed.host))
    if not on_devices:
        return placed + Share(host=kv + compute)
    # An accelerator's buffers are its own; what stays on the host still needs some there.
    placed += Share(host=compute // 2 if on_devices < all_layers else compute // 8, device=compute * profile.devices)
    held = kv * min(on_devices, all_layers - 1) // (all_layers - 1) if said.kv_offload else 0
    return placed + Share(host=kv - held, device=held)
