"""Asking a web server for a file: connections, proxies, redirects, and what an answer means.

On the standard library's client, in threads: nothing stands between its reads and the socket.
"""

import http.client
import io
import os
import select
import socket
import ssl
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from llmgw.catalog.hosts import is_loopback
from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused, WeightsUnavailable

MOST_REDIRECTS: Final = 10
CONNECT_TIMEOUT: Final = 15.0
STALL_TIMEOUT: Final = 30.0
"""Seconds without a byte after which a connection counts as dead."""

_MOMENT: Final = 20
"""Milliseconds without a byte after which what came is handed on: a fast server never pauses for so long."""

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class Cut(Exception):
    """The connection broke, stalled, or the server is busy: trying again may go on from here."""

    def __init__(self, text: str, *, wait: float | None = None, answered: bool = False) -> None:
        super().__init__(text)
        self.wait = wait  #: seconds that the server asks for
        self.answered = answered  #: the server was reached, and said so itself


@dataclass(frozen=True, slots=True)
class Who:
    """What is asked for, and with which rights. Never printed: it holds the token."""

    source: str
    token: str | None
    insecure: bool

    @classmethod
    def of(cls, spec: WeightsSpec) -> "Who":
        """Raises WeightsRefused where the token cannot be read, or would be shown to anyone."""
        if not spec.source.startswith("https:") and not spec.insecure and not is_loopback(spec.source):
            raise WeightsRefused(
                f"{spec.source} is not encrypted, so anybody on the way may change it: write https://, or "
                "`insecure: true` beside the source if that is meant"
            )
        token = read_token(spec)
        if token is not None and not spec.source.startswith("https:") and not is_loopback(spec.source):
            raise WeightsRefused(f"the token of {spec.source} would travel unencrypted: write https://")
        return cls(spec.source, token, spec.insecure)


def read_token(spec: WeightsSpec) -> str | None:
    """Raises WeightsRefused, naming where it was looked for."""
    ref = spec.token
    if ref is None:
        return None
    try:
        if ref.from_env is not None:
            where, text = f"the variable {ref.from_env}", os.environ.get(ref.from_env)
        else:
            where = str(ref.from_file)
            with open(os.path.expanduser(where)) as file:
                text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsRefused(f"the token of {spec.source} cannot be read from {where} on this node: {error}") from error
    text = (text or "").strip()
    if not text:
        raise WeightsRefused(f"the token of {spec.source} is not there: set {where} where llmgw runs on this node")
    if not text.isascii() or not text.isprintable():
        raise WeightsRefused(f"the token of {spec.source} in {where} is no single line of plain text")
    return text


