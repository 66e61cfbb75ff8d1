"""Provokes the ways in which real llama.cpp processes end, and writes each down: exit status and the end of its log.

`LLMGW_LLAMA_SERVER=... python tests/engines/collect_llama.py MODEL.gguf [NAME...]` rewrites tests/engines/corpus/cpu
and corpus/llamacpp. What a CPU cannot provoke is in the corpus too, written down from reports; those files say
`"recorded": false`, and are left alone. `kind` and `reason` of a file are the test's, and kept.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

import gguf_files

from llmgw.engine import Engine, ProfileSpec
from llmgw.ids import ProfileName
from llmgw.testing.engine_checks import EngineCase, Running, running
from llmgw_cpu.engine import CpuEngine
from llmgw_llamacpp import binary
from llmgw_llamacpp.engine import LlamaCppEngine

CORPUS: Final = Path(__file__).with_name("corpus")
KEPT: Final = 8_000  #: characters of a log's end
WITHIN: Final = 120.0
CGROUP: Final = Path("/sys/fs/cgroup/memory") / f"llmgw-corpus-{os.getpid()}"
MIB: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a process is brought to its end. `files` and `options` get (model, scratch directory)."""

    engines: tuple[str, ...] = ("cpu", "llamacpp")
    context: int = 512
    options: Mapping[str, Any] = field(default_factory=dict)
    made: Callable[[Path, Path], dict[str, Any]] | None = None  #: further options
    args: tuple[str, ...] = ()
    files: Callable[[Path, Path], dict[str, Path]] | None = None
    wrapper: tuple[str, ...] = ()
    cgroup: int | None = None  #: bytes of a control group that the engine is put into
    port_taken: bool = False
    then: Callable[[Running], Awaitable[None]] | None = None


def signalled(number: int, *, ready: bool = True) -> Callable[[Running], Awaitable[None]]:
    async def send(run: Running) -> None:
        if ready:
            await run.wait_ready()
        run.process.send_signal(number)

    return send


def weights(kind: str) -> Callable[[Path, Path], dict[str, Path]]:
    return lambda model, at: {"weights": gguf_files.damaged(kind, model, at)}


def beside(role: str, kind: str) -> Callable[[Path, Path], dict[str, Path]]:
    return lambda model, at: {"weights": model, role: gguf_files.damaged(kind, model, at)}


def wrong_adapter(model: Path, at: Path) -> dict[str, Path]:
    return {"weights": model, "lora": gguf_files.adapter(at / "lora.gguf", width=64)}


def template(model: Path, at: Path) -> dict[str, Path]:
    path = at / "template.jinja"
    path.write_text("{% if %}")
    return {"weights": model, "chat_template": path}


def without_libraries(model: Path, at: Path) -> dict[str, Any]:
    alone = at / "llama-server"
    shutil.copy(binary.default() or "", alone)
    return {"binary": str(alone)}


def limited(mib: int) -> tuple[str, ...]:
    return ("prlimit", f"--as={mib * MIB}")


