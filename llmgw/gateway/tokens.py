"""How many tokens a request came to, by what its engine says of it at the beginning or the end of the answer. Pure.

Nothing is added to a request to make an engine say more: what clients get stays what they asked for. Where a stream
says nothing of it, its events are counted: one for each token, near enough.
"""

import re
from typing import Final

import msgspec

KEPT: Final = 4096
"""Bytes that are looked at of an answer's first piece, and of each of its last three: what comes after the usage is
but the word that it is over."""

_OBJECT: Final = re.compile(rb'"(?:usage|timings)"\s*:\s*(\{(?:[^{}]++|\{[^{}]*+\})*+\})')
"""Possessive, and two levels deep, as the details of cached tokens are."""


class _Counts(msgspec.Struct):
    """As OpenAI's, Anthropic's, and llama.cpp's timings have it."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None


_read: Final = msgspec.json.Decoder(_Counts).decode


class Tally:
    """Takes an answer's pieces as they come; reading them waits until it is complete."""

    __slots__ = ("_before", "_earlier", "_events", "_first", "_last", "_stream")

    def __init__(self) -> None:
        self._first = self._earlier = self._before = self._last = b""
        self._stream = False
        self._events = 0

    def begin(self, body: bytes, *, stream: bool) -> None:
        self._stream = stream
        self.add(body)

    def add(self, body: bytes) -> None:
        """On the path of every piece: what is copied is little, and only of large ones, which are not to be kept."""
        if not body:
            return
        if not self._first:
            self._first = body if len(body) <= KEPT else body[:KEPT]
        if self._stream:
            self._events += body.count(b"data:")
        self._earlier, self._before = self._before, self._last
        self._last = body if len(body) <= KEPT else body[-KEPT:]

    def result(self) -> tuple[int, int]:
        """Tokens of the prompt and of the answer."""
        end = self._earlier + self._before + self._last
        given, made = _counts(end)
        if given is None:  # embeddings tell it first, and so does an Anthropic stream
            given, at_first = _counts(self._first)
            made = at_first if made is None else made
        if made is None and self._stream:
            made = max(0, self._events - 2)  # the last two say why it ended, and that it did
        return given or 0, made or 0


def _counts(text: bytes) -> tuple[int | None, int | None]:
    """The last that is said in it: of the prompt and of the answer."""
    given: int | None = None
    made: int | None = None
    at = text.rfind(b'"usage"')
    if at < 0 and b'"timings"' not in text:  # in a tenth of the time of the expression
        return given, made
    last = None if at < 0 else _read_object(_OBJECT.match(text, at))
    if last is not None and last.prompt_tokens is not None and last.completion_tokens is not None:
        return last.prompt_tokens, last.completion_tokens  # as most engines say it: nothing before it counts
    for match in _OBJECT.finditer(text):
        if (one := _read_object(match)) is None:
            continue
        prompt = one.prompt_n + (one.cache_n or 0) if one.prompt_n is not None else None
        given = _first_of(one.prompt_tokens, one.input_tokens, prompt, given)
        made = _first_of(one.completion_tokens, one.output_tokens, one.predicted_n, made)
        if one.total_tokens is not None and given is not None and made is None:
            made = max(0, one.total_tokens - given)
    return given, made


def _read_object(match: re.Match[bytes] | None) -> _Counts | None:
    """None: it is not there, or not what it should be."""
    try:
        return None if match is None else _read(match[1])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _first_of(*counts: int | None) -> int | None:
    for count in counts:  # a generator takes three times as long
        if count is not None:
            return count
    return None
