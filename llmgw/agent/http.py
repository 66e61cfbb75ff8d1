"""One HTTP request on a connection of its own, as plain as engines are asked: no pool, no redirects, no proxy.

Engines are near and asked seldom, so a connection costs less than remembering one, and none can turn out to be stale.
"""

import asyncio
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

LARGEST: Final = 4 * 1024 * 1024  #: bytes of an answer that are read


class Unanswered(Exception):
    """No connection, or no whole answer that is HTTP."""


class Answer(NamedTuple):
    status: int
    body: bytes


async def ask(method: str, url: str, *, headers: dict[str, str], body: bytes | None, timeout: float) -> Answer:
    """Raises Unanswered, also after `timeout` seconds, or for a URL that is not http://host:port."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise Unanswered(str(error)) from error
    if parts.scheme != "http" or not host:
        raise Unanswered(f"cannot connect to {url!r}")
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    data = _request(method, target or "/", parts.netloc, headers, body)
    loop = asyncio.get_running_loop()
    exchange = _Exchange(data, loop.create_future())
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(timeout):
            transport, _ = await loop.create_connection(lambda: exchange, host, port)
            return await exchange.answer
    except (OSError, TimeoutError) as error:
        raise Unanswered(str(error) or "timed out") from error
    finally:
        if not exchange.answer.cancel() and not exchange.answer.cancelled():
            exchange.answer.exception()  # retrieved, also where the time was up first
        if transport is not None:
            cast(asyncio.Transport, transport).abort()


def _request(method: str, target: str, netloc: str, headers: dict[str, str], body: bytes | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {netloc}", "Connection: close", "Accept: */*"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace") + (body or b"")


class _Exchange(asyncio.Protocol):
    def __init__(self, data: bytes, answer: asyncio.Future[Answer]) -> None:
        self._data = data
        self.answer = answer
        self._parser: Any = httptools.HttpResponseParser(self)
        self._status = 0
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._data)

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"not HTTP: {error}")
        if len(self._body) > LARGEST:
            self._fail("too large an answer")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._status and exc is None and not self._has_length:
            self._settle()
        else:
            self._fail(str(exc or "it closed the connection"))

    def _settle(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Answer(self._status, bytes(self._body)))

    def _fail(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(Unanswered(why))

    # llhttp's callbacks

    _has_length = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # 100 Continue and the like: not the answer yet
            self._status = status

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._status:
            self._settle()
