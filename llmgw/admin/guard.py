"""Who may speak to the admin API: an ASGI middleware that checks the Host header and the token before anything is read.

A page in a browser can reach a loopback port under a name of its own (DNS rebinding). It cannot forge the Host header,
so only loopback names, the very address that the connection came in on, and names the operator gave are served.
"""

import hmac
import ipaddress
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llmgw.admin.answers import failure
from llmgw.admin.webhook import PATH as WEBHOOK

OPEN: Final = frozenset({"/metrics", "/healthz", "/readyz"})
"""Paths that need no token."""


class Guard:
    """Passes on requests for a name we serve that carry the token, or ask for an open path; and calls of the webhook,
    which come by whatever name and are signed."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(name.lower() for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = None if scope["type"] == "http" and scope["path"] == WEBHOOK else self._refuse(scope)
        await (refusal or self._app)(scope, receive, send)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        server = scope.get("server")
        if not self._serves(headers.get("host", ""), server[0] if server else ""):
            return failure(
                421, "wrong_host", "this API answers to localhost and to the address it listens on, by no other name"
            )
        if scope["path"] in OPEN or self._knows(headers.get("authorization", "")):
            return None
        return failure(
            401,
            "unauthorized",
            "a bearer token is needed: it is in admin.json in the daemon's state directory",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _serves(self, host: str, listening: str) -> bool:
        name = host_name(host)
        if name is None:
            return False
        if name in self._hosts or name == "localhost" or name == listening:
            return True
        try:
            address = ipaddress.ip_address(name)
            return address.is_loopback or address.is_unspecified  # 0.0.0.0 reaches this machine alone
        except ValueError:
            return False

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token)


def host_name(host: str) -> str | None:
    """The name in a Host header without its port or brackets, lower-cased; None when there is none."""
    text = host.strip().lower()
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        return name if name and bracket and (not port or port.startswith(":")) else None
    return text.partition(":")[0].removesuffix(".") or None