class Reply:
    """An answer whose body has yet to be read. `close` may be called from any thread, and ends a read."""

    def __init__(
        self, connection: http.client.HTTPConnection, sock: socket.socket, raw: http.client.HTTPResponse, url: str
    ) -> None:
        self._connection = connection
        self._sock = sock
        self.raw = raw
        self.url = url
        self._left = self.length  #: bytes of the body that have yet to be read, where the server tells
        self._ahead = True  #: bytes of it may have come with the header
        self._broken: Cut | None = None

    @property
    def status(self) -> int:
        return self.raw.status

    def header(self, name: str) -> str | None:
        return self.raw.headers.get(name)

    @property
    def length(self) -> int | None:
        """Bytes of the body, where the server tells."""
        text = self.header("Content-Length") or ""
        return int(text) if text.isdecimal() and not self.raw.chunked else None

    def fill(self, room: memoryview) -> int:
        """Read into `room` until it is full, the body ends (0 bytes: it has), or nothing comes for a moment, so that
        what came is neither handled in crumbs nor kept waiting for more. Raises Cut."""
        done = 0
        if self._broken is not None:
            raise self._broken
        try:
            while done < len(room) and (done == 0 or self._soon()):
                count = self._read_into(room[done:])
                if count == 0:
                    break
                done += count
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._broken = Cut(_said(error))
            if done == 0:  # else the next call tells
                raise self._broken from error
        return done

    def _read_into(self, room: memoryview) -> int:
        """What has come, as soon as something has, straight from the socket where the body lies bare on it."""
        if self._left is None:
            part = self.raw.read1(len(room))
            room[: len(part)] = part
            return len(part)
        room = room[: self._left]
        # Of a buffer that holds a little, readinto1 would take that and wait for more.
        if room and (self._ahead or len(room) <= io.DEFAULT_BUFFER_SIZE):
            ahead = len(self.raw.fp.peek(1))
            room = room[:ahead]
            self._ahead = ahead > len(room)
        count = self.raw.fp.readinto1(room) if room else 0
        self._left -= count
        return count

    def _soon(self) -> bool:
        """Whether more has come, or does within a moment."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(_MOMENT))

    def close(self) -> None:
        self.raw.close()
        self._connection.close()


class Asker:
    """Sends the requests of one fetch. `stop` ends what is under way, from another thread."""

    def __init__(self, who: Who, *, stall: float = STALL_TIMEOUT) -> None:
        self._who = who
        self._stall = stall
        self._sock: socket.socket | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()
        if (sock := self._sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def ask(self, url: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> Reply:
        """Follow redirects to an answer. Raises Cut, WeightsUnavailable, WeightsRefused."""
        at = url
        for _ in range(MOST_REDIRECTS + 1):
            reply = self._one(at, method, self._headers(url, at, headers or {}))
            if reply.status not in _REDIRECTS:
                return reply
            location = reply.header("Location")
            reply.close()
            if not location:
                raise WeightsRefused(
                    f"{self._who.source}: the server redirects ({reply.status}) and does not say where"
                )
            at = self._next(at, location)
        raise WeightsRefused(
            f"{self._who.source}: redirected more than {MOST_REDIRECTS} times, last to {shown(at)}: correct the source"
        )

    def _headers(self, url: str, at: str, headers: Mapping[str, str]) -> dict[str, str]:
        found = {"User-Agent": "llmgw", "Accept": "*/*", "Accept-Encoding": "identity", **headers}
        # A token is for the server that the catalog names, and for nobody that it redirects to.
        if self._who.token is not None and _origin(at) == _origin(url):
            found["Authorization"] = f"Bearer {self._who.token}"
        return found

    def _next(self, at: str, location: str) -> str:
        target = urljoin(at, location)
        parts = urlsplit(target)
        source = self._who.source
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WeightsRefused(f"{source}: redirected to {shown(target)!r}, which is no web address")
        if parts.scheme == "http" and at.startswith("https:"):
            raise WeightsRefused(
                f"{source}: redirected from https to {shown(target)}, which is not encrypted: correct the source"
            )
        if parts.scheme == "http" and not self._who.insecure and not is_loopback(target):
            raise WeightsRefused(f"{source}: redirected to {shown(target)}, which is not encrypted: correct the source")
        return target

    def _one(self, url: str, method: str, headers: dict[str, str]) -> Reply:
        parts = urlsplit(url)
        connection = None
        try:
            connection, target = connect(parts, headers)
            connection.connect()
            self._sock = connection.sock
            if self._stopped.is_set():
                raise OSError("it was stopped")
            self._sock.settimeout(self._stall)
            connection.request(method, target, headers=headers)
            reply = Reply(connection, self._sock, connection.getresponse(), url)
            connection = None
            return reply
        except ssl.SSLCertVerificationError as error:
            raise WeightsUnavailable(
                f"{self._who.source}: the certificate of {parts.hostname} cannot be trusted ({error.verify_message}): "
                "check this machine's clock and certificates (SSL_CERT_FILE names others)"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            if "Tunnel connection failed: 407" in str(error):
                raise WeightsRefused(
                    f"{self._who.source}: the proxy wants other credentials (407): correct {parts.scheme}_proxy"
                ) from error
            raise Cut(f"{_way(parts)}: {_said(error)}") from error
        finally:
            if connection is not None:
                connection.close()


def connect(parts: SplitResult, headers: dict[str, str]) -> tuple[http.client.HTTPConnection, str]:
    """A connection to the server or its proxy, and what to ask it for; the proxy's credentials go into `headers`."""
    target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    host, port = parts.hostname or "", parts.port
    encrypted = parts.scheme == "https"
    proxy = proxy_of(parts)
    if proxy is None:
        kind = http.client.HTTPSConnection if encrypted else http.client.HTTPConnection
        return kind(host, port, timeout=CONNECT_TIMEOUT), target
    kind = http.client.HTTPSConnection if encrypted else http.client.HTTPConnection
    connection = kind(proxy.hostname or "", proxy.port or 3128, timeout=CONNECT_TIMEOUT)
    credentials = {}
    if proxy.username is not None:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        credentials["Proxy-Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    if encrypted:
        connection.set_tunnel(host, port or 443, headers=credentials)
        return connection, target
    headers.update(credentials)
    return connection, f"http://{parts.netloc}{target}"


def proxy_of(parts: SplitResult) -> SplitResult | None:
    """What the environment says (http_proxy, https_proxy, all_proxy, no_proxy). Raises ValueError."""
    proxies = urllib.request.getproxies()
    text = proxies.get(parts.scheme) or proxies.get("all")
    if not text or is_loopback(parts.geturl()) or urllib.request.proxy_bypass(parts.netloc):
        return None
    proxy = urlsplit(text if "://" in text else f"http://{text}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise ValueError(f"proxies of kind {proxy.scheme}:// are not supported: set {parts.scheme}_proxy to http://...")
    return proxy


def refusal(who: Who, reply: Reply) -> Exception:
    """What a status that is no success means: Cut, WeightsUnavailable or WeightsRefused."""
    source, status = who.source, reply.status
    said = f"{status} {reply.raw.reason}".strip()
    if status in _PASSING:
        wait = _asked_wait(reply.header("Retry-After") or "")
        return Cut(f"the server answers {said}", wait=wait, answered=True)
    if status == 401 or (status == 403 and who.token is None):
        advice = (
            "the token is not accepted: renew it"
            if who.token is not None
            else "name a token beside it, such as `token: {from_env: NAME}`, if it needs one"
        )
        return WeightsRefused(f"{source}: the server denies it ({said}): {advice}")
    if status == 403:
        return WeightsRefused(f"{source}: the server denies it ({said}): ask for access, or use another token")
    if status in (404, 410):
        return WeightsRefused(f"{source}: there is no such file ({said}): correct the source")
    if status == 407:
        return WeightsRefused(f"{source}: the proxy wants other credentials ({said}): correct the proxy's URL")
    return WeightsRefused(f"{source}: the server answers {said}: correct the source")


def _asked_wait(text: str) -> float | None:
    """Seconds, of a Retry-After in seconds or as a date (RFC 9110 §10.2.3)."""
    if text.isdecimal():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def shown(url: str) -> str:
    """Without its query, where the secrets of signed URLs are."""
    return url.partition("?")[0]


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _way(parts: SplitResult) -> str:
    try:
        proxy = proxy_of(parts)
    except ValueError:
        proxy = None
    return f"{parts.hostname}" if proxy is None else f"{parts.hostname} by the proxy {proxy.hostname}:{proxy.port}"


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no byte came in time"
    return " ".join(str(error).split())[:200] or type(error).__name__
