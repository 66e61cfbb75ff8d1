"""Any argv as an engine: placeholders filled in, a path that tells its health, optionally a command that stops it."""

from collections.abc import Mapping, Sequence
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
)
from llmgw.ids import EngineName
from llmgw_command import causes, figures
from llmgw_command.placeholders import EXPECTS, KEY_FILE, PATTERN, complaints, fill, names_in, values_for

_ARGV: Final[Mapping[str, Any]] = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "string", "pattern": PATTERN, "x-expects": EXPECTS},
}
_PATH: Final[Mapping[str, Any]] = {"type": "string", "pattern": "^/[!-~]*$(?!\n)"}
_FIGURE: Final[Mapping[str, Any]] = {
    "type": "string",
    "pattern": "^([a-zA-Z_:][a-zA-Z0-9_:]*|/[^\n]*)$(?!\n)",
    "x-expects": "the name of a Prometheus metric, or a JSON pointer such as /queue/running",
}
_LOAD: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["running"],
    "properties": {"path": _PATH, "running": _FIGURE, "waiting": _FIGURE},
}


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
            "command": {**_ARGV, "description": f"The argv; no shell reads it. Each is {EXPECTS}."},
            "health": {**_PATH, "description": "A GET of this path answers 200 once it serves. Default /health."},
            "probe_path": {**_PATH, "description": "A second path that must answer 200 before it counts as ready."},
            "base_path": {**_PATH, "description": "What stands before every path, /v1/... included. Default: nothing."},
            "stop_command": {
                **_ARGV,
                "description": "Ends the service where ending the process does not: a container, say. Run before the "
                "process is signalled, and when it has died by itself. Placeholders as in `command`.",
            },
            "load": {
                **_LOAD,
                "description": "Where the program tells how busy it is: a GET of `path` (default /metrics), in which "
                "`running` and `waiting` are names of Prometheus metrics, or JSON pointers.",
            },
            "key_variables": {
                "type": "array",
                "maxItems": 16,
                "items": {
                    "type": "string",
                    "pattern": "^(?!LLMGW_)[A-Za-z_][A-Za-z0-9_]*$(?!\n)",
                    "x-expects": "the name of an environment variable that is not one of llmgw's own",
                },
                "description": "Environment variables in which the program looks for the key that it is to demand.",
            },
        },
    }

    def check(self, profile: ProfileSpec) -> Sequence[Complaint]:
        argvs = {("args",): profile.args} | {
            ("options", name): profile.options[name] for name in ("command", "stop_command") if name in profile.options
        }
        return [each for path, argv in argvs.items() for each in complaints(path, argv, profile)]

    def fingerprint(self) -> EngineFact:
        return EngineFact(name=self.name)

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        return None if profile.memory is None else Footprint(host=profile.memory, source="declared")

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        values = values_for(profile, slot)
        argv = (*profile.options["command"], *profile.args)
        stop = profile.options.get("stop_command")
        host = f"[{slot.host}]" if ":" in slot.host else slot.host
        base = str(profile.options.get("base_path", "")).rstrip("/")
        return LaunchSpec(
            argv=fill(argv, values),
            url=f"http://{host}:{slot.port}{base}",
            env={"CUDA_VISIBLE_DEVICES": ",".join(slot.devices)} if slot.devices else {},
            key_variables=tuple(profile.options.get("key_variables", ())),
            stop_argv=None if stop is None else fill(stop, values),
            key_file=slot.directory / "key" if KEY_FILE in names_in((*argv, *(stop or ()))) else None,
        )

    def probes(self, profile: ProfileSpec) -> Sequence[HttpRequest]:
        paths = (profile.options.get("health", "/health"), profile.options.get("probe_path"))
        return tuple(HttpRequest(path=path) for path in paths if path is not None)

    def read_probe(self, request: HttpRequest, status: int, body: bytes) -> Readiness:
        return Readiness.READY if status == 200 else Readiness.LOADING

    def load(self, profile: ProfileSpec) -> HttpRequest | None:
        where = profile.options.get("load")
        return None if where is None else HttpRequest(path=where.get("path", figures.DEFAULT_PATH), timeout=2.0)

    def read_load_of(self, profile: ProfileSpec, status: int, body: bytes) -> EngineLoad | None:
        return figures.read(profile.options["load"], status, body) if "load" in profile.options else None

    def classify(self, exit: Exit, log_tail: str) -> Verdict:
        return causes.verdict(exit, log_tail)
