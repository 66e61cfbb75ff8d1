"""What llmgw needs to know of llama-server: how to start it, when it is ready, what it died of, what it takes."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

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
from llmgw_llamacpp import args, binary, causes, command
from llmgw_llamacpp.checks import complaints
from llmgw_llamacpp.footprint import estimate
from llmgw_llamacpp.options import DEVICE_OPTIONS, OPTIONS_SCHEMA

HEALTH: Final = "/health"
LORAS: Final = 8

_LOAD: Final = re.compile(rb"^llamacpp:requests_(processing|deferred) (\d+)", re.MULTILINE)


class LlamaCppEngine(Engine):
    """A llama-server in a process of its own, for GGUF weights."""

    name: ClassVar = EngineName("llamacpp")
    options_schema: ClassVar = OPTIONS_SCHEMA
    roles: ClassVar = frozenset(
        {"weights", "draft", "mmproj", "chat_template", "lora", *(f"lora_{number}" for number in range(1, LORAS))}
    )

    def check(self, profile: ProfileSpec) -> Sequence[Complaint]:
        return tuple(complaints(profile, profile.roles.keys()))

    def fingerprint(self) -> EngineFact:
        path = binary.default()
        known = EngineFact(name=self.name, path=path, own_program=("binary",))
        if path is None:
            return replace(known, why=f"no llama-server was found: {binary.HOW}")
        try:
            return replace(known, version=binary.version(path))
        except (OSError, ValueError) as error:
            return replace(known, why=f"{path} cannot be run: {error}; {binary.HOW}")

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        return estimate(profile, files)

    def shrink(self, profile: ProfileSpec, level: Level) -> ProfileSpec | None:
        smaller = shorter_context(profile, level)
        tied = any(args.needs_device(flag) for _, flag in args.flags(profile.args))
        if level is not Level.MINIMAL or not profile.devices or tied:
            return smaller
        options = {name: value for name, value in profile.options.items() if name not in DEVICE_OPTIONS}
        made = smaller or profile
        return replace(made, devices=0, exclusive=False, options=options, memory=None, host_memory=None)

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        host = f"[{slot.host}]" if ":" in slot.host else slot.host
        return LaunchSpec(
            argv=command.argv(_binary(profile), profile, slot),
            url=f"http://{host}:{slot.port}",
            # A build for CUDA takes memory on every GPU that it sees, even for a model that uses none. A failed
            # assertion would have a debugger print its stack: slow, and no use to anybody here.
            env={"CUDA_VISIBLE_DEVICES": ",".join(slot.devices), "GGML_NO_BACKTRACE": "1"},
            key_variables=("LLAMA_API_KEY",),
        )

    def probes(self, profile: ProfileSpec) -> Sequence[HttpRequest]:
        body: dict[str, Any]
        if profile.options.get("embeddings"):
            path, body = "/v1/embeddings", {"input": "a"}
        elif profile.options.get("rerank"):
            path, body = "/v1/rerank", {"query": "a", "documents": ["a"]}
        else:
            path, body = "/completion", {"prompt": "a", "n_predict": 1, "cache_prompt": False}
        work = HttpRequest(path=path, method="POST", body=json.dumps(body).encode(), timeout=60)
        return (HttpRequest(path=HEALTH), work)

    def read_probe(self, request: HttpRequest, status: int, body: bytes) -> Readiness:
        if status == 200:
            return Readiness.READY
        # 503: loading. Anything else that the health path says comes from no llama.cpp, and may still go away.
        return Readiness.LOADING if status == 503 or request.path == HEALTH else Readiness.BROKEN

    def load(self, profile: ProfileSpec) -> HttpRequest | None:
        return HttpRequest(path="/metrics")  # /slots counts the same, and knows nothing of what waits

    def read_load(self, status: int, body: bytes) -> EngineLoad | None:
        found = {name: int(count) for name, count in _LOAD.findall(body)}
        if status != 200 or len(found) != 2:
            return None
        return EngineLoad(running=found[b"processing"], waiting=found[b"deferred"])

    def classify(self, exit: Exit, log_tail: str) -> Verdict:
        return causes.verdict(exit, log_tail)

    def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
        if profile.options.get("rerank"):
            return frozenset({"rerank"})
        generation = frozenset({"chat/completions", "completions", "responses", "messages"})
        return generation | {"embeddings"} if profile.options.get("embeddings") else generation

    def request_slots(self, profile: ProfileSpec) -> int | None:
        return profile.parallel


def _binary(profile: ProfileSpec) -> str:
    named = profile.options.get("binary")
    found = binary.default() if named is None else binary.find(named)
    if found is not None:
        return found
    if named is None:
        raise EngineUnavailable(f"no llama-server was found on this node: {binary.HOW}")
    raise EngineUnavailable(f"options.binary: {named} is no program on this node: correct it, or put the program there")
