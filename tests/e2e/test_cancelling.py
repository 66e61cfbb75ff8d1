"""Clients that leave while a real engine reads their prompts: it reads on for none of them."""

import json
import socket
import time
from pathlib import Path
from typing import Final

import psutil
import pytest
from harness import Daemon, Repo, eventually, model, serving

CLIENTS: Final = 50
SLOTS: Final = 4
NOTICED: Final = 1.0
"""Seconds until llama.cpp looks whether a client is still there."""
AT_REST: Final = 0.1
"""Of one core, at most: an engine that has nothing to do is asked for its figures each second."""


def prompt(words: int, seed: int) -> str:
    """Different from its beginning on: nothing of it is known from another."""
    kinds = ("river", "stone", "light", "morning", "paper", "window", "garden", "silver")
    return " ".join([str(seed), *(kinds[(each * 7919 + seed * 31 + each * each) % 8] for each in range(words))])


class Reader:
    """A client whose prompt takes long to read."""

    def __init__(self, daemon: Daemon, seed: int, *, stream: bool) -> None:
        host, _, port = daemon.gateway.removeprefix("http://").rpartition(":")
        messages = [{"role": "user", "content": prompt(1500, seed)}]
        body = json.dumps({"model": "m", "stream": stream, "max_tokens": 200, "messages": messages}).encode()
        self._socket = socket.create_connection((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)

    def leave(self) -> None:
        self._socket.close()


def until_at_rest(pid: int, within: float) -> float:
    """Seconds until the process computes no more. Not asked of the engine: its answers would change what is asked."""
    process, began = psutil.Process(pid), time.monotonic()
    seen, rested = sum(process.cpu_times()[:2]), began
    while time.monotonic() - rested < 1.5:
        assert rested - began < within, f"still computing after {within:.0f} s"
        before = time.monotonic()
        time.sleep(0.25)
        used = sum(process.cpu_times()[:2])
        if (used - seen) / (time.monotonic() - before) > AT_REST:
            rested = time.monotonic()
        seen = used
    return rested - began


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_slots_are_free_soon_after_clients_left_while_their_prompts_were_read(
    tmp_path: Path, smollm2: Path, stream: bool
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"m.yaml": model("m", smollm2, context=2048, parallel=SLOTS)})
    with serving(repo.path, tmp_path / "home") as daemon:
        pid = daemon.ready("m")["m"]["pid"]
        began = time.monotonic()
        assert daemon.post(model="m", max_tokens=1, messages=[{"role": "user", "content": prompt(500, 0)}]).is_success
        batch = (time.monotonic() - began) / 500 * 128  # of 500 words and a few tokens
        readers = [Reader(daemon, 1 + number, stream=stream) for number in range(CLIENTS)]
        eventually(lambda: daemon.seen("replicas")["replicas"][0]["running"] == SLOTS, what="every slot taken")
        for reader in readers:
            reader.leave()
        took = until_at_rest(pid, within=60)
        print(f"at rest after {took:.2f} s; a batch takes {batch:.2f} s")
        assert took < NOTICED + 4 * batch + 1, f"a batch takes {batch:.2f} s"
        assert daemon.chat("m"), "it serves on"
