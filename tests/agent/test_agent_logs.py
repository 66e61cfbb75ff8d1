"""Engines' logs are kept small while they are written, and are read as if they had never been cut."""

import asyncio
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from agent_world import Node, eventually

from llmgw import enginelogs
from llmgw.agent import logs, rotation
from llmgw.enginelogs import Following, read_tail
from llmgw.facts import FailureKind, Phase
from llmgw.ids import ModelName, ReplicaId
from llmgw.logparts import Joined, earlier
from llmgw.units import Bytes

SIZE = Bytes(2000)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def say(log: Path, first: int, last: int) -> None:
    """As an engine does: numbered lines, appended."""
    with log.open("ab") as file:
        file.write(b"".join(b"line %d\n" % number for number in range(first, last)))


def joined(log: Path) -> bytes:
    with Joined(log) as file:
        return file.read()


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"^line (\d+)$", text, re.MULTILINE)]


def test_a_log_is_cut_and_both_parts_together_are_what_was_said(log: Path) -> None:
    say(log, 0, 100)
    assert rotation.cut_all([log], SIZE) == ([], rotation.LOOK)
    say(log, 100, 300)
    (cut,), _ = rotation.cut_all([log], SIZE)
    assert (cut.left_out, cut.why) == (0, None)
    assert log.stat().st_size == 0
    say(log, 300, 310)
    assert numbers(joined(log).decode()) == list(range(310))
    assert list(read_tail(log, 15).lines) == [f"line {number}" for number in range(295, 310)]
    assert logs.tail(log, 100).endswith("line 308\nline 309\n")
    assert "line 299" in logs.tail(log, 100)


def test_a_line_that_was_cut_in_two_is_one(log: Path) -> None:
    log.write_bytes(b"x" * 2500 + b"\nhalf a li")
    rotation.cut(log, SIZE)
    with log.open("ab") as file:
        file.write(b"ne\nlast\n")
    assert list(read_tail(log, 2).lines) == ["half a line", "last"]


def test_of_a_flood_only_the_end_is_kept_and_it_says_what_is_left_out(log: Path) -> None:
    say(log, 0, 10_000)
    said = log.stat().st_size
    (cut,), wait = rotation.cut_all([log], SIZE)
    assert cut.left_out == said - SIZE
    assert wait < rotation.LOOK  # it is looked at again sooner
    assert earlier(log).stat().st_size == SIZE
    assert "left out here" in log.read_text()
    assert numbers(joined(log).decode())[-1] == 9999


def test_where_the_copy_cannot_be_made_the_log_is_cut_all_the_same(log: Path) -> None:
    say(log, 0, 1000)
    (log.parent / "log.1.part").mkdir()  # in its way, as a full disk would be
    (cut,), _ = rotation.cut_all([log], SIZE)
    assert cut.why is not None
    assert cut.left_out > SIZE
    assert log.stat().st_size < 200
    assert cut.why in log.read_text()


def test_a_link_in_the_place_of_a_log_is_not_followed(log: Path) -> None:
    other = log.parent / "other"
    other.write_bytes(b"x" * 5000)
    log.unlink()
    log.symlink_to(other)
    rotation.cut_all([log], SIZE)
    assert other.stat().st_size == 5000


def test_an_ended_log_becomes_one_file_of_bounded_size(log: Path) -> None:
    rotation.fold(log, SIZE)
    say(log, 0, 300)
    rotation.cut(log, SIZE)
    say(log, 300, 305)
    rotation.fold(log, SIZE)
    assert not earlier(log).exists()
    assert log.stat().st_size == SIZE
    assert log.read_text().endswith("line 303\nline 304\n")


def test_a_log_put_away_keeps_its_earlier_part_and_both_go_with_the_oldest(node: Node) -> None:
    for number in range(logs.KEPT + 1):
        log = node.home(f"r{number}") / "log"
        log.parent.mkdir()
        say(log, 0, 300)
        rotation.cut(log, SIZE)
        say(log, 300, 305)
        logs.keep(log, node.state, ModelName("m"), ReplicaId(f"r{number}"))
        kept = logs.kept_log(node.state, ModelName("m"), ReplicaId(f"r{number}"))
        os.utime(kept, (number, number))
    (newest, *_) = enginelogs.ended(node.state, ModelName("m"))
    assert newest.replica == f"r{logs.KEPT}"
    assert numbers("\n".join(read_tail(newest.path, 10_000).lines)) == list(range(305))
    assert len(list((node.state.logs / "m").iterdir())) == 2 * logs.KEPT


def follow(following: Following, log: enginelogs.LogFile) -> list[str]:
    found: list[str] = []
    while new := following.step(log):
        found += [line.text if line.note is None else f"# {line.note}" for line in new]
    return found


def file_of(log: Path) -> enginelogs.LogFile:
    return enginelogs.LogFile(model=ModelName("m"), replica=ReplicaId("r"), path=log, running=True, at=0.0)


def lines(first: int, last: int) -> list[str]:
    return [f"line {number}" for number in range(first, last)]


def test_following_goes_on_across_a_cut_and_misses_nothing(log: Path) -> None:
    say(log, 0, 150)
    following = Following(10)
    assert follow(following, file_of(log)) == lines(140, 150)
    say(log, 150, 300)
    rotation.cut(log, SIZE)
    say(log, 300, 303)
    assert follow(following, file_of(log)) == lines(150, 303)
    say(log, 303, 600)
    rotation.cut(log, SIZE)  # seen before anything new was written
    assert follow(following, file_of(log)) == lines(303, 600)
    following.close()


