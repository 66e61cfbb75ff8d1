"""Engines that run out of memory for real: smaller levels, the fallback in their place, quarantine, and the way back.

Each engine runs below a limit of address space, which its full context does not fit into.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import MESSAGES, WEB, Daemon, Repo, cluster, eventually, model, serving
from llama_server import need_llama_server

CONTEXT = 32768

MEASURED = {"llamacpp": (1_040_000, 654_000, 461_000), "cpu": (1_080_000, 694_000, 501_000)}
"""Address space, in KiB, that takes to serve the test model in the full context, in half of it and in a quarter."""


def between(engine: str, fails: int) -> int:
    """A limit, in KiB, between two levels: what `fails` takes is too much, the next one fits."""
    return (MEASURED[engine][fails] + MEASURED[engine][fails + 1]) // 2


TOO_LITTLE = 340_000
"""KiB: the weights can be loaded, and no context of any level fits."""


OLD_SERVER = """\
#!/bin/sh
[ "$1" = --version ] && { echo version: 1; exit; }
echo error: invalid argument: --spec >&2
exit 1
"""
"""A llama-server that knows too little."""


class Limit:
    """A limit that an operator can change: it is read when an engine starts."""

    def __init__(self, directory: Path, kib: int) -> None:
        self.file = directory / "limit"
        self.set(kib)

    def set(self, kib: int | str) -> None:
        self.file.write_text(str(kib))

    @property
    def wrapper(self) -> list[str]:
        return ["sh", "-c", f'ulimit -v "$(cat {self.file})"; exec "$@"', "sh"]


def document(engine: str, weights: Path, wrapper: list[str], *, more: str = "") -> str:
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: large
{more}
profiles:
  - name: p
    engine: {engine}
    weights: {{source: "file://{weights}"}}
    context: {CONTEXT}
    options: {{threads: 1}}
    wrapper: {json.dumps(wrapper)}
    env: {{MALLOC_ARENA_MAX: "1"}}
"""


def told(daemon: Daemon, *reasons: str, model: str = "large") -> list[str]:
    """The messages of a model's events of these reasons, oldest first."""
    events = daemon.seen("events?limit=1000")["events"]
    return [e["message"] for e in events if e["subject"] == f"model/{model}" and e["reason"] in reasons]


def launched(daemon: Daemon) -> list[str]:
    """The levels of the launches so far."""
    return [
        next((level for level in ("degraded", "minimal") if f"at level {level}" in message), "full")
        for message in told(daemon, "launched")
    ]


def context_of(replica: dict[str, Any]) -> int:
    """What its process was started with. Over all slots, and there is one."""
    argv = Path(f"/proc/{replica['pid']}/cmdline").read_text().split("\0")
    return int(argv[argv.index("--ctx-size") + 1]) if "--ctx-size" in argv else json.loads(argv[-2])["context"]


def begin(tmp_path: Path, **files: str) -> Repo:
    repo = Repo(tmp_path / "catalog")
    settings = cluster(recovery={"backoff": "100ms", "backoff_cap": "200ms"}, defaults={"idle_timeout": "1s"})
    repo.commit({"cluster.yaml": settings, **{f"{name}.yaml": text for name, text in files.items()}})
    return repo


@pytest.fixture(params=["cpu", "llamacpp"])
def engine(request: Any) -> str:
    if request.param == "llamacpp":
        need_llama_server()
    return str(request.param)


def test_what_runs_out_of_memory_is_launched_smaller_until_it_fits(engine: str, smollm2: Path, tmp_path: Path) -> None:
    limit = Limit(tmp_path, between(engine, 1))
    repo = begin(tmp_path, large=document(engine, smollm2, limit.wrapper))
    with serving(repo.path, tmp_path / "home") as daemon:
        quarter = daemon.ready("large")["large"]
        assert launched(daemon) == ["full", "degraded", "minimal"]
        assert context_of(quarter) == CONTEXT // 4
        assert "Paris" in daemon.chat("large")
        first, second = told(daemon, "failed", "quarantined")
        assert first.startswith("oom: ")
        assert first.endswith("; tried next at level degraded")
        assert second.endswith("; tried next at level minimal")

        # More room, and the failures forgotten: what runs goes on as it is, the next launch is at full size.
        limit.set(between(engine, 0))
        assert "2 failures forgotten" in daemon.cli("reset", "large").stdout
        assert context_of(daemon.ready("large")["large"]) == CONTEXT // 4
        daemon.cli("stop")
        eventually(lambda: not daemon.replicas(), what="its end")
        daemon.cli("start")
        eventually(lambda: "degraded" in launched(daemon)[3:], what="the next degraded launch")
        assert launched(daemon)[3:] == ["full", "degraded"]
        half = daemon.ready("large")["large"]
        assert context_of(half) == CONTEXT // 2
        assert "Paris" in daemon.chat("large")


