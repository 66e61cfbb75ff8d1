"""A profile's `args`: which of llama-server's flags are llmgw's own, and what the others say of memory. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmgw.engine import ProfileSpec
from llmgw.weights.footprint import KV_TYPES
from llmgw_llamacpp.batches import BATCH, UBATCH, cpu_batch

_LISTENS: Final = "llmgw chooses where it listens"
_WEIGHTS: Final = "name the file in `weights`"
_DRAFT: Final = "name the file in `draft`"
_MMPROJ: Final = "name the file in `files: {mmproj: ...}`"
_LORA: Final = "name the file in `files: {lora: ...}`, its scale in options.lora_scales"
_ROUTER: Final = "a router would run models that llmgw knows nothing of"
_HTTP: Final = "llmgw reaches it over plain HTTP, without a prefix"
_OUTPUT: Final = "llmgw reads its standard output; options.verbosity says how much"
_ENDS: Final = "it would print something and end"
_OPTION: Final = "llmgw has to know it: set options.{0}"

OWNED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("--host", "--port", "--reuse-port"), _LISTENS),
    **dict.fromkeys(("--api-key", "--api-key-file"), "llmgw gives it a key of its own"),
    **dict.fromkeys(("-a", "--alias"), "the model's name is used; further names are the model's `aliases`"),
    **dict.fromkeys(
        ("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"), _WEIGHTS
    ),
    **dict.fromkeys(
        ("-dr", "--docker-repo"), _WEIGHTS
    ),
    **dict.fromkeys(
        ("-md", "--model-draft", "--spec-draft-model", "-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"), _DRAFT
    ),
    **dict.fromkeys(("-mm", "--mmproj", "-mmu", "--mmproj-url"), _MMPROJ),
    **dict.fromkeys(("--lora", "--lora-scaled"), _LORA),
    "--chat-template-file": "name the file in `files: {chat_template: ...}`",
    **dict.fromkeys(("-c", "--ctx-size"), "set `context`, the tokens of one slot"),
    **dict.fromkeys(("-np", "--parallel"), "set `parallel`"),
    **dict.fromkeys(("--models-dir", "--models-preset", "--models-max", "--models-autoload"), _ROUTER),
    **dict.fromkeys(("--api-prefix", "--ssl-key-file", "--ssl-cert-file"), _HTTP),
    **dict.fromkeys(("--log-file", "--log-disable", "--log-jsonl"), _OUTPUT),
    **dict.fromkeys(("-h", "--help", "--usage", "--version", "--list-devices", "-cl", "--cache-list"), _ENDS),
    **dict.fromkeys(("--embedding", "--embeddings"), _OPTION.format("embeddings")),
    **dict.fromkeys(("--rerank", "--reranking"), _OPTION.format("rerank")),
    **dict.fromkeys(("-cram", "--cache-ram"), _OPTION.format("cache_ram_mib")),
}  # fmt: skip
"""Flags that a profile's `args` may not hold, and what to do instead."""

