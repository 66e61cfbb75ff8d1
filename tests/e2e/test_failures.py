"""Real engines that cannot start, each told for what ails it, while their neighbour serves."""

import sys
from pathlib import Path
from typing import Any

from harness import Repo, eventually, model, serving
from llama_server import need_llama_server

from llmgw.facts import FailureKind

STOPPED = """[sh, -c, 'kill -STOP $$; exec "$@"', sh]"""
"""A wrapper that is stopped before it becomes the engine: nothing ever answers."""
LITTLE = """[sh, -c, 'ulimit -v 300000; exec "$@"', sh]"""


def document(engine: str, *lines: str) -> str:
    """A Model named after the engine and what is wrong with it, in a file of that name."""
    return "apiVersion: llmgw/v1\nkind: Model\nname: {name}\nprofiles:\n  - name: p\n" + "".join(
        f"    {line}\n" for line in (f"engine: {engine}", *lines)
    )


def broken(engine: str, whole: Path, cut: Path) -> dict[str, tuple[str, FailureKind, str]]:
    """Of an engine for GGUF files: what is wrong -> document, kind, and what the reason says."""
    weights, context = f"weights: {{source: {whole}}}", "context: 512"
    return {
        "cut": (document(engine, f"weights: {{source: {cut}}}"), FailureKind.TERMINAL, "cut short or damaged"),
        "memory": (document(engine, weights, context, f"wrapper: {LITTLE}"), FailureKind.OOM, "out of memory"),
        "hang": (
            document(engine, weights, context, f"wrapper: {STOPPED}", "start_timeout: 2s"),
            FailureKind.HANG,
            "not ready within 2.0s",
        ),
    }


def commands(llama_server: str) -> dict[str, tuple[str, FailureKind, str]]:
    """As `broken`, of the engine `command`."""

    def command(*argv: str) -> str:
        return document("command", "memory: 100MiB", f"options: {{command: {list(argv)!r}}}")

    return {
        "gone": (command("no-such-program"), FailureKind.TERMINAL, "cannot start no-such-program"),
        "gone-inside": (command("sh", "-c", "exec no-such-program"), FailureKind.TERMINAL, "is not there"),
        "option": (command(llama_server, "--bogus"), FailureKind.TERMINAL, "does not accept its command line"),
        "memory": (command(sys.executable, "-c", "bytearray(1 << 44)"), FailureKind.OOM, "out of memory"),
    }


def test_each_engine_that_cannot_start_is_told_for_what_ails_it_and_its_neighbour_serves(
    smollm2: Path, tmp_path: Path
) -> None:
    program = need_llama_server()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2.read_bytes()[:40_000_000])
    wrong = {f"cpu-{name}": case for name, case in broken("cpu", smollm2, cut).items()}
    wrong |= {f"llamacpp-{name}": case for name, case in broken("llamacpp", smollm2, cut).items()}
    wrong |= {f"command-{name}": case for name, case in commands(program).items()}
    weights = f"weights: {{source: {smollm2}}}"
    for name, (line, said) in {
        "llamacpp-gone": ("options: {binary: /nowhere/llama-server}", "/nowhere/llama-server is no program"),
        "llamacpp-option": ("args: [--bogus]", "does not know the flag --bogus"),
        "vllm-gone": ("options: {python: /nowhere/python}", "/nowhere/python"),
    }.items():
        wrong[name] = (document(name.partition("-")[0], weights, line), FailureKind.TERMINAL, said)
    repo = Repo(tmp_path / "catalog")
    repo.commit(
        {f"{name}.yaml": text.replace("{name}", name) for name, (text, _, _) in wrong.items()}
        | {"well.yaml": model("well", smollm2)}
    )
    with serving(repo.path, tmp_path / "home") as daemon:

        def failures() -> dict[str, Any] | None:
            found = {name: daemon.seen(f"explain?model={name}")["failures"] for name in wrong}
            return found if all(found.values()) else None

        assert daemon.ready("well")
        assert "Paris" in daemon.chat("well")
        found = eventually(failures, what="a failure of each")
        for name, (_, kind, said) in wrong.items():
            told = found[name][0]
            assert (told["kind"], said in told["reason"]) == (kind, True), (name, told)
