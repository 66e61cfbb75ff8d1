"""The operator's words in a fleet: given to any controller, heeded by whoever leads."""

from pathlib import Path
from typing import Any

import pytest
from etcds import Etcd
from fleet import Process, catalog, command, leader, pids, ready, running
from harness import eventually


def row(process: Process) -> Any:
    return process.seen("status")["catalog"]


@pytest.mark.slow
def test_what_was_rolled_back_and_suspended_through_a_standby_outlives_the_leader(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first, second = fleet.controller("c1"), fleet.controller("c2")
        fleet.agent("n1")
        ready(first, "a")
        old = row(first)["applied"]
        new = repo.commit({"b.yaml": command("b")})
        ready(first, "a", "b")
        assert leader(first, second) == "c1"
        second.cli("rollback")
        ready(first, "a")
        eventually(lambda: row(first)["held"] and row(first)["attempted"] == new, what="the newest waits")
        assert row(first)["applied"] == old
        second.cli("suspend", "a")
        before = pids(second)

        first.kill()
        eventually(lambda: leader(second) == "c2", within=30, what="another leader")
        eventually(lambda: row(second)["attempted"] == new and row(second)["held"], what="it holds the newest too")
        assert row(second)["applied"] == old
        assert pids(second) == before
        assert row(second)["pinned"]["revision"] == old
        second.cli("resume")
        ready(second, "a", "b")
        assert next(each for each in second.seen("models")["models"] if each["name"] == "a")["suspended"]
