"""Connections to engines: one pool of idle ones for each endpoint, one answer at a time on each."""

import asyncio
import socket
from typing import Any, Final, Protocol, cast

import httptools

from llmgw.engine.api import engine_key
from llmgw.gateway import silence
from llmgw.gateway.addresses import NOWHERE, address_of
from llmgw.gateway.affinity import seed
from llmgw.gateway.balance import UNLIMITED
from llmgw.gateway.lines import Line
from llmgw.gateway.repeats import Repeat
from llmgw.gateway.reply import Answered, understand
from llmgw.ids import ModelName, ReplicaId
from llmgw.plan import Endpoint
from llmgw.secretref import SecretMissing, read_token
from llmgw.units import Bytes, format_bytes

IDLE: Final = 30.0
"""Seconds that an unused connection is kept. Engines close theirs sooner or later than that; both are expected."""
_STALE: Final = 1.0
"""Seconds after a request within which a kept connection shows that it had been closed before. Later losses are new."""
READ_AHEAD: Final = 48 * 1024
"""Bytes that the kernel keeps of an engine's answer (it doubles that): so much comes at once, and lies here while a
client does not take it. With the kernel's own, which grows to megabytes, a slow stream holds three times as much.
Engines are near: at a millisecond's distance it allows 50 MB a second. Models that others run are not limited."""
MAX_HEAD: Final = 256 * 1024
"""Bytes of an answer's status line and header fields, and of its trailers, which the parser gathers until they are
whole; what has been read together with their end may be more."""
_JOIN: Final = 128 * 1024
"""Up to this size, copying a body behind its head is cheaper than a second write."""


class Receiver(Protocol):
    """Who waits for an engine's answer. Each call may come from inside another's network event."""

    def engine_answered(self, answered: Answered, length: int | None, body: bytes, done: bool) -> None:
        """The head, with what of the body came along. `length`: of the whole body, where the head says it."""
        ...

    def engine_sent(self, body: bytes, done: bool) -> None:
        """More of the body."""
        ...

    def engine_lost(self, why: str, *, answered: bool, stale: bool) -> None:
        """No more will come. `answered`: some bytes did, more than the head of a body whose length it tells. `stale`: a
        kept connection turned out to be closed."""
        ...


