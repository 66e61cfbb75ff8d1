"""`llmgw restart` where one process is all: it begins anew, and nobody notices."""

import os
import signal
import sys
import threading
from pathlib import Path

import httpx
from harness import WEB, Daemon, Repo, alive, command, eventually, serving

SERVER = [sys.executable, str(Path(__file__).parent.parent / "engines" / "answering_server.py"), "{host}", "{port}"]


def asking(daemon: Daemon, done: threading.Event, answers: list[object]) -> None:
    url = f"{daemon.gateway}/v1/chat/completions"
    while not done.is_set():
        try:
            headers = {"connection": "close"}
            body = {"model": "a", "messages": []}
            answers.append(httpx.post(url, json=body, headers=headers, timeout=30, **WEB).status_code)
        except httpx.HTTPError as error:
            answers.append(repr(error))


def test_up_begins_anew_with_its_engines_its_port_and_its_clients(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": command("a", *SERVER)})
    with serving(repo.path, tmp_path / "home") as daemon:
        engine = daemon.ready("a")["a"]
        gateway, daemon_pid = daemon.gateway, daemon.process.pid if daemon.process else 0
        done, answers = threading.Event(), list[object]()
        thread = threading.Thread(target=asking, args=(daemon, done, answers), daemon=True)
        thread.start()
        told = daemon.cli("restart", check=True)
        assert "restarted 1 process" in told.stdout
        after = daemon.ready("a")["a"]
        done.set()
        thread.join(40)
        assert answers
        assert set(answers) == {200}, answers
        assert (after["id"], after["pid"], after["adopted"]) == (engine["id"], engine["pid"], True)
        assert daemon.gateway == gateway
        assert [row["pid"] for row in daemon.seen("members")["members"]] == [daemon_pid]

        os.kill(engine["pid"], signal.SIGKILL)
        eventually(lambda: not alive(engine["pid"]), what="the engine's end")
        eventually(lambda: daemon.ready("a")["a"]["pid"] != engine["pid"], what="another engine")
        assert not Path(f"/proc/{engine['pid']}").exists(), "a child of the program before is reaped too"
