"""Which requests belong together, so that one engine, which holds in memory how they begin, answers them. Pure.

What they have in common becomes a number; `balance.near` says whose it is. Nothing is remembered: every gateway finds
the same, also after a restart.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from llmgw.catalog.spec import AffinitySpec, Common

_MOST: Final = 1024
"""Bytes of a session's name that count."""
_SYSTEM: Final = frozenset(("system", "developer"))


class _Body(msgspec.Struct):
    """What of a request's body may tell. Raw: whatever is there, it is no error of ours."""

    prompt_cache_key: msgspec.Raw = msgspec.Raw()
    user: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


class _Metadata(msgspec.Struct):
    """Anthropic's."""

    user_id: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct):
    role: Any = None
    content: Any = None


_read: Final = msgspec.json.Decoder(_Body).decode
_text: Final = msgspec.json.Decoder(str).decode
_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_message: Final = msgspec.json.Decoder(_Message).decode
_metadata: Final = msgspec.json.Decoder(_Metadata).decode
_FAULTS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Affinity:
    """Of one model."""

    spec: AffinitySpec
    header: re.Pattern[bytes]

    @classmethod
    def of(cls, spec: AffinitySpec) -> "Affinity":
        return cls(spec, re.compile(rb"(?:^|\r\n)%b:[ \t]*([^\r\n]*)" % re.escape(spec.header.encode()), re.IGNORECASE))

    @property
    def bound(self) -> float:
        return self.spec.bound

    def key(self, head: bytes, body: bytes) -> int | None:
        """64 bits of what the request has in common with others; None: nothing that counts. `head`: its fields."""
        read: _Body | None = None
        for common in self.spec.by:
            found = b""
            if common is Common.SESSION and (named := self.header.search(head)) is not None:
                found = named[1].strip()[:_MOST]
            if not found:
                read = read or _body(body)
                found = _session(read) if common is Common.SESSION else _beginning(read, self.spec.prefix)
            if found:
                return _number(b"%b\0%b" % (common.encode(), found))
        return None


def seed(text: str) -> int:
    """64 bits of an endpoint's id."""
    return _number(text.encode())


def _number(text: bytes) -> int:
    # Python's own hash differs from process to process.
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _body(body: bytes) -> _Body:
    """Of one that is no JSON object (a form, say) nothing is known."""
    try:
        return _read(body)
    except _FAULTS:
        return _Body()


def _session(body: _Body) -> bytes:
    found = _string(body.prompt_cache_key) or _string(body.user)
    if not found and _kind(body.metadata) == b"{":
        try:
            found = _string(_metadata(body.metadata).user_id)
        except _FAULTS:
            found = ""
    return found.encode(errors="surrogatepass")[:_MOST]


def _kind(raw: msgspec.Raw) -> bytes:
    """The first byte, which says what kind of value it is; none: there is no value."""
    return bytes(memoryview(raw)[:1])


def _string(raw: msgspec.Raw) -> str:
    """Empty: it is none."""
    try:
        return _text(raw) if _kind(raw) == b'"' else ""
    except _FAULTS:
        return ""


def _beginning(body: _Body, length: int) -> bytes:
    """The first `length` characters: of a prompt, or of a conversation after what the system says, which is the same
    in very many and soon held by every engine."""
    for raw in (body.messages, body.input, body.prompt):
        if _kind(raw):
            return _first(raw, length).encode(errors="surrogatepass")
    return b""


def _first(raw: msgspec.Raw, length: int) -> str:
    if _kind(raw) != b"[":
        return _string(raw)[:length]
    first = ""
    try:
        for item in _list(raw):
            if _kind(item) != b"{":  # token ids, or one of several prompts
                return bytes(memoryview(raw)[:length]).decode(errors="replace")
            message = _message(item)
            text = _content(message.content)[:length]
            if message.role not in _SYSTEM:
                return text
            first = first or text
    except (*_FAULTS, TypeError):  # the last: a role that is a list, say
        return ""
    return first


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""
