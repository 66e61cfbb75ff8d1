"""Asking an engine: is it ready, how busy is it."""

import structlog

from llmgw.agent import http
from llmgw.catalog.spec import ProfileSpec
from llmgw.engine.api import Engine, HttpRequest, Readiness
from llmgw.facts import EngineLoad

log = structlog.get_logger("llmgw.agent")


class Asker:
    """Sends one engine's requests, with its key."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}

    async def ask(self, request: HttpRequest, *, at_most: float | None = None) -> tuple[int, bytes] | None:
        """Status and body; None when there was no whole answer within the request's time (and `at_most` seconds)."""
        timeout = request.timeout if at_most is None else max(0.05, min(request.timeout, at_most))
        headers = {**self._headers, "Content-Type": "application/json"} if request.body is not None else self._headers
        try:
            return await http.ask(
                request.method, self._url + request.path, headers=headers, body=request.body, timeout=timeout
            )
        except http.Unanswered:
            return None

    async def probe(self, engine: Engine, request: HttpRequest, *, at_most: float) -> tuple[Readiness, str]:
        """What the engine makes of the answer, and the answer in short. No answer: still loading."""
        answer = await self.ask(request, at_most=at_most)
        if answer is None:
            return Readiness.LOADING, f"{request.method} {request.path}: no answer"
        status, body = answer
        said = f"{request.method} {request.path}: {status} {_short(body)}".rstrip()
        return engine.read_probe(request, status, body), said

    async def check(self, engine: Engine, request: HttpRequest) -> tuple[Readiness | None, str]:
        """As `probe`, of an engine that was ready. None: no answer. One that its plugin cannot read is not READY."""
        answer = await self.ask(request)
        where = f"{request.method} {request.path}"
        if answer is None:
            return None, f"{where}: no answer"
        said = f"{where}: {answer[0]} {_short(answer[1])}".rstrip()
        try:
            return engine.read_probe(request, *answer), said
        except Exception as error:  # noqa: BLE001 - as for `load`
            log.warning("probe_unreadable", engine=engine.name, error=repr(error))
            return Readiness.LOADING, said

    async def load(self, engine: Engine, profile: ProfileSpec, *, at_most: float | None = None) -> EngineLoad | None:
        """None: it cannot tell, or did not."""
        try:
            request = engine.load(profile)
            if request is None:
                return None
            answer = await self.ask(request, at_most=at_most)
            load = None if answer is None else engine.read_load_of(profile, *answer)
            if load is not None and not isinstance(load, EngineLoad):
                raise TypeError(f"read_load returned {load!r:.80}")
            return load
        except Exception as error:  # noqa: BLE001 - a plugin that cannot read an answer must not end a good engine
            log.warning("load_unreadable", engine=engine.name, error=repr(error))
            return None


def _short(body: bytes) -> str:
    return " ".join(body[:200].decode(errors="replace").split())
