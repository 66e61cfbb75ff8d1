"""What a vLLM died of, from its exit status and the end of its log.

vLLM is several processes, each of which prints its own traceback; the server's last words only say that another one
failed. So the known causes are looked for anywhere, and what is unknown is told by the first exception of a process.
tests/engines/corpus/vllm holds real ends.
"""

import re
from collections.abc import Sequence
from typing import Final

from llmgw.engine import Exit, FailureKind, Verdict
from llmgw_vllm.program import INSTALL

_BANNER: Final = re.compile(r"^.*█.*\bversion \S+", re.MULTILINE)
_PORT_TAKEN: Final = re.compile(r"\[Errno 98\]|[Aa]ddress already in use|EADDRINUSE")
_TERMINAL, _OOM, _HANG = FailureKind.TERMINAL, FailureKind.OOM, FailureKind.HANG

_DAMAGED: Final = None
"""A file of the model may not be what was fetched: terminal, unless that turns out so."""

_CAUSES: Final[Sequence[tuple[str, FailureKind | None, str]]] = (
    (r"No module named '?vllm", _TERMINAL, f"vLLM is missing there; {INSTALL}"),
    (r"error: (unrecognized arguments: .+|argument .+)", _TERMINAL, "vLLM does not take its command line: {0}"),
    (r"Invalid repository ID or local directory specified: '(.+?)'", _TERMINAL, "{0} holds no config.json"),
    (r"Cannot find any model weights with `(.+?)`", _TERMINAL, "{0} holds no weights"),
    (r"Couldn't instantiate the backend tokenizer|Can't load tokenizer|Unable to load vocabulary",
     _DAMAGED, "the directory of the model holds no tokenizer that it can load"),
    (r"SafetensorError: (.+)", _DAMAGED, "the weights are damaged or cut short: {0}"),
    (r"model type `(\S+?)` but Transformers does not recognize", _TERMINAL, "this vLLM does not know the model {0}"),
    (r"Model architectures (\[.+?\]) (?:are not supported|failed to be inspected)", _TERMINAL,
     "this vLLM does not know the architecture {0}"),
    (r"has no vLLM implementation|Unsupported architecture", _TERMINAL, "this vLLM does not know the architecture"),
    (r"(User-specified max_model_len \(\d+\)) is greater than the derived max_model_len \((?:max_position_embeddings="
     r")?(\d+)", _TERMINAL, "the model knows at most {1} tokens: lower `context`"),
    (r"contains custom code which must be executed|requires you to execute the configuration file", _TERMINAL,
     "the model comes with code of its own: read it, then set options.trust_remote_code"),
    (r"LoRA rank (\d+) is greater than max_lora_rank (\d+)", _TERMINAL,
     "the adapter's rank is {0}: raise options.max_lora_rank above {1}"),
    (r"(?:invalid|Invalid) (?:tool call|reasoning) parser: (\S+)", _TERMINAL, "this vLLM has no parser {0}"),
    (r"Unknown quantization method: (.+?)\. ", _TERMINAL, "this vLLM does not know the quantisation {0}"),
    (r"quantization method (.+?) is not supported|Quantization method specified .+ does not match", _TERMINAL,
     "the quantisation does not fit this model or machine"),
    (r"(exceeds dimension size|size mismatch|Attempted to load weight \(.+?\) into parameter|shape mismatch)",
     _DAMAGED, "the weights do not fit config.json: {0}"),
    (r"To serve at least one request with the model's max seq len \((\d+)\)", _OOM,
     "the KV cache holds less than one request of {0} tokens: lower `context`, or raise options.kv_cache_mib"),
    (r"No available memory for the cache blocks", _OOM, "no memory is left for the KV cache"),
    (r"Available memory on node (.+? GiB\)) on kv cache", _OOM,
     "no memory for the KV cache (NUMA node {0}): lower `context` or `parallel`"),
    (r"Free memory on device (.+? GiB\)) on startup", _OOM, "too little memory is free on device {0}"),
    (r"CUDA out of memory|OutOfMemoryError|(?:CUDA|HIP) error: out of memory", _OOM, "out of memory on an accelerator"),
    (r"can't allocate memory|[Cc]annot allocate memory|failed to map segment|MemoryError|bad_alloc|oom[-_]kill",
     _OOM, "out of memory"),
    (r"RPC call to (\S+) timed out|Timed out waiting for engine", _HANG, "its engine process did not answer"),
)  # fmt: skip
_EXCEPTION: Final = re.compile(
    r"^(?:\((\w+) pid=\d+\) ERROR [^]]*\] )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt)): (.+)", re.MULTILINE
)
_NO_CAUSE: Final = re.compile(
    r"See (?:root cause above|stack trace)|initialization failed|EngineDeadError|Executor failed|Worker failed"
)
_DEATH: Final = re.compile(r"Worker proc (\S+) died unexpectedly(?: \(exit code: (-?\d+)\))?")
_DEATHS: Final = re.compile(r"Engine core proc|EngineDeadError|EngineCore encountered")


def classify(exit: Exit, log_tail: str) -> Verdict:
    """An end that nobody asked for, whatever its status: a server whose engine was killed ends with 0."""
    banners = list(_BANNER.finditer(log_tail))
    log = log_tail[banners[-1].start() :] if banners else log_tail  # what stands before is another run's
    if _PORT_TAKEN.search(log):
        return Verdict(kind=FailureKind.CRASH, reason="its port was taken meanwhile", port_clash=True)
    for pattern, kind, reason in _CAUSES:
        if match := re.search(pattern, log):
            found = (" ".join((group or "").split())[:200] for group in match.groups())
            damaged = kind is _DAMAGED
            return Verdict(kind=kind or _TERMINAL, reason=reason.format(*found), damaged=damaged)
    if exit.signal == 4:
        return Verdict(kind=_TERMINAL, reason="this processor lacks instructions that its vLLM uses")
    return Verdict(kind=FailureKind.CRASH, reason=f"ended with {exit}{_said(log)}")


def _said(log: str) -> str:
    causes = [found for found in _EXCEPTION.findall(log) if not _NO_CAUSE.search(f"{found[1]}: {found[2]}")]
    if causes:
        _, name, text = causes[0]
        return f": {name.rpartition('.')[2]}: {text.strip()[:200]}"
    if death := _DEATH.search(log):
        status = death[2] or "0"
        how = f" by signal {status[1:]}" if status.startswith("-") else ""
        return f": its process {death[1]} died{how}"
    return ": one of its processes died" if _DEATHS.search(log) else ""
