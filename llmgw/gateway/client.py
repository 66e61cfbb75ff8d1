"""A client's connection: requests one after the other, each answered before the next is begun."""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from llmgw.gateway import http1
from llmgw.gateway.admission import Buffers
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.http1 import HEAD, START, Part, RequestParser
from llmgw.gateway.openai import LONGEST_RETRY, ApiError, Code, error_body
from llmgw.gateway.request import Request, new_request_id, tag_of
from llmgw.gateway.slow import Coming
from llmgw.units import KIB, MIB, Bytes, Seconds, format_bytes

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing resets the connection."""
NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How patient the gateway is with clients, in seconds, and how much it reads ahead."""

    head: Seconds = Seconds(30)  #: from the first byte of a request to the end of its head
    body: Seconds = Seconds(60)  #: without a further byte of a body
    idle: Seconds = Seconds(75)  #: between requests
    stalled: Seconds = Seconds(300)  #: without taking a byte of its answer
    linger: Seconds = Seconds(5)  #: reading on after a refusal, so that the client gets to read it
    sweep: Seconds = Seconds(1)  #: between two looks at all of these
    rate: Bytes = Bytes(16 * KIB)  #: of a body, a second: one that is slower gives way where there is no room
    span: Seconds = Seconds(10)  #: over which that is measured
    backlog: int = 256 * KIB  #: bytes that a client may send ahead while a request of its is being answered
    bodies: Bytes = Bytes(512 * MIB)  #: of request bodies in memory, over all clients


class Service(Protocol):
    """What answers requests."""

    def handle(self, client: "ClientConnection", request: Request) -> Exchange | None:
        """Answer through `client`, now (None) or as the exchange goes."""
        ...

    def opened(self, client: "ClientConnection") -> None: ...

    def closed(self, client: "ClientConnection") -> None: ...


