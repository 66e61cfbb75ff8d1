"""An answer that begins before an engine was found for it: an event stream with comments, so that neither the client
nor a proxy between gives it up. No I/O.

Its status is 200 from then on. What would have been another becomes an event with an error object in it.
"""

from typing import Any, Final

import msgspec

from llmgw.gateway import http1
from llmgw.gateway.openai import ApiError, Code, error_event, event_of
from llmgw.gateway.reply import Answered, Reply
from llmgw.gateway.request import Request
from llmgw.units import Bytes, format_bytes

MOST: Final = 256 * 1024
"""Bytes that are kept of an answer that is no event stream. A larger one is an error: a part is not to pass for it."""
_SHOWN: Final = 500
"""Characters of one that is no error object either."""


class _Asked(msgspec.Struct):
    stream: Any = False


_read: Final = msgspec.json.Decoder(_Asked).decode
_read_any: Final = msgspec.json.Decoder().decode


def wants_stream(body: bytes) -> bool:
    """Whether a request asks for an event stream."""
    try:
        return _read(body).stream is True
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


class Early(Reply):
    """First `opening`, then `comment` as often as need be; from there on as any reply."""

    __slots__ = ("_collected", "_status")

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._stream, self._chunked = True, request.http11
        self.keep_alive = self.keep_alive and request.http11
        self._status = 200
        self._collected: bytearray | None = None  #: of an answer that is no event stream

    def opening(self) -> bytes:
        request = self._request
        framing = b"Transfer-Encoding: chunked\r\n" if self._chunked else b""
        closing = b"" if self.keep_alive == request.http11 else b"Connection: close\r\n"
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
            b"X-Accel-Buffering: no\r\n%b%b%b\r\n" % (request.echo, framing, closing)
        )

    def comment(self, text: str) -> bytes:
        """One line, which clients pass over."""
        line = b": %b\n\n" % " ".join(text.split()).encode(errors="replace")
        return http1.chunk(line) if self._chunked else line

    def head(self, answered: Answered, length: int | None) -> bytes:
        """The client has one already."""
        chunked, keep_alive = self._chunked, self.keep_alive
        super().head(answered, length)
        if not self._stream or answered.status != 200:
            self._status, self._collected = answered.status, bytearray()
        self._stream, self._chunked, self._sized, self.keep_alive = True, chunked, False, keep_alive
        return b""

    @property
    def is_stream(self) -> bool:
        return self._collected is None

    def framed(self, body: bytes, done: bool) -> bytes:
        if self._collected is None:
            return super().framed(body, done)
        if len(self._collected) <= MOST:
            self._collected += body
        return super().framed(self._translated(), True) if done else b""

    def _translated(self) -> bytes:
        """What came as it stands in an event: an error object is one, and so is whatever has an error's status."""
        text = bytes(self._collected or b"")
        if self._status == 200 and len(text) > MOST:  # what there is of it is not all
            message = f"the engine answered no event stream but more than {format_bytes(Bytes(MOST))} of something else"
            return error_event(ApiError(status=502, code=Code.ENGINE_LOST, message=message), self._request.path)
        if self._status == 200:
            return b"data: %b\n\n" % b"\ndata: ".join(text.splitlines())
        try:
            said = _read_any(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            said = None
        inner = said.get("error") if isinstance(said, dict) else None
        if not isinstance(inner, dict):
            told = text.decode(errors="replace")[:_SHOWN].strip()
            message = told or f"the engine answered {self._status}"
            inner = {"message": message, "type": "server_error", "param": None, "code": None}
        return event_of(inner, self._request.path)
