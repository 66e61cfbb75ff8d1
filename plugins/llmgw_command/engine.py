"""Any argv as an engine: placeholders filled in, a path that tells its health, optionally a command that stops it."""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from llmgw.engine import (
    Engine,
    EngineFact,
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

PLACEHOLDERS: Final = ("host", "port", "model", "weights", "context", "parallel")

_ARGV: Final[Mapping[str, Any]] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "string",
        "pattern": r"^([^{}]|\{\{|\}\}|\{(" + "|".join(PLACEHOLDERS) + r")\})*$",
        "x-expects": "text with no braces but "
        + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        + "; {{ and }} stand for braces",
    },
}
_PATH: Final[Mapping[str, Any]] = {"type": "string", "pattern": "^/[!-~]*$(?!\n)"}
_PORT_TAKEN: Final = re.compile(r"address (?:is )?already in use|address in use|EADDRINUSE", re.IGNORECASE)
_NO_MEMORY: Final = re.compile(r"out of memory|cannot allocate memory|bad_alloc|MemoryError|oom[-_]kill", re.IGNORECASE)


class CommandEngine(Engine):
    """A program that serves the OpenAI API by itself. Its memory has to be declared."""

    name: ClassVar = EngineName("command")
    needs_weights: ClassVar = False
    roles: ClassVar = None
    options_schema: ClassVar = {
        "type": "object",
        "additionalProperties": False,
        "required": ["command"],
        "properties": {
            "command": {
                **_ARGV,
                "description": "The argv; no shell reads it. Filled in: "
                + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
                + "; {{ and }} stand for braces.",
            },
            "health": {**_PATH, "description": "A GET of this path answers 200 once it serves. Default /health."},
            "probe_path": {**_PATH, "description": "A second path that must answer 200 before it counts as ready."},
            "base_path": {**_PATH, "description": "What stands before every path, /v1/... included. Default: nothing."},
            "stop_command": {
                **_ARGV,
                "description": "Run before the process is signalled, where ending it does not end the service.",
            },
        },
    }

    def fingerprint(self) -> EngineFact:
        return EngineFact(name=self.name)

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        return None if profile.memory is None else Footprint(host=profile.memory, source="declared")

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        values = {
            "host": slot.host,
            "port": str(slot.port),
            "model": slot.model,
            "context": str(profile.context),
            "parallel": str(profile.parallel),
        }
        if "weights" in slot.files:
            values["weights"] = str(slot.files["weights"])
        host = f"[{slot.host}]" if ":" in slot.host else slot.host
        base = str(profile.options.get("base_path", "")).rstrip("/")
        stop = profile.options.get("stop_command")
        return LaunchSpec(
            argv=fill((*profile.options["command"], *profile.args), values),
            url=f"http://{host}:{slot.port}{base}",
            stop_argv=None if stop is None else fill(stop, values),
        )

    def probes(self, profile: ProfileSpec) -> Sequence[HttpRequest]:
        paths = (profile.options.get("health", "/health"), profile.options.get("probe_path"))
        return tuple(HttpRequest(path=path) for path in paths if path is not None)

    def read_probe(self, request: HttpRequest, status: int, body: bytes) -> Readiness:
        return Readiness.READY if status == 200 else Readiness.LOADING

    def classify(self, exit: Exit, log_tail: str) -> Verdict:
        lines = [line.strip() for line in log_tail[-4096:].splitlines() if line.strip()]
        said = f": {lines[-1][:200]}" if lines else ""
        if _PORT_TAKEN.search(log_tail[-4096:]):
            return Verdict(kind=FailureKind.CRASH, reason="its port was taken meanwhile", port_clash=True)
        if _NO_MEMORY.search(log_tail[-4096:]):
            return Verdict(kind=FailureKind.OOM, reason=f"out of memory ({exit}{said})")
        return Verdict(kind=FailureKind.CRASH, reason=f"ended with {exit}{said}")


def fill(argv: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """`argv` with its placeholders replaced. Raises EngineUnavailable, naming the one that has no value."""
    return tuple(_fill(argument, values) for argument in argv)


def _fill(argument: str, values: Mapping[str, str]) -> str:
    try:
        parts = list(string.Formatter().parse(argument))
    except ValueError as error:
        raise EngineUnavailable(f"{argument!r}: {error}; write {{{{ and }}}} for braces") from error
    filled = ""
    for literal, name, spec, conversion in parts:
        filled += literal
        if name is None:
            continue
        if name == "weights" and name not in values:
            raise EngineUnavailable(f"{argument!r} wants {{weights}}, but the profile has no `weights`")
        if name not in values or spec or conversion:
            known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise EngineUnavailable(f"{argument!r}: {{{name}}} is none of {known}; write {{{{ and }}}} for braces")
        filled += values[name]
    return filled
