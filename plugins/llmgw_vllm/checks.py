"""What is wrong with a profile that no schema can say: above all, flags and variables that llmgw sets itself. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from llmgw.engine import Complaint, ProfileSpec

SPACE: Final = "VLLM_CPU_KVCACHE_SPACE"

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


def complaints(profile: ProfileSpec) -> tuple[Complaint, ...]:
    """All of them, in the order in which the profile is written down."""
    return (*_roles(profile), *_devices(profile), *_args(profile), *_env(profile))


def _roles(profile: ProfileSpec) -> Iterator[Complaint]:
    if "chat_template" in profile.options and "chat_template" in profile.files:
        message = "options.chat_template and the file `chat_template` exclude each other: keep one"
        yield Complaint(path=("options", "chat_template"), message=message)


def _devices(profile: ProfileSpec) -> Iterator[Complaint]:
    stages = profile.options.get("pipeline_parallel", 1)
    if stages > 1 and (profile.devices < stages or profile.devices % stages):
        message = f"{profile.devices} devices cannot be split into {stages} stages of equal size"
        yield Complaint(path=("options", "pipeline_parallel"), message=message)


def _args(profile: ProfileSpec) -> Iterator[Complaint]:
    """Flags that are llmgw's to set, under any of the spellings that vLLM takes."""
    for index, argument in enumerate(profile.args):
        if not argument.startswith("-"):
            continue
        name = re.split(r"[=.]", argument.replace("_", "-"), maxsplit=1)[0]
        name = _SHORT.get(name, name)
        # An unambiguous beginning of a flag is that flag.
        owned = [flag for flag in _OWNED if flag == name or (len(name) > 4 and flag.startswith(name))]
        if owned:
            message = f"{owned[0]} does not belong in `args`: {_OWNED[owned[0]]}"
            yield Complaint(path=("args", index), message=message)


def _env(profile: ProfileSpec) -> Iterator[Complaint]:
    for name in profile.env:
        if name in _OWNED_ENV:
            yield Complaint(path=("env", name), message=f"{name} does not belong in `env`: {_OWNED_ENV[name]}")
