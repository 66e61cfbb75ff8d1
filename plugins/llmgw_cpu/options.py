"""What a profile of the engine `cpu` may set under `options`."""

from collections.abc import Mapping
from typing import Any, Final

from llmgw.weights.footprint import KV_TYPES
from llmgw_llamacpp.batches import CPU_BATCH, UBATCH


def _integer(description: str, minimum: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum, "description": description}


OPTIONS_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "threads": _integer(
            "Threads that compute. Default: the physical cores it may use, less one where there are several: its "
            "threads wait for one another actively, so a single busy neighbour on their cores slows all of them.",
            1,
            512,
        ),
        "batch_size": _integer(
            "Prompt tokens taken at once, over all slots: between two batches it notices that a client has left, and "
            f"goes on with other answers. Default {CPU_BATCH}, more with more than 16 slots or a larger ubatch_size.",
            1,
            65536,
        ),
        "ubatch_size": _integer(
            f"Prompt tokens computed at once; also the longest input of an embedding. Default {UBATCH}.", 1, 65536
        ),
        "flash_attn": {
            "enum": ["auto", "on", "off"],
            "description": "Flash attention. Default auto. A quantised cache_type_v needs it.",
        },
        "cache_type_k": {"enum": sorted(KV_TYPES), "description": "Type of the cached keys. Default f16."},
        "cache_type_v": {"enum": sorted(KV_TYPES), "description": "Type of the cached values. Default f16."},
        "chat_template": {
            "type": "string",
            "pattern": r"^chatml$(?!\n)|\{[{%]",
            "description": "Jinja text, or chatml, in place of the model's own template.",
            # It renders templates with Jinja, where any other name is a template: of that one word, for every prompt.
            "x-expects": "Jinja text, or `chatml` (llama.cpp's other names are not known here)",
        },
        "embeddings": {
            "type": "boolean",
            "description": "Serve /v1/embeddings too. An input may be ubatch_size tokens long.",
        },
        "pooling": {
            "enum": ["mean", "cls", "last"],
            "description": "How an embedding is made of its tokens' vectors. Default mean. Only with embeddings.",
        },
        "rope_freq_base": {"type": "number", "exclusiveMinimum": 0, "description": "Overrides the model's own."},
        "rope_freq_scale": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "description": "Stretches the context by 1 / this.",
        },
        "context_shift": {
            "type": "boolean",
            "description": "Forget the oldest tokens when a slot is full, rather than end the answer. Default false.",
        },
        "prompt_cache_mib": _integer(
            "MiB of memory for prompts that left their slot, besides the KV cache. Default 0: none.", 0, 1_048_576
        ),
        "check_tensors": {
            "type": "boolean",
            "description": "Look for invalid values while loading: finds some damaged files. Default false.",
        },
        "verbosity": _integer("How much llama.cpp logs: 1 errors (default), 2 warnings, 3 every request.", 0, 5),
    },
    "dependentRequired": {"pooling": ["embeddings"]},
}