def test_following_sees_a_cut_though_the_log_has_grown_past_where_it_was(log: Path) -> None:
    say(log, 0, 50)
    following = Following(1)
    assert follow(following, file_of(log)) == lines(49, 50)
    say(log, 50, 300)
    rotation.cut(log, SIZE)
    say(log, 300, 500)
    assert follow(following, file_of(log)) == lines(50, 500)
    following.close()


def within_what_was_cut(log: Path) -> tuple[Following, list[str]]:
    """Of lines 10 to 8000, which were cut, it has read a block, and is not at the end."""
    say(log, 0, 10)
    following = Following(1)
    follow(following, file_of(log))
    say(log, 10, 8000)
    rotation.cut(log, Bytes(200_000))
    first = [line.text for line in following.step(file_of(log))]
    assert first[-1] != "line 7999"
    return following, first


def test_following_misses_nothing_where_it_is_cut_twice_while_it_reads(log: Path) -> None:
    following, first = within_what_was_cut(log)
    say(log, 8000, 8300)
    rotation.cut(log, SIZE)
    say(log, 8300, 8310)
    assert [*first, *follow(following, file_of(log))] == lines(10, 8310)
    following.close()


def put_aside(log: Path) -> None:
    """As a cut is for a moment: the copy is there, and the log as it was."""
    shutil.copy(log, earlier(log).with_name("copy"))
    earlier(log).with_name("copy").replace(earlier(log))


def test_a_log_whose_copy_is_there_before_it_is_emptied_is_read_once(log: Path) -> None:
    following, first = within_what_was_cut(log)
    say(log, 8000, 8300)
    put_aside(log)  # the next cut begins while the first is read
    assert [*first, *follow(following, file_of(log))] == lines(10, 8300)
    assert joined(log).count(b"line 8299\n") == 1
    begun = Following(5)
    assert follow(begun, file_of(log)) == lines(8295, 8300)
    os.truncate(log, 0)
    say(log, 8300, 8310)
    for each in (following, begun):
        assert follow(each, file_of(log)) == lines(8300, 8310)
        each.close()


def test_following_that_begins_just_after_a_cut_tells_the_lines_before_it(log: Path) -> None:
    say(log, 0, 300)
    rotation.cut(log, SIZE)
    following = Following(5)
    assert follow(following, file_of(log)) == lines(295, 300)
    say(log, 300, 302)
    assert follow(following, file_of(log)) == lines(300, 302)
    following.close()


def test_following_says_where_a_flood_left_something_out(log: Path) -> None:
    say(log, 0, 10)
    following = Following(1)
    follow(following, file_of(log))
    say(log, 10, 10_000)
    rotation.cut(log, SIZE)
    told = follow(following, file_of(log))
    assert told[0] == "# the log was cut and begins anew"
    assert "line 9999" in told
    following.close()


# -- real engines

STEADY = 'i=0; while :; do i=$((i+1)); echo "line $i"; test $((i % 50)) = 0 && sleep 0.02; done & exec $SERVER'


async def test_an_engine_is_read_without_a_gap_while_its_log_is_cut_again_and_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "LOOK", 0.2)
    node.log_size = Bytes(8_000)
    async with node.agent():
        await node.ready(options={"command": STEADY})
        log = node.home() / "log"
        following, told, cuts, sign = Following(1), [], 0, None
        began = time.monotonic()
        while cuts < 5:
            assert time.monotonic() < began + 60, f"{cuts} cuts"
            told += follow(following, file_of(log))
            before = earlier(log).stat().st_ino if earlier(log).exists() else None
            cuts, sign = cuts + (before != sign), before
            await asyncio.sleep(0.02)
        following.close()
    seen = [int(text.split()[1]) for text in told if re.fullmatch(r"line \d+", text)]
    assert seen == sorted(set(seen)), "in order, and nothing twice"
    # What was written in the instant of a cut may be lost; whole parts may not.
    assert seen[-1] - seen[0] + 1 - len(seen) < 0.05 * len(seen)


FLOOD = "while :; do head -c 500000 /dev/zero | tr '\\0' 'x'; echo; sleep 0.02; done & exec $SERVER"


async def test_an_engine_that_floods_its_log_cannot_fill_the_disk(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "LOOK", 0.1)
    node.log_size = Bytes(1_000_000)
    async with node.agent():
        assignment, _ = await node.ready(options={"command": FLOOD})
        most, began = 0, time.monotonic()
        while time.monotonic() < began + 3:
            files = [path for path in node.home().glob("log*") if path.exists()]
            most = max(most, sum(path.stat().st_size for path in files))
            await asyncio.sleep(0.02)
        assert earlier(node.home() / "log").exists()
        assert most < 30_000_000, "some tenths of a second's worth, of 3 s"
        await eventually(lambda: "log cut" in node.reasons(), "told", story=node.story)
        assert node.reasons().count("log cut") == 1  # not once for each
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        await eventually(lambda: not node.home().exists(), "put away")
        used = subprocess.run(["du", "-sb", str(node.state.logs)], capture_output=True, text=True, check=True)
        assert int(used.stdout.split()[0]) < 1.1 * node.log_size


async def test_what_an_engine_said_before_a_cut_still_tells_why_it_failed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "LOOK", 0.05)
    node.log_size = Bytes(1000)
    async with node.agent():
        talk = (
            f"for i in 1 2 3 4 5 6 7 8 9; do echo {'padding ' * 16}; done; echo bind failed at last; sleep 0.5; exit 3"
        )
        await node.assign(node.assignment(options={"command": talk}))
        failed = await node.until(Phase.FAILED)
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.CRASH
        assert "bind failed at last" in failed.failure.reason
    (kept, *_) = enginelogs.ended(node.state, ModelName("m"))
    assert kept.path.read_text().endswith("bind failed at last\n"), "the file that the reason names has it all"
    assert kept.path.stat().st_size <= node.log_size