_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers"), "gpu_layers"),
    **dict.fromkeys(("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"), "draft_gpu_layers"),
    **dict.fromkeys(("-ctk", "--cache-type-k"), "cache_type_k"),
    **dict.fromkeys(("-ctv", "--cache-type-v"), "cache_type_v"),
    **dict.fromkeys(("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"), "draft_cache_type_k"),
    **dict.fromkeys(("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"), "draft_cache_type_v"),
    **dict.fromkeys(("-b", "--batch-size"), "batch_size"),
    **dict.fromkeys(("-ub", "--ubatch-size"), "ubatch_size"),
    **dict.fromkeys(("-fa", "--flash-attn"), "flash_attn"),
    **dict.fromkeys(("-ot", "--override-tensor"), "override_tensor"),
    **dict.fromkeys(("-ncmoe", "--n-cpu-moe"), "n_cpu_moe"),
    **dict.fromkeys(("-ncffn", "--n-cpu-ffn"), "n_cpu_ffn"),
}
_SWITCHES: Final[Mapping[str, tuple[str, bool]]] = {
    **dict.fromkeys(("-cmoe", "--cpu-moe"), ("cpu_moe", True)),
    **dict.fromkeys(("-kvo", "--kv-offload"), ("kv_offload", True)),
    **dict.fromkeys(("-nkvo", "--no-kv-offload"), ("kv_offload", False)),
    **dict.fromkeys(("-nr", "--no-repack"), ("repack", False)),
    "--repack": ("repack", True),
    "--mmproj-offload": ("mmproj_offload", True),
    "--no-mmproj-offload": ("mmproj_offload", False),
}
_DEVICE_FLAGS: Final = frozenset(
    {"-dev", "--device", "-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"}
)
_DEVICE_NAMES: Final = frozenset({
    "gpu_layers", "draft_gpu_layers", "override_tensor", "n_cpu_moe", "n_cpu_ffn", "cpu_moe", "kv_offload",
    "mmproj_offload",
})  # fmt: skip

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The tensors that --cpu-moe keeps in host memory (llama.cpp, common/common.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What options and args together say of memory.

    `gpu_layers` None: all. `kept`: (pattern, buffer), in order. `batch`: what is told besides; None: nothing.
    `repack`: weights are copied besides being mapped.
    """

    gpu_layers: int | None
    draft_gpu_layers: int | None
    kept: tuple[tuple[str, str], ...]
    type_k: str
    type_v: str
    draft_type_k: str
    draft_type_v: str
    batch: int | None
    ubatch: int
    flash: bool
    kv_offload: bool
    mmproj_offload: bool
    cache_ram_mib: int
    repack: bool


def settings(profile: ProfileSpec) -> Settings:
    """As llama-server reads them: what comes last counts, and `args` come after `options`.

    What it would not understand is passed over here: it says so itself when it is started.
    """
    said = {**profile.options, **_last(profile.args)}
    batch, ubatch = _count(said.get("batch_size")), _count(said.get("ubatch_size"))
    own = cpu_batch(profile.parallel, ubatch) if batch is None and _is_for_small_batches(profile) else None
    return Settings(
        gpu_layers=_layers(said.get("gpu_layers")),
        draft_gpu_layers=_layers(said.get("draft_gpu_layers")),
        kept=tuple(_kept(profile)),
        type_k=_type(said.get("cache_type_k")),
        type_v=_type(said.get("cache_type_v")),
        draft_type_k=_type(said.get("draft_cache_type_k")),
        draft_type_v=_type(said.get("draft_cache_type_v")),
        batch=own,
        ubatch=min(ubatch or UBATCH, batch or own or BATCH),
        flash=said.get("flash_attn") != "off",
        kv_offload=said.get("kv_offload", True) is not False,
        mmproj_offload=said.get("mmproj_offload", True) is not False,
        cache_ram_mib=int(profile.options.get("cache_ram_mib", 0)),
        repack=said.get("repack", True) is not False and said.get("mmap") is not False,
    )


def _is_for_small_batches(profile: ProfileSpec) -> bool:
    """Generating on the CPU. What is embedded, an image too, is computed in one piece, and drafts come as they come."""
    whole = profile.options.get("embeddings") or profile.options.get("rerank")
    told = profile.env.keys() & {"LLAMA_ARG_BATCH", "LLAMA_ARG_UBATCH"}
    return not (profile.devices or whole or told or profile.roles.keys() & {"draft", "mmproj"})


def needs_device(flag: str) -> bool:
    """Whether it makes sense on accelerators only."""
    name = _NAMES.get(flag) or _SWITCHES.get(flag, ("", False))[0]
    return flag in _DEVICE_FLAGS or name in _DEVICE_NAMES


def flags(args: Sequence[str]) -> Iterator[tuple[int, str]]:
    """What looks like a flag, and where, as llama.cpp spells it: it takes `--ctx_size` for `--ctx-size`."""
    return ((index, _spelt(each)) for index, each in enumerate(args) if re.match(r"--?[A-Za-z]", each))


def _spelt(flag: str) -> str:
    return flag.replace("_", "-") if flag.startswith("--") else flag


def _pairs(args: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for flag, value in zip(args, [*args, ""][1:], strict=True):
        flag = _spelt(flag)
        if flag in _SWITCHES:
            yield _SWITCHES[flag]
        elif flag in _NAMES:
            yield _NAMES[flag], value


def _last(args: Sequence[str]) -> dict[str, Any]:
    return dict(_pairs(args))


def _kept(profile: ProfileSpec) -> Iterator[tuple[str, str]]:
    options = [(name, value) for name, value in profile.options.items() if name != "override_tensor"]
    overrides = [("override_tensor", each) for each in profile.options.get("override_tensor", ())]
    for name, value in (*overrides, *options, *_pairs(profile.args)):
        match name:
            case "override_tensor":
                for each in str(value).split(","):
                    pattern, found, buffer = each.partition("=")
                    if found and is_pattern(pattern):
                        yield pattern, buffer
            case "cpu_moe" if value is True:
                yield EXPERTS, "CPU"
            case "n_cpu_moe":
                yield from ((rf"blk\.{layer}{EXPERTS}", "CPU") for layer in range(_count(value) or 0))
            case "n_cpu_ffn":
                yield from ((rf"blk\.{layer}\.ffn_(up|down|gate)\.", "CPU") for layer in range(_count(value) or 0))


def is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _count(value: Any) -> int | None:
    return int(value) if re.fullmatch(r"\d{1,6}", str(value)) else None


def _layers(value: Any) -> int | None:
    return None if value in (None, "auto", "all") else _count(value)


def _type(value: Any) -> str:
    return value if value in KV_TYPES else "f16"
