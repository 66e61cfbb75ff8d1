"""Provokes the ways in which a real vLLM ends, and writes each down: exit status and the end of its log.

`LLMGW_VLLM_PYTHON=V/bin/python python tests/engines/collect_vllm.py [NAME...]` rewrites tests/engines/corpus/vllm.
What a CPU cannot provoke is in the corpus too, written down from reports; those files say so, and are left alone.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny_llama

from llmgw.engine import ProfileSpec
from llmgw.engine.api import Slot
from llmgw.ids import EngineName, ProfileName
from llmgw.testing.engine_process import EngineCase, Running, running
from llmgw_vllm.engine import VllmEngine

CORPUS = Path(__file__).with_name("corpus") / "vllm"
KEPT = 12_000  #: characters of a log's end
WITHIN = 300.0


class Wrapped(VllmEngine):
    """With words before its argv, as a profile's `wrapper` puts them."""

    def __init__(self, *wrapper: str) -> None:
        self.wrapper = wrapper

    def launch(self, profile: ProfileSpec, slot: Slot, level: Any) -> Any:
        spec = super().launch(profile, slot, level)
        return type(spec)(
            argv=(*self.wrapper, *spec.argv), url=spec.url, env=spec.env, key_variables=spec.key_variables
        )


def profile(**changes: Any) -> ProfileSpec:
    made: dict[str, Any] = {"context": 1024, "parallel": 2, **changes}
    return ProfileSpec(name=ProfileName("p"), engine=EngineName("vllm"), **made)


def model(at: Path, **config: Any) -> Path:
    return tiny_llama.write(at / "tiny", config=config)


async def ended(run: Running) -> None:
    await run.ended(WITHIN)


def killed(*names: str) -> Callable[[Running], Awaitable[None]]:
    """SIGKILL to one of its processes, once it is ready."""

    async def kill(run: Running) -> None:
        await run.wait_ready()
        for child in psutil.Process(run.process.pid).children(recursive=True):
            if any(name in " ".join(child.cmdline()) for name in names):
                child.kill()
        await run.ended(60)

    return kill


async def killed_itself(run: Running) -> None:
    await run.wait_ready()
    run.process.send_signal(signal.SIGKILL)
    await run.ended(60)


def truncated(at: Path) -> Path:
    directory = model(at)
    file = directory / "model.safetensors"
    data = file.read_bytes()
    # Whole for its header, so that only the engine notices.
    head = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[:8] + data[8:head].replace(b'"BF16"', b'"F32" ', 1) + data[head:])
    return directory


def without(name: str) -> Callable[[Path], Path]:
    def make(at: Path) -> Path:
        directory = model(at)
        (directory / name).unlink()
        return directory

    return make


def cases() -> dict[str, dict[str, Any]]:
    limited = ("prlimit", f"--as={3 * 1024**3}")
    return {
        "missing_config": {"make": without("config.json"), "profile": profile(options={"kv_cache_mib": 64})},
        "missing_tokenizer": {"make": without("tokenizer.json")},
        "missing_weights": {"make": without("model.safetensors")},
        "damaged_weights": {"make": truncated},
        "unknown_architecture": {"make": lambda at: model(at, architectures=["NoSuchModel"], model_type="nosuch")},
        "wrong_shape": {"make": lambda at: model(at, intermediate_size=512)},
        "context_too_long": {"profile": profile(context=200_000)},
        "cache_too_big": {"profile": profile(options={"kv_cache_mib": 400_000})},
        "cache_too_small": {"profile": profile(context=16384, options={"kv_cache_mib": 1})},
        "bad_flag": {"profile": profile(args=("--no-such-flag",))},
        "bad_value": {"profile": profile(args=("--block-size", "many"))},
        "bad_quantization": {"profile": profile(options={"quantization": "nosuch"})},
        "bad_tool_parser": {"profile": profile(options={"tool_call_parser": "nosuch"})},
        "out_of_memory": {"engine": Wrapped(*limited), "profile": profile(options={"kv_cache_mib": 1500})},
        "port_taken": {"port": True},
        "no_vllm": {"python": sys.executable},
        "worker_killed": {"then": killed("VLLM::Worker", "spawn_main")},
        "engine_killed": {"then": killed("VLLM::EngineCore")},
        "server_killed": {"then": killed_itself},
        "lora_rank_too_high": {"lora": 64, "profile": profile(options={"max_lora_rank": 8})},
    }


async def collect(name: str, case: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as taken:
        at = Path(scratch)
        files = {"weights": case.get("make", model)(at)}
        if "lora" in case:
            files["lora"] = tiny_llama.write_lora(at / "lora", rank=case["lora"])
        chosen = case.get("profile", profile())
        if "python" in case:
            chosen = profile(options={"python": case["python"]})
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1] if case.get("port") else None
        made = EngineCase(
            engine=case.get("engine", VllmEngine()), profile=chosen, files=files, start_within=WITHIN
        )  # fmt: skip
        async with running(made, at, port=port) as run:
            await case.get("then", ended)(run)
            code = run.process.returncode
            assert code is not None
            log = run.tail()[-KEPT:]
        for ours, public in (
            (scratch, "/models"),
            (str(Path(os.environ["LLMGW_VLLM_PYTHON"]).parents[1]), "/venv"),
            (sys.prefix, "/llmgw"),
            (sys.base_prefix, "/python"),
        ):
            log = log.replace(ours, public)
        exit = {"code": None, "signal": -code} if code < 0 else {"code": code, "signal": None}
        path = CORPUS / f"{name}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        found = {"kind": None, "reason": None, **known, "recorded": True, "exit": exit, "log": log}
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(name, exit, flush=True)


async def main(names: list[str]) -> None:
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, case in cases().items():
        if not names or name in names:
            await collect(name, case)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
