"""What the gateway's tests stand on: a real gateway over a real store, small engines that do as they are told, and
clients that speak in bytes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from ssl import SSLContext
from typing import Any

from llmgw.catalog.spec import GatewaySettings, ModelSpec, ProfileSpec, ScalingSpec
from llmgw.clock import SystemClock
from llmgw.engine.api import engine_key
from llmgw.facts import Ask, Usage
from llmgw.gateway.client import Limits
from llmgw.gateway.server import Gateway
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision
from llmgw.plan import Endpoint, ModelState, ModelStatus, Stopped
from llmgw.store import codec, keys
from llmgw.store.contents import contents_of
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied
from llmgw.units import Wall

SECRET = b"a secret of the cluster"
DIGEST = Digest("d1")
NODE = NodeName("n1")
PATIENCE = 30.0  #: seconds until a test gives up waiting for what must happen


def model(name: str, *aliases: str, description: str = "") -> ModelSpec:
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("command"))
    return ModelSpec(name=ModelName(name), profiles=(profile,), aliases=aliases, description=description)


def lazy(name: str = "m", *aliases: str, suspend: bool = False) -> ModelSpec:
    spec = model(name, *aliases)
    return ModelSpec(
        name=spec.name, profiles=spec.profiles, aliases=spec.aliases, suspend=suspend,
        scaling=ScalingSpec(min=0, on_demand=True),
    )  # fmt: skip


def applied(number: int = 0, **settings: Any) -> Applied:
    """Each later than the one before, as catalogs come into force."""
    at = Wall(1_700_000_000.0 + number)
    return Applied(revision=Revision("r1"), digest=DIGEST, at=at, gateway=GatewaySettings(**settings))


async def until(condition: Callable[[], Any], what: str = "it") -> None:
    """Poll until true; fail after PATIENCE seconds."""
    end = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"{what} did not happen"
        await asyncio.sleep(0.005)


@dataclass
class Asked:
    """A request as an engine got it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Behaviour = Callable[["Asked", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class FakeEngine:
    """An HTTP server that answers each request by calling `behaviour`."""

    behaviour: Behaviour
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    gone: int = 0  #: connections that the other side closed
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self, ssl: SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=ssl)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *rest = head.rstrip("\r\n").split("\r\n")
                method, target, _ = line.split(" ")
                headers = {name.lower(): value for name, _, value in (text.partition(": ") for text in rest)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                asked = Asked(method, target, headers, body)
                self.asked.append(asked)
                await self.behaviour(asked, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):  # the last: uvloop's, on writing after it
            self.gone += 1
        finally:
            self._writers.discard(writer)
            writer.close()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)


def say(body: Any, status: str = "200 OK", extra: str = "") -> Behaviour:
    """Answer with JSON, keeping the connection."""
    data = json.dumps(body).encode()

    async def behave(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)

    return behave


async def echo(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with what was asked."""
    said = {"target": asked.target, "headers": asked.headers, "body": asked.body.decode("latin-1")}
    await say(said)(asked, reader, writer)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str) -> bytes:
    chunk = {
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }  # fmt: skip
    return b"data: %b\n\n" % json.dumps(chunk).encode()


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


DONE = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class Wire:
    """A client that speaks in bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next answer, read as far as its framing says."""
        async with asyncio.timeout(PATIENCE):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            status = int(lines[0].split(" ")[1])
            if head_only or status in (100, 204, 304):
                body = b""
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            elif headers.get("transfer-encoding") == "chunked":
                body = await self._chunks()
            else:
                body = await self.reader.read()
        return Answer(status, headers, body, head + body)

    async def _chunks(self) -> bytes:
        pieces = []
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            pieces.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        assert await self.reader.readexactly(2) == b"\r\n"
        return b"".join(pieces)

    async def until_closed(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Rig:
    """A gateway, its store, and everything that was started for a test."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.gateway = Gateway(store=self.store, secret=SECRET, clock=SystemClock())
        self.engines: list[FakeEngine] = []
        self.wires: list[Wire] = []
        self._applied = 0
        self._models: dict[ModelName, ModelSpec] = {}

    async def open(self, limits: Limits | None = None) -> None:
        if limits is not None:
            self.gateway = Gateway(store=self.store, secret=SECRET, clock=SystemClock(), limits=limits)
        await self.gateway.start("127.0.0.1", 0)

    async def close(self) -> None:
        for wire in self.wires:
            await wire.close()
        await self.gateway.close()
        for engine in self.engines:
            await engine.stop()
        await self.store.close()

    async def settle(self) -> None:
        """Until the gateway acts on everything written to the store: it says so itself."""
        await self.store.put("endpoints/rig/mark", b"?")
        await self.store.delete("endpoints/rig/mark")  # heard as one change: of a withdrawal it tells at once
        marker = (await self.store.list("endpoints/")).revision
        while True:
            usage = await self.usage()
            if usage is not None and usage.seen >= marker:
                return
            await asyncio.sleep(0.002)

    async def usage(self) -> Usage | None:
        entry = await self.store.get(keys.usage("local"))
        return None if entry is None else codec.decode(entry.value, Usage)

    # what the controller would write

    async def catalog(self, *models: ModelSpec, **settings: Any) -> None:
        """Besides those that are in the catalog already."""
        self._models |= {spec.name: spec for spec in models}
        await self._publish(**settings)

    async def remove(self, name: str) -> None:
        """A model leaves the catalog."""
        del self._models[ModelName(name)]
        await self._publish()

    async def _publish(self, **settings: Any) -> None:
        await self.publish_quietly(**settings)
        await self.settle()

    async def publish_quietly(self, *models: ModelSpec, **settings: Any) -> None:
        self._models |= {spec.name: spec for spec in models}
        contents = contents_of(self._models)
        for key, value in contents.values.items():
            await self.store.put(key, value)
        value = replace(applied(self._applied, **settings), parts=contents.parts)
        await self.store.put(keys.APPLIED, codec.encode(value))
        self._applied += 1

    async def status(self, name: str, state: ModelState, **more: Any) -> None:
        value = ModelStatus(model=ModelName(name), state=state, **more)
        await self.store.put(keys.explain(value.model), codec.encode(value))
        await self.settle()

    async def endpoint(self, name: str, url: str, id: str = "", **more: Any) -> Endpoint:
        replica = ReplicaId(id or f"replica-of-{name}")
        endpoint = Endpoint(
            id=replica, model=ModelName(name), url=url, names=(name,), engine=EngineName("command"), **more
        )
        await self.store.put(keys.endpoint(NODE, replica), codec.encode(endpoint))
        await self.settle()
        return endpoint

    async def withdraw(self, endpoint: Endpoint) -> None:
        await self.store.delete(keys.endpoint(NODE, endpoint.id))
        await self.settle()

    async def stop_serving(self) -> None:
        await self.store.put(keys.STOPPED, codec.encode(Stopped(at=Wall(1.0), by="ada")))
        await self.settle()

    async def engine(self, behaviour: Behaviour = echo) -> FakeEngine:
        engine = FakeEngine(behaviour)
        await engine.start()
        self.engines.append(engine)
        return engine

    async def serving(self, behaviour: Behaviour = echo, *names: str) -> FakeEngine:
        """A catalog of one model, m (and its aliases), with one ready endpoint."""
        engine = await self.engine(behaviour)
        await self.catalog(model("m", *names))
        await self.endpoint("m", engine.url)
        return engine

    # what a client does

    async def wire(self) -> Wire:
        wire = Wire(*await asyncio.open_connection(*self.gateway.address))
        self.wires.append(wire)
        return wire

    async def ask(self, data: bytes, *, head_only: bool = False) -> Answer:
        wire = await self.wire()
        wire.send(data)
        return await wire.answer(head_only=head_only)

    async def post(self, body: Any, path: str = "/v1/chat/completions", headers: str = "") -> Answer:
        return await self.ask(post(body, path, headers))

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value as a scrape would show it; 0 where it is not there."""
        found = [
            sample.value
            for family in self.gateway.collect()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        return found[0] if found else 0.0


async def ask_of(store: MemoryStore, name: str = "m") -> Ask | None:
    entry = await store.get(keys.ask(ModelName(name)))
    return None if entry is None else codec.decode(entry.value, Ask)


async def asked(rig: Rig, name: str = "m", after: float = 0.0) -> Ask:
    """The ask for a model, once it is there."""
    for _ in range(1000):
        ask = await ask_of(rig.store, name)
        if ask is not None and ask.asked > after:
            return ask
        await asyncio.sleep(0.005)
    raise AssertionError("nobody asked")


def post(body: Any, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def get(path: str, method: str = "GET", headers: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: gw\r\n{headers}\r\n".encode()


@contextlib.asynccontextmanager
async def opened(limits: Limits | None = None) -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.open(limits)
    try:
        yield rig
    finally:
        await rig.close()


def key_of(endpoint: Endpoint) -> str:
    return engine_key(SECRET, endpoint.id)
