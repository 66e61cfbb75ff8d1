"""What the header fields of a request say, and which of them travel on. Pure.

A client sends the same fields with each of its requests, but for the length of the body and perhaps an id: what they
mean is worked out once, and remembered for as many clients as are likely to be about.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from llmgw.gateway.keys import Credential

REMEMBERED: Final = 256
"""Sets of fields that are kept in memory, at most: each is smaller than a request's head may be."""

HOP_BY_HOP: Final = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"http2-settings",
))  # fmt: skip
"""RFC 9110 section 7.6.1: about one connection, so never forwarded. Whatever `Connection` names joins them."""

_NOT_FORWARDED: Final = HOP_BY_HOP | {
    b"host", b"expect",  # settled here
    b"authorization", b"x-api-key",  # the client's credentials are for us, the engine has its own key
    b"accept-encoding",  # a compressed stream could not be ended with an error event
    b"x-llmgw-no-fallback", b"x-llmgw-stream-comments",  # words to us
}  # fmt: skip
_EXAMINED: Final = _NOT_FORWARDED | {b"content-type", b"content-encoding", b"origin", b"sec-fetch-site"}

_LOCAL_ORIGIN: Final = re.compile(rb"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?").fullmatch
_UNSET: Final = frozenset((b"", b"0", b"false", b"no"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """`size`: bytes of names and values. `hosts`: how many Host fields there are. `coding`, `expect`: in small letters;
    None: not sent. `forward`, `cross`: header blocks, of what travels on and of what answers must carry for a page of
    another origin. `foreign`: a page of another site sent it without asking first. `fallback`: another model may
    answer. `comments`: whether a stream that waits is to begin with comments; None: as the model has it."""

    size: int
    hosts: int
    credential: Credential | None
    coding: bytes | None
    expect: bytes | None
    content_type: bytes
    content_encoding: bytes
    forward: bytes
    cross: bytes
    foreign: bool
    fallback: bool
    comments: bool | None


@lru_cache(maxsize=REMEMBERED)
def understand(headers: tuple[tuple[bytes, bytes], ...]) -> Fields:
    """`headers`: as sent, in order, without Content-Length and X-Request-Id."""
    forward: list[tuple[bytes, bytes, bytes]] = []
    found: dict[bytes, bytes] = {}
    size = hosts = 0
    for name, value in headers:
        size += len(name) + len(value)
        low = name.lower()
        if low in _EXAMINED:
            hosts += low == b"host"
            found[low] = value if low not in found else found[low] + b", " + value
        if low not in _NOT_FORWARDED:
            forward.append((low, name, value))
    dropped = named_in([found.get(b"connection", b"")])
    origin, coding, expect = found.get(b"origin"), found.get(b"transfer-encoding"), found.get(b"expect")
    return Fields(
        size=size,
        hosts=hosts,
        credential=_credential(found),
        coding=None if coding is None else coding.lower(),
        expect=None if expect is None else expect.lower(),
        content_type=found.get(b"content-type", b""),
        content_encoding=found.get(b"content-encoding", b""),
        forward=b"".join(b"%b: %b\r\n" % (name, value) for low, name, value in forward if low not in dropped),
        cross=b"" if origin is None else _cross_origin(origin),
        foreign=origin is not None and _is_foreign(origin, found),
        fallback=found.get(b"x-llmgw-no-fallback", b"").lower() in _UNSET,
        comments=None if (said := found.get(b"x-llmgw-stream-comments")) is None else said.lower() not in _UNSET,
    )


def named_in(connection: Sequence[bytes]) -> frozenset[bytes]:
    """Fields that the values of Connection fields make hop-by-hop."""
    return frozenset(token.strip().lower() for value in connection for token in value.split(b","))


def _credential(found: dict[bytes, bytes]) -> Credential | None:
    """The token: as OpenAI's clients send it, or as Anthropic's do."""
    if (value := found.get(b"authorization")) is not None:
        scheme, _, token = value.partition(b" ")
        return Credential.of(token.strip() if scheme.lower() == b"bearer" else value)
    token_alone = found.get(b"x-api-key")
    return None if token_alone is None else Credential.of(token_alone)


def _cross_origin(origin: bytes) -> bytes:
    """Pages served from this very machine may call us; no other site may use its visitors' models."""
    if not _LOCAL_ORIGIN(origin):
        return b"Vary: Origin\r\n"
    return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin


def _is_foreign(origin: bytes, found: dict[bytes, bytes]) -> bool:
    """Whether a browser sends this for a page of another site, and did not have to ask us before.

    For JSON it asks with a preflight, and is told no by what the answer lacks. Plain text and forms it just sends.
    """
    if _LOCAL_ORIGIN(origin) or found.get(b"content-type", b"").lower().startswith(b"application/json"):
        return False
    if b"sec-fetch-site" in found:  # the browser's own word, where it gives one; right behind a reverse proxy too
        return found[b"sec-fetch-site"] == b"cross-site"
    return origin.partition(b"://")[2] != found.get(b"host")
