"""Weights that went bad, and weights that came on a stick: real models, and nobody to ask."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from harness import Repo, command, eventually, model, run_cli, serving
from servers import serve


def test_a_model_is_launched_without_a_network_from_what_was_imported(tmp_path: Path) -> None:
    repo, first, state, stick = (tmp_path / name for name in ("catalog", "first", "home/state", "stick"))
    with serve() as site:
        site.files = {"/w": os.urandom(100_000), "/other": b"other"}
        document = command("a", weights=f"{site.url}/w").replace("size: 94MiB", "size: 100000B")
        Repo(repo).commit({"a.yaml": document})
        assert run_cli("pull", "a", f"{site.url}/other", "--catalog", str(repo), "--state", str(first)).returncode == 0
        given = ("--to", str(stick), "--catalog", str(repo), "--state", str(first), "--json")
        exported = json.loads(run_cli("weights", "export", "a", *given).stdout)
        assert [row["source"] for row in exported["entries"]] == [f"{site.url}/w"]
    # Nobody answers any more.
    imported = run_cli("weights", "import", str(stick), "--state", str(state))
    assert imported.returncode == 0, imported.stderr
    with serving(repo, tmp_path / "home") as daemon:
        daemon.ready("a")
        (held,) = daemon.seen("weights")["entries"]
        assert (held["state"], held["wanted"], held["in_use"]) == ("complete", True, True)
        (checked,) = daemon.ask("weights", "verify")["entries"]
        assert checked["done"]
        onwards = daemon.ask("weights", "export", "a", "--to", str(tmp_path / "onwards.tar"))
        assert [row["source"] for row in onwards["entries"]] == [held["source"]], "by the catalog in force"


@pytest.mark.slow
def test_real_weights_that_went_bad_are_fetched_anew_and_the_model_serves_again(tmp_path: Path, smollm2: Path) -> None:
    with serve() as site:
        site.files["/m.gguf"] = smollm2.read_bytes()
        repo = Repo(tmp_path / "catalog")
        repo.commit({"a.yaml": model("small", f"{site.url}/m.gguf")})
        with serving(repo.path, tmp_path / "home") as daemon:
            before = daemon.ready("small")["small"]
            assert "Paris" in daemon.chat("small")
            (path,) = daemon.state.glob("weights/v1-sha256-*/files/m.gguf")
            with path.open("r+b") as file:
                file.write(b"evil")
            os.kill(before["pid"], signal.SIGKILL)

            def recovered() -> bool:
                found = daemon.replicas().get("small")
                return found is not None and found["pid"] != before["pid"]

            began = time.monotonic()
            eventually(recovered, within=90, what="the model ready again")
            assert "Paris" in daemon.chat("small")
            assert time.monotonic() - began < 90
            assert len(site.gets) == 2
            states = sorted(row["state"] for row in daemon.seen("weights")["entries"])
            assert states == ["complete", "corrupt"]
            events = [(event["reason"], event["message"]) for event in daemon.seen("events")["events"]]
            assert any(reason == "failed" and "fetched anew" in message for reason, message in events), events
            listed = daemon.ask("collect", "--older-than", "0s")["entries"]
            assert [row["removable"] for row in listed] == [True]
