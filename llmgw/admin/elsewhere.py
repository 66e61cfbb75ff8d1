"""Questions that another process of the fleet answers: passed on to it, and its answer streamed back.

Plans, differences and earlier catalogs are the leader's: only it knows what is in force and has looked at the catalog.
An engine's log lies where the engine runs. All processes of a fleet know the same token.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final
from urllib.parse import parse_qs, urlencode

import httpx
import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from llmgw.admin import logs, reading
from llmgw.admin.answers import failure
from llmgw.admin.members import agent_urls
from llmgw.admin.reading import Seen
from llmgw.admin.shapes import NOT_THERE, ErrorOutput
from llmgw.admin.wandering import Answer, Open, Wandering
from llmgw.errors import RetryableError
from llmgw.ids import ModelName
from llmgw.store.api import Store
from llmgw.store.values import Role
from llmgw.units import MIB

_OF_LEADER: Final = ("plan", "diff", "collect", "rollback", "sync", "catalog", "revision")
LEADERS: Final = frozenset(f"/api/v1/{what}" for what in _OF_LEADER)
LOGS: Final = "/api/v1/logs"

MOST_ASKED: Final = 16
"""Agents that are asked for a log that none of the running replicas has."""

LARGEST: Final = 64 * MIB
"""Bytes of a question that is passed on."""

TIMEOUT: Final = httpx.Timeout(120.0, connect=3.0)


class Elsewhere:
    """ASGI middleware. `name`: this controller's."""

    def __init__(self, app: ASGIApp, *, store: Store, name: str) -> None:
        self._app = app
        self._store = store
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in (*LEADERS, LOGS):
            await self._app(scope, receive, send)
            return
        urls = await self._whom(scope)
        if not urls:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await _body(request)
        answer = failure(413, "too_large", "too large") if body is None else await _ask(urls, request, body)
        if isinstance(answer, Answer):
            answer = self._streaming(answer, request)
        await answer(scope, receive, send)

    def _streaming(self, answer: Answer, request: Request) -> Response:
        reply, kind = answer.reply, answer.reply.headers.get("content-type")
        if request.url.path == LOGS and _follows(request):
            rows = Wandering(self._store, request.query_params.get("model", ""), _opener(request)).rows(answer)
            return StreamingResponse(rows, reply.status_code, media_type=kind)
        return StreamingResponse(_stream(answer), reply.status_code, media_type=kind)

    async def _whom(self, scope: Scope) -> Sequence[str]:
        """Who may know, first whom to ask first; nobody: we do, or can tell why nobody does."""
        seen = await reading.look(self._store)
        if scope["path"] == LOGS:
            return _with_logs(seen, parse_qs(scope["query_string"].decode("latin-1")).get("model", [""])[0])
        leader = seen.leader
        if leader is None or leader.name == self._name:
            return ()
        return [each.url for each in seen.members if each.role is Role.CONTROLLER and each.name == leader.name]


async def tell_leader(store: Store, token: str, path: str, body: object) -> None:
    """POST that to the controller that leads. Raises RetryableError where nobody does, or it cannot be asked."""
    seen = await reading.look(store)
    leader = seen.leader.name if seen.leader is not None else None
    urls = [each.url for each in seen.members if each.role is Role.CONTROLLER and each.name == leader]
    if not urls:
        raise RetryableError("no controller leads just now: try again in a few seconds")
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, verify=urls[0].startswith("https:")) as client:
            headers = {"Authorization": f"Bearer {token}"}
            reply = await client.post(urls[0] + path, content=msgspec.json.encode(body), headers=headers)
            reply.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RetryableError(f"the controller that leads cannot be asked: {error}") from error


def _with_logs(seen: Seen, asked: str) -> Sequence[str]:
    """Nodes with a replica of the model now, then the others: one of them may have the log of one that ended."""
    model = next((spec.name for spec in seen.models.values() if asked in spec.names), ModelName(asked))
    on = {fact.id: node for node, report in seen.reports.items() for fact in report.replicas}
    nodes = [on[id] for id in logs.replicas_of(seen, model)]
    urls = agent_urls(seen.members)
    others = [node for node in sorted(urls) if node not in nodes]
    ordered = list(dict.fromkeys([*nodes, *others]))
    return [urls[node] for node in ordered if node in urls][:MOST_ASKED]


async def _body(request: Request) -> bytes | None:
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > LARGEST:
            return None
    return bytes(found)


async def _ask(urls: Sequence[str], request: Request, body: bytes) -> Answer | Response:
    """The first answer that knows, still to be read; else the last that does not."""
    answer: Response | None = None
    for url in urls:
        client = _client(url)
        try:
            reply = await client.send(_question(client, request, body), stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            await client.aclose()
            why = str(error) or type(error).__name__
            answer = answer or failure(502, "not_reached", f"{url}, which knows, cannot be asked: {why}")
            continue
        if reply.is_success:
            return Answer(client, reply)
        content = await reply.aread()
        await client.aclose()
        answer = Response(content, reply.status_code, media_type=reply.headers.get("content-type"))
        if not _knows_not(content):
            return answer
    return answer or failure(404, NOT_THERE, "nobody knows")


def _client(url: str) -> httpx.AsyncClient:
    # A proxy from the environment has no business between us and our own.
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=False, verify=url.startswith("https:"))


def _question(client: httpx.AsyncClient, request: Request, body: bytes, query: bytes | None = None) -> httpx.Request:
    headers = Headers(scope=request.scope)
    passed = {name: headers[name] for name in ("authorization", "content-type") if name in headers}
    # A log that is followed has nothing to say for hours.
    timeout = httpx.Timeout(None, connect=3.0) if _follows(request) else TIMEOUT
    url = httpx.URL(request.url.path, query=request.scope["query_string"] if query is None else query)
    return client.build_request(request.method, url, content=body, headers=passed, timeout=timeout)


def _follows(request: Request) -> bool:
    return request.query_params.get("follow", "").lower() in ("true", "1", "yes", "on")


def _opener(request: Request) -> Open:
    """Asks another agent the same, but for the number of lines."""

    async def open(url: str, lines: int) -> Answer | None:
        client = _client(url)
        query = urlencode({**request.query_params, "lines": lines}).encode()
        try:
            reply = await client.send(_question(client, request, b"", query), stream=True)
            if reply.is_success:
                return Answer(client, reply)
            await reply.aclose()
        except (httpx.HTTPError, httpx.InvalidURL):
            pass  # looked for again in a moment
        await client.aclose()
        return None

    return open


async def _stream(answer: Answer) -> AsyncIterator[bytes]:
    try:
        async for part in answer.reply.aiter_raw():
            yield part
    except httpx.HTTPError:  # it ended: the reader sees an answer that ends, as from a daemon that does
        return
    finally:
        await answer.close()


def _knows_not(content: bytes) -> bool:
    try:
        return msgspec.json.decode(content, type=ErrorOutput).error.code == NOT_THERE
    except msgspec.MsgspecError:
        return False
