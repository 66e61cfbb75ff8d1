"""Clients of a gateway that is disturbed, many at once, and what each of their requests came to.

All in one event loop, in a thread of its own. They speak HTTP by themselves: some read slowly, some leave in the
middle, and what was kept of a connection that broke is never used again, so that whatever goes wrong is the gateway's.
"""

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

PATIENCE: Final = 90.0
"""Seconds for which a request may take. Whatever happens to engines, the next is ready within a few."""

PATHS: Final = {"completion": "/v1/completions", "embedding": "/v1/embeddings"}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "chat": {"max_tokens": 8, "messages": [{"role": "user", "content": "Who are you?"}]},
    "completion": {"max_tokens": 8, "prompt": "I am"},
    "embedding": {"input": "I am"},
}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of one request. Times are monotonic.

    `said`: `whole`; `left`: the client did; else the code of an error, or what is wrong with the answer.
    """

    kind: str
    name: str  #: the model's, or an alias
    key: str
    began: float
    ended: float = 0.0
    status: int = 0  #: 0: there was no answer
    engine: str = ""  #: whose answer it is: MODEL/TAG/PID; "" where an engine does not say
    said: str = "no answer"
    retry_after: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What one client asks for, how, and how often."""

    names: Sequence[str]
    kinds: Sequence[str]  #: each as likely as any other; of those below
    key: str
    token: str
    pause: tuple[float, float]  #: seconds between two requests, at least and at most
    kept: bool = True  #: over one connection


class Wire:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, address: tuple[str, int]) -> "Wire":
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)  # one that reads slowly is soon noticed
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        return cls(*await asyncio.open_connection(sock=sock, limit=16 * 1024))

    def send(self, path: str, token: str, body: dict[str, Any], *, kept: bool) -> None:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {token}\r\n"
        head += "" if kept else "Connection: close\r\n"
        self.writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )

    async def head(self) -> tuple[int, dict[str, str]]:
        line, *fields = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        return int(line.split()[1]), {
            name.lower(): value for name, _, value in (each.partition(": ") for each in fields)
        }

    async def chunk(self) -> bytes:
        """The next of a chunked body; b"": there is none."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    def close(self) -> None:
        self.writer.close()


class Client:
    def __init__(self, address: tuple[str, int], habit: Habit, choice: random.Random) -> None:
        self.address, self.habit, self.choice = address, habit, choice
        self.outcomes: list[Outcome] = []
        self._wire: Wire | None = None

    async def run(self, done: asyncio.Event) -> None:
        try:
            await asyncio.sleep(self.choice.uniform(0, self.habit.pause[1]))
            while not done.is_set():
                self.outcomes.append(await self.once())
                await asyncio.sleep(self.choice.uniform(*self.habit.pause))
        finally:
            self._part()

    async def once(self) -> Outcome:
        habit = self.habit
        kind = self.choice.choice(habit.kinds)
        outcome = Outcome(kind=kind, name=self.choice.choice(habit.names), key=habit.key, began=time.monotonic())
        try:
            async with asyncio.timeout(PATIENCE):
                await self._ask(outcome)
        except TimeoutError:
            outcome.said = "hangs"
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            outcome.said = f"cut off: {error!r}"
        outcome.ended = time.monotonic()
        if outcome.said != "whole" or not habit.kept:
            self._part()
        return outcome

    async def _ask(self, outcome: Outcome) -> None:
        kind, choice = outcome.kind, self.choice
        body = {"model": outcome.name, **BODIES.get(kind, BODIES["chat"]), "think": choice.choice((0.0, 0.05, 1.0))}
        if kind in ("stream", "leaver"):
            body |= {"stream": True, "pieces": 12, "gap": 0.2}
        elif kind == "slow":
            body |= {"stream": True, "pieces": 48, "pad": 24 * 1024}
        wire = self._wire
        if wire is None:
            wire = self._wire = await Wire.to(self.address)
        wire.send(PATHS.get(kind, "/v1/chat/completions"), self.habit.token, body, kept=self.habit.kept)
        if kind == "leaver" and choice.random() < 0.3:  # before there is an answer
            await asyncio.sleep(choice.uniform(0, 1))
            outcome.said = "left"
            return
        outcome.status, fields = await wire.head()
        outcome.engine = fields.get("x-engine", "")
        outcome.retry_after = "retry-after" in fields
        if "content-length" in fields:
            _read(outcome, json.loads(await wire.reader.readexactly(int(fields["content-length"]))))
        else:
            await self._stream(wire, outcome, body.get("pieces", 0))

    async def _stream(self, wire: Wire, outcome: Outcome, pieces: int) -> None:
        text, told, leaves = b"", 0, self.choice.randrange(pieces) if outcome.kind == "leaver" else None
        outcome.said = "it ends without [DONE]"
        while piece := await wire.chunk():
            *lines, text = (text + piece).split(b"\n")
            for data in (line[6:] for line in lines if line.startswith(b"data: ")):
                if data == b"[DONE]":
                    outcome.said = "whole" if told == pieces else f"{told} events of {pieces}"
                elif "error" in (event := json.loads(data)):
                    outcome.said = event["error"]["code"]
                elif event["choices"][0]["delta"]["content"] != f"{told} {outcome.engine}":
                    outcome.said = f"event {told} is {event['choices'][0]['delta']['content']}"
                    return
                else:
                    told += 1
            if told == leaves:
                outcome.said = "left"
                return
            if outcome.kind == "slow":
                await asyncio.sleep(0.1)

    def _part(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def _read(outcome: Outcome, answer: dict[str, Any]) -> None:
    """An answer in one piece: of an engine that says who it is, or the gateway's refusal."""
    if outcome.status != 200:
        outcome.said = answer["error"]["code"]
    elif not outcome.engine:
        outcome.said, outcome.engine = "whole", f"{answer['model']}//0"
    else:
        first = (answer.get("data") or answer["choices"])[0]
        named = first.get("engine") or first.get("text") or first["message"]["content"]
        outcome.said = "whole" if named == outcome.engine else f"{named} in the body of {outcome.engine}"


@dataclass(slots=True)
class Crowd:
    """All clients, from `start` until `close`."""

    address: tuple[str, int]
    habits: Sequence[Habit]
    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    _clients: list[Client] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _done: asyncio.Event | None = None

    def start(self) -> "Crowd":
        choice = random.Random(self.seed)
        self._clients = [Client(self.address, habit, random.Random(choice.random())) for habit in self.habits]
        begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(begun)), daemon=True)
        self._thread.start()
        begun.wait(30)
        return self

    async def _run(self, begun: threading.Event) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        begun.set()
        await asyncio.gather(*(client.run(self._done) for client in self._clients))

    def close(self) -> list[Outcome]:
        """Each ends what it has begun. What all of them got, by time."""
        assert self._thread is not None
        if self._loop is not None and self._done is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(PATIENCE + 30)
        assert not self._thread.is_alive(), "clients that do not end"
        found = [outcome for client in self._clients for outcome in client.outcomes]
        return sorted(found, key=lambda outcome: outcome.ended)
