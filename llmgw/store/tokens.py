"""API tokens: made once, and recognised by what is kept of them.

`sk-llmgw-<id>-<secret>`: the id says which key it is, in listings and logs too; the secret is 256 random bits. Of a
token nothing but its SHA-256 is kept. A slow or salted hash guards passwords, which can be guessed: these cannot.
"""

import hashlib
import re
import secrets
from typing import Final

PREFIX: Final = "sk-llmgw-"
"""`sk-`, as clients and scanners for leaked secrets expect of such a token."""

_TOKEN: Final = re.compile(rb"sk-llmgw-([0-9a-f]{8})-[A-Za-z0-9_-]{43}").fullmatch


def new_token() -> tuple[str, str]:
    """An id and a token with it."""
    id = secrets.token_hex(4)
    return id, f"{PREFIX}{id}-{secrets.token_urlsafe(32)}"


def digest(token: bytes) -> str:
    """What is kept of it."""
    return hashlib.sha256(token).hexdigest()


def id_of(token: bytes) -> str | None:
    """None: it is none of ours."""
    found = _TOKEN(token)
    return None if found is None else found[1].decode()