def test_a_levels_own_block_may_change_the_engine(smollm2: Path, tmp_path: Path) -> None:
    need_llama_server()
    limit = Limit(tmp_path, TOO_LITTLE)
    blocks = "    degraded: {context: 16384}\n    minimal: {engine: cpu, context: 2048, wrapper: [], env: {}}\n"
    repo = begin(tmp_path, large=document("llamacpp", smollm2, limit.wrapper) + blocks)
    with serving(repo.path, tmp_path / "home") as daemon:
        replica = daemon.ready("large")["large"]
        assert launched(daemon) == ["full", "degraded", "minimal"]
        assert (replica["engine"], context_of(replica)) == ("cpu", 2048)
        assert "Paris" in daemon.chat("large")
        daemon.kill()
        daemon.start()
        assert daemon.ready("large")["large"]["pid"] == replica["pid"], "adopted as it is, at its level"
        assert launched(daemon) == []


def test_what_hangs_is_tried_again_and_then_smaller(smollm2: Path, tmp_path: Path) -> None:
    stuck = ["sh", "-c", f'case "$*" in *{CONTEXT}*) exec sleep 600;; esac; exec "$@"', "sh"]
    repo = begin(tmp_path, large=document("cpu", smollm2, stuck) + "    start_timeout: 6s\n")
    with serving(repo.path, tmp_path / "home") as daemon:
        half = daemon.ready("large")["large"]
        assert launched(daemon) == ["full", "full", "degraded"]
        assert context_of(half) == CONTEXT // 2
        assert [message.split(":")[0] for message in told(daemon, "failed")] == ["hang", "hang"]


def test_quarantine_ends_when_the_engine_on_the_node_is_another_one(smollm2: Path, tmp_path: Path) -> None:
    real, named = need_llama_server(), tmp_path / "llama-server"
    named.write_text(OLD_SERVER)
    named.chmod(0o755)
    repo = begin(tmp_path, large=document("llamacpp", smollm2, []).replace("32768", "512"))
    env = {"LLMGW_LLAMA_SERVER": str(named)}
    with serving(repo.path, tmp_path / "home", env=env) as daemon:
        eventually(lambda: told(daemon, "quarantined"), what="quarantine")
        assert "does not know the flag --spec" in told(daemon, "quarantined")[0]
        daemon.kill()
        named.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
        daemon.start()
        daemon.ready("large")
        assert "Paris" in daemon.chat("large")


def test_what_fits_nowhere_is_served_by_its_fallback_until_the_operator_has_helped(
    engine: str, smollm2: Path, tmp_path: Path
) -> None:
    limit = Limit(tmp_path, TOO_LITTLE)
    spare = model("spare", smollm2, more="scaling: {on_demand: true}")
    repo = begin(tmp_path, large=document(engine, smollm2, limit.wrapper, more="fallback: spare"), spare=spare)
    with serving(repo.path, tmp_path / "home") as daemon:
        eventually(lambda: told(daemon, "quarantined"), what="quarantine")
        assert launched(daemon) == ["full", "degraded", "minimal", "minimal"], "the fallback's step tries once more"
        third = told(daemon, "failed")[2]
        assert "its fallback serves in its place" in third
        assert "oom" in told(daemon, "quarantined")[0]

        answer = daemon.post(model="large", max_tokens=8, temperature=0, messages=MESSAGES)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-llmgw-fallback"] == "spare"
        assert "Paris" in answer.text
        assert "spare serves in its place" in told(daemon, "fallback")[0]
        refused = ask_alone(daemon)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "model_failed"
        assert "memory" in refused.json()["error"]["message"]

        limit.set("unlimited")
        assert "out of quarantine" in daemon.cli("reset", "large").stdout
        eventually(lambda: "large" in daemon.replicas(), what="the model itself")
        assert launched(daemon)[4:] == ["full"]
        eventually(lambda: "x-llmgw-fallback" not in ask(daemon).headers, what="answers of the model itself")
        eventually(lambda: "spare" not in daemon.replicas(), what="the spare's end: nobody asks for it any more")
        assert "served by spare no more" in told(daemon, "fallback")


def test_without_a_fallback_the_third_time_is_quarantine_with_the_reason(smollm2: Path, tmp_path: Path) -> None:
    limit = Limit(tmp_path, TOO_LITTLE)
    repo = begin(tmp_path, large=document("cpu", smollm2, limit.wrapper))
    with serving(repo.path, tmp_path / "home") as daemon:
        eventually(lambda: told(daemon, "quarantined"), what="quarantine")
        assert launched(daemon) == ["full", "degraded", "minimal"]
        assert ask_alone(daemon).json()["error"]["code"] == "model_failed"
        story = daemon.cli("explain", "large").stdout
        assert "memory" in story
        assert "failed 3 times in a row" in story
        daemon.kill()  # the ladder is remembered
        daemon.start()
        eventually(
            lambda: [model["state"] for model in daemon.seen("models")["models"]] == ["failed"],
            what="quarantine after a restart",
        )
        assert launched(daemon) == []


def ask(daemon: Daemon, **headers: str) -> httpx.Response:
    body = {"model": "large", "max_tokens": 1, "messages": MESSAGES}
    return httpx.post(f"{daemon.gateway}/v1/chat/completions", json=body, headers=headers, timeout=60, **WEB)


def ask_alone(daemon: Daemon) -> httpx.Response:
    return ask(daemon, **{"x-llmgw-no-fallback": "1"})
