"""The command line of one vLLM: what a profile says, as flags."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from llmgw.engine import ProfileSpec, Slot
from llmgw.errors import EngineUnavailable
from llmgw.weights.folder import read_metadata
from llmgw_vllm.checks import SPACE, complaints
from llmgw_vllm.footprint import Metadata, kv_cache
from llmgw_vllm.options import DRAFT_TOKENS
from llmgw_vllm.program import Program

RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)

_LITTLE: Final = "0.01"
"""vLLM wants a share of an accelerator free before it starts, also when it is told the size of the KV cache. Its
default of nine tenths would never be, beside another engine; this stands where the planned share is unknown."""


def argv(program: Program, profile: ProfileSpec, slot: Slot) -> tuple[str, ...]:
    """Reads the figures of the model from its directory. Raises EngineUnavailable for what cannot be run."""
    if wrong := complaints(profile):  # a catalog with one is refused; a profile may come from elsewhere
        raise EngineUnavailable(wrong[0].message)
    options, weights = profile.options, _directory(slot, "weights")
    # Inherited, it would outweigh the size that is asked for; set to nothing, vLLM trips over it.
    without = ("env", "-u", SPACE) if SPACE in os.environ else ()
    flags = [
        *without, *program.argv, *program.model_flag, str(weights),
        "--host", slot.host, "--port", str(slot.port),
        "--served-model-name", f"{slot.model}-base" if "lora" in slot.files else slot.model,
        "--max-model-len", str(profile.context),
        "--max-num-seqs", str(options.get("max_num_seqs", profile.parallel)),
        "--tensor-parallel-size", str(_tensor_parallel(profile)),
        "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning",
    ]  # fmt: skip
    flags += _memory(profile, slot)
    for option in ("dtype", "quantization", "kv_cache_dtype", "max_num_batched_tokens", "runner"):
        if option in options:
            flags += [f"--{option.replace('_', '-')}", str(options[option])]
    if (stages := options.get("pipeline_parallel", 1)) > 1:
        flags += ["--pipeline-parallel-size", str(stages)]
    if options.get("enforce_eager", not profile.devices):
        flags.append("--enforce-eager")
    if "enable_prefix_caching" in options:
        flags.append("--enable-prefix-caching" if options["enable_prefix_caching"] else "--no-enable-prefix-caching")
    if options.get("trust_remote_code"):
        flags.append("--trust-remote-code")
    return (*flags, *_answering(options, slot), *_speculative(options, slot), *_lora(options, slot), *profile.args)


def environment(profile: ProfileSpec, slot: Slot) -> dict[str, str]:
    """The profile's own `env` comes after this one. The key is not here: the agent adds it."""
    env = {
        "HF_HUB_OFFLINE": "1",  # weights are here: nothing is looked up elsewhere
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": slot.host if slot.host not in ("0.0.0.0", "::") else "127.0.0.1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_LOG_STATS_INTERVAL": "3600",  # seconds: a line every ten would fill the log of a busy engine
        "NO_COLOR": "1",
        "PYTHONWARNINGS": "ignore",  # else they are the last words of each of its processes, whatever it died of
    }
    if profile.devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(slot.devices)
    elif "cpu_bind" not in profile.options:
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if "cpu_bind" in profile.options:
        env["VLLM_CPU_OMP_THREADS_BIND"] = profile.options["cpu_bind"]
    return env


def figures(slot: Slot) -> dict[str, Metadata]:
    """By role. Raises EngineUnavailable."""
    found: dict[str, Metadata] = {}
    for role in ("weights", "draft", "lora"):
        if role in slot.files:
            try:
                found[role] = read_metadata(_directory(slot, role))
            except (OSError, ValueError) as error:
                raise EngineUnavailable(f"{slot.files[role]} cannot be used: {error}") from error
    return found


def _directory(slot: Slot, role: str) -> Path:
    path = slot.files.get(role)
    if path is None:
        raise EngineUnavailable(f"the engine vllm needs `{role}`: name a directory in Hugging Face layout")
    if not path.is_dir():
        raise EngineUnavailable(
            f"the engine vllm loads a directory in Hugging Face layout, and {path} is a file; GGUF files are for the "
            "engines llamacpp and cpu"
        )
    return path


def _tensor_parallel(profile: ProfileSpec) -> int:
    return max(1, int(profile.devices // profile.options.get("pipeline_parallel", 1)))


def _memory(profile: ProfileSpec, slot: Slot) -> list[str]:
    if (wanted := profile.options.get("gpu_memory_utilization")) is not None:
        return ["--gpu-memory-utilization", str(wanted)]
    share = _share(slot) if profile.devices else None
    if share is not None and profile.memory is not None and "kv_cache_mib" not in profile.options:
        return ["--gpu-memory-utilization", share]
    size = kv_cache(profile, figures(slot))
    if size is None:
        raise EngineUnavailable(
            "the size of the KV cache cannot be told from config.json (no layers or heads): set options.kv_cache_mib"
        )
    flags = ["--kv-cache-memory-bytes", str(-(-size // max(1, profile.devices)))]
    return [*flags, "--gpu-memory-utilization", share or _LITTLE] if profile.devices else flags


def _share(slot: Slot) -> str | None:
    """What it was placed for, as vLLM takes it. Rounded up: it compares with what is free, to the byte."""
    if slot.device_share is None:
        return None
    return f"{min(100, max(1, math.ceil(round(slot.device_share * 100, 6)))) / 100:.2f}"


def _answering(options: Mapping[str, Any], slot: Slot) -> list[str]:
    flags: list[str] = []
    template = slot.files.get("chat_template", options.get("chat_template"))
    if template is not None:
        flags += ["--chat-template", str(template)]
    if (parser := options.get("tool_call_parser")) is not None:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    if (parser := options.get("reasoning_parser")) is not None:
        flags += ["--reasoning-parser", parser]
    return flags


def _speculative(options: Mapping[str, Any], slot: Slot) -> list[str]:
    config = dict(options.get("speculative", {}))
    if "draft" in slot.files:
        config = {"num_speculative_tokens": DRAFT_TOKENS, **config, "model": str(_directory(slot, "draft"))}
    return ["--speculative-config", json.dumps(config, sort_keys=True)] if config else []


def _lora(options: Mapping[str, Any], slot: Slot) -> list[str]:
    """The adapter answers to the model's own name; what it is put on, to that name with `-base`."""
    if "lora" not in slot.files:
        return []
    rank = figures(slot)["lora"].get("adapter.rank", 0)
    fitting = [each for each in RANKS if isinstance(rank, int) and each >= rank]
    if not fitting:
        raise EngineUnavailable(f"the adapter's rank is {rank}, vLLM takes up to {RANKS[-1]}")
    most = str(options.get("max_lora_rank", max(16, fitting[0])))
    return ["--enable-lora", "--max-lora-rank", most, "--lora-modules", f"{slot.model}={_directory(slot, 'lora')}"]
