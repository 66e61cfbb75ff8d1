"""What a profile of the engine `llamacpp` may set under `options`, and the flag that each becomes."""

from collections.abc import Mapping
from typing import Any, Final

from llmgw.weights.footprint import KV_TYPES
from llmgw_llamacpp.batches import BATCH, CPU_BATCH, UBATCH


def _integer(description: str, minimum: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum, "description": description}


def _number(description: str, **bounds: float) -> dict[str, Any]:
    return {"type": "number", "description": description, **bounds}


def _boolean(description: str) -> dict[str, Any]:
    return {"type": "boolean", "description": description}


def _one_of(description: str, *values: str) -> dict[str, Any]:
    return {"enum": list(values), "description": description}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description}


_LAYERS: Final[Mapping[str, Any]] = {"anyOf": [{"enum": ["auto", "all"]}, {"type": "integer", "minimum": 0}]}
_TYPES: Final = sorted(KV_TYPES)

_PROPERTIES: Final[Mapping[str, Any]] = {
    "binary": _text(
        "The llama-server to run, a path or a name found in PATH: models may use different builds side by side. "
        "Default: LLMGW_LLAMA_SERVER, else llama-server in PATH."
    ),
    "gpu_layers": {
        **_LAYERS,
        "description": "Layers kept on the accelerators, the output counting as one. Default auto: all that fit.",
    },
    "split_mode": _one_of("How a model is split over several accelerators. Default layer.", "none", "layer", "row"),
    "tensor_split": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "number", "minimum": 0},
        "description": "Share of each accelerator, as proportions.",
    },
    "main_gpu": _integer("The accelerator used with split_mode none, by its place in the list.", 0, 1023),
    "override_tensor": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "string", "pattern": r"^[^=,]+=[A-Za-z0-9_]+$(?!\n)"},
        "description": "PATTERN=BUFFER: where tensors whose name matches are kept ('_exps=CPU'). The first match wins.",
    },
    "cpu_moe": _boolean("Keep the expert weights of every layer in host memory."),
    "n_cpu_moe": _integer("Keep the expert weights of the first N layers in host memory.", 1, 10_000),
    "kv_offload": _boolean("Keep the KV cache on the accelerators. Default true."),
    "flash_attn": _one_of("Flash attention. Default auto. A quantised cache_type_v needs it.", "auto", "on", "off"),
    "cache_type_k": _one_of("Type of the cached keys. Default f16.", *_TYPES),
    "cache_type_v": _one_of("Type of the cached values. Default f16.", *_TYPES),
    "cache_ram_mib": _integer(
        "MiB of host memory for prompts that left their slot, besides the KV cache. Default 0: none "
        "(llama-server's own default, 8192, would be taken without having been counted).",
        0,
        1_048_576,
    ),
    "batch_size": _integer(
        "Prompt tokens taken at once, over all slots: between two batches it notices that a client has left, and goes "
        f"on with other answers. Default {BATCH}, with `devices: 0` {CPU_BATCH} or more.",
        1,
        65536,
    ),
    "ubatch_size": _integer(
        f"Prompt tokens computed at once; also the longest input of an embedding. Default {UBATCH}.", 1, 65536
    ),
    "threads": _integer("Threads that generate. Default: llama-server's choice, the physical cores.", 1, 512),
    "threads_batch": _integer("Threads that read prompts. Default: as threads.", 1, 512),
    "chat_template": _text(
        "Jinja text, or chatml, in place of the model's own template; with `jinja: false` a name of llama.cpp's "
        "(llama3, ...). A file: `files: {chat_template: ...}`."
    ),
    "chat_template_kwargs": {"type": "object", "description": "What the template gets besides, on every request."},
    "jinja": _boolean("Use the Jinja engine for chat templates. Default true; tool calls need it."),
    "reasoning": _one_of("Whether the model thinks first. Default auto: as its template has it.", "on", "off", "auto"),
    "reasoning_format": _one_of(
        "Where thoughts go in an answer. Default auto.", "auto", "none", "deepseek", "deepseek-legacy"
    ),
    "reasoning_budget": _integer("Tokens of thinking: -1 without limit (default), 0 none.", -1, 1_000_000),
    "embeddings": _boolean("Serve /v1/embeddings too (some builds: only). An input may be ubatch_size tokens long."),
    "pooling": _one_of(
        "How an embedding is made of its tokens' vectors. Default: the model's own.", "none", "mean", "cls", "last"
    ),
    "rerank": _boolean("Serve /v1/rerank, and nothing else: for reranker models."),
    "slots": _boolean("Serve /slots: what each slot is doing, prompts included. Default true."),
    "draft_n_max": _integer("Tokens that the draft model proposes at once. Default 3.", 1, 1024),
    "draft_n_min": _integer("Fewer proposed tokens than this are dropped. Default 0.", 0, 1024),
    "draft_p_min": _number("How sure the draft model must be of a token. Default 0.", minimum=0, maximum=1),
    "draft_type": _one_of(
        "How `draft` is used. Default draft-simple: a small model of the same vocabulary.",
        "draft-simple",
        "draft-eagle3",
        "draft-mtp",
    ),
    "draft_gpu_layers": {**_LAYERS, "description": "As gpu_layers, for the draft model."},
    "draft_cache_type_k": _one_of("As cache_type_k, for the draft model.", *_TYPES),
    "draft_cache_type_v": _one_of("As cache_type_v, for the draft model.", *_TYPES),
    "lora_scales": {
        "type": "object",
        "propertyNames": {"pattern": r"^lora([_-].+|\d*)$(?!\n)"},
        "additionalProperties": {"type": "number"},
        "description": "How strongly each LoRA adapter of `files` counts, by its role. Default 1.",
    },
    "mmproj_offload": _boolean("Keep the multimodal projector on an accelerator. Default true."),
    "rope_scaling": _one_of("How a longer context is reached. Default: the model's own.", "none", "linear", "yarn"),
    "rope_scale": _number("Stretches the context by this.", exclusiveMinimum=0),
    "rope_freq_base": _number("Overrides the model's own.", exclusiveMinimum=0),
    "rope_freq_scale": _number("Stretches the context by 1 / this.", exclusiveMinimum=0, maximum=1),
    "yarn_orig_ctx": _integer("The context that the model was trained with, for yarn.", 1, 100_000_000),
    "context_shift": _boolean(
        "Forget the oldest tokens when a slot is full, rather than end the answer. Default false."
    ),
    "mmap": _boolean("Map the weights' file rather than copy it into memory. Default true."),
    "mlock": _boolean("Keep the weights from being swapped out; the user must be allowed to lock that much memory."),
    "check_tensors": _boolean("Look for invalid values while loading: finds some damaged files. Default false."),
    "verbosity": _integer("How much llama-server logs: 1 errors (default), 2 warnings, 3 every request.", 0, 5),
}

