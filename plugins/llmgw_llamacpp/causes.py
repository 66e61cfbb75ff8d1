"""What llama.cpp died of, from its exit and its log. Pure. The corpus in tests/engines holds what it was made from."""

import re
from collections.abc import Sequence
from typing import Final

from llmgw.engine import Exit, FailureKind, Verdict

_SHRINK: Final = "lower `context` or `parallel`, or choose a smaller cache_type_k and cache_type_v"

_DAMAGED: Final = None
"""A file that it was given may not be what was fetched: terminal, unless that turns out so."""

_CAUSES: Final[Sequence[tuple[str, FailureKind | None, str]]] = (
    # Said by llmgw, or by a kernel: outranks whatever the engine had got to say before.
    (r"oom[-_ ]kill", FailureKind.OOM, "the kernel ended it: out of memory"),
    # Memory, before the rest: what follows from it reads like damaged files. A device's comes first.
    (r"(?:cudaMalloc|hipMalloc) failed: out of memory|(?:CUDA|ROCm|HIP) error: out of memory"
     r"|ErrorOutOfDeviceMemory|failed to allocate (?:CUDA|ROCm|Vulkan|SYCL|Metal)\w* buffer",
     FailureKind.OOM, "out of device memory: lower gpu_layers, `context` or `parallel`"),
    (r"failed to allocate buffer for kv cache", FailureKind.OOM, f"no memory for the KV cache: {_SHRINK}"),
    (r"failed to allocate|unable to allocate|insufficient memory|bad_alloc|bad_array_new_length"
     r"|Cannot allocate memory|out of memory|Thread creation failed|Resource temporarily unavailable",
     FailureKind.OOM, "out of memory"),
    # What it was asked for.
    (r'error while handling argument "([^"]+)": the argument has been removed\. ([^\n]+)', FailureKind.TERMINAL,
     "this build no longer has the flag {0}: {1}"),
    (r'error while handling argument "([^"]+)": ([^\n]+)', FailureKind.TERMINAL, "it does not accept {0}: {1}"),
    (r"error: invalid argument: (.+)", FailureKind.TERMINAL, "this build does not know the flag {0}"),
    (r"the supplied chat template is not supported|failed to initialize chat template|failed to apply template"
     r"|chat template parsing error",
     FailureKind.TERMINAL, "the chat template cannot be used: correct options.chat_template, or the file"),
    (r"[Qq]uantized V cache|V cache (?:quantization )?requires", FailureKind.TERMINAL,
     "a quantised cache_type_v needs flash attention: leave options.flash_attn out, or set it on"),
    (r"unknown buffer type|Available buffer types:", FailureKind.TERMINAL,
     "override_tensor names a buffer that this build or machine does not have"),
    (r"error while loading shared libraries: (.+)", FailureKind.TERMINAL, "the binary lacks a library: {0}"),
    (r"No module named '(xllamacpp)'", FailureKind.TERMINAL, "{0} is missing: pip install 'llmgw[cpu]'"),
    # Files beside the weights, before the weights: one that is damaged is damaged in the same words.
    (r"failed to load lora adapter '([^'\n]+)", _DAMAGED, "the LoRA adapter cannot be used: {0}"),
    (r"failed to load multimodal model, '([^'\n]+)", _DAMAGED,
     "the multimodal projector cannot be used: {0}"),
    (r"failed to load draft model, '([^'\n]+)", _DAMAGED, "the draft model cannot be used: {0}"),
    # The weights.
    (r"failed to open GGUF file (.+)", _DAMAGED, "the weights cannot be opened: {0}"),
    (r"invalid magic characters|failed to read magic", _DAMAGED, "the weights are not a GGUF file"),
    (r"data is not within the file bounds|failed to read (?:tensor info|key-value)",
     _DAMAGED, "the weights are cut short or damaged"),
    (r"has invalid data|found (?:nan|inf) value", _DAMAGED, "the weights hold invalid values"),
    (r"unknown model architecture: (\S+)", FailureKind.TERMINAL, "this llama.cpp does not know the architecture {0}"),
    (r"error loading model: (.+)", _DAMAGED, "the weights cannot be loaded: {0}"),
)  # fmt: skip
_BIND: Final = re.compile(r"couldn't bind HTTP server socket|bind: Address already in use")
_ILLEGAL_INSTRUCTION: Final = 4


def verdict(exit: Exit, log: str) -> Verdict:
    """`log`: the tail of what it wrote."""
    if _BIND.search(log):
        return Verdict(kind=FailureKind.CRASH, reason="its port was taken meanwhile", port_clash=True)
    for pattern, kind, reason in _CAUSES:
        if match := re.search(pattern, log):
            groups = (" ".join((group or "").split())[:300] for group in match.groups())
            damaged = kind is _DAMAGED
            return Verdict(kind=kind or FailureKind.TERMINAL, reason=reason.format(*groups), damaged=damaged)
    if exit.signal == _ILLEGAL_INSTRUCTION:
        return Verdict(kind=FailureKind.TERMINAL, reason="this processor lacks instructions that llama.cpp uses")
    errors = re.findall(r"^[\d.]+ E (.+)$|^error: (.+)$|^(terminate called .+)$", log, re.MULTILINE)
    said = f": {''.join(errors[-1]).strip()[:200]}" if errors else ""
    return Verdict(kind=FailureKind.CRASH, reason=f"ended with {exit}{said}")
