"""The command line of one vLLM: what a profile says, as flags."""

import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from llmgw.engine import ProfileSpec, Slot
from llmgw.errors import EngineUnavailable
from llmgw.weights.folder import read_metadata
from llmgw_vllm.footprint import Metadata, kv_cache
from llmgw_vllm.options import DRAFT_TOKENS
from llmgw_vllm.program import Program

SPACE: Final = "VLLM_CPU_KVCACHE_SPACE"
RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)

_LITTLE: Final = "0.01"
"""vLLM wants this share of an accelerator free before it starts, also when it is told the size of the KV cache. Its
default of nine tenths would never be, beside another engine."""

_OWNED: Final[Mapping[str, str]] = {
    "--host": "llmgw chooses the address",
    "--port": "llmgw chooses the port",
    "--uds": "llmgw chooses the address",
    "--api-key": "llmgw makes a key for each engine",
    "--model": "it is the profile's `weights`",
    "--tokenizer": "it is read from `weights`",
    "--served-model-name": "it is the model's name",
    "--max-model-len": "it is the profile's `context`",
    "--tensor-parallel-size": "it follows from the profile's `devices`",
    "--pipeline-parallel-size": "set options.pipeline_parallel",
    "--data-parallel-size": "the profile's `devices` are one replica's",
    "--device-ids": "llmgw chooses the accelerators",
    "--max-num-seqs": "set `parallel`, or options.max_num_seqs",
    "--max-num-batched-tokens": "set options.max_num_batched_tokens",
    "--gpu-memory-utilization": "set options.gpu_memory_utilization",
    "--device-memory-utilization": "set options.gpu_memory_utilization",
    "--kv-cache-memory-bytes": "set options.kv_cache_mib",
    "--kv-cache-dtype": "set options.kv_cache_dtype",
    "--dtype": "set options.dtype",
    "--quantization": "set options.quantization",
    "--runner": "set options.runner",
    "--enable-lora": "name the adapter as the file `lora`",
    "--lora-modules": "name the adapter as the file `lora`",
    "--speculative-config": "set options.speculative, and `draft`",
    "--spec-model": "set options.speculative, and `draft`",
    "--spec-method": "set options.speculative",
    "--spec-tokens": "set options.speculative",
    "--chat-template": "set options.chat_template, or the file `chat_template`",
    "--trust-remote-code": "set options.trust_remote_code",
    "--disable-log-stats": "llmgw reads the figures that it turns off",
    "--root-path": "llmgw chooses the address",
    "--ssl-keyfile": "llmgw speaks plain HTTP to an engine",
    "--ssl-certfile": "llmgw speaks plain HTTP to an engine",
    "--headless": "one process serves each replica",
    "--grpc": "llmgw speaks HTTP to an engine",
    "--config": "write what it would hold into the profile",
}
_SHORT: Final[Mapping[str, str]] = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-sc": "--speculative-config",
}


_OWNED_ENV: Final[Mapping[str, str]] = {
    SPACE: "set options.kv_cache_mib",
    "CUDA_VISIBLE_DEVICES": "llmgw chooses the accelerators",
    "VLLM_API_KEY": "llmgw makes a key for each engine",
}


def argv(program: Program, profile: ProfileSpec, slot: Slot) -> tuple[str, ...]:
    """Reads the figures of the model from its directory. Raises EngineUnavailable for what cannot be run."""
    check_args(profile.args)
    check_env(profile.env)
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


def check_args(args: tuple[str, ...]) -> None:
    """Raises EngineUnavailable for a flag that is llmgw's to set, under any of the spellings that vLLM takes."""
    for argument in args:
        if not argument.startswith("-"):
            continue
        name = re.split(r"[=.]", argument.replace("_", "-"), maxsplit=1)[0]
        name = _SHORT.get(name, name)
        # An unambiguous beginning of a flag is that flag.
        owned = [flag for flag in _OWNED if flag == name or (len(name) > 4 and flag.startswith(name))]
        if owned:
            raise EngineUnavailable(f"{argument!r} does not belong in `args`: {_OWNED[owned[0]]}")


def check_env(env: Collection[str]) -> None:
    """Raises EngineUnavailable for a variable that would undo what llmgw sets."""
    for name in env:
        if name in _OWNED_ENV:
            raise EngineUnavailable(f"{name} does not belong in `env`: {_OWNED_ENV[name]}")


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
    stages = profile.options.get("pipeline_parallel", 1)
    if profile.devices == 0 and stages == 1:
        return 1
    if profile.devices < stages or profile.devices % stages:
        raise EngineUnavailable(f"{profile.devices} devices cannot be split into {stages} stages of equal size")
    return int(profile.devices // stages)


def _memory(profile: ProfileSpec, slot: Slot) -> list[str]:
    if (share := profile.options.get("gpu_memory_utilization")) is not None:
        return ["--gpu-memory-utilization", str(share)]
    size = kv_cache(profile, figures(slot))
    if size is None:
        raise EngineUnavailable(
            "the size of the KV cache cannot be told from config.json (no layers or heads): set options.kv_cache_mib"
        )
    flags = ["--kv-cache-memory-bytes", str(-(-size // max(1, profile.devices)))]
    return [*flags, "--gpu-memory-utilization", _LITTLE] if profile.devices else flags


def _answering(options: Mapping[str, Any], slot: Slot) -> list[str]:
    flags: list[str] = []
    if "chat_template" in options and "chat_template" in slot.files:
        raise EngineUnavailable("options.chat_template and the file `chat_template` exclude each other: keep one")
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