class ClientConnection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive and pipelining. A client that ends its side is gone: nobody waits for the answer."""

    __slots__ = (
        "_advancing", "_awaited", "_backlog", "_backlog_size", "_busy", "_exchange", "_limits", "_lingering",
        "_loop", "_parser", "_patience", "_service", "_transport", "_unsent", "_writing_paused", "closing", "deadline",
        "peer",
    )  # fmt: skip

    def __init__(
        self,
        service: Service,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        max_body: Callable[[], int],
        buffers: Buffers,
        admit: http1.Admit,
    ) -> None:
        self._service = service
        self._loop = loop
        self._limits = limits
        self._parser = RequestParser(max_body, buffers, admit)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._patience = (limits.idle, limits.head, limits.body)  #: by Part
        self._awaited: Part | None = None
        self._busy = False  #: a request is being answered
        self._advancing = False
        self._backlog: list[bytes] = []
        self._backlog_size = 0
        self._writing_paused = False
        self._unsent = 0  #: bytes of answers that the client had not taken when its patience was looked at last
        self._lingering = False
        self.peer = ""  #: the address that it comes from
        self.closing = False  #: close after the answer under way
        self.deadline = NEVER  #: loop time at which patience ends

    @property
    def busy(self) -> bool:
        return self._busy

    # the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if name else ""
        self._service.opened(self)
        self.deadline = self._loop.time() + self._limits.head

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        if not self._busy and not self._parser.ready:
            self._parser.feed(data)
            if self._parser.pending:
                self._advance()
            else:
                self._wait()
            return
        self._backlog_size += len(data)
        if self._backlog_size <= self._limits.backlog:
            self._backlog.append(data)
            return
        # Too far ahead: those requests get no answer, which a client that pipelines has to expect. To read no further
        # would be worse: we should not see it leave.
        self._backlog.clear()
        self.closing = True

    def eof_received(self) -> None:
        self._cancel()  # and the transport closes itself, after what was written
        self.deadline = self._loop.time() + self._limits.linger

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._parser.close()
        self._transport = None
        self._service.closed(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self.deadline = self._loop.time() + self._limits.stalled
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.deadline = NEVER if self._busy else self._loop.time() + self._limits.idle
        if self._exchange is not None:
            self._exchange.resume()
        elif not self._lingering:
            self._advance(late=True)

    def _cancel(self) -> None:
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.cancel()

    # one request after the other

    def _advance(self, *, late: bool = False) -> None:
        """Go on with whatever has come, until an answer has to be waited for. Not recursive: answers may be at once.
        `late`: it came a while ago, and whose key was good then is asked again."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while not self._busy and self._transport is not None and not self._transport.is_closing():
                if not self._next(late):
                    break
        finally:
            self._advancing = False

    def _next(self, late: bool) -> bool:
        """Take one step between two answers. False: there is nothing to do but wait."""
        parser = self._parser
        if self._lingering:
            return False
        if parser.ready:
            if self._writing_paused:  # first the client takes the answers that it has
                return False
            self._busy = True
            self._awaited = None
            self.deadline = NEVER
            request = parser.ready.popleft()
            if late:
                parser.admit_again(request)
            exchange = self._service.handle(self, request)
            if self._busy:
                self._exchange = exchange
        elif self._backlog:
            data = b"".join(self._backlog)
            self._backlog, self._backlog_size = [], 0
            parser.feed(data)
        elif parser.refusal is not None:
            self._refuse_and_linger(parser.refusal)
        elif self.closing and parser.part is START:
            self._close()
        else:
            self._wait()
            return False
        return True

    def _wait(self) -> None:
        parser = self._parser
        if parser.expects_continue:
            parser.expects_continue = False
            self.write(http1.CONTINUE)
        part = parser.part
        if part is HEAD and self._awaited is HEAD:
            return  # a head's time runs from its first byte, not from its latest
        self._awaited = part
        if not self._writing_paused:
            self.deadline = self._loop.time() + self._patience[part]

    # the answer

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finish(self, *, keep_alive: bool) -> None:
        self._exchange = None
        self._busy = False
        if not keep_alive or (self.closing and not self._parser.ready):
            self._close()
        elif self._backlog or self._parser.pending:
            self._advance(late=True)
        elif not self._advancing:
            self._wait()

    def abort(self) -> None:
        """Reset the connection: a body that ends where the connection does cannot be told from a whole one."""
        self._exchange = None
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def respond(self, request: Request, status: int, body: bytes = b"", extra: bytes = b"") -> None:
        """A whole answer of ours, in JSON. `extra`: further header lines."""
        request.release()
        keep = request.keep_alive and not self.closing
        if keep and not request.http11:
            extra += b"Connection: keep-alive\r\n"
        self.write(
            http1.answer(status, body, echo=request.echo, extra=extra, keep_alive=keep, head_only=request.head_only)
        )
        self.finish(keep_alive=keep)

    def refuse(self, request: Request, error: ApiError) -> None:
        self.respond(request, error.status, error_body(error, request.path), _error_headers(error))

    def _refuse_and_linger(self, error: ApiError) -> None:
        """Answer what is no request, or too large a one. Closing while data is unread would reset the connection and
        take the answer with it, so read on for a while."""
        echo = tag_of(new_request_id())
        extra = _error_headers(error)
        self.write(
            http1.answer(error.status, error_body(error), echo=echo, extra=extra, keep_alive=False, head_only=False)
        )
        self._lingering = True
        self._backlog.clear()
        self.deadline = self._loop.time() + self._limits.linger
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        if self._transport is not None:
            self.deadline = self._loop.time() + self._limits.linger
            self._transport.close()

    # the server's side

    @property
    def coming(self) -> Coming | None:
        """The body that it waits for."""
        gone = self._transport is None or self._transport.is_closing()
        return None if gone or self._busy or self._lingering else self._parser.coming

    def give_way(self, request: Request, asker: object) -> None:
        """That body came slowly, and its room is needed; `asker`: the parser that needs it."""
        coming = self.coming
        if coming is None or coming.request is not request or asker is self._parser:
            return
        rate = format_bytes(self._limits.rate)
        message = f"the body came at less than {rate} a second, and others needed its room; try again"
        self._parser.close()
        self._refuse_and_linger(ApiError(status=408, code=Code.REQUEST_TIMEOUT, message=message))

    def expire(self) -> None:
        """The deadline is over."""
        transport, self.deadline = self._transport, NEVER
        if transport is None:
            return
        before, self._unsent = self._unsent, transport.get_write_buffer_size()
        if self._unsent and self._unsent != before and not self._lingering:  # it takes its answer, however slowly
            self.deadline = self._loop.time() + self._limits.stalled
            return
        if (
            self._busy
            or self._lingering
            or transport.is_closing()
            or self._writing_paused
            or self._parser.part is START
        ):
            self._cancel()
            transport.abort()
            return
        message = "the request did not arrive in time"
        self._refuse_and_linger(ApiError(status=408, code=Code.REQUEST_TIMEOUT, message=message))

    def shut(self) -> None:
        """Close as soon as nothing is being answered."""
        self.closing = True
        if not self._busy and not self._lingering:
            self._close()

    def end(self) -> None:
        """Close now; a client that waits for an answer, or the rest of one, is told why."""
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.turn_away()
        self._close()

    def kill(self) -> None:
        """Close whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()


def _error_headers(error: ApiError) -> bytes:
    allow = b"Allow: %b\r\n" % error.allow.encode() if error.allow else b""
    after = error.retry_after
    retry = b"Retry-After: %d\r\n" % after if after is not None else b""
    # The SDKs ask again after any 5xx, at their own pace where ours is over a minute: here that would be in vain.
    vain = error.status >= 500 and (after is None or after > LONGEST_RETRY)
    return allow + retry + (b"X-Should-Retry: false\r\n" if vain else b"")