class Target:
    """An endpoint and what the gateway keeps with it. `outstanding`, `turn`, `tier`, `weight`: for the balancer."""

    __slots__ = (
        "_misplaced", "base", "called", "external", "failures", "full_weight", "head", "heard", "host", "id", "idle",
        "known", "last_used", "latest", "line", "losses", "model", "netloc", "outstanding", "port", "seed", "slots",
        "suspect_until", "tier", "tls", "trial", "turn", "unusable", "url", "weight", "withdrawn",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, secret: bytes) -> None:
        """Raises ValueError for a URL that `address_of` refuses; an external one then cannot be used: it comes from the
        catalog, and that of another version may hold what this one's refuses."""
        external = self.external = endpoint.external
        self.unusable: str | None = None  #: why nothing can be sent there
        self._misplaced: str | None = None
        try:
            address = address_of(endpoint.url, external=external is not None)
        except ValueError as error:
            if external is None:
                raise
            address, self._misplaced = NOWHERE, str(error)
        self.id: ReplicaId = endpoint.id
        self.model: ModelName = endpoint.model
        self.url = endpoint.url
        self.host = address.host
        self.port = address.port
        self.base = address.base.encode("latin-1")
        self.netloc = address.netloc
        self.tls = address.tls
        self.called = (external.model if external is not None else None) or endpoint.model  #: by those who run it
        self.head = b""
        if external is None:
            self._set_key(engine_key(secret, endpoint.id))
        else:
            self.read_key()
        self.tier = endpoint.tier
        self.weight = self.full_weight = endpoint.weight  #: the first grows while it is new
        self.seed = seed(endpoint.id)  #: what decides which requests belong to it
        self.slots = UNLIMITED  #: requests that it gets at once, at most
        self.line: Line[Any] | None = None  #: of its model, where any endpoint of it has slots
        self.outstanding = 0
        self.turn = 0
        self.last_used: float | None = None  #: loop time
        self.heard: float | None = None  #: loop time at which bytes came from it last
        self.failures = 0  #: what makes its agent look whether it is well
        self.suspect_until = 0.0  #: loop time until which others are preferred: it was lost a moment ago
        self.losses = 0  #: in a row, without an answer between them
        self.trial = False  #: a request tells whether it answers again
        self.idle: list[EngineConnection] = []
        self.known: Repeat[Answered] | None = None  #: a head of its answers that came again
        self.latest: Answered | None = None
        self.withdrawn = False

    def path(self, target: bytes) -> bytes:
        """Of a request there, whose path is `target` here."""
        if self.external is None:
            return self.base + target
        if target.startswith(b"/v1/"):
            return self.base + target[3:]
        return self.base.removesuffix(b"/v1") + target

    def read_key(self) -> None:
        """Of an external one, where its document says it is. Read again when it is refused, or was not there: keys are
        changed in files while everything runs."""
        assert self.external is not None
        try:
            self._set_key("" if self.external.api_key is None else read_token(self.external.api_key, "its key"))
            self.unusable = self._misplaced
        except SecretMissing as error:
            self.unusable = str(error)

    def usable_by_now(self) -> bool:
        """Of one that could not be used. Its key's file may be there by now."""
        self.read_key()
        return self.unusable is None

    def _set_key(self, key: str) -> None:
        lines = f"Host: {self.netloc}\r\n"
        if key:
            lines += f"Authorization: Bearer {key}\r\n"
        if key and self.external is not None:
            lines += f"X-Api-Key: {key}\r\n"  # which is what Anthropic's API asks for
        self.head = lines.encode("latin-1")

    def close_idle(self, before: float = float("inf")) -> None:
        """Close connections that have been idle since before that loop time; all, without one."""
        keep = []
        for connection in self.idle:
            if connection.idle_since < before:
                connection.close()
            else:
                keep.append(connection)
        self.idle = keep


class _Unfit(Exception):
    """Ends parsing from inside a callback: it is HTTP, but not such as can be passed on."""


