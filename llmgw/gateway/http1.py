"""HTTP/1.1 as the gateway speaks it to clients: bytes in, `Request`s out, and the heads of answers. Does no I/O.

llhttp (through httptools) is the parser, in its strict mode. What it leaves to its user is done here: limits, Host,
Transfer-Encoding other than chunked, 100-continue, offers to upgrade, header fields that must not travel further.
"""

import re
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from http import HTTPStatus
from typing import Any, Final

import httptools

from llmgw.gateway.admission import Buffers
from llmgw.gateway.fields import Fields, understand
from llmgw.gateway.keys import Caller, Credential
from llmgw.gateway.openai import ApiError, Code
from llmgw.gateway.repeats import Repeat
from llmgw.gateway.request import Head, Request, new_request_id, tag_of
from llmgw.gateway.slow import Coming
from llmgw.units import format_bytes

MAX_HEAD: Final = 64 * 1024
"""Bytes of a request's line and header fields together, and of its trailers."""

DENIED_BODY: Final = 64 * 1024
"""Bytes of the body of a request that is denied: up to there it is read on, so that the connection stays usable."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}").fullmatch
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE).match


Admit = Callable[[Credential | None], tuple[Caller, ApiError | None]]
"""Whose request it is by the token that it brings, if any; and why it is denied."""


class Part(IntEnum):
    """Of which part of a message the parser expects more."""

    START = 0
    HEAD = 1
    BODY = 2


START, HEAD, BODY = Part
# By these names: in Python 3.11, to look a member up in its enum takes as long as ten other look-ups.


class _Refused(Exception):
    """Ends parsing from inside a callback; the answer is in `RequestParser.refusal`."""


class RequestParser:
    """Feed it what a client sent; take complete requests from `ready`.

    Once `refusal` is set, the connection is good for nothing but that answer, after those to `ready`. Once `last` is,
    the client wants no further answer. Neither raises.
    """

    __slots__ = (
        "_admit", "_body", "_buffers", "_fed_head", "_headers", "_id", "_known", "_latest", "_length", "_max_body",
        "_parser", "_request", "_size", "_upgrading", "_url", "expects_continue", "last", "part", "ready", "refusal",
    )  # fmt: skip

    def __init__(self, max_body: Callable[[], int], buffers: Buffers, admit: Admit) -> None:
        self._admit = admit
        self._max_body = max_body
        self._buffers = buffers
        self._parser: Any = httptools.HttpRequestParser(self)
        self._known: Repeat[Head] | None = None  #: a head that came again, and may once more
        self._latest: Fields | None = None
        self.part = START
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []  #: all but the next two, which differ from request to request
        self._length: bytes | None = None
        self._id: bytes | None = None
        self._fed_head = 0
        self._request: Request | None = None
        self._body: bytes | bytearray = b""
        self._size = 0
        self._upgrading = False
        self.ready: deque[Request] = deque()
        self.refusal: ApiError | None = None
        self.last = False
        self.expects_continue = False

    @property
    def pending(self) -> bool:
        """There is something to be done before more is read."""
        return bool(self.ready) or self.refusal is not None

    @property
    def coming(self) -> Coming | None:
        """The body of which more is awaited, with nothing before it."""
        request = self._request
        return None if self.part is not BODY or request is None or self.ready else Coming(request, self._size)

    def feed(self, data: bytes) -> None:
        if self.refusal is not None or self.last:
            return
        known, first = self._known, self.part is START
        if known is not None and first and (at := known.body_in(data)) and self._again(known.meaning, data[at:]):
            return
        began_before, in_body, size = self.part is HEAD, self.part is BODY, self._size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrades(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._misread(error)
        if self.part is HEAD and began_before:
            self._fed_head += len(data)
            if self._fed_head > MAX_HEAD:
                self._refuse_head()
        elif in_body and self.part is BODY and self._size == size:
            self._read_beside(len(data))
        if first and len(self.ready) == 1:
            self._remember(data, self.ready[0])
        elif in_body and self.ready:
            self.admit_again(self.ready[0])

    def admit_again(self, request: Request) -> None:
        """It was let in when its head came, which may be long ago."""
        request.caller, request.denied = self._admit(request.head.fields.credential)

    def _read_beside(self, size: int) -> None:
        """Bytes of a body's framing: trailers, which llhttp's wrapper gathers and tells of only when they are whole."""
        self._fed_head += size
        if self._fed_head > MAX_HEAD and self.refusal is None:
            self.refusal = _headers_too_large()
            self._drop_body()

    def _again(self, head: Head, body: bytes) -> bool:
        """Take a whole request whose head came before. False: it is to be parsed as any other, and refused as such."""
        caller, denied = self._admit(head.fields.credential)
        size = len(body)
        if denied is not None or size > self._max_body() or not self._buffers.take(size):
            return False
        request_id = new_request_id()
        self.ready.append(Request(head, request_id, tag_of(request_id), caller, self._buffers, body, size))
        return True

    def _remember(self, data: bytes, request: Request) -> None:
        """The head of a request that came alone, if nothing in it is about this one request but its length. The second
        time: of clients that send another head each time it would be for nothing."""
        fields, latest = request.head.fields, self._latest
        self._latest = fields  # the same object, as long as the same fields come
        own = self._id is not None or fields.coding is not None or fields.expect is not None
        if fields is latest and request.keep_alive and not own:
            self._known = Repeat.of(data, request.body, request.head)

    # llhttp's callbacks, in the order in which they come

    def on_message_begin(self) -> None:
        self.part = HEAD
        self._url = b""
        self._headers = []
        self._length = self._id = None
        self._fed_head = 0
        self._body = b""
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.part is HEAD:
            if (size := len(name)) == 14 and name.lower() == b"content-length":
                self._length = value  # a number, and alone: llhttp has checked that
            elif size == 12 and name.lower() == b"x-request-id":
                self._id = value if self._id is None else b""
            else:
                self._headers.append((name, value))
        else:  # trailers are dropped, but not for ever
            self._fed_head += len(name) + len(value)
            if self._fed_head > MAX_HEAD:
                self._refuse(_headers_too_large())

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            self._upgrading = True
            return
        self.part = BODY
        self._fed_head = 0
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            message = f"HTTP/{version} is not spoken here: use HTTP/1.1"
            self._refuse(ApiError(status=505, code=Code.VERSION_NOT_SUPPORTED, message=message))
        self._request = self._read_head(parser.get_method().decode(), version == "1.1")

    def on_body(self, data: bytes) -> None:
        self.expects_continue = False  # it did not wait for our word
        denied = self._request.denied if self._request is not None else None
        if denied is not None and self._size + len(data) > DENIED_BODY:
            self._refuse(denied)
        if self._size + len(data) > self._max_body():
            self._refuse(_too_large(self._max_body()))
        if not self._buffers.take(len(data), self):
            self._refuse(_OVERLOADED)
        if not self._size:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:  # not a list of pieces: a client that sends many small ones would have us keep many small objects
            self._body = bytearray(self._body)
            self._body += data
        self._size += len(data)
        self._fed_head = 0

    def on_message_complete(self) -> None:
        request = self._request
        if self._upgrading or request is None:
            return
        self._request = None
        self.part = START
        self.expects_continue = False
        request.body, request.counted = bytes(self._body), self._size
        self._body, self._size = b"", 0
        request.keep_alive = self._parser.should_keep_alive()
        self.last = not request.keep_alive
        self.ready.append(request)

    # what llhttp leaves to us

    def _read_head(self, method: str, http11: bool) -> Request:
        fields = understand(tuple(self._headers))
        if len(self._url) + fields.size > MAX_HEAD:
            self._refuse_head()
        if fields.hosts > 1:
            self._refuse(_bad_request("more than one Host header"))
        length = 0 if self._length is None else int(self._length)
        caller, denied = self._admit(fields.credential)
        if denied is not None and (fields.expect is not None or length > DENIED_BODY):
            self._refuse(denied)  # before the body is sent
        self._check_framing(fields, length, http11)
        self.expects_continue = fields.expect == b"100-continue" and http11
        sent = self._id
        request_id = sent.decode("latin-1") if sent is not None and _SANE_ID(sent) else new_request_id()
        target = _origin_form(self._url)
        head = Head(method, target, target.partition(b"?")[0].decode("latin-1"), http11, fields)
        return Request(head, request_id, tag_of(request_id), caller, self._buffers, denied=denied)

    def _check_framing(self, fields: Fields, length: int, http11: bool) -> None:
        if http11 and not fields.hosts:
            self._refuse(_bad_request("no Host header"))
        if fields.coding is not None and (fields.coding != b"chunked" or not http11):
            self._refuse(_bad_request("the only Transfer-Encoding understood is 'chunked', in HTTP/1.1"))
        if length > self._max_body():
            self._refuse(_too_large(self._max_body()))
        if not self._buffers.has_room(length, self):
            self._refuse(_OVERLOADED)  # before it is sent

    def _decline_upgrades(self, rest: memoryview) -> None:
        """Take requests that offer to switch protocols (h2c, as Java's client does by default) for plain ones.

        llhttp ends such a message at its head, so that its body would be lost: it is parsed anew without the offer. So
        is each that follows in `rest`, one after the other: a client may send thousands in one go.
        """
        pieces: list[bytes | memoryview] = [rest, self._without_offer()]
        while pieces and self.refusal is None:
            piece = pieces.pop()
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                pieces += (memoryview(piece)[upgrade.args[0] :], self._without_offer())
            except httptools.HttpParserError as error:
                self._misread(error)
                return

    def _without_offer(self) -> bytes:
        """The head at which the parser ended, for a new one."""
        self._upgrading = False
        parser = self._parser
        method, version = parser.get_method(), parser.get_http_version().encode()
        if method == b"CONNECT":
            message = "CONNECT: this is no proxy"
            self.refusal = ApiError(status=405, code=Code.METHOD_NOT_ALLOWED, message=message, allow="GET, POST")
        head = [b"%b %b HTTP/%b\r\n" % (method, self._url, version)]
        for name, value in self._headers:
            low = name.lower()
            if low == b"connection":
                value = b",".join(token for token in value.split(b",") if token.strip().lower() != b"upgrade")
            if low != b"upgrade":
                head.append(b"%b: %b\r\n" % (name, value))
        if self._length is not None:
            head.append(b"Content-Length: %b\r\n" % self._length)
        if self._id is not None:
            head.append(b"X-Request-Id: %b\r\n" % self._id)
        self._parser = httptools.HttpRequestParser(self)
        self.part = START
        return b"".join((*head, b"\r\n"))

    def _misread(self, error: httptools.HttpParserError) -> None:
        if self.refusal is None and not self.last:
            self.refusal = _bad_request(f"not an HTTP request: {error}")
            self._drop_body()

    def close(self) -> None:
        """No more will come, and nothing of what came is wanted."""
        self._drop_body()
        while self.ready:
            self.ready.popleft().release()

    def _drop_body(self) -> None:
        self._buffers.give(self._size)
        self._body, self._size = b"", 0

    def _refuse(self, error: ApiError) -> None:
        self.refusal = error
        self._drop_body()
        raise _Refused

    def _refuse_head(self) -> None:
        self.refusal = _headers_too_large()
        if self.part is BODY:
            raise _Refused


_OVERLOADED: Final = ApiError(
    status=503, code=Code.OVERLOADED, message="too many large requests are in hand: try again shortly", retry_after=2
)


def _bad_request(message: str) -> ApiError:
    return ApiError(status=400, code=Code.BAD_REQUEST, message=message)


def _too_large(limit: int) -> ApiError:
    message = f"the body is larger than {format_bytes(limit)}, the catalog's gateway.max_body"
    return ApiError(status=413, code=Code.BODY_TOO_LARGE, message=message)


def _headers_too_large() -> ApiError:
    message = f"the header fields are larger than {format_bytes(MAX_HEAD)}"
    return ApiError(status=431, code=Code.HEADERS_TOO_LARGE, message=message)


def _origin_form(url: bytes) -> bytes:
    """The target without scheme and authority, which a client that takes us for a proxy sends."""
    if url.startswith(b"/"):
        return url
    absolute = _ABSOLUTE(url)
    if absolute is None:
        return url
    target = url[absolute.end() :]
    return target if target.startswith(b"/") else b"/" + target


_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


def answer(status: int, body: bytes, *, echo: bytes, extra: bytes = b"", keep_alive: bool, head_only: bool) -> bytes:
    """A whole answer of ours. `echo` and `extra` are header blocks."""
    typed = b"Content-Type: application/json\r\n" if body else b""
    sized = b"" if status == 204 else b"Content-Length: %d\r\n" % len(body)
    closing = b"" if keep_alive else b"Connection: close\r\n"
    head = (status_line(status), typed, sized, echo, extra, closing, b"\r\n")
    return b"".join(head if head_only else (*head, body))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
