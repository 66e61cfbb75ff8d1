"""The webhook: a forge says that something was pushed, and the catalog's source is looked at sooner.

Whoever can reach it can call it. So nothing is read before a request shows a signature or a token; its body is hashed
as it comes, never kept nor understood; and all that a good one brings about is a look.
"""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import Response

from llmgw.admin.answers import answer, failure
from llmgw.errors import LlmgwError
from llmgw.units import MIB

log = structlog.get_logger("llmgw.admin")

PATH: Final = "/webhook"

MAX_BODY: Final = 25 * MIB
"""Bytes: GitHub sends no larger one."""

TOKEN: Final = "x-gitlab-token"

SIGNATURES: Final = ("x-hub-signature-256", "x-gitea-signature", "x-forgejo-signature", "x-gogs-signature")
"""HMAC-SHA256 of the body in hex; GitHub writes `sha256=` before it."""

_HEX: Final = re.compile(r"^(?:sha256=)?([0-9a-f]{64})$")

_CLOSE: Final = {"Connection": "close"}
"""What was not read of a refused request is not to be read as the next one."""


def webhook_routes(secret: Callable[[], str] | None, ask: Callable[[], Awaitable[object]]) -> APIRouter:
    """`secret`: what the forge knows too; None: there is none, and nobody may call. `ask`: has the source looked at,
    without waiting for that."""
    routes = APIRouter()

    @routes.post(PATH)
    async def called(request: Request) -> Response:
        if secret is None:
            return _refuse(403, "no_secret", "no secret is set for webhooks: start llmgw with --webhook-secret-file")
        try:
            known = secret().encode()
        except LlmgwError as error:
            log.error("webhook_secret_missing", why=str(error))
            return _refuse(503, "no_secret", "the secret for webhooks cannot be read: llmgw's log says why")
        refusal = await _check(request, known)
        if refusal is not None:
            return refusal
        await ask()
        return answer({"asked": True}, 202, headers=_CLOSE)

    return routes


async def _check(request: Request, secret: bytes) -> Response | None:
    """None: the request is from who knows the secret."""
    token = request.headers.get(TOKEN)
    if token is not None:
        if hmac.compare_digest(token.encode(), secret):
            return None
        return _refuse(401, "unauthorized", "the token is another")
    claimed = _signature(request.headers)
    if claimed is None:
        wanted = "X-Hub-Signature-256, X-Gitea-Signature or X-Gitlab-Token"
        return _refuse(401, "unauthorized", f"no signature: the forge is to send {wanted}, by the secret set here")
    if int(request.headers.get("content-length") or 0) > MAX_BODY:
        return _too_large()
    sealed, size = hmac.new(secret, digestmod=hashlib.sha256), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY:
            return _too_large()
        sealed.update(chunk)
    if hmac.compare_digest(sealed.hexdigest(), claimed):
        return None
    return _refuse(401, "unauthorized", "the signature is not by the secret that is set here")


def _signature(headers: Headers) -> str | None:
    """What the request claims, if it can be one."""
    given = [headers[name] for name in SIGNATURES if name in headers]
    found = _HEX.match(given[0].strip().lower()) if given else None
    return found.group(1) if found else None


def _too_large() -> Response:
    return _refuse(413, "too_large", f"a webhook's body has at most {MAX_BODY} bytes")


def _refuse(status: int, code: str, message: str) -> Response:
    return failure(status, code, message, headers=_CLOSE)