class EngineConnection(asyncio.Protocol):
    """One connection to an engine. Between answers it lies in its target's pool."""

    __slots__ = (
        "_answer", "_answered", "_body", "_complete", "_extra", "_head_fed", "_head_told", "_headers", "_keep",
        "_large", "_length", "_looking", "_loop", "_parser", "_paused", "_receiver", "_reused", "_sent_at", "_target",
        "_transport", "idle_since",
    )  # fmt: skip

    def __init__(self, target: Target, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._reused = False
        self._paused = False
        self._sent_at = 0.0
        self._large = self._looking = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []  #: of the answer, but for its length
        self._length: int | None = None
        self._answer: Answered | None = None  #: its head, once it is complete
        self._body: list[bytes] = []
        self._answered = self._head_told = self._complete = self._extra = False
        self._keep = False
        self._head_fed = 0  #: bytes read of a head or of trailers that are not complete

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, receiver: Receiver, head: bytes, body: bytes) -> bool:
        """Send a request; its answer goes to `receiver`. False: the connection is closed, and nothing was sent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        self._receiver = receiver
        self._sent_at = self._loop.time()
        self._large = len(body) > silence.LARGE
        if self._large and silence.LOOKS:
            self._look_out()
        if len(body) <= _JOIN:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return True

    def _look_out(self) -> None:
        if not self._looking and self._transport is not None:
            self._looking = True
            silence.look_out(self._transport.get_extra_info("socket"), kernel=False)
            self._loop.call_later(silence.SILENCE / 3, self._look)

    def _look(self) -> None:
        """Now and then, until the engine answers."""
        self._looking = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        sock = transport.get_extra_info("socket")
        if self._receiver is None or self._answered or not self._large:
            silence.look_out(sock, kernel=True)
        elif silence.is_silent(sock):
            self._lose("its machine is silent")
        else:
            self._look_out()

    def abandon(self) -> None:
        """The answer is no longer wanted: close at once, which is how an engine learns to stop."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._paused = False

    def park(self) -> None:
        """Wait in the pool for the next request."""
        if self._target.withdrawn or not self.usable:
            self.close()
            return
        if self._paused:
            self.resume()
        self._reused = True
        self.idle_since = self._loop.time()
        self._target.idle.append(self)

    # the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            silence.ends(sock)
            if self._target.external is None:
                silence.set_option(sock, socket.SOL_SOCKET, "SO_RCVBUF", READ_AHEAD)

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:  # nobody asked: not HTTP as we know it
            self.abandon()
            return
        first, target = not self._answered, self._target
        self._answered = True
        target.heard = self._loop.time()
        known = target.known
        if first and known is not None and (at := known.body_in(data)):
            body = data[at:]
            self._receiver = None
            if self._unsent:
                self.close()
            else:
                self._answered = False
                self.park()
            receiver.engine_answered(known.meaning, len(body), body, True)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                unfit = isinstance(error.__context__, _Unfit)
                self._lose(str(error.__context__) if unfit else f"its answer is not HTTP: {error}")
                return
            self._extra = True
        answer = self._answer
        if answer is None or not (self._body or self._complete):  # within a head, or trailers
            self._head_fed += len(data)
            if self._head_fed > MAX_HEAD:
                self._lose(f"the header fields of its answer are larger than {format_bytes(Bytes(MAX_HEAD))}")
            elif answer is not None:
                self._tell(receiver, answer)
            return
        self._head_fed = 0
        if first and self._complete and self._keep and self._body and not self._extra:  # a body: 204 has none
            if answer is target.latest:  # as with requests: the second time
                target.known = Repeat.of(data, b"".join(self._body), answer)
            target.latest = answer
        self._tell(receiver, answer)

    def _tell(self, receiver: Receiver, answer: Answered) -> None:
        length = self._length
        if length is not None and not (self._head_told or self._body or self._complete):
            return  # the body follows at once: should it not, another engine can still be asked
        pieces = self._body
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._body = []
        told, complete = self._head_told, self._complete
        self._head_told = True
        if complete:  # first, so that whoever comes next finds the connection in the pool
            self._receiver = None
            self._finish()
        if not told:
            receiver.engine_answered(answer, length, body, complete)
        elif body or complete:
            receiver.engine_sent(body, complete)

    @property
    def _unsent(self) -> bool:
        """It answered without reading all of the request."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def _finish(self) -> None:
        if not self._keep or self._extra or self._unsent:
            self.close()
            return
        self._reset()
        self.park()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is not None:  # what became of this one has become of the others, too
            self._target.close_idle()
        if self._receiver is None:
            if self in self._target.idle:
                self._target.idle.remove(self)
        elif exc is None and self._ends_with_connection():
            receiver, self._receiver = self._receiver, None
            receiver.engine_sent(b"", True)
        else:
            self._lose(str(exc) if exc else "it closed the connection")

    def _ends_with_connection(self) -> bool:
        """No length was given, so the end of the connection is that of the body."""
        return self._answer is not None and self._length is None and not self._answer.coded

    def _lose(self, why: str) -> None:
        receiver, withheld = self._receiver, self._answer is not None and not self._head_told
        self.abandon()
        if receiver is not None:
            stale = self._reused and not self._answered and self._loop.time() - self._sent_at < _STALE
            receiver.engine_lost(why, answered=self._answered and not withheld, stale=stale)

    # llhttp's callbacks

    def on_message_begin(self) -> None:
        self._extra = self._complete
        if not self._complete:
            self._headers, self._length = [], None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None:  # a trailer
            return
        if len(name) == 14 and name.lower() == b"content-length":
            self._length = int(value)  # a number, and alone: llhttp has checked that
        else:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._extra:  # 100 Continue and the like: not the answer yet
            return
        try:
            self._answer = understand(status, tuple(self._headers))
        except ValueError as error:
            raise _Unfit(str(error)) from error

    def on_body(self, data: bytes) -> None:
        if not self._extra:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._extra:
            self._complete = True
            self._keep = self._parser.should_keep_alive()
