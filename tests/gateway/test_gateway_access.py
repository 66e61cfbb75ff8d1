"""The access log of a real gateway: what a line says, what it never says, and what becomes of it on a bad disk."""

import asyncio
import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_rig import SECRET, STREAM_HEAD, Asked, Rig, chunked, event, model, post, say, until

from llmgw.clock import SystemClock
from llmgw.errors import TerminalError
from llmgw.gateway import access as access_module
from llmgw.gateway.access import AccessLog, Line
from llmgw.gateway.server import Gateway
from llmgw.ids import ModelName
from llmgw.plan import ModelState


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


async def logged(rig: Rig, file: Path) -> AccessLog:
    """The rig's gateway begins anew, with an access log."""
    await rig.gateway.close()
    access = AccessLog(file)
    rig.gateway = Gateway(store=rig.store, secret=SECRET, clock=SystemClock(), access=access)
    await rig.gateway.start("127.0.0.1", 0)
    return access


async def lines(access: AccessLog, file: Path, count: int) -> list[dict[str, Any]]:
    await until(lambda: access.written >= count, f"{count} lines")
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_a_line_says_who_asked_for_what_and_how_it_went_and_nothing_of_what_was_said(
    rig: Rig, file: Path
) -> None:
    access = await logged(rig, file)
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    await rig.serving(say({"choices": [{"message": {"content": "the-answer"}}], "usage": usage}), "alias")
    await rig.post({"model": "alias", "messages": ["the-question"]}, headers="X-Request-Id: abc-1\r\n")
    (line,) = await lines(access, file, 1)
    assert {key: line[key] for key in ("id", "method", "path", "status", "client", "model", "asked")} == {
        "id": "abc-1", "method": "POST", "path": "/v1/chat/completions", "status": 200, "client": "127.0.0.1",
        "model": "m", "asked": "alias",
    }  # fmt: skip
    assert (line["replica"], line["tokens_in"], line["tokens_out"]) == ("replica-of-m", 7, 3)
    assert 0 <= line["held"] <= line["first"] <= line["took"] < 30
    assert "the-" not in file.read_text()
    assert file.stat().st_mode & 0o7 == 0, "not for everybody"


async def test_tries_are_the_engines_that_it_was_sent_to_also_where_none_answered(rig: Rig, file: Path) -> None:
    async def dies(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    access = await logged(rig, file)
    engines = [await rig.serving(dies), await rig.engine(dies), await rig.engine()]
    await rig.endpoint("m", engines[1].url, "b")
    assert (await rig.post({"model": "m"})).code == "engine_lost"
    await rig.endpoint("m", engines[2].url, "c")
    assert (await rig.post({"model": "m"})).status == 200
    lost, served = await lines(access, file, 2)
    assert lost["tries"] == sum(len(engine.asked) for engine in engines[:2]) == 2
    assert "tries" not in served


async def test_no_line_is_longer_for_a_name_or_a_path_that_is_nobodys(rig: Rig, file: Path) -> None:
    access = await logged(rig, file)
    await rig.serving()
    assert (await rig.post({"model": "n" * 1_000_000})).code == "model_not_found"
    assert (await rig.ask(b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"p" * 60_000))).status == 404
    named, long = await lines(access, file, 2)
    assert named["asked"] == "n" * 200
    assert long["path"] == "/" + "p" * 1023


async def test_refusals_have_their_code_and_those_who_left_are_told(rig: Rig, file: Path) -> None:
    access = await logged(rig, file)

    async def slow(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunked(event("a")))
        await reader.read()

    engine = await rig.serving(slow)
    await rig.post({"model": "nope"})
    await rig.ask(b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n")
    wire = await rig.wire()
    wire.send(post({"model": "m", "stream": True}))
    await wire.reader.readuntil(b"data")
    await wire.close()
    await until(lambda: engine.gone, "the engine told")
    unknown, nowhere, left = await lines(access, file, 3)
    assert (unknown["status"], unknown["code"]) == (404, "model_not_found")
    assert (nowhere["status"], nowhere["code"], nowhere["method"]) == (404, "path_not_found", "GET")
    assert (left["status"], left["cancelled"]) == (200, True)


async def test_what_waits_is_written_when_the_gateway_closes(rig: Rig, file: Path) -> None:
    await logged(rig, file)
    await rig.serving()
    await rig.post({"model": "m"})
    await rig.gateway.close()
    assert len(file.read_text().splitlines()) == 1


async def test_a_file_that_was_moved_away_is_begun_anew(rig: Rig, file: Path) -> None:
    access = await logged(rig, file)
    await rig.serving()
    await rig.post({"model": "m"})
    await lines(access, file, 1)
    file.rename(file.with_suffix(".1"))
    await rig.post({"model": "m"})
    assert len(await lines(access, file, 2)) == 1


async def test_many_lines_are_written_in_order(file: Path) -> None:
    access = AccessLog(file)
    access.begin()
    for number in range(5000):
        access.add(Line(at=float(number), id="x", method="POST", path="/", status=200, took=0.1))
    access.flush()
    access.close()
    assert [json.loads(line)["at"] for line in file.read_text().splitlines()] == list(range(5000))


def test_a_disk_that_takes_nothing_costs_lines_and_no_request(capsys: pytest.CaptureFixture[str]) -> None:
    full = AccessLog(Path("/dev/full"))
    full.begin()
    for _ in range(3):
        full.add(Line(at=0.0, id="x", method="POST", path="/", status=200, took=0.1))
        full.flush()
    full.close()
    assert (full.written, full.lost) == (0, 3)
    said = capsys.readouterr()
    assert (said.out + said.err).count("access_log_not_written") == 1, "said once"


def test_a_disk_that_fills_up_costs_the_lines_from_there_on(file: Path) -> None:
    line = Line(at=0.0, id="x", method="POST", path="/", status=200, took=0.1)
    size = len(msgspec.json.encode(line)) + 1
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then what is too much is an error of the write
    access = AccessLog(file)
    access.begin()
    for _ in range(95):
        access.add(line)
    resource.setrlimit(resource.RLIMIT_FSIZE, (80 * size, before[1]))
    try:
        access.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
        access.close()
    assert (access.written, access.lost) == (80, 15)
    assert len(file.read_text().splitlines()) == 80


@pytest.mark.parametrize("where", ["/nowhere/at/all", "/"])
def test_a_file_that_cannot_be_written_is_a_mistake_at_the_start(where: str) -> None:
    with pytest.raises(TerminalError, match="--access-log"):
        AccessLog(Path(where)).begin()


async def test_a_fallbacks_line_names_both_models(rig: Rig, file: Path) -> None:
    access = await logged(rig, file)
    engine = await rig.engine()
    await rig.catalog(replace(model("m"), fallback=ModelName("small")), model("small"))
    await rig.endpoint("small", engine.url)
    await rig.status("m", ModelState.FAILED, fallback=ModelName("small"))
    await rig.post({"model": "m"})
    (line,) = await lines(access, file, 1)
    assert (line["model"], line["served_by"]) == ("m", "small")


async def test_lines_beyond_what_can_wait_are_counted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "MOST", 2)
    access = AccessLog(file)
    for _ in range(5):
        access.add(Line(at=0.0, id="x", method="POST", path="/", status=200, took=0.1))
    assert access.lost == 3
    assert os.path.exists(file) is False
