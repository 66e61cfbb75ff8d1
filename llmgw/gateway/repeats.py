"""Messages that begin as one did before. Pure.

A client sends the same head with each request and an engine with each answer, but for the length of the body: what a
head means is worked out once, and of one that comes again only the length is read. Nothing passes for a repetition but
a whole message, alone, that has every other byte of its head in common with one that llhttp read as it stands.
"""

import re
from typing import Final, Generic, TypeVar

M = TypeVar("M")

LONGEST: Final = 4096
"""Bytes of a head that is remembered: there is one for each connection."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*(?=\r\n)", re.IGNORECASE).finditer


class Repeat(Generic[M]):
    """A head, all but the digits of its Content-Length; and what it means."""

    __slots__ = ("_after", "_before", "_digits", "_most", "meaning")

    def __init__(self, before: bytes, after: bytes, meaning: M) -> None:
        self._before = before
        self._after = after
        self._digits = len(before)
        self._most = self._digits + 16
        self.meaning = meaning

    @classmethod
    def of(cls, data: bytes, body: bytes, meaning: M) -> "Repeat[M] | None":
        """`data`: a message as it came; `body`: its body as a parser read it; None: it is none to go by."""
        end = data.find(b"\r\n\r\n", 0, LONGEST)
        if end < 0:
            return None
        lengths = list(_LENGTH(data, 0, end + 2))
        if len(lengths) != 1:
            return None
        digits = lengths[0]
        found = cls(data[: digits.start(1)], data[digits.end(1) : end + 4], meaning)
        at = found.body_in(data)
        return found if at and data[at:] == body else None

    def body_in(self, data: bytes) -> int:
        """Where the body begins, if `data` are one whole message with this head; else 0."""
        if not data.startswith(self._before):
            return 0
        start = self._digits
        end = data.find(b"\r", start, self._most)
        if end < 0 or not data.startswith(self._after, end):
            return 0
        digits = data[start:end]
        if not digits.isdigit():
            return 0
        body = end + len(self._after)
        return body if body + int(digits) == len(data) else 0
