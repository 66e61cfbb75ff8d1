"""What llmgw needs to know of the engine `vllm`: how to start it, when it is ready, what it died of, what it takes."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from llmgw_vllm import command, failures, program
from llmgw_vllm.checks import complaints
from llmgw_vllm.footprint import estimate
from llmgw_vllm.options import OPTIONS_SCHEMA

HEALTH: Final = "/health"
EMBEDDINGS: Final = "/v1/embeddings"
KEY: Final = "VLLM_API_KEY"

_LOAD: Final = re.compile(rb"^vllm:num_requests_(running|waiting)(?:\{[^}\n]*\})? (\S+)", re.MULTILINE)

OWN_PROGRAM: Final = ("python", "binary")
"""Options by which a profile names a vLLM of its own."""


class VllmEngine(Engine):
    """vLLM's OpenAI server, on accelerators or with its CPU build, for directories in Hugging Face layout."""

    name: ClassVar = EngineName("vllm")
    options_schema: ClassVar = OPTIONS_SCHEMA
    roles: ClassVar = frozenset({"weights", "draft", "lora", "chat_template"})

    def check(self, profile: ProfileSpec) -> Sequence[Complaint]:
        return complaints(profile)

    def fingerprint(self) -> EngineFact:
        try:
            found = program.find({})
        except EngineUnavailable as error:
            return EngineFact(name=self.name, why=str(error), own_program=OWN_PROGRAM)
        version, why = program.look(found)
        return EngineFact(name=self.name, version=version, path=found.path, why=why, own_program=OWN_PROGRAM)

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        return estimate(profile, files)

    def shrink(self, profile: ProfileSpec, level: Level) -> ProfileSpec | None:
        # Never fewer devices: a vLLM that is built for accelerators has no CPU part.
        smaller = shorter_context(profile, level)
        if smaller is None:
            return None
        options = {name: value for name, value in profile.options.items() if name != "gpu_memory_utilization"}
        if "kv_cache_mib" in options:  # it goes with the context that it was chosen for
            options["kv_cache_mib"] = -(-options["kv_cache_mib"] * smaller.context // profile.context)
        return replace(smaller, options=options)

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        host = f"[{slot.host}]" if ":" in slot.host else slot.host
        return LaunchSpec(
            argv=command.argv(program.find(profile.options), profile, slot),
            url=f"http://{host}:{slot.port}",
            env=command.environment(profile, slot),
            key_variables=(KEY,),
        )

    def probes(self, profile: ProfileSpec) -> Sequence[HttpRequest]:
        if profile.options.get("runner") == "pooling":
            body = json.dumps({"input": "a"}).encode()
            return (HttpRequest(path=HEALTH), HttpRequest(path=EMBEDDINGS, method="POST", body=body, timeout=120))
        body = json.dumps({"prompt": "a", "max_tokens": 1, "temperature": 0}).encode()
        return (HttpRequest(path=HEALTH), HttpRequest(path="/v1/completions", method="POST", body=body, timeout=120))

    def read_probe(self, request: HttpRequest, status: int, body: bytes) -> Readiness:
        if status == 200:
            return Readiness.READY
        if request.path == EMBEDDINGS and status in (400, 404):
            return Readiness.READY  # a reranker or classifier, which has no embeddings to give
        # 5xx: its engine process is in trouble, and then the server ends by itself, which says more.
        return Readiness.BROKEN if 400 <= status < 500 and request.path != HEALTH else Readiness.LOADING

    def load(self, profile: ProfileSpec) -> HttpRequest | None:
        return HttpRequest(path="/metrics")

    def read_load(self, status: int, body: bytes) -> EngineLoad | None:
        found = [(name, float(count)) for name, count in _LOAD.findall(body)]
        if status != 200 or {name for name, _ in found} != {b"running", b"waiting"}:
            return None
        counts = {name: int(sum(count for each, count in found if each == name)) for name in (b"running", b"waiting")}
        return EngineLoad(running=counts[b"running"], waiting=counts[b"waiting"])

    def classify(self, exit: Exit, log_tail: str) -> Verdict:
        return failures.classify(exit, log_tail)

    def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
        if profile.options.get("runner") == "pooling":
            return frozenset({"embeddings", "rerank", "score"})
        return frozenset({"chat/completions", "completions", "responses", "messages"})
