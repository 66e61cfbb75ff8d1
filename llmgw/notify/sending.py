"""One attempt to send, and what its answer means."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import httpx

from llmgw import __version__
from llmgw.catalog.hosts import is_loopback
from llmgw.catalog.spec import NotifyKind, NotifySpec
from llmgw.notify.requests import Request, root, signed
from llmgw.secretref import SecretMissing, read_secret, read_token
from llmgw.units import Seconds, Wall

TIMEOUT: Final = Seconds(30)
"""For one attempt in all: a server that sends a byte every now and then must not have us for ever."""

CONNECT_TIMEOUT: Final = Seconds(10)

LONGEST_ASKED: Final = Seconds(3600)
"""The longest wait that a server is granted: GitHub's limits are of an hour."""

_PASSING: Final = frozenset({408, 425, 429})

_MOST_READ: Final = 4096
"""Bytes of a refusal that are looked at."""

_ADVICE: Final[Mapping[int, str]] = {
    401: "is the token right, and has it not expired?",
    403: "may the token write commit statuses there?",
    404: "is the repository's name right, and may the token see it?",
    422: "does the forge have that commit?",
}


@dataclass(frozen=True, slots=True)
class Sent:
    """It was taken."""


@dataclass(frozen=True, slots=True)
class Retry:
    """It may be taken later. `wait`: seconds that the server asks for."""

    why: str
    wait: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """It will not be taken, however often it is sent."""

    why: str


Answer = Sent | Retry | Refused


class Sender:
    """Sends to one target. Its client is made once: reading the authorities that servers are verified by takes long."""

    def __init__(self, spec: NotifySpec, *, timeout: Seconds = TIMEOUT) -> None:
        self._spec = spec
        self._timeout = timeout
        self._client: httpx.AsyncClient | None = None

    async def send(self, made: Request, now: Wall) -> Answer:
        """Secrets are read anew: they may have been replaced."""
        url = root(self._spec)
        if url.startswith("http:") and not is_loopback(url) and (self._spec.token or not self._spec.insecure):
            return Refused("it is not encrypted: write https://")
        try:
            request = await asyncio.to_thread(self._signed, made)
        except SecretMissing as error:
            return Refused(str(error))
        if self._client is None:
            self._client = await asyncio.to_thread(_client, url)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._ask(self._client, request, now)
        except TimeoutError:
            return Retry(f"no answer within {self._timeout:.0f} s")
        except httpx.HTTPError as error:
            return Retry(str(error) or type(error).__name__)
        except (httpx.InvalidURL, UnicodeError) as error:
            return Refused(f"its address cannot be used: {error}")

    def _signed(self, made: Request) -> Request:
        spec = self._spec
        token = None if spec.token is None else read_token(spec.token, f"the token of {spec.name}")
        secret = None if spec.secret is None else read_secret(spec.secret, f"the secret of {spec.name}")
        return signed(spec, made, token, secret)

    async def _ask(self, client: httpx.AsyncClient, request: Request, now: Wall) -> Answer:
        async with client.stream(
            "POST", request.url, params=request.params or None, headers=request.headers, content=request.body
        ) as reply:
            if reply.is_success:
                return Sent()
            # GitLab refuses the state that a status is in already.
            refuses = self._spec.kind is NotifyKind.GITLAB and reply.status_code == httpx.codes.BAD_REQUEST
            if refuses and b"Cannot transition status" in await _beginning(reply):
                return Sent()
            return read_answer(self._spec.kind, reply.status_code, reply.headers, now)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def read_answer(kind: NotifyKind, status: int, headers: Mapping[str, str], now: Wall) -> Answer:
    """Of an answer that is no success. A server that says when to come again wants us to, whatever its status."""
    wait = read_wait(headers, now)
    if status in _PASSING or status >= httpx.codes.INTERNAL_SERVER_ERROR or (status >= 400 and wait is not None):
        return Retry(f"status {status}", wait)
    if 300 <= status < 400:
        host = urlsplit(headers.get("location", "")).hostname
        there = f" to {host}" if host else ""
        return Refused(f"status {status}: it is elsewhere{there}, and secrets are not sent on: write that address")
    advice = None if kind is NotifyKind.WEBHOOK else _ADVICE.get(status)
    return Refused(f"status {status}" + (f": {advice}" if advice else ""))


def read_wait(headers: Mapping[str, str], now: Wall) -> Seconds | None:
    """`Retry-After`: seconds, or a date. GitHub tells instead when a limit that is used up begins anew."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return Seconds(min(int(text), LONGEST_ASKED))
    reset = headers.get("x-ratelimit-reset", "")
    if not text and headers.get("x-ratelimit-remaining") == "0" and reset.isascii() and reset.isdecimal():
        return Seconds(min(max(0.0, float(reset) - now), LONGEST_ASKED))
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = (date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.fromtimestamp(now, UTC)
    return Seconds(min(max(0.0, at.total_seconds()), LONGEST_ASKED))


async def _beginning(reply: httpx.Response) -> bytes:
    found = b""
    async for part in reply.aiter_raw():  # nothing is unpacked: a little may be packed that is a lot
        found += part
        if len(found) >= _MOST_READ:
            break
    return found


def _client(url: str) -> httpx.AsyncClient:
    """By the system's authorities, or those of SSL_CERT_FILE; through a proxy where the environment names one, except
    to this machine. Redirects are not followed: they would take a token to somebody else."""
    verify: ssl.SSLContext | bool = ssl.create_default_context() if url.startswith("https:") else False
    return httpx.AsyncClient(
        verify=verify,
        trust_env=not is_loopback(url),
        headers={"User-Agent": f"llmgw/{__version__}", "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT),
        follow_redirects=False,
        limits=httpx.Limits(max_keepalive_connections=0),
    )
