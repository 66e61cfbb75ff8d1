"""What the gateway's paths are, and which methods each takes. Pure."""

import re
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from typing import Final


class Resource(StrEnum):
    HEALTH = "health"
    MODELS = "models"
    MODEL = "model"
    RELAYED = "relayed"  #: a POST that names a model, passed on to an engine
    OTHER = "other"  #: likewise, at a path that engines may have and the gateway does not know


HEALTH, MODELS, MODEL, RELAYED, OTHER = Resource
# By these names where each request comes by: in Python 3.11 a member is looked up in its enum ten times as slowly.


READ: Final = "GET, HEAD, OPTIONS"
ALLOWED: Final = {
    Resource.HEALTH: READ,
    Resource.MODELS: READ,
    Resource.MODEL: READ,
    Resource.RELAYED: "POST, OPTIONS",
    Resource.OTHER: "POST, OPTIONS",
}

MODEL_PREFIX: Final = "/v1/models/"
_RELAYED: Final = re.compile(r"/v1(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)+|/(?:de)?tokenize").fullmatch
"""No empty or dot segments and nothing percent-encoded: an engine shall read the path as we did."""

_KNOWN: Final = frozenset(
    "/v1/" + path
    for path in (
        "chat/completions", "completions", "embeddings", "responses", "messages", "messages/count_tokens", "rerank",
        "reranking", "score", "moderations", "tokenize", "detokenize", "audio/speech", "audio/transcriptions",
        "audio/translations", "images/generations",
    )
) | {"/tokenize", "/detokenize"}  # fmt: skip
"""Paths of which it can be said that only the method was wrong. A POST is relayed to others too: engines differ."""

_PATHS: Final = sorted(_KNOWN | {"/v1/models", "/health"})
_LENGTH: Final = 100
_ALIKE: Final = 0.9
"""One mistake in ten characters: what engines have besides is less like."""

DECLARED: Final = {
    "/v1/chat/completions": "chat/completions",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v1/reranking": "rerank",
    "/v1/score": "score",
}
"""Paths that an engine serves only if it says so, where it says what it serves at all. Of others nothing is known for
sure: engines have more than they declare."""

SLOTLESS: Final = frozenset(("/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize", "/v1/messages/count_tokens"))
"""What engines answer without a slot, however busy they are."""


def find(method: str, path: str) -> Resource | None:
    """What a path stands for; None: nothing."""
    if path in _KNOWN:
        return RELAYED
    if path == "/v1/models":
        return MODELS
    if path == "/health":
        return HEALTH
    if path.startswith(MODEL_PREFIX):
        return MODEL
    if method == "POST" and _RELAYED(path):
        return OTHER
    return None


@lru_cache(maxsize=256)  # who asks at a wrong path asks again
def meant(path: str) -> str | None:
    """The known path that somebody meant who asks at another; None: nothing is like it. A base URL without /v1, or with
    it where the client adds it, is the usual mistake."""
    if len(path) > _LENGTH:
        return None
    plain = "/" + "/".join(part for part in path.casefold().split("/") if part)
    at = plain.rfind("/v1/")
    tries = (plain[at:],) if at >= 0 else (plain, "/v1" + plain)
    for each in tries:
        if each in _PATHS:
            return each
    return next((found[0] for each in tries if (found := get_close_matches(each, _PATHS, n=1, cutoff=_ALIKE))), None)


def is_serving(method: str, path: str) -> bool:
    """What the operator's stop refuses: every POST under /v1/, and its like."""
    return method == "POST" and (path.startswith("/v1/") or path in _KNOWN)
