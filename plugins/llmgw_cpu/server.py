"""The engine's process: `python -P server.py '{"path": ..., ...}'`. It imports nothing of llmgw, to stay small.

It listens until SIGTERM or SIGINT. The key that it demands comes in the environment variable LLMGW_ENGINE_KEY.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

STARTING: Final = "llmgw_cpu: starting"
"""The first line of a run: what stands before it in the log is another run's."""

KEY_VARIABLE: Final = "LLMGW_ENGINE_KEY"

HTTP_THREADS: Final = 12
"""Connections that are answered at once, beside one for each slot. With llama.cpp's few, requests that wait for a slot
take them all, and whoever asks how busy it is waits too."""

_LAST_WORDS: Final = 0.5
"""Seconds for the log to be written when starting failed. Without them one failure in 60 lost its cause."""


def main() -> None:
    print(STARTING, flush=True)  # noqa: T201 - its log is its standard output
    key = os.environ.pop(KEY_VARIABLE, "")
    if not key:
        sys.exit(f"llmgw_cpu: {KEY_VARIABLE} is not set: it holds the key that clients must present")
    import xllamacpp

    # The constructor holds the GIL until the model is loaded, so no Python handler could run meanwhile: until then
    # the default action of SIGTERM ends the process.
    try:
        server = xllamacpp.Server(_params(xllamacpp, json.loads(sys.argv[1]), key))
    except RuntimeError as error:
        # The cause is what llama.cpp prints, in a thread of its own that an exit cuts short.
        time.sleep(_LAST_WORDS)
        sys.exit(f"llmgw_cpu: {error}")
    _wait_for_signal()
    # Not `del server`: that waits, more than 40 seconds, for an answer in flight. Whoever stops us has drained us.
    print(f"llmgw_cpu: stopping ({server.listening_address})", flush=True)  # noqa: T201
    os._exit(0)


def _wait_for_signal() -> None:
    # The kernel hands a signal to any thread, and most here are llama.cpp's: a sleeping main thread would not
    # notice. The wake-up descriptor is written from whichever it is.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    os.read(reader, 1)


def _params(xllamacpp: Any, config: dict[str, Any], key: str) -> Any:
    options = config["options"]
    params = xllamacpp.CommonParams()
    params.model.path = config["path"]
    params.model_alias = {config["model"]}
    params.hostnames = [config["host"]]
    params.port = config["port"]
    params.api_keys = [key]
    params.n_parallel = config["parallel"]
    params.n_threads_http = HTTP_THREADS + config["parallel"]
    params.n_ctx = config["context"] * config["parallel"]  # llama.cpp splits it over the slots
    params.n_batch = options.get("batch_size", 128)
    params.n_ubatch = options.get("ubatch_size", 512)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.get("threads") or default_threads()
    params.fit_params = False  # never shrinks the context behind our back
    params.use_jinja = True
    params.endpoint_metrics = params.endpoint_slots = True
    params.ui = False
    params.cache_ram_mib = options.get("prompt_cache_mib", 0)
    params.cache_idle_slots = params.cache_ram_mib > 0
    params.verbosity = options.get("verbosity", 1)
    params.chat_template = options.get("chat_template", "")
    params.ctx_shift = options.get("context_shift", False)
    params.check_tensors = options.get("check_tensors", False)
    for name in ("rope_freq_base", "rope_freq_scale"):
        if name in options:
            setattr(params, name, options[name])
    flash = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}[options.get("flash_attn", "auto")]
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{flash}")
    for name in ("cache_type_k", "cache_type_v"):
        setattr(params, name, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{options.get(name, 'f16').upper()}"))
    if options.get("embeddings"):
        pooling = options.get("pooling", "mean").upper()
        params.embedding = True
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling}")
        params.n_batch = params.n_ubatch  # an input is embedded in one piece
    return params


def default_threads() -> int:
    """The physical cores that this process may use, less one where there are several.

    llama.cpp's threads spin at barriers: with every core taken, one busy neighbour cut generation from 139 to 34
    tokens/s on two cores, while one thread kept its 92 (bench figures of SmolLM2-135M).
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min(_physical_cores() or allowed, allowed, _cgroup_cores() or allowed)
    return max(1, cores - 1)


def _physical_cores() -> int | None:
    """Distinct (package, core) pairs among the CPUs allowed, hyperthreads counted once; None: unknown."""
    found = set()
    for cpu in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ():
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            found.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            return None
    return len(found) or None


def _cgroup_cores() -> int | None:
    """Whole cores of this container's CPU quota (cgroup v2); None: no quota."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    main()
