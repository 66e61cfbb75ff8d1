"""Models of a hub in a real daemon: branches stay where they were, sizes count beforehand, gates are told."""

import os
from pathlib import Path
from typing import Any

from harness import Daemon, Repo, cluster, command, eventually, serving
from hub_server import Hub, serve_hub

WEIGHTS = os.urandom(300_000)


def document(name: str, source: str, **more: str) -> str:
    text = command(name, weights=source).replace(", size: 94MiB", "")
    return text + "".join(f"{key}: {value}\n" for key, value in more.items())


def catalog(hub: Hub) -> str:
    return cluster(weights={"hub_endpoint": hub.url, "min_age": "0s"})


def entries(daemon: Daemon) -> list[str]:
    return sorted(row["source"] for row in daemon.seen("weights")["entries"])


def explained(daemon: Daemon, name: str, word: str) -> str:
    def asked() -> str:
        text = " ".join(daemon.cli("explain", name, check=False).stdout.split())  # no catalog may be in force yet
        return text if word in text else ""

    return eventually(asked, what=f"{word!r} told of {name}", within=30)


def pid(daemon: Daemon, *others: str) -> Any:
    return daemon.ready("m", *others)["m"]["pid"]


def test_a_branch_is_taken_up_on_request_alone_and_going_back_fetches_nothing(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    with serve_hub() as hub:
        one = hub.repo("org/m").commit({"m.gguf": WEIGHTS})
        first = document("m", "hf://org/m/m.gguf")
        repo.commit({"c.yaml": catalog(hub), "m.yaml": first})
        with serving(repo.path, tmp_path / "home") as daemon:
            began = pid(daemon)
            assert entries(daemon) == [f"hf://org/m/m.gguf@{one}"]

            two = hub.repo("org/m").commit({"m.gguf": WEIGHTS + b"newer"})
            revision = repo.commit({"m.yaml": document("m", "hf://org/m/m.gguf", description="other")})
            eventually(lambda: daemon.seen("status")["catalog"]["applied"] == revision, what="the new description")
            assert pid(daemon) == began
            assert "no difference" in daemon.cli("diff").stdout, "what is on disk is what is in force"

            daemon.cli("sync", "--weights")
            eventually(lambda: f"hf://org/m/m.gguf@{two}" in entries(daemon), what="the newer weights")
            newer = eventually(lambda: (now := pid(daemon)) != began and now, what="another engine")
            assert len(hub.cdn.gets) == 2

            repo.commit({"m.yaml": first})
            eventually(lambda: pid(daemon) != newer, what="an engine of the older commit")
            assert len(entries(daemon)) == 2
        again = len(hub.asked)
        with serving(repo.path, tmp_path / "home") as daemon:
            daemon.ready("m")
            assert not any("/revision/main" in path for path in hub.asked[again:]), "a restart asks for no branch"
        assert len(hub.cdn.gets) == 2


def test_what_no_disk_has_room_for_and_what_is_gated_is_told_before_the_first_byte(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    token = tmp_path / "token"
    token.write_text("hf_bad")
    with serve_hub() as hub:
        hub.repo("org/huge").commit({"m.gguf": WEIGHTS})
        hub.repo("org/huge").sizes = {"m.gguf": 2**54}
        gated = hub.repo("org/m")
        gated.gated, gated.readers = "auto", {"hf_good"}
        gated.commit({"m.gguf": WEIGHTS})
        secret = f'"hf://org/m/m.gguf", token: {{from_file: "{token}"}}'
        wanted = document("m", "hf://org/m/m.gguf").replace('"hf://org/m/m.gguf"', secret)
        repo.commit({"c.yaml": catalog(hub), "h.yaml": document("huge", "hf://org/huge/m.gguf"), "m.yaml": wanted})
        with serving(repo.path, tmp_path / "home") as daemon:
            told = explained(daemon, "huge", "disk (need ")
            assert "16384.0 TiB" in told or "16.0 PiB" in told
            told = explained(daemon, "m", "is gated")
            assert f"ask for access at {hub.url}/org/m with the account of the token" in told
            assert hub.cdn.gets == []
            token.write_text("hf_good")
            daemon.cli("reset", "m")
            daemon.ready("m")
            assert "hf_bad" not in daemon.output.read_text() + told
