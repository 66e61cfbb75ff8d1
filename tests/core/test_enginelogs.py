"""Engines' logs, read: from the end, as they grow, from one replica to the next."""

import tracemalloc
from pathlib import Path

import pytest

from llmgw import enginelogs
from llmgw.agent import logs, records
from llmgw.enginelogs import LONGEST, MAX_BYTES, Following, Line, LogFile, read_tail
from llmgw.ids import ModelName, ReplicaId
from llmgw.statedir import StateDir

QWEN = ModelName("qwen")


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.prepare()
    return state


def write(state: StateDir, replica: str, text: str | bytes) -> Path:
    """A running replica's log, where the agent has it."""
    path = records.log_file(state, ReplicaId(replica))
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def end(state: StateDir, replica: str) -> None:
    """As the agent does when a replica has ended."""
    logs.keep(records.log_file(state, ReplicaId(replica)), state, QWEN, ReplicaId(replica))


def now(state: StateDir, *replicas: str) -> LogFile | None:
    return enginelogs.current(state, QWEN, [ReplicaId(replica) for replica in replicas])


def texts(lines: list[Line]) -> list[str]:
    return [line.text if line.note is None else f"# {line.note}" for line in lines]


def follow(following: Following, log: LogFile | None) -> list[str]:
    """Steps until nothing is new."""
    found: list[str] = []
    while new := following.step(log):
        found += texts(new)
    return found


@pytest.mark.parametrize(
    ("data", "lines", "expected", "whole"),
    [
        (b"", 3, [], True),
        (b"a\n", 3, ["a"], True),
        (b"a\nb\nc\n", 3, ["a", "b", "c"], True),
        (b"a\nb\nc\nd", 2, ["c", "d"], False),
        (b"a\nb\n", 0, [], False),
        (b"\n\n\n", 2, ["", ""], False),
        (b"no end", 2, ["no end"], True),
        (b"caf\xc3\xa9 \xff\xfe\n", 2, ["café \\xff\\xfe"], True),
    ],
)
def test_the_last_lines_of_a_log(tmp_path: Path, data: bytes, lines: int, expected: list[str], whole: bool) -> None:
    (tmp_path / "log").write_bytes(data)
    found = read_tail(tmp_path / "log", lines)
    assert list(found.lines) == expected
    assert found.whole or not whole


def test_a_huge_log_is_read_from_its_end_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(3 * 2**30)  # sparse: nothing of it but the end may be read
        file.seek(0, 2)
        file.write(b"\nthe last\nwords\n")
    tracemalloc.start()
    found = read_tail(path, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.lines == ("the last", "words")
    assert not found.whole
    assert peak < 2 * MAX_BYTES


def test_an_endless_line_is_told_in_pieces_and_only_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (3 * MAX_BYTES) + b"\n")
    found = read_tail(path, 5)
    assert len(found.lines) == 5
    assert {len(line) for line in found.lines} <= {LONGEST, *range(1, LONGEST)}


def test_a_running_replicas_log_comes_before_those_that_ended(state: StateDir) -> None:
    assert now(state, "a") is None
    write(state, "a", "old\n")
    end(state, "a")
    write(state, "b", "new\n")
    found = now(state, "a", "b")
    assert found is not None
    assert (found.replica, found.running) == ("b", True)
    ended = now(state, "c")
    assert ended is not None
    assert (ended.replica, ended.running) == ("a", False)
    assert enginelogs.models_with_logs(state) == {"qwen"}


@pytest.mark.parametrize("name", ["..", "../replicas/a", "a/b", "", "A", "qwen\n"])
def test_a_name_that_is_none_never_becomes_a_path(state: StateDir, name: str) -> None:
    write(state, "a", "secret\n")
    assert enginelogs.ended(state, ModelName(name)) == []
    assert enginelogs.live(state, QWEN, ReplicaId(name if name != "A" else "../x")) is None


def test_lines_are_told_as_they_are_completed(state: StateDir) -> None:
    write(state, "a", "one\ntwo\nthr")
    following = Following(1)
    assert follow(following, now(state, "a")) == ["two"]
    write(state, "a", "ee\nfour\n\n")
    assert follow(following, now(state, "a")) == ["three", "four", ""]
    assert follow(following, now(state, "a")) == []
    following.close()


def test_a_character_written_in_two_halves_is_one(state: StateDir) -> None:
    write(state, "a", b"caf\xc3")
    following = Following(1)
    assert follow(following, now(state, "a")) == []
    write(state, "a", b"\xa9\n")
    assert follow(following, now(state, "a")) == ["café"]
    following.close()


def test_following_goes_from_a_replica_that_ended_to_the_next(state: StateDir) -> None:
    write(state, "a", "one\n")
    following = Following(10)
    assert follow(following, now(state, "a")) == ["one"]
    write(state, "a", "its last\nwords")
    end(state, "a")
    assert follow(following, now(state)) == [
        "its last",
        "words",
        "# replica a has ended; the log of the next one follows when it is started",
    ]
    write(state, "b", "hello\nagain\n")
    assert follow(following, now(state, "b")) == ["# another replica was started: b", "hello", "again"]
    following.close()


def test_following_misses_nothing_where_the_next_replica_came_between_two_looks(state: StateDir) -> None:
    write(state, "a", "one\n")
    following = Following(10)
    follow(following, now(state, "a"))
    write(state, "a", "two\nthree")
    end(state, "a")
    write(state, "b", "hello\n")
    assert follow(following, now(state, "b")) == ["two", "three", "# another replica was started: b", "hello"]
    following.close()


def test_a_log_that_is_cut_while_it_is_followed_goes_on(state: StateDir) -> None:
    path = write(state, "a", "one\ntwo\n")
    following = Following(10)
    follow(following, now(state, "a"))
    with path.open("r+b") as file:
        file.truncate(0)
    write(state, "a", "new\n")
    assert follow(following, now(state, "a")) == ["# the log was cut and begins anew", "new"]
    following.close()


def test_a_log_that_is_not_there_yet_is_waited_for(state: StateDir) -> None:
    following = Following(10)
    assert follow(following, None) == []
    write(state, "a", "one\n")
    assert follow(following, now(state, "a")) == ["one"]
    following.close()


def test_an_endless_line_is_passed_on_as_it_grows(state: StateDir) -> None:
    write(state, "a", "")
    following = Following(10)
    write(state, "a", "x" * (LONGEST * 3))
    assert sum(map(len, follow(following, now(state, "a")))) >= LONGEST * 2
    following.close()