OPTIONS_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": _PROPERTIES,
    "dependentSchemas": {"rerank": {"properties": {"embeddings": {"const": False}}}},
}

VALUES: Final[Mapping[str, str]] = {
    "split_mode": "--split-mode",
    "main_gpu": "--main-gpu",
    "n_cpu_moe": "--n-cpu-moe",
    "flash_attn": "--flash-attn",
    "cache_type_k": "--cache-type-k",
    "cache_type_v": "--cache-type-v",
    "batch_size": "--batch-size",
    "ubatch_size": "--ubatch-size",
    "threads": "--threads",
    "threads_batch": "--threads-batch",
    "reasoning": "--reasoning",
    "reasoning_format": "--reasoning-format",
    "reasoning_budget": "--reasoning-budget",
    "pooling": "--pooling",
    "rope_scaling": "--rope-scaling",
    "rope_scale": "--rope-scale",
    "rope_freq_base": "--rope-freq-base",
    "rope_freq_scale": "--rope-freq-scale",
    "yarn_orig_ctx": "--yarn-orig-ctx",
}
"""Options whose value is the flag's."""

DRAFT_VALUES: Final[Mapping[str, str]] = {
    "draft_n_max": "--spec-draft-n-max",
    "draft_n_min": "--spec-draft-n-min",
    "draft_p_min": "--spec-draft-p-min",
    "draft_gpu_layers": "--spec-draft-ngl",
    "draft_cache_type_k": "--spec-draft-type-k",
    "draft_cache_type_v": "--spec-draft-type-v",
}

SWITCHES: Final[Mapping[str, tuple[str | None, str | None]]] = {
    "cpu_moe": ("--cpu-moe", None),
    "kv_offload": (None, "--no-kv-offload"),
    "jinja": ("--jinja", "--no-jinja"),
    "embeddings": ("--embeddings", None),
    "rerank": ("--rerank", None),
    "slots": ("--slots", "--no-slots"),
    "mmproj_offload": (None, "--no-mmproj-offload"),
    "context_shift": ("--context-shift", "--no-context-shift"),
    "check_tensors": ("--check-tensors", None),
}
"""Options that are a flag when true, another when false."""

DEVICE_OPTIONS: Final = frozenset({
    "gpu_layers", "split_mode", "tensor_split", "main_gpu", "override_tensor", "cpu_moe", "n_cpu_moe", "kv_offload",
    "draft_gpu_layers", "mmproj_offload",
})  # fmt: skip
"""Options that say something of accelerators: without one they are wrong."""
