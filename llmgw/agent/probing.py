"""Asking an engine: is it ready, how busy is it."""

import asyncio
from typing import Final

import httpx
import structlog

from llmgw.catalog.spec import ProfileSpec
from llmgw.engine.api import Engine, HttpRequest, Readiness
from llmgw.facts import EngineLoad

log = structlog.get_logger("llmgw.agent")

_LARGEST: Final = 4 * 1024 * 1024  #: bytes of an answer that are read


def make_client() -> httpx.AsyncClient:
    """One for all engines. No proxy or certificate of the environment's: engines are plain HTTP, and near."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30)
    return httpx.AsyncClient(trust_env=False, verify=False, limits=limits, follow_redirects=False)


class Asker:
    """Sends one engine's requests, with its key."""

    def __init__(self, client: httpx.AsyncClient, url: str, key: str) -> None:
        self._client = client
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}

    async def ask(self, request: HttpRequest, *, at_most: float | None = None) -> tuple[int, bytes] | None:
        """Status and body; None when there was no whole answer within the request's time (and `at_most` seconds)."""
        timeout = request.timeout if at_most is None else max(0.05, min(request.timeout, at_most))
        headers = {**self._headers, "Content-Type": "application/json"} if request.body is not None else self._headers
        try:
            async with (
                asyncio.timeout(timeout),
                self._client.stream(
                    request.method, self._url + request.path, content=request.body, headers=headers, timeout=timeout
                ) as answer,
            ):
                body = bytearray()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > _LARGEST:
                        return None
                return answer.status_code, bytes(body)
        except (httpx.HTTPError, TimeoutError, httpx.InvalidURL):
            return None

    async def probe(self, engine: Engine, request: HttpRequest, *, at_most: float) -> tuple[Readiness, str]:
        """What the engine makes of the answer, and the answer in short. No answer: still loading."""
        answer = await self.ask(request, at_most=at_most)
        if answer is None:
            return Readiness.LOADING, f"{request.method} {request.path}: no answer"
        status, body = answer
        said = " ".join(body[:200].decode(errors="replace").split())
        return engine.read_probe(request, status, body), f"{request.method} {request.path}: {status} {said}".rstrip()

    async def load(self, engine: Engine, profile: ProfileSpec) -> EngineLoad | None:
        """None: it cannot tell, or did not."""
        try:
            request = engine.load(profile)
            if request is None:
                return None
            # Twice: a kept connection that the engine closed meanwhile fails the first time.
            answer = await self.ask(request) or await self.ask(request)
            load = None if answer is None else engine.read_load_of(profile, *answer)
            if load is not None and not isinstance(load, EngineLoad):
                raise TypeError(f"read_load returned {load!r:.80}")
            return load
        except Exception as error:  # noqa: BLE001 - a plugin that cannot read an answer must not end a good engine
            log.warning("load_unreadable", engine=engine.name, error=repr(error))
            return None