LLAMACPP: Final = ("llamacpp",)
WAYS: Final[Mapping[str, Way]] = {
    **{
        f"weights_{kind.replace(' ', '_')}": Way(files=weights(kind), options={"check_tensors": kind == "rotten"})
        for kind in gguf_files.DAMAGES
    },
    "port_taken": Way(port_taken=True),
    "context_too_large": Way(context=12_000_000),
    "address_space_150": Way(wrapper=limited(150), context=4096),
    "address_space_300": Way(wrapper=limited(300), context=4096),
    "address_space_800": Way(wrapper=limited(800), context=32768),
    "kernel_oom_kill_at_start": Way(cgroup=60 * MIB, context=8192),
    "killed": Way(then=signalled(signal.SIGKILL)),
    "aborted": Way(then=signalled(signal.SIGABRT)),
    "segmentation_fault": Way(then=signalled(signal.SIGSEGV)),
    "template_inline": Way(options={"chat_template": "{% if %}"}),
    "value_cache_without_flash": Way(options={"flash_attn": "off", "cache_type_v": "q8_0"}),
    "template_file": Way(engines=LLAMACPP, files=template),
    "unknown_flag": Way(engines=LLAMACPP, args=("--no-such-flag",)),
    "removed_flag": Way(engines=LLAMACPP, args=("--draft-max", "16")),
    "bad_value": Way(engines=LLAMACPP, args=("--batch-size", "many")),
    "missing_value": Way(engines=LLAMACPP, args=("--keep",)),
    "bad_choice": Way(engines=LLAMACPP, args=("--numa", "nowhere")),
    "bad_json": Way(engines=LLAMACPP, args=("--chat-template-kwargs", "{")),
    "lora_garbage": Way(engines=LLAMACPP, files=beside("lora", "garbage")),
    "lora_missing": Way(engines=LLAMACPP, files=beside("lora", "missing")),
    "lora_of_another_model": Way(engines=LLAMACPP, files=wrong_adapter),
    "mmproj_garbage": Way(engines=LLAMACPP, files=beside("mmproj", "garbage")),
    "draft_garbage": Way(engines=LLAMACPP, files=beside("draft", "garbage")),
    "draft_truncated": Way(engines=LLAMACPP, files=beside("draft", "truncated")),
    "missing_library": Way(engines=LLAMACPP, made=without_libraries),
}
ENGINES: Final[Mapping[str, type[Engine]]] = {"cpu": CpuEngine, "llamacpp": LlamaCppEngine}


@contextmanager
def control_group(limit: int | None) -> Iterator[tuple[str, ...]]:
    """Words that put a command into a control group of that much memory (version 1, whose memory part is writable)."""
    if limit is None:
        yield ()
        return
    CGROUP.mkdir()
    try:
        (CGROUP / "memory.limit_in_bytes").write_text(str(limit))
        yield ("sh", "-c", f'echo $$ > {CGROUP}/cgroup.procs; exec "$@"', "sh")
    finally:
        CGROUP.rmdir()


async def collect(engine: str, name: str, way: Way, model: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as taken, control_group(way.cgroup) as grouped:
        at = Path(scratch)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = {"threads": 1, **way.options, **(way.made(model, at) if way.made else {})}
        profile = ProfileSpec(
            name=ProfileName("p"), engine=ENGINES[engine].name, context=way.context, options=options, args=way.args,
            wrapper=(*grouped, *way.wrapper),
        )  # fmt: skip
        files = way.files(model, at) if way.files else {"weights": model}
        case = EngineCase(engine=ENGINES[engine](), profile=profile, files=files, start_within=WITHIN)
        async with running(case, at, port=taken.getsockname()[1] if way.port_taken else None) as run:
            if way.then is not None:
                await way.then(run)
            exit = await run.ended(WITHIN)
            log = run.tail()
            if grouped and oom_kills():  # as the agent says it
                log += "llmgw: the kernel's oom_kill ended it (cgroup /models)\n"
    save(CORPUS / engine / f"{name}.json", replace_paths(log[-KEPT:], scratch, model), exit.code, exit.signal)
    print(engine, name, exit, flush=True)


def oom_kills() -> bool:
    lines = (CGROUP / "memory.oom_control").read_text().split()
    return "oom_kill" in lines and int(lines[lines.index("oom_kill") + 1]) > 0


def replace_paths(log: str, scratch: str, model: Path) -> str:
    for secret, public in (
        (scratch, "/models"), (str(model.parent), "/models"),
        (str(Path(binary.default() or "/x").parent), "/opt/llama"),
        (sys.prefix, "/venv"), (str(Path(__file__).parents[2]), "/src"),
    ):  # fmt: skip
        log = log.replace(secret, public)
    return log


def save(path: Path, log: str, code: int | None, number: int | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    found = {"recorded": True, "exit": {"code": code, "signal": number}}
    found |= {name: known.get(name) for name in ("kind", "reason")}
    found |= {"port_clash": True} if known.get("port_clash") else {}
    path.write_text(json.dumps(found | {"log": log}, indent=1, ensure_ascii=False) + "\n")


async def main(model: Path, names: list[str]) -> None:
    for name, way in WAYS.items():
        for engine in way.engines:
            if not names or name in names:
                try:
                    await collect(engine, name, way, model)
                except AssertionError as error:
                    print(engine, name, "did not end as it should:", str(error)[-300:], flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
