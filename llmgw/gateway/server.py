"""The gateway as a whole: it listens, follows the store, and decides by method and path who answers a request."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote

from prometheus_client.core import Metric

from llmgw import descriptors
from llmgw.catalog.spec import GatewaySettings, ModelSpec
from llmgw.clock import Clock
from llmgw.gateway import openai, surface
from llmgw.gateway.access import AccessLog
from llmgw.gateway.admission import Buffers
from llmgw.gateway.asking import Asking
from llmgw.gateway.client import ClientConnection, Limits
from llmgw.gateway.entry import begin, refuse
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.keys import Caller, Credential
from llmgw.gateway.openai import ApiError, Code
from llmgw.gateway.relay import Relay
from llmgw.gateway.request import Request
from llmgw.gateway.routes import NOT_READY, Refusal, RoutingTable
from llmgw.gateway.slow import Watch
from llmgw.gateway.surface import Resource
from llmgw.gateway.upstream import IDLE
from llmgw.gateway.usage import UsageReport
from llmgw.gateway.verdicts import not_allowed, nothing_at
from llmgw.gateway.view import StoreView
from llmgw.store.api import Store
from llmgw.store.held import Writer
from llmgw.store.values import ApiKey
from llmgw.tasks import Tasks
from llmgw.units import Wall

BACKLOG: Final = 1024
"""Connections that the kernel completes before they are accepted."""
PATIENCE: Final = 5.0
"""Seconds that clients of a gateway that begins anew wait for it to know a catalog."""
_PREFLIGHT: Final = b"Access-Control-Allow-Methods: GET, POST\r\nAccess-Control-Allow-Headers: *, Authorization\r\n"
_DEFAULTS: Final = GatewaySettings()
_LIMITS: Final = Limits()


class Gateway:
    """One OpenAI-compatible listener in front of all ready endpoints. Needs a running event loop from `start` on."""

    def __init__(
        self,
        *,
        store: Store,
        secret: bytes,
        clock: Clock,
        name: str = "local",
        limits: Limits = _LIMITS,
        own: Writer | None = None,
        access: AccessLog | None = None,
    ) -> None:
        """`own`: where its usage is told, if not simply in the store. `access`: where a line is written for each
        request."""
        self._access = access
        self._store = store
        self._own: Writer = own or store
        self._secret = secret
        self._clock = clock
        self._name = name
        self._limits = limits
        self._tasks = Tasks()
        self._connections: set[ClientConnection] = set()
        self._empty = asyncio.Event()
        self._known = asyncio.Event()  #: a catalog is in force
        self._buffers = Buffers(limits.bodies)
        self._watch = Watch(self._buffers, limits.rate, limits.span)
        self._server: asyncio.Server | None = None
        self._relay: Relay | None = None
        self._usage: UsageReport | None = None
        self._asking: Asking | None = None
        self._models: bytes | None = None  #: GET /v1/models, of the table in force

    async def start(self, host: str, port: int, *, on: socket.socket | None = None) -> None:
        """Listen and serve, on a socket that listens already where there is one.

        Raises OSError when the address cannot be had; then nothing was started.
        """
        loop = asyncio.get_running_loop()
        descriptors.raise_limit()
        if self._access is not None:
            self._access.begin()
            self._tasks.start(self._access.run(), "gateway access log")

        def connection() -> ClientConnection:
            return ClientConnection(self, loop, self._limits, self._max_body, self._buffers, self._admit)

        where: dict[str, Any] = {"host": host, "port": port} if on is None else {"sock": on}
        self._server = await loop.create_server(connection, **where, backlog=BACKLOG, start_serving=False)
        usage = UsageReport(
            self._own, self._clock, self._name, lambda: relay.targets.values(), lambda: relay.admission.queues
        )
        asking = Asking(self._store, self._clock, lambda model: relay.admission.waiting(model) > 0)
        relay = Relay(self._clock, loop, self._tasks, usage.used, usage.hurry, usage.waits, asking.want)
        relay.access = self._access
        self._relay, self._usage, self._asking = relay, usage, asking
        await StoreView(self._store, self._changed, self._keys_changed).start(self._tasks)
        await usage.publish()
        self._tasks.start(usage.run(), "gateway usage", essential=True)
        self._tasks.start(asking.run(), "gateway asks", essential=True)
        self._tasks.start(self._sweep(), "gateway sweep", essential=True)
        if on is None:
            await self._server.start_serving()
        else:
            self._tasks.start(self._serve_once_informed(), "gateway opening", essential=True)

    async def _serve_once_informed(self) -> None:
        """Who connects to a socket that has listened all along waits until we know what there is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._known.wait()
        if self._server is not None:
            await self._server.start_serving()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: with port 0 asked for, the one that was had. Only after `start`."""
        assert self._server is not None, "the gateway was not started"
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    def listening(self) -> Sequence[int]:
        """Descriptors of the sockets that it listens on."""
        return () if self._server is None else [each.fileno() for each in self._server.sockets]

    @property
    def informed(self) -> bool:
        """Whether it knows a catalog."""
        return self._known.is_set()

    async def wait(self) -> None:
        """Until a part of it that it cannot do without fails: raises what that raised."""
        await self._tasks.wait()

    async def close(self, *, drain: float = 0.0) -> None:
        """Stop accepting; refuse who waits for a model; give answers under way `drain` seconds; close. Idempotent.

        An answer that is cut off tells its client why, as one whose engine is lost does.
        """
        if self._server is None or self._relay is None or self._usage is None:
            return
        server, self._server = self._server, None
        server.close()
        for connection in tuple(self._connections):
            connection.shut()
        for exchange in tuple(self._relay.held):
            exchange.turn_away()
        await self._until_empty(drain)
        for connection in tuple(self._connections):
            connection.end()
        for target in self._relay.targets.values():
            target.close_idle()
        await self._until_empty(1.0)
        for connection in tuple(self._connections):
            connection.kill()
        await self._until_empty(1.0)
        await self._tasks.close()
        if self._access is not None:
            self._access.flush()
            self._access.close()
        await self._usage.withdraw()

    async def _until_empty(self, seconds: float) -> None:
        """Until no client is connected, or `seconds` are over."""
        self._empty.clear()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._empty.wait()

    def collect(self) -> Iterable[Metric]:
        """The metric families as they stand, for /metrics."""
        relay = self._relay
        if relay is None:
            return ()
        lost = 0 if self._access is None else self._access.lost
        return relay.meters.collect(len(self._connections), self._buffers.used, relay.keyring.active(), lost)

    # the store's side

    def _changed(self, table: RoutingTable, revision: int, urgent: bool) -> None:
        assert self._relay is not None
        assert self._usage is not None
        assert self._asking is not None
        self._models = None
        if table.applied is not None:
            self._known.set()
        self._asking.forget(table.models)
        withdrawn = self._relay.apply(table, self._secret)
        self._usage.seen(revision, urgent=urgent or withdrawn)

    def _keys_changed(self, keys: Sequence[ApiKey], required: bool) -> None:
        assert self._relay is not None
        self._relay.keys_changed(keys, required=required)

    def _admit(self, credential: Credential | None) -> tuple[Caller, ApiError | None]:
        assert self._relay is not None
        keyring = self._relay.keyring
        if not keyring.required:
            return keyring.anonymous, None
        found = keyring.admit(credential, self._wall)
        return (found, None) if isinstance(found, Caller) else (keyring.anonymous, found)

    def _wall(self) -> Wall:
        return self._clock.now().wall

    def _max_body(self) -> int:
        applied = self._relay.table.applied if self._relay else None
        return (applied.gateway if applied else _DEFAULTS).max_body

    async def _sweep(self) -> None:
        """One timer for all connections: a deadline is a number that nobody has to cancel."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limits.sweep)
            now = loop.time()
            for connection in tuple(self._connections):
                if connection.deadline < now:
                    connection.expire()
            self._watch.look(self._connections, now)
            for target in self._relay.targets.values() if self._relay else ():
                target.close_idle(before=now - IDLE)

    # the clients' side

    def opened(self, client: ClientConnection) -> None:
        self._connections.add(client)

    def closed(self, client: ClientConnection) -> None:
        self._connections.discard(client)
        if not self._connections:
            self._empty.set()

    def handle(self, client: ClientConnection, request: Request) -> Exchange | None:
        """Answer one request: the data plane's whole surface."""
        relay = self._relay
        assert relay is not None
        method, path = request.method, request.path
        resource = surface.find(method, path)
        if request.denied is not None and resource is not surface.HEALTH and method != "OPTIONS":
            refuse(relay, client, request, request.denied)
            return None
        if method == "POST" and resource is surface.RELAYED:
            return begin(relay, client, request)
        if resource is surface.OTHER:
            return begin(relay, client, request, near=surface.meant(path))
        if relay.table.stopped is not None and surface.is_serving(method, path):
            self._refuse(client, request, relay.table.stop_refusal(relay.table.stopped))
        elif method == "OPTIONS" and (resource is not None or path == "*"):
            allowed = surface.ALLOWED[resource] if resource else "GET, HEAD, POST, OPTIONS"
            client.respond(request, 204, extra=b"Allow: %b\r\n" % allowed.encode() + _PREFLIGHT)
        elif resource is None:
            refuse(relay, client, request, nothing_at(path, surface.meant(path)))
        elif method not in ("GET", "HEAD") or resource is surface.RELAYED:
            allowed = surface.ALLOWED[resource]
            message = f"{openai.shown(method)} is not for {openai.shown(path)}: use {allowed.partition(',')[0]}"
            error = ApiError(status=405, code=Code.METHOD_NOT_ALLOWED, message=message, allow=allowed)
            refuse(relay, client, request, error)
        else:
            self._read(client, request, resource)
        return None

    def _read(self, client: ClientConnection, request: Request, resource: Resource) -> None:
        relay = self._relay
        assert relay is not None
        table = relay.table
        if resource is surface.HEALTH:
            client.respond(request, 200, b'{"status":"ok"}')
        elif table.applied is None:
            self._refuse(client, request, NOT_READY)
        elif resource is surface.MODELS:
            client.respond(request, 200, self._model_list(request.caller))
        else:
            name = unquote(request.path.removeprefix(surface.MODEL_PREFIX))
            found = table.find(name)
            if isinstance(found, Refusal):
                self._refuse(client, request, found)
            elif not request.caller.may_ask(*found.names):
                refuse(relay, client, request, not_allowed(request.caller, name))
            else:
                client.respond(request, 200, openai.encode(_model(table, found)))

    def _model_list(self, caller: Caller) -> bytes:
        """Of the models that the caller may ask for."""
        table = self._relay.table if self._relay else RoutingTable()
        if caller.key is not None and caller.key.models:
            mine = [model for model in table.models.values() if caller.may_ask(*model.names)]
            return openai.model_list([_model(table, model) for model in mine])
        if self._models is None:
            self._models = openai.model_list([_model(table, model) for model in table.models.values()])
        return self._models

    def _refuse(self, client: ClientConnection, request: Request, refusal: Refusal) -> None:
        assert self._relay is not None
        refuse(self._relay, client, request, refusal.answer(self._clock.now().wall))


def _model(table: RoutingTable, model: ModelSpec) -> dict[str, Any]:
    created = int(table.applied.at) if table.applied else 0
    return openai.model_object(
        model.name,
        created=created,
        aliases=model.aliases,
        state=table.state(model.name),
        fallback=table.fallback(model.name),
        description=model.description,
        variants=tuple(variant.name for variant in model.variants),
    )
