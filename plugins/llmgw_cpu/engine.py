"""What llmgw needs to know of the engine `cpu`: how to start it, when it is ready, what it died of, what it takes."""

import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from llmgw.engine import (
    Engine,
    EngineFact,
    EngineLoad,
    Exit,
    FailureKind,
    Footprint,
    HttpRequest,
    LaunchSpec,
    Level,
    ProfileSpec,
    Readiness,
    Slot,
    Verdict,
    WeightsFact,
)
from llmgw.errors import EngineUnavailable
from llmgw.ids import EngineName
from llmgw_cpu.footprint import estimate
from llmgw_cpu.options import OPTIONS_SCHEMA
from llmgw_cpu.server import STARTING

HEALTH: Final = "/health"
INSTALL: Final = "install it with: pip install 'llmgw[cpu]'"

_CAUSES: Final[Sequence[tuple[str, FailureKind, str]]] = (
    (r"failed to open GGUF file (.+)", FailureKind.TERMINAL, "the weights cannot be opened: {0}"),
    (r"invalid magic characters|failed to read magic", FailureKind.TERMINAL, "the weights are not a GGUF file"),
    (r"data is not within the file bounds", FailureKind.TERMINAL, "the weights are cut short or damaged"),
    (r"has invalid data|found (?:nan|inf) value", FailureKind.TERMINAL, "the weights hold invalid values"),
    (r"unknown model architecture: (\S+)", FailureKind.TERMINAL, "this llama.cpp does not know the architecture {0}"),
    (r"chat template parsing error|failed to initialize chat template", FailureKind.TERMINAL,
     "the chat template cannot be parsed: correct options.chat_template"),
    (r"V cache (?:quantization )?requires", FailureKind.TERMINAL,
     "a quantised cache_type_v needs flash attention: leave options.flash_attn out, or set it on"),
    (r"No module named 'xllamacpp'", FailureKind.TERMINAL, f"xllamacpp is missing: {INSTALL}"),
    (r"failed to allocate buffer for kv cache", FailureKind.OOM,
     "no memory for the KV cache: lower `context` or `parallel`"),
    (r"failed to allocate|bad_alloc|Cannot allocate memory|out of memory|Thread creation failed|oom[-_]kill",
     FailureKind.OOM, "out of memory"),
    (r"error loading model: (.+)", FailureKind.TERMINAL, "the weights cannot be loaded: {0}"),
)  # fmt: skip
_LOAD: Final = re.compile(rb"^llamacpp:requests_(processing|deferred) (\d+)", re.MULTILINE)


class CpuEngine(Engine):
    """xllamacpp's server in a process of its own, for GGUF weights."""

    name: ClassVar = EngineName("cpu")
    options_schema: ClassVar = OPTIONS_SCHEMA

    def fingerprint(self) -> EngineFact:
        # Found, not imported: importing would load llama.cpp into this process for good.
        if importlib.util.find_spec("xllamacpp") is None:
            return EngineFact(name=self.name, why=f"xllamacpp is not installed; {INSTALL}")
        return EngineFact(name=self.name, version=importlib.metadata.version("xllamacpp"))

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        weights = files.get("weights")
        return None if weights is None else estimate(profile, weights)

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        if profile.args:
            raise EngineUnavailable("the engine cpu takes no `args`: it has no command line; use `options`")
        if profile.devices:
            raise EngineUnavailable("the engine cpu uses no accelerators: set `devices: 0`, or use another engine")
        if "weights" not in slot.files:
            raise EngineUnavailable("the engine cpu needs `weights`: name a GGUF file")
        config = {
            "path": str(slot.files["weights"]),
            "model": slot.model,
            "host": slot.host,
            "port": slot.port,
            "context": profile.context,
            "parallel": profile.parallel,
            "options": dict(profile.options),
        }
        script = str(Path(__file__).with_name("server.py"))
        host = f"[{slot.host}]" if ":" in slot.host else slot.host
        return LaunchSpec(argv=(sys.executable, "-P", script, json.dumps(config)), url=f"http://{host}:{slot.port}")

    def probes(self, profile: ProfileSpec) -> Sequence[HttpRequest]:
        if profile.options.get("embeddings"):
            body = json.dumps({"input": "a"}).encode()
            return (HttpRequest(path=HEALTH), HttpRequest(path="/v1/embeddings", method="POST", body=body, timeout=60))
        body = json.dumps({"prompt": "a", "n_predict": 1, "cache_prompt": False}).encode()
        return (HttpRequest(path=HEALTH), HttpRequest(path="/completion", method="POST", body=body, timeout=60))

    def read_probe(self, request: HttpRequest, status: int, body: bytes) -> Readiness:
        if status == 200:
            return Readiness.READY
        # 503: loading. Anything else that the health path says comes from no llama.cpp, and may still go away.
        return Readiness.LOADING if status == 503 or request.path == HEALTH else Readiness.BROKEN

    def load(self, profile: ProfileSpec) -> HttpRequest | None:
        return HttpRequest(path="/metrics")

    def read_load(self, status: int, body: bytes) -> EngineLoad | None:
        found = {name: int(count) for name, count in _LOAD.findall(body)}
        if status != 200 or len(found) != 2:
            return None
        return EngineLoad(running=found[b"processing"], waiting=found[b"deferred"])

    def classify(self, exit: Exit, log_tail: str) -> Verdict:
        log = log_tail.rpartition(STARTING)[2]
        if "couldn't bind HTTP server socket" in log:
            return Verdict(kind=FailureKind.CRASH, reason="its port was taken meanwhile", port_clash=True)
        for pattern, kind, reason in _CAUSES:
            if match := re.search(pattern, log):
                return Verdict(kind=kind, reason=reason.format(*(group.strip() for group in match.groups())))
        if exit.signal == 4:
            return Verdict(kind=FailureKind.TERMINAL, reason="this processor lacks instructions that llama.cpp uses")
        errors = re.findall(r"^[\d.]+ E (.+)$", log, re.MULTILINE)
        said = f": {errors[-1].strip()[:200]}" if errors else ""
        return Verdict(kind=FailureKind.CRASH, reason=f"ended with {exit}{said}")

    def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
        generation = frozenset({"chat/completions", "completions", "responses", "messages"})
        return generation | {"embeddings"} if profile.options.get("embeddings") else generation
