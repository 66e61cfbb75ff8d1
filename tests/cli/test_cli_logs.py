"""`llmgw logs`, with a daemon and without."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import pytest
from jsonschema import Draft202012Validator

from llmgw.agent import logs, records
from llmgw.agent.records import Record
from llmgw.catalog.live import save_last_good
from llmgw.catalog.spec import Catalog
from llmgw.cli.text import log_line
from llmgw.facts import Phase
from llmgw.ids import ModelName, ReplicaId
from llmgw.statedir import StateDir

SCHEMAS = Path(__file__).parents[2] / "schemas" / "output"


@pytest.fixture
def ask(cli: Any, daemon: Any) -> Any:
    return lambda *args: cli(*args, "--state", daemon.state)


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.prepare()
    return state


def write(state: StateDir, replica: str, text: str, *, model: ModelName = seed.QWEN) -> Path:
    path = records.log_file(state, ReplicaId(replica))
    path.parent.mkdir(exist_ok=True, parents=True)
    with path.open("a") as file:
        file.write(text)
    record = Record(assignment=seed.assignment(replica, model), mark="m", port=1, url="http://x")
    records.write(state, record)
    return path


def end(state: StateDir, replica: str, *, model: ModelName = seed.QWEN) -> None:
    logs.keep(records.log_file(state, ReplicaId(replica)), state, model, ReplicaId(replica))
    records.remove(state, ReplicaId(replica))


def checked(schema: str, text: str) -> Any:
    value = json.loads(text)
    Draft202012Validator(json.loads((SCHEMAS / f"{schema}.v1.schema.json").read_text())).validate(value)
    return value


@pytest.mark.parametrize("name", ["qwen", "default"])
def test_the_log_of_the_running_engine_is_shown(ask: Any, daemon: Any, name: str) -> None:
    write(StateDir(daemon.state), "r1", "one\n\x1b[31mtwo\x1b[0m\n  0%\r 50%\r100%\n")
    ran = ask("logs", name)
    assert (ran.code, ran.out, ran.err) == (0, "one\ntwo\n100%\n", "")
    assert ask("logs", name, "-n", "1").out == "100%\n"


def test_json_has_the_lines_as_they_are(ask: Any, daemon: Any) -> None:
    write(StateDir(daemon.state), "r1", "one\n\x1b[31mtwo\n")
    value = checked("logs", ask("logs", "qwen", "--json").out)
    assert (value["replica"], value["running"], value["whole"]) == ("r1", True, True)
    assert value["lines"] == ["one", "\x1b[31mtwo"]


def test_the_previous_log_is_that_of_the_last_engine_that_ended(ask: Any, daemon: Any) -> None:
    state = StateDir(daemon.state)
    write(state, "old", "died\n")
    end(state, "old")
    write(state, "r1", "lives\n")
    assert ask("logs", "qwen").out == "lives\n"
    ran = ask("logs", "--previous", "qwen")
    assert ran.out == "died\n"
    assert "replica old of qwen has ended" in ran.err


def test_without_a_running_engine_the_last_one_is_shown_and_that_is_said(ask: Any, daemon: Any) -> None:
    state = StateDir(daemon.state)
    write(state, "old", "died\n", model=seed.SMOL)
    end(state, "old", model=seed.SMOL)
    ran = ask("logs", "smol")
    assert ran.out == "died\n"
    assert "has ended" in ran.err


def test_a_model_that_left_the_catalog_still_has_its_last_logs(ask: Any, daemon: Any) -> None:
    gone = ModelName("gone")
    write(StateDir(daemon.state), "old", "bye\n", model=gone)
    end(StateDir(daemon.state), "old", model=gone)
    assert ask("logs", "gone").out == "bye\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["logs", "qwem"], "no model 'qwem' in the catalog; did you mean 'qwen'?"),
        (["logs", "../../etc"], "no model '../../etc' in the catalog"),
        (["logs", "smol"], "no engine of smol was started yet (loading: fetching its weights); `llmgw explain smol`"),
        (["logs", "smol", "--previous"], "no engine of smol has ended yet"),
        (["logs", "-f", "qwem"], "no model 'qwem' in the catalog; did you mean 'qwen'?"),
    ],
)
def test_a_log_that_is_not_there_is_one_clear_line(ask: Any, args: list[str], said: str) -> None:
    ran = ask(*args)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"llmgw: {said}")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "args", [["logs"], ["logs", "a", "-n", "-1"], ["logs", "a", "-n", "10001"], ["logs", "a", "-f", "--previous"]]
)
def test_wrong_usage_of_logs(ask: Any, args: list[str]) -> None:
    assert ask(*args).code == 64


class Follower:
    """`llmgw logs -f` as a process, its stdout read line by line."""

    def __init__(self, *args: str) -> None:
        command = [sys.executable, "-m", "llmgw", "logs", "-f", *args]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "LLMGW_TOKEN": ""}
        )
        self._timer = threading.Timer(60, self.process.kill)
        self._timer.start()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def note(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def close(self) -> None:
        self._timer.cancel()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def followed() -> Iterator[Any]:
    made: list[Follower] = []

    def start(*args: object) -> Follower:
        made.append(Follower(*map(str, args)))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_following_prints_lines_as_they_come_and_goes_on_with_the_next_replica(daemon: Any, followed: Any) -> None:
    state = StateDir(daemon.state)
    write(state, "r1", "one\n")
    follower = followed("qwen", "--state", daemon.state)
    assert follower.line() == "one\n"
    write(state, "r1", "two\n")
    assert follower.line() == "two\n"
    end(state, "r1")
    assert "replica r1 has ended" in follower.note()
    write(state, "r9", "three\n")
    daemon.do(daemon.seeds.report(seed.replica("r9", seed.QWEN, Phase.STARTING)))
    assert follower.line() == "three\n"
    assert "another replica was started: r9" in follower.note()
    follower.process.send_signal(signal.SIGINT)
    assert follower.process.wait(30) == 130


def test_following_with_json_is_an_object_a_line(daemon: Any, followed: Any) -> None:
    write(StateDir(daemon.state), "r1", "one\n")
    follower = followed("default", "--json", "--state", daemon.state)
    assert checked("log-line", follower.line()) == {"model": "qwen", "replica": "r1", "text": "one", "note": None}


def test_following_ends_with_the_daemon_and_says_so(daemon: Any, followed: Any) -> None:
    write(StateDir(daemon.state), "r1", "one\n")
    follower = followed("qwen", "--state", daemon.state)
    assert follower.line() == "one\n"
    daemon.stop_now()
    assert follower.line() == ""
    assert follower.process.wait(30) == 1
    assert "the daemon of" in follower.note()


def test_without_a_daemon_the_state_directory_is_read(cli: Any, state: StateDir) -> None:
    write(state, "old", "died\n")
    end(state, "old")
    write(state, "r1", "one\ntwo\n")
    spec = seed.model(seed.QWEN, aliases=("HF/Qwen:free",))
    save_last_good(state.last_good, Catalog(revision=seed.GOOD, digest=seed.DIGEST, models={spec.name: spec}))
    for name in ("qwen", "HF/Qwen:free"):
        ran = cli("logs", name, "-n", 1, "--state", state.root)
        assert (ran.code, ran.out) == (0, "two\n")
        assert "no daemon answers" in ran.err
    assert cli("logs", "qwen", "--previous", "--state", state.root).out == "died\n"
    assert "did you mean 'qwen'?" in cli("logs", "qwem", "--state", state.root).err
    assert cli("logs", "qwen", "--state", state.root / "nothing").code == 1


def test_following_works_without_a_daemon(state: StateDir, followed: Any) -> None:
    write(state, "r1", "one\n")
    follower = followed("qwen", "--state", state.root)
    assert follower.line() == "one\n"
    write(state, "r1", "two\n")
    assert follower.line() == "two\n"
    end(state, "r1")
    write(state, "r2", "three\n")
    assert follower.line() == "three\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10%\r20%\r30%", "30%"),
        ("windows line\r", "windows line"),
        ("bell\x07 and\ttab", "bell and tab"),
        ("\x1b[2J\x1b(B", ""),
    ],
)
def test_a_log_line_is_shown_without_what_steers_a_terminal(text: str, shown: str) -> None:
    assert log_line(text).replace("(B", "") == shown
