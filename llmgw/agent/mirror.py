"""An agent's answers to other nodes that want the weights which it holds. Who asks was let in already."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llmgw.catalog.spec import WeightsSettings
from llmgw.clock import Clock
from llmgw.units import Bytes, Mono
from llmgw.weights.doomed import Refusal
from llmgw.weights.doubt import Doubt
from llmgw.weights.peer import MIRROR
from llmgw.weights.shelf import OpenFile, Shelf

log = structlog.get_logger("llmgw.agent")

MOST: Final = 4
"""Files that are sent at once: whoever has one whole serves it to the next, so that many are served soon."""

STALLED: Final = 60.0
"""Seconds that whoever asked may take to read the next part."""

MOST_DOUBTED: Final = 16
"""Entries that wait to be hashed because others found them damaged. Each of them is hashed once an hour at most."""

_RANGE: Final = re.compile(r"bytes=(\d{1,18})-")


class Throttle:
    """What all that is sent together takes of the network."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_at = Mono(0.0)  #: when what was sent so far will have been due

    async def take(self, count: int, bandwidth: Bytes | None) -> None:
        if bandwidth is None:
            return
        now = self._clock.now().mono
        self._free_at = Mono(max(self._free_at, now) + count / bandwidth)
        if (wait := self._free_at - now) > 0:
            await self._clock.sleep(wait)


class Mirroring:
    """`settings`: of the catalog in force, asked for with each request. `doubt`: looks at what others found damaged;
    `tell`: an event's reason and message. `run` it, or nobody looks."""

    def __init__(
        self,
        shelf: Shelf,
        settings: Callable[[], Awaitable[WeightsSettings]],
        clock: Clock,
        *,
        doubt: Doubt | None = None,
        tell: Callable[[str, str], None] = lambda reason, message: None,
    ) -> None:
        self._shelf = shelf
        self._doubt = doubt
        self._tell = tell
        self._doubted: asyncio.Queue[str] = asyncio.Queue(maxsize=MOST_DOUBTED)
        self._settings = settings
        self.throttle = Throttle(clock)
        self.sending = 0

    async def run(self) -> None:
        """Look at what others found damaged, one entry after the other, until cancelled."""
        while True:
            entry = await self._doubted.get()
            if self._doubt is None:
                continue
            try:
                if trouble := await self._doubt.check(entry):
                    self._tell("weights corrupt", f"{entry}: {'; '.join(trouble)}; set aside, to be fetched anew")
            except (Refusal, OSError) as error:
                log.warning("entry_not_verified", entry=entry, error=str(error))

    def routes(self) -> APIRouter:
        routes = APIRouter()

        @routes.post(f"{MIRROR}/{{entry}}")
        async def doubted(entry: str) -> Response:
            if await asyncio.to_thread(self._shelf.manifest, entry) is None:
                return Response(status_code=404)
            with suppress(asyncio.QueueFull):
                self._doubted.put_nowait(entry)
            return Response(status_code=202)

        @routes.get(f"{MIRROR}/{{entry}}")
        async def manifest(entry: str) -> Response:
            settings = await self._settings()
            found = await asyncio.to_thread(self._shelf.manifest, entry) if settings.mirror else None
            if found is None:
                return Response(status_code=404)
            return Response(msgspec.json.encode(found), media_type="application/json")

        @routes.get(f"{MIRROR}/{{entry}}/{{number}}")
        async def file(request: Request, entry: str, number: int) -> Response:
            settings = await self._settings()
            if not settings.mirror:
                return Response(status_code=404)
            if self.sending >= MOST:
                return Response(status_code=503, headers={"Retry-After": "2"})
            opened = await asyncio.to_thread(self._shelf.open, entry, number)
            if opened is None:
                return Response(status_code=404)
            return self._send(request, opened, settings)

        return routes

    def _send(self, request: Request, opened: OpenFile, settings: WeightsSettings) -> Response:
        file = opened.file
        asked = _RANGE.fullmatch(request.headers.get("range", ""))  # others are ignored (RFC 9110 §14.2)
        start = int(asked[1]) if asked is not None else None
        changed = request.headers.get("if-match") not in (None, f'"{file.sha256}"')
        if changed or (start is not None and start >= file.size):
            opened.close()
            return Response(status_code=412 if changed else 416)
        return _Sending(self, opened, start, settings.mirror_bandwidth)


class _Sending(Response):
    """The file from `start` on, as a part; None: the whole. Whoever stops reading is not waited for."""

    def __init__(self, mirroring: Mirroring, opened: OpenFile, start: int | None, bandwidth: Bytes | None) -> None:
        size, sha256, begin = opened.file.size, opened.file.sha256, start or 0
        headers = {"Content-Length": str(size - begin), "ETag": f'"{sha256}"'}
        if start is not None:
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        status = 200 if start is None else 206
        super().__init__(None, status, headers=headers, media_type="application/octet-stream")
        self._mirroring, self._opened, self._start, self._bandwidth = mirroring, opened, begin, bandwidth
        mirroring.sending += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in self._parts():
                if gone.done():
                    return
                async with asyncio.timeout(STALLED):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (TimeoutError, OSError) as error:  # the connection is cut before its length is reached
            log.info("not_sent_whole", file=self._opened.file.path, error=str(error) or "it reads no more")
        finally:
            gone.cancel()
            self._opened.close()
            self._mirroring.sending -= 1

    async def _parts(self) -> AsyncIterator[bytes]:
        at, size = self._start, self._opened.file.size
        while at < size:
            part = await asyncio.to_thread(self._opened.read, at)
            if not part:
                raise OSError("it was cut short")
            await self._mirroring.throttle.take(len(part), self._bandwidth)
            yield part
            at += len(part)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
