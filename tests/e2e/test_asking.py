"""A real daemon asked about its models, and talked to; a container that its stop command ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness import Repo, alive, eventually, model, serving

ENGINES = Path(__file__).parents[1] / "engines"
DOCKER = f'DOCKER: ["{sys.executable}", "{ENGINES / "stand_in_docker.py"}"]'

CONTAINER = """\
apiVersion: llmgw/v1
kind: Model
name: boxed
profiles:
  - name: container
    engine: command
    memory: 64MiB
    options:
      command: ["${DOCKER}", run, --rm, --name, "llmgw-{replica}", -p, "{host}:{port}:8000", image]
      stop_command: ["${DOCKER}", stop, "llmgw-{replica}"]
"""


def test_a_model_is_explained_its_log_read_and_it_is_talked_to(smollm2: Path, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    more = model("smol", smollm2, aliases=["default"]).replace("{threads: 1}", "{threads: 1, chat_template: chatml}")
    repo.commit({"a.yaml": more, "b.yaml": model("lost", "/no/such/file.gguf")})
    with serving(repo.path, tmp_path / "box") as daemon:
        pid = daemon.ready("smol")["smol"]["pid"]
        story = daemon.ask("explain", "default")
        assert (story["model"]["name"], story["why"]) == ("smol", "in the catalog")
        assert [replica["pid"] for replica in story["replicas"]] == [pid]
        assert story["files"][0]["here"]
        assert [place["verdict"] for place in story["places"]] == ["placed"]
        assert {event["reason"] for event in story["events"]} >= {"launched", "ready"}
        assert "llmgw_cpu" in daemon.cli("logs", "smol").stdout
        asked = daemon.cli("run", "smol", "What is the capital of France?", "--max-tokens", "12", "--temperature", "0")
        assert "Paris" in asked.stdout
        lost = daemon.ask("explain", "lost")
        assert lost["model"]["state"] in ("failed", "loading", "unschedulable")
        assert lost["advice"]
        os.kill(pid, signal.SIGKILL)
        daemon.ready("smol")
        assert "llmgw_cpu" in daemon.cli("logs", "--previous", "smol").stdout


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Path]:
    dock = tmp_path / "docker"
    dock.mkdir()
    yield dock
    for file in dock.glob("llmgw-*"):
        with suppress(ValueError, ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


def test_a_container_ends_with_its_replica_and_outlives_llmgw(dock: Path, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    cluster = f"apiVersion: llmgw/v1\nkind: Cluster\nmacros:\n  {DOCKER}\n"
    repo.commit({"cluster.yaml": cluster, "boxed.yaml": CONTAINER})

    def container(id: str) -> int:
        return int((dock / f"llmgw-{id}").read_text())

    with serving(repo.path, tmp_path / "box", env={"STAND_IN_DOCKER": str(dock)}) as daemon:
        first = daemon.ready("boxed")["boxed"]
        pid = container(first["id"])
        os.kill(first["pid"], signal.SIGKILL)  # the client; the container serves on, and holds its memory
        eventually(lambda: not alive(pid), what="the container gone")
        eventually(lambda: daemon.ready("boxed")["boxed"]["id"] != first["id"], what="another replica")
        second = daemon.ready("boxed")["boxed"]
        pid = container(second["id"])
        assert (dock / "stopped").read_text().split() == [f"llmgw-{first['id']}"]

        daemon.kill()
        assert alive(pid)
        daemon.start()
        assert daemon.ready("boxed")["boxed"]["pid"] == second["pid"]
        assert alive(pid)

        repo.commit({"boxed.yaml": None}, "no box\n\nLlmgw-Approve: removal")
        eventually(lambda: not alive(pid), what="the container gone with its model")
        repo.commit({"boxed.yaml": CONTAINER})
        pid = container(daemon.ready("boxed")["boxed"]["id"])
        down = subprocess.run(
            [sys.executable, "-m", "llmgw", "down", "--state", str(daemon.state)],
            env=daemon.env,
            check=True,
            timeout=60,
        )
        assert down.returncode == 0
        assert not alive(pid)
