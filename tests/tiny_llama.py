"""Writes a random Llama of half a million parameters in Hugging Face layout. It answers nonsense, fast.

The standard library alone: a safetensors file is a header and bytes, a tokenizer of bytes is a table.
"""

import array
import json
import math
import random
from pathlib import Path
from typing import Any, Final

LAYERS: Final = 2
HIDDEN: Final = 128
FORWARD: Final = 256
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD: Final = 32
VOCABULARY: Final = 512
CONTEXT: Final = 65_536
SPECIAL: Final = ("<unk>", "<s>", "</s>", "<pad>")
TEMPLATE: Final = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
Tensors = dict[str, tuple[list[int], bytes]]
"""Shape and bfloat16 values by name."""


def write(directory: Path, *, seed: int = 1, config: dict[str, Any] | None = None) -> Path:
    """The model, in `directory`, which is made. `config`: changes to its config.json."""
    directory.mkdir(parents=True)
    _write_json(directory / "config.json", {**CONFIG, **(config or {})})
    _write_json(directory / "tokenizer.json", _tokenizer())
    _write_json(directory / "tokenizer_config.json", TOKENIZER_CONFIG)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    write_safetensors(directory / "model.safetensors", _llama(random.Random(seed)))
    return directory


def write_lora(directory: Path, *, rank: int = 8, seed: int = 2) -> Path:
    """An adapter of the model for its query projections, strong enough to change what it says."""
    directory.mkdir(parents=True)
    chance, tensors = random.Random(seed), Tensors()
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = _random(chance, rank, HIDDEN)
        tensors[f"{name}.lora_B.weight"] = _random(chance, HEADS * HEAD, rank)
    write_safetensors(directory / "adapter_model.safetensors", tensors)
    adapter = {"peft_type": "LORA", "r": rank, "lora_alpha": 64 * rank, "target_modules": ["q_proj"], "bias": "none"}
    _write_json(directory / "adapter_config.json", adapter)
    return directory


def write_safetensors(path: Path, tensors: Tensors) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, data in tensors.values():
            file.write(data)


def _llama(chance: random.Random) -> Tensors:
    tensors: Tensors = {"model.embed_tokens.weight": _random(chance, VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        tensors[f"{name}.self_attn.q_proj.weight"] = _random(chance, HEADS * HEAD, HIDDEN)
        tensors[f"{name}.self_attn.k_proj.weight"] = _random(chance, KV_HEADS * HEAD, HIDDEN)
        tensors[f"{name}.self_attn.v_proj.weight"] = _random(chance, KV_HEADS * HEAD, HIDDEN)
        tensors[f"{name}.self_attn.o_proj.weight"] = _random(chance, HIDDEN, HEADS * HEAD)
        tensors[f"{name}.mlp.gate_proj.weight"] = _random(chance, FORWARD, HIDDEN)
        tensors[f"{name}.mlp.up_proj.weight"] = _random(chance, FORWARD, HIDDEN)
        tensors[f"{name}.mlp.down_proj.weight"] = _random(chance, HIDDEN, FORWARD)
        tensors[f"{name}.input_layernorm.weight"] = _ones(HIDDEN)
        tensors[f"{name}.post_attention_layernorm.weight"] = _ones(HIDDEN)
    tensors["model.norm.weight"] = _ones(HIDDEN)
    tensors["lm_head.weight"] = _random(chance, VOCABULARY, HIDDEN)
    return tensors


def _random(chance: random.Random, *shape: int) -> tuple[list[int], bytes]:
    """Values of either sign between 0.03 and 0.06: bfloat16 is the upper half of a float32."""
    raw = array.array("H", chance.randbytes(2 * math.prod(shape)))
    return list(shape), array.array("H", [(word & 0x8000) | 0x3D00 | (word & 0x7F) for word in raw]).tobytes()


def _ones(length: int) -> tuple[list[int], bytes]:
    return [length], array.array("H", [0x3F80] * length).tobytes()


def _alphabet() -> list[str]:
    """The 256 characters by which byte-level tokenizers write bytes (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + index) for index, _ in enumerate(rest)]


def _tokenizer() -> dict[str, Any]:
    words = [*SPECIAL, *_alphabet()]
    words += [f"<unused{index}>" for index in range(VOCABULARY - len(words))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index, "content": word, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True,
            }
            for index, word in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {word: index for index, word in enumerate(words)}, "merges": [],
        },
    }  # fmt: skip


CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "intermediate_size": FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
TOKENIZER_CONFIG: Final[dict[str, Any]] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": CONTEXT,
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))
