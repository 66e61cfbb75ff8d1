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
    Complaint,
    Engine,
    EngineFact,
    EngineLoad,
    Exit,
    Footprint,
    HttpRequest,
    LaunchSpec,
    Level,
    ProfileSpec,
    Readiness,
    Slot,
    Verdict,
    WeightsFact,
    shorter_context,
)
from llmgw.errors import EngineUnavailable
from llmgw.ids import EngineName
from llmgw_cpu.footprint import estimate
from llmgw_cpu.options import OPTIONS_SCHEMA
from llmgw_cpu.server import STARTING
from llmgw_llamacpp import causes
from llmgw_llamacpp.batches import cpu_batch

HEALTH: Final = "/health"
INSTALL: Final = "install it with: pip install 'llmgw[cpu]'"

_LOAD: Final = re.compile(rb"^llamacpp:requests_(processing|deferred) (\d+)", re.MULTILINE)


class CpuEngine(Engine):
    """xllamacpp's server in a process of its own, for GGUF weights."""

    name: ClassVar = EngineName("cpu")
    options_schema: ClassVar = OPTIONS_SCHEMA

    def check(self, profile: ProfileSpec) -> Sequence[Complaint]:
        found = []
        if profile.args:
            found.append(Complaint(path=("args",), message="the engine cpu has no command line: use `options`"))
        if profile.devices:
            message = "the engine cpu uses no accelerators: set 0, or use another engine"
            found.append(Complaint(path=("devices",), message=message))
        return found

    def fingerprint(self) -> EngineFact:
        # Found, not imported: importing would load llama.cpp into this process for good.
        found = importlib.util.find_spec("xllamacpp")
        if found is None:
            return EngineFact(name=self.name, why=f"xllamacpp is not installed; {INSTALL}")
        return EngineFact(name=self.name, version=importlib.metadata.version("xllamacpp"), path=found.origin)

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        weights = files.get("weights")
        return None if weights is None else estimate(profile, weights)

    def shrink(self, profile: ProfileSpec, level: Level) -> ProfileSpec | None:
        return shorter_context(profile, level)

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        for wrong in self.check(profile):
            raise EngineUnavailable(f"{'.'.join(map(str, wrong.path))}: {wrong.message}")
        if "weights" not in slot.files:
            raise EngineUnavailable("the engine cpu needs `weights`: name a GGUF file")
        config = {
            "path": str(slot.files["weights"]),
            "model": slot.model,
            "host": slot.host,
            "port": slot.port,
            "context": profile.context,
            "parallel": profile.parallel,
            "options": {
                "batch_size": cpu_batch(profile.parallel, profile.options.get("ubatch_size")),
                **profile.options,
            },
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
        return causes.verdict(exit, log_tail.rpartition(STARTING)[2])

    def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
        generation = frozenset({"chat/completions", "completions", "responses", "messages"})
        return generation | {"embeddings"} if profile.options.get("embeddings") else generation

    def request_slots(self, profile: ProfileSpec) -> int | None:
        return profile.parallel
