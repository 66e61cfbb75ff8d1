"""What becomes of answers under way, and of requests that wait, when engines die, are replaced, or llmgw ends."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from harness import MESSAGES, WEB, Daemon, Repo, eventually, model, serving


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as found:
        yield found


class Stream:
    """A streamed answer, read in a thread of its own. `lines` grows as they come; `ended` gives all of them."""

    def __init__(self, pool: ThreadPoolExecutor, daemon: Daemon, tokens: int) -> None:
        self.lines: list[str] = []
        self._done: Future[None] = pool.submit(self._read, daemon.gateway, tokens)

    def _read(self, gateway: str, tokens: int) -> None:
        body = {"model": "only", "stream": True, "max_tokens": tokens, "ignore_eos": True, "messages": MESSAGES}
        url = f"{gateway}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=120, **WEB) as answer:
            assert answer.status_code == 200
            self.lines.extend(line for line in answer.iter_lines() if line)

    def begun(self) -> "Stream":
        eventually(lambda: len(self.lines) > 3 or self._done.done(), what="the first tokens")
        return self

    def ended(self) -> list[str]:
        self._done.result(120)
        return self.lines


def complete(lines: list[str]) -> bool:
    return lines[-1] == "data: [DONE]"


def test_an_engine_killed_mid_stream_breaks_that_stream_and_costs_nobody_else_an_answer(
    tmp_path: Path, smollm2: Path, pool: ThreadPoolExecutor
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("only", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("only")["only"]
        broken = Stream(pool, daemon, 400).begun()
        waiting = [Stream(pool, daemon, 2) for _ in range(10)]  # behind it: one slot
        os.kill(before["pid"], signal.SIGKILL)
        late = [Stream(pool, daemon, 2) for _ in range(10)]  # before anybody has seen the death
        lines = broken.ended()
        assert '"code":"engine_lost"' in lines[-1]
        assert not any("[DONE]" in line for line in lines)
        assert all(complete(stream.ended()) for stream in (*waiting, *late))
        assert daemon.ready("only")["only"]["pid"] != before["pid"]


def test_streams_outlive_the_replacement_of_their_model_and_end_with_a_word_when_llmgw_does(
    tmp_path: Path, smollm2: Path, pool: ThreadPoolExecutor
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("only", smollm2, parallel=2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("only")["only"]
        streams = [Stream(pool, daemon, 40) for _ in range(4)]
        streams[0].begun()
        repo.commit({"a.yaml": model("only", smollm2, parallel=2, context=1024)})
        assert all(complete(stream.ended()) for stream in streams)
        eventually(lambda: daemon.replicas().get("only", before)["pid"] != before["pid"], what="the replacement")
        cut_off = Stream(pool, daemon, 480).begun()
        assert daemon.signal(signal.SIGTERM) == 0
        lines = cut_off.ended()
        assert complete(lines) or '"code":"shutting_down"' in lines[-1]
