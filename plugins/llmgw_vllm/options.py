"""What a profile of the engine `vllm` may set under `options`."""

from collections.abc import Mapping
from typing import Any, Final

KV_TYPES: Final[Mapping[str, float]] = {
    "auto": 0.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
}
"""Bytes per element of the cache types that the estimate knows; `auto` has the model's own."""

DRAFT_TOKENS: Final = 5
"""Tokens that a draft model proposes at once, where nothing else is said."""


def _integer(description: str, minimum: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum, "description": description}


def _path(description: str) -> dict[str, Any]:
    pattern = r"^/[^\x00-\x1f]+$(?!\n)"
    return {"type": "string", "pattern": pattern, "description": description, "x-expects": "an absolute path"}


def _word(description: str) -> dict[str, Any]:
    pattern = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$(?!\n)"
    return {"type": "string", "pattern": pattern, "description": description, "x-expects": "one of vLLM's names"}


def _switch(description: str) -> dict[str, Any]:
    return {"type": "boolean", "description": description}


OPTIONS_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "x-expects": "one of python and binary, and one of kv_cache_mib and gpu_memory_utilization, not both",
    "properties": {
        "python": _path(
            "The Python of the environment that vLLM is installed in. Default: LLMGW_VLLM_PYTHON, else `vllm` on "
            "PATH, else llmgw's own Python."
        ),
        "binary": _path("The program `vllm`, where it is not on PATH. Not together with python."),
        "dtype": {
            "enum": ["auto", "bfloat16", "float16", "float32"],
            "description": "Type that the model computes in. Default auto: 16 bits.",
        },
        "quantization": _word("How the weights are quantised, where config.json does not say: awq, fp8, ..."),
        "kv_cache_dtype": {
            "enum": list(KV_TYPES),
            "description": "Type of the cached keys and values. Default auto: the model's.",
        },
        "kv_cache_mib": _integer(
            "MiB of KV cache, over all accelerators. Default: enough for context x parallel tokens.", 1, 67_108_864
        ),
        "gpu_memory_utilization": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "description": "Share of each accelerator, or of the host's memory on the CPU, that vLLM takes: the KV "
            "cache gets what is left of it. Declare `memory` then. Default: no share, but a KV cache of kv_cache_mib.",
        },
        "max_num_seqs": _integer("Requests computed at once. Default: the profile's parallel.", 1, 65_536),
        "max_num_batched_tokens": _integer("Tokens computed in one step. Default: vLLM's own.", 1, 1_048_576),
        "pipeline_parallel": _integer(
            "Stages that the layers are split into. Each takes devices / pipeline_parallel accelerators. Default 1.",
            1,
            64,
        ),
        "enforce_eager": _switch(
            "Do not compile the model: starts faster, answers slower. Default: true on the CPU, false on accelerators."
        ),
        "enable_prefix_caching": _switch("Keep the KV cache of prompts for others with the same start. Default true."),
        "runner": {
            "enum": ["generate", "pooling"],
            "description": "What is served: generated text, or embeddings and scores. Default: as config.json says.",
        },
        "chat_template": {
            "type": "string",
            "minLength": 1,
            "pattern": r"[{}\n]",
            "x-expects": "Jinja text (a file is named under `files`, as chat_template)",
            "description": "Jinja text in place of the model's own template. Or a file: the role chat_template.",
        },
        "tool_call_parser": _word("Reads tool calls out of answers: hermes, llama3_json, mistral, ... Default: none."),
        "reasoning_parser": _word("Tells reasoning from the answer: deepseek_r1, qwen3, ... Default: none."),
        "speculative": {
            "type": "object",
            "minProperties": 1,
            "not": {"required": ["model"]},
            "x-expects": "vLLM's settings without a model, which is the profile's `draft`",
            "description": "vLLM's speculative_config: {method: ngram, num_speculative_tokens: 4, ...}. Its model is "
            f"the profile's `draft`; a draft alone means {{num_speculative_tokens: {DRAFT_TOKENS}}}.",
        },
        "max_lora_rank": {
            "enum": [8, 16, 32, 64, 128, 256, 320, 512],
            "description": "The highest rank of an adapter. Default: the first of these that the lora file fits.",
        },
        "trust_remote_code": _switch("Run the Python code that comes with the model. Default false."),
        "cpu_bind": {
            "type": "string",
            "pattern": r"^(auto|nobind|[0-9][0-9,|-]*)$(?!\n)",
            "x-expects": "CPUs such as 0-7 or 0,2,4, auto or nobind",
            "description": "CPUs that compute, such as 0-7. Default nobind on the CPU: vLLM's own choice is the same "
            "for every engine of a machine.",
        },
    },
    "not": {"anyOf": [{"required": ["python", "binary"]}, {"required": ["gpu_memory_utilization", "kv_cache_mib"]}]},
}
