"""The field `model` of a multipart/form-data body (RFC 7578, RFC 2046 section 5.1.1): where it is, and what it says.

Only delimiters and part heads are looked at; files are stepped over by searching for the next delimiter.
"""

import re
from typing import Final, NamedTuple

from llmgw.gateway.openai import BadBody, Code

MAX_PARTS: Final = 1000
MAX_PART_HEAD: Final = 16 * 1024
"""Bytes of one part's header fields."""
MAX_NAME: Final = 1024
"""Bytes of a model's name; the longest that a catalog can have is shorter."""

_FORM: Final = re.compile(rb"multipart/form-data[ \t]*(?:;|$)", re.IGNORECASE).match
_PARAMETER: Final = re.compile(
    rb"""[ \t]*;[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*+)"|([^\s;"]+))""", re.DOTALL
).match
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]").fullmatch
_DISPOSITION: Final = re.compile(rb"\r\ncontent-disposition:[ \t]*form-data(?=[ \t]*(?:;|\r))", re.IGNORECASE)
_PADDING: Final = re.compile(rb"[ \t]*")


class Found(NamedTuple):
    """The model that a form names, and where in the body its name begins and ends."""

    name: str
    start: int
    end: int


def is_form(content_type: bytes) -> bool:
    return _FORM(content_type) is not None


def find_model(content_type: bytes, body: bytes) -> Found:
    """The one field called `model`, wherever among the parts it lies. Raises BadBody."""
    delimiter = b"\r\n--" + _boundary(content_type)
    at = len(delimiter) - 2 if body.startswith(delimiter[2:]) else _after(body, delimiter, 0)
    found: Found | None = None
    for _ in range(MAX_PARTS):
        if body.startswith(b"--", at):
            break
        at = _padded(body, at)  # at the line end that closes the delimiter's line
        head_end = body.find(b"\r\n\r\n", at, at + MAX_PART_HEAD)
        if head_end < 0 or not body.startswith(b"\r\n", at):
            raise _bad("a part has no complete header fields")
        start = head_end + 4
        # A part may be empty, so that the delimiter begins with the blank line's own end.
        after = _after(body, delimiter, start - 2)
        if _field(body[at : head_end + 2]) == b"model":
            if found is not None:
                raise BadBody("the form names more than one 'model'", Code.INVALID_FORM, "model")
            found = _named(body, start, max(start, after - len(delimiter)))
        at = after
    else:
        raise _bad(f"it has more than {MAX_PARTS:,} parts")
    if found is None:
        raise BadBody("the form has no field 'model'; GET /v1/models lists models", Code.MODEL_MISSING, "model")
    return found


def _boundary(content_type: bytes) -> bytes:
    boundary = _parameters(content_type, len(b"multipart/form-data")).get(b"boundary", b"")
    if not _BOUNDARY(boundary):
        raise _bad("its Content-Type has no proper boundary")
    return boundary


def _after(body: bytes, delimiter: bytes, at: int) -> int:
    """Where the next delimiter ends. A line that only begins like one is none."""
    while (at := body.find(delimiter, at)) >= 0:
        at += len(delimiter)
        if body.startswith((b"\r\n", b"--"), _padded(body, at)):
            return at
    raise _bad("it breaks off before its last boundary")


def _padded(body: bytes, at: int) -> int:
    match = _PADDING.match(body, at)
    return match.end() if match else at


def _field(head: bytes) -> bytes | None:
    """The name of the form's field that a part with these header fields is."""
    match = _DISPOSITION.search(head)
    return None if match is None else _parameters(head, match.end()).get(b"name")


def _parameters(text: bytes, at: int) -> dict[bytes, bytes]:
    """`; name=value` pairs from there on; the first of equal names counts."""
    found: dict[bytes, bytes] = {}
    while (match := _PARAMETER(text, at)) is not None:
        name, quoted, token = match.groups()
        found.setdefault(name.lower(), token if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted))
        at = match.end()
    return found


def _named(body: bytes, start: int, end: int) -> Found:
    if end - start > MAX_NAME:
        raise BadBody("the form's 'model' is too long for a name", Code.MODEL_MISSING, "model")
    try:
        name = body[start:end].decode()
    except UnicodeDecodeError:
        raise BadBody("the form's 'model' is not UTF-8 text", Code.MODEL_MISSING, "model") from None
    if not name:
        raise BadBody("the form's 'model' is empty", Code.MODEL_MISSING, "model")
    return Found(name, start, end)


def _bad(what: str) -> BadBody:
    return BadBody(f"the body is not a proper multipart form: {what}", Code.INVALID_FORM)
