"""Engines die, llmgw dies, clients leave: what serves goes on serving."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from harness import WEB, Daemon, Repo, alive, command, eventually, model, serving

from llmgw.engine.api import engine_key
from llmgw.ids import ReplicaId


def secret_of(daemon: Daemon) -> bytes:
    return (daemon.state / "secret").read_text().strip().encode()


def engine(daemon: Daemon, replica: dict[str, str], path: str) -> httpx.Response:
    """Ask an engine itself, past the gateway."""
    key = engine_key(secret_of(daemon), ReplicaId(replica["id"]))
    return httpx.get(f"{replica['url']}{path}", headers={"authorization": f"Bearer {key}"}, **WEB)


def test_an_engine_killed_is_ready_again_by_itself(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("only", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("only")["only"]
        os.kill(before["pid"], signal.SIGKILL)
        assert daemon.chat("only"), "a request meanwhile is held"
        after = daemon.ready("only")["only"]
        assert after["pid"] != before["pid"]
        assert any("signal 9" in e["message"] for e in daemon.ask("events")["events"])


def test_llmgw_killed_engines_answer_meanwhile_and_are_adopted(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("first", smollm2), "b.yaml": model("second", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("first", "second")
        daemon.kill()
        for replica in before.values():
            assert engine(daemon, replica, "/health").status_code == 200

        # One engine's state now names this test's process as its pid, with another start time.
        impostor = subprocess.Popen(["sleep", "600"])
        try:
            victim = daemon.state / "replicas" / before["second"]["id"] / "state.json"
            text = victim.read_text()
            assert str(before["second"]["pid"]) in text
            victim.write_text(text.replace(f'"pid":{before["second"]["pid"]}', f'"pid":{impostor.pid}'))

            daemon.start()
            after = daemon.ready("first", "second")
            assert after["first"]["pid"] == before["first"]["pid"]
            assert after["second"]["pid"] != impostor.pid
            assert impostor.poll() is None, "another program's process was killed"
            assert daemon.chat("first")
            assert daemon.chat("second")
        finally:
            impostor.kill()
            impostor.wait()
            if alive(before["second"]["pid"]):  # nothing names it any more
                os.kill(before["second"]["pid"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "flags", "kept"),
    [
        (signal.SIGINT, [], False),
        (signal.SIGTERM, [], True),
        (signal.SIGHUP, [], True),
        (signal.SIGTERM, ["--on-exit", "stop"], False),
        (signal.SIGINT, ["--on-exit", "keep"], True),
    ],
)
def test_which_signal_keeps_the_engines(
    tmp_path: Path, smollm2: Path, number: signal.Signals, flags: list[str], kept: bool
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("only", smollm2)})
    with serving(repo.path, tmp_path / "home", flags=flags) as daemon:
        pid = daemon.ready("only")["only"]["pid"]
        assert daemon.signal(number) == 0
        assert alive(pid) is kept
        last = daemon.output.read_text().strip().splitlines()[-1]
        assert ("1 engine keeps serving" in last and "llmgw down" in last) is kept
        if kept:
            daemon.cli("down")
            eventually(lambda: not alive(pid), what="the engine ended by llmgw down")


def test_down_ends_a_running_daemon_and_its_engines(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("only", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        pid = daemon.ready("only")["only"]["pid"]
        daemon.cli("down")
        assert daemon.process is not None
        daemon.process.wait(30)
        eventually(lambda: not alive(pid), what="the engine ended")


def test_a_second_daemon_on_one_state_directory_refuses_naming_the_first(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("only", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        assert daemon.process is not None
        second = subprocess.run(
            [sys.executable, "-m", "llmgw", "up", str(repo.path), "--state", str(daemon.state)],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert f"pid {daemon.process.pid}" in second.stderr


def test_half_of_twenty_streams_disconnect_the_rest_complete_and_all_slots_are_free(
    tmp_path: Path, smollm2: Path
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("only", smollm2, parallel=4, context=256)})
    with serving(repo.path, tmp_path / "home") as daemon:
        replica = daemon.ready("only")["only"]
        url = f"{daemon.gateway}/v1/chat/completions"
        finished: list[str] = []

        def client(number: int) -> None:
            leaves = number % 2 == 1
            body = {"model": "only", "stream": True, "max_tokens": 200 if leaves else 24}
            body["messages"] = [{"role": "user", "content": f"Count to one hundred, please ({number})."}]
            with httpx.stream("POST", url, json=body, timeout=120, **WEB) as answer:
                assert answer.status_code == 200
                last = ""
                for line in answer.iter_lines():
                    last = line or last
                    if leaves and line:
                        return
                finished.append(last)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(150)
        assert finished == ["data: [DONE]"] * 10

        def free() -> bool:
            slots = engine(daemon, replica, "/slots").json()
            return len(slots) == 4 and not any(slot["is_processing"] for slot in slots)

        eventually(free, within=30, what="every slot free by the engine's own account")
        metrics = engine(daemon, replica, "/metrics").text
        assert "llamacpp:requests_processing 0" in metrics
        assert daemon.replicas()["only"]["pid"] == replica["pid"]


def test_bad_requests_get_the_right_status_and_an_openai_error(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("only", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon, httpx.Client(base_url=daemon.gateway, **WEB) as web:
        daemon.ready("only")
        chat = "/v1/chat/completions"
        huge = b'{"model": "only", "x": "' + b"a" * 100_000_000 + b'"}'
        cases = [
            (web.post(chat, json={"model": "onyl", "messages": []}), 404, "model_not_found"),
            (web.post(chat, content=b'{"model": "only", '), 400, None),
            (web.post(chat, json={"messages": []}), 400, None),
            (web.post(chat, content=b""), 400, None),
            (web.post(chat, content=b"\xff\xfe"), 400, None),
            (web.put(chat, json={}), 405, None),
            (web.get("/v1/nothing"), 404, None),
            (web.get("/nothing"), 404, None),
        ]
        for answer, status, code in cases:
            assert answer.status_code == status, answer.text
            error = answer.json()["error"]
            assert error["message"]
            assert code is None or error["code"] == code
        try:
            answer = web.post(chat, content=huge)
            assert answer.status_code == 413
            assert answer.json()["error"]["message"]
        except httpx.WriteError:
            pass  # refused while the client was still sending: it may not get to read the answer
        assert "onyl" not in json.dumps(daemon.ask("models"))
        assert daemon.chat("only")


def test_down_of_a_daemon_without_engines_says_that_it_was_ended(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": command("lazy").replace("name: lazy\n", "name: lazy\nscaling: {on_demand: true}\n")})
    with serving(repo.path, tmp_path / "home") as daemon:
        told = daemon.cli("down")
        assert "ending llmgw (pid " in told.stderr
        assert told.stdout == f"ended the daemon of {daemon.state}; no engine of it was left running\n"
        assert daemon.process is not None
        daemon.process.wait(30)
