"""A client's request as it was read. Does no I/O."""

import itertools
import secrets
from dataclasses import dataclass
from typing import Final

from llmgw.gateway.admission import Buffers
from llmgw.gateway.fields import Fields
from llmgw.gateway.keys import Caller
from llmgw.gateway.openai import ApiError

_ID_PREFIX: Final = f"req-{secrets.token_hex(6)}-"
_ids: Final = itertools.count(1)


def new_request_id() -> str:
    """Unique across processes by its random part, within one by counting: cheaper than a fresh uuid for each."""
    return f"{_ID_PREFIX}{next(_ids):x}"


def tag_of(request_id: str) -> bytes:
    return b"X-Request-Id: %b\r\n" % request_id.encode("latin-1")


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of a request says, all but the length of the body: as often as it comes again.

    `target`: as sent, in origin form: path and query.
    """

    method: str
    target: bytes
    path: str
    http11: bool
    fields: Fields


@dataclass(slots=True, eq=False)
class Request:
    """One complete request."""

    head: Head
    id: str
    tag: bytes  #: header block that names it
    caller: Caller
    buffers: Buffers
    body: bytes = b""
    counted: int = 0  #: bytes of `buffers` that its body takes
    keep_alive: bool = True
    denied: ApiError | None = None  #: who sent it may not ask at all
    original: bytes = b""  #: the body as it came, where another model may have to be asked with it

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def http11(self) -> bool:
        return self.head.http11

    @property
    def echo(self) -> bytes:
        """Header block that every answer to it carries."""
        return self.tag + self.head.fields.cross

    @property
    def head_only(self) -> bool:
        return self.head.method == "HEAD"

    def release(self) -> None:
        """Its body is needed no more: forget it, and count it no longer. Idempotent."""
        self.body = self.original = b""
        self.buffers.used -= self.counted
        self.counted = 0
