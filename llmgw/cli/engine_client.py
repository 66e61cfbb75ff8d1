"""Asks one engine for streamed answers, as its gateway does. Small, so that it is never what is slow."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httptools
import msgspec

from llmgw.errors import RetryableError, TerminalError

CONNECT: Final = 10.0  #: seconds
_CHUNK: Final = 64 * 1024
_LONGEST: Final = 4 * 1024 * 1024  #: bytes of a line, or of an error, that are kept


class EngineRefused(TerminalError):
    """The engine answered, but not with a stream. One line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class EngineLost(RetryableError):
    """No connection, or it broke before the answer was complete. One line."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of an answer, or of what a model says to itself before it."""

    text: str


@dataclass(frozen=True, slots=True)
class Count:
    """How many tokens the engine says that it read and made. Comes last, if at all."""

    prompt: int | None
    completion: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineClient:
    """`url`: as the replica is reached at. `key`: what it demands, never shown."""

    url: str
    key: str

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Text | Count, None]:
        """The answer's pieces as they come. Close the iterator to have the engine stop.

        Raises EngineRefused, EngineLost.
        """
        address = urlsplit(self.url)
        host, port = address.hostname or "", address.port or 80
        reader, writer = await _connect(host, port)
        try:
            writer.write(_request(f"{address.path}{path}", address.netloc, self.key, json.dumps(body).encode()))
            answer = _Answer()
            async with aclosing(answer.lines(reader)) as lines:
                async for line in lines:
                    for piece in _pieces(line):
                        yield piece
        except (OSError, httptools.HttpParserError) as error:
            raise EngineLost(f"the engine broke off ({error or type(error).__name__})") from error
        finally:
            writer.transport.abort()  # nothing that is still to be said matters: the engine shall stop at once


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(CONNECT):
            return await asyncio.open_connection(host, port)
    except TimeoutError as error:
        raise EngineLost(f"the engine takes no connection within {CONNECT:.0f} s") from error
    except OSError as error:
        raise EngineLost(f"the engine cannot be reached ({error.strerror or error})") from error


def _request(path: str, host: str, key: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Answer:
    """An HTTP answer's data, by line of its event stream; httptools calls the `on_` methods."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._type = ""
        self._complete = False

    async def lines(self, reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
        """Raises EngineRefused for any answer but a stream, EngineLost when it ends early."""
        ended = False
        while not (self._complete or ended):
            data = await reader.read(_CHUNK)
            ended = not data
            if data:
                self._parser.feed_data(data)
            if not self._streams:
                if len(self._body) > _LONGEST:
                    break
                continue
            *lines, rest = self._body.split(b"\n")
            self._body = bytearray(rest)
            for line in lines:
                if line.strip() == b"data: [DONE]":
                    return
                yield bytes(line)
        if not self._streams:
            raise self._refusal()
        # Some say [DONE], some end the body; a body without an end of its own that just stops was cut off.
        if self._complete:
            yield bytes(self._body)
        else:
            raise EngineLost("the answer was cut off")

    @property
    def _streams(self) -> bool:
        return "text/event-stream" in self._type and self._parser.get_status_code() == 200

    def _refusal(self) -> EngineRefused | EngineLost:
        try:
            status = int(self._parser.get_status_code())
        except (AttributeError, ValueError):
            status = 0
        if not status:
            return EngineLost("the engine closed the connection without an answer")
        if 200 <= status < 300:
            return EngineRefused(status, f"the engine does not stream: it answered with {self._type or 'no type'}")
        return EngineRefused(status, _message(bytes(self._body)) or f"the engine answered {status}")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._type = value.decode("latin-1").lower()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._complete = True


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Event).decode


def _pieces(line: bytes) -> list[Text | Count]:
    """Raises EngineLost for an error in the stream, EngineRefused for what is no OpenAI answer."""
    if not line.startswith(b"data:"):
        if line.startswith(b"error:"):  # llama-server's
            raise EngineLost(_message(line[6:]) or "the engine sent an error")
        return []
    try:
        event = _decode(line[5:].strip())
    except msgspec.MsgspecError as error:
        raise EngineRefused(200, f"the engine's stream is not OpenAI's: {error}") from error
    if event.error is not None:
        raise EngineLost(_message(line[5:]) or "the engine sent an error")
    found: list[Text | Count] = []
    for choice in event.choices[:1]:
        delta = choice.delta or _Delta()
        text = choice.text or delta.content or delta.reasoning_content or delta.reasoning
        if text:
            found.append(Text(text))
    if event.usage is not None:
        found.append(Count(event.usage.prompt_tokens, event.usage.completion_tokens))
    return found


def _message(body: bytes) -> str:
    """The text of an error object in OpenAI's form, on one line; "" where it is none."""
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    error = value.get("error") if isinstance(value, dict) else None
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text or "").split())[:500]
