"""An engine's answer as its client gets it: header fields, framing, and how it ends when the engine is lost. No I/O."""

from functools import lru_cache
from typing import Final, NamedTuple

from llmgw.gateway import http1
from llmgw.gateway.fields import HOP_BY_HOP, REMEMBERED, named_in
from llmgw.gateway.openai import ApiError, error_event
from llmgw.gateway.request import Request
from llmgw.gateway.tokens import Tally

LONGEST_LINE: Final = 64 * 1024
"""Of an event stream, in bytes: a longer line is passed on in pieces."""

_NOT_RELAYED: Final = HOP_BY_HOP | {
    b"x-request-id", b"x-accel-buffering", b"x-llmgw-fallback",  # written anew
    b"access-control-allow-origin", b"access-control-allow-credentials", b"access-control-allow-methods",
    b"access-control-allow-headers", b"access-control-expose-headers", b"access-control-max-age",  # ours to grant
}  # fmt: skip


class Answered(NamedTuple):
    """What the head of an engine's answer says, all but the length of the body. `coded`: it has a Transfer-Encoding."""

    status: int
    lines: bytes  #: status line and header fields that travel on
    stream: bool  #: of server-sent events, as they are
    coded: bool


@lru_cache(maxsize=REMEMBERED)
def understand(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> Answered:
    """`headers` without Content-Length: engines send the same with each answer, but for that.

    Raises ValueError for a body that is coded otherwise than in chunks: it would go further without a word about it.
    """
    codings = [value.strip().lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings and codings != [b"chunked"]:
        raise ValueError("the only transfer coding of an answer that is understood is 'chunked'")
    lines, stream, plain = [http1.status_line(status)], False, True
    dropped = named_in([value for name, value in headers if name.lower() == b"connection"])
    for name, value in headers:
        low = name.lower()
        if low == b"content-type":
            stream = value.lower().startswith(b"text/event-stream")
        elif low == b"content-encoding":
            plain = False
        if low not in _NOT_RELAYED and low not in dropped:
            lines += (name, b": ", value, b"\r\n")
    lines.append(b"X-Accel-Buffering: no\r\n")  # nginx in front of us must not collect the stream
    return Answered(status, b"".join(lines), stream and plain, bool(codings))


class Reply:
    """One answer on its way through: first `head`, then `framed` for each piece as it comes.

    Event streams are always framed by us, so that an error event can follow anything.
    """

    __slots__ = ("_chunked", "_line", "_mid_line", "_request", "_sized", "_stream", "extra", "keep_alive", "tally")

    def __init__(self, request: Request) -> None:
        self._request = request
        self.tally = Tally()
        self._stream = self._chunked = self._sized = False
        self._line = b""  #: of an event stream, the last line while it is unfinished
        self._mid_line = False  #: what the client has ends within a line
        self.extra = b""  #: further header lines
        self.keep_alive = request.keep_alive  #: whether the connection can be used again after it

    def head(self, answered: Answered, length: int | None) -> bytes:
        """`length`: of the body, where the engine says it."""
        request = self._request
        http11 = request.head.http11
        self._stream = answered.stream
        framing, closing = b"", b""
        if answered.status in (204, 304):
            self._sized = True
        elif length is not None and not self._stream:
            self._sized = True
            framing = b"Content-Length: %d\r\n" % length
        elif http11:
            self._chunked = True
            framing = b"Transfer-Encoding: chunked\r\n"
        else:
            self.keep_alive = False
        if self.keep_alive != http11:  # otherwise it is the version's default
            closing = b"Connection: keep-alive\r\n" if self.keep_alive else b"Connection: close\r\n"
        return b"%b%b%b%b%b\r\n" % (answered.lines, request.echo, self.extra, framing, closing)

    @property
    def is_stream(self) -> bool:
        """Server-sent events, which can be read on their way through. Only after `head`."""
        return self._stream

    def framed(self, body: bytes, done: bool) -> bytes:
        """The next bytes to send for a piece of the body; may be none."""
        if self._stream:
            body = self._whole_lines(body, done)
        if not self._chunked:
            return body
        if not body:
            return http1.LAST_CHUNK if done else b""
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if done else b"%x\r\n%b\r\n" % (len(body), body)

    def broken_off(self, error: ApiError) -> bytes | None:
        """What ends an answer whose engine was lost in the middle; the connection closes after it.

        None: only resetting the connection can tell the client, since its end would look like the body's.
        """
        if not self._stream:
            return b"" if self._chunked or self._sized else None
        # A blank line first: it ends what is left of the last event. The chunked body itself is then complete: many
        # clients throw away what they have not yet read of a body that breaks off, and with it the error.
        gap = b"\n\n" if self._mid_line else b"\n"
        event = gap + error_event(error, self._request.path)
        return http1.chunk(event) + http1.LAST_CHUNK if self._chunked else event

    def _whole_lines(self, body: bytes, done: bool) -> bytes:
        """Keep back an unfinished last line: no client can use it, and an error event could not follow it."""
        if self._line:
            body, self._line = self._line + body, b""
        if done or body.endswith(b"\n"):
            self._mid_line = False
            return body
        cut = body.rfind(b"\n") + 1
        if len(body) - cut > LONGEST_LINE:
            self._mid_line = True
            return body
        self._line = body[cut:]
        self._mid_line = self._mid_line and not cut
        return body[:cut]
