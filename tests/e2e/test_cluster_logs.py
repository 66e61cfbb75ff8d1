"""`llmgw logs -f` in a fleet: it goes where the replica goes."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from etcds import Etcd
from fleet import ENGINE, Process, catalog, command, ready, running
from harness import eventually

TALKING = "n=0; while sleep 0.2; do n=$((n+1)); echo line $n of $$; done & exec $0 $1 $2 $3"


class Followed:
    """`llmgw logs -f` as a process: what it has printed so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self.notes: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((process.stdout, self.lines), (process.stderr, self.notes))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: Iterator[str], found: list[str]) -> None:
        found.extend(iter(stream.readline, ""))  # type: ignore[attr-defined]

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)

    def says_more(self) -> None:
        count = len(self.lines)
        eventually(lambda: len(self.lines) > count + 2, within=30, what=f"more lines; notes {self.notes}")

    def noted(self, text: str) -> None:
        eventually(lambda: any(text in note for note in self.notes), within=40, what=f"{text!r} in {self.notes}")


@contextmanager
def followed(controller: Process, model: str) -> Iterator[Followed]:
    argv = [sys.executable, "-u", "-m", "llmgw", "logs", "-f", model, "--state", str(controller.state)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        following = Followed(process)
        try:
            yield following
        finally:
            process.kill()
            following.join()


@pytest.mark.slow
def test_a_log_is_followed_to_another_node_and_through_an_agent_that_begins_anew(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a", "sh", "-c", TALKING, sys.executable, ENGINE, "{host}", "{port}"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        controller = fleet.controller("c1")
        fleet.agent("n1")
        assert ready(controller, "a")["a"][0]["node"] == "n1"
        second = fleet.agent("n2")
        with followed(controller, "a") as following:
            following.says_more()
            controller.cli("drain", "n1")
            (moved,) = eventually(
                lambda: [row for row in controller.seen("replicas")["replicas"] if row["node"] == "n2"], what="a move"
            )
            following.noted(f"goes on with replica {moved['id']} on n2")
            following.says_more()
            assert sum("line 1 of" in line for line in following.lines) == 2, "of both, from their beginnings"
            second.kill()
            following.noted("its agent answers no more")
            second.start()
            following.noted(f"again replica {moved['id']} on n2")
            following.says_more()
            assert following.process.poll() is None
