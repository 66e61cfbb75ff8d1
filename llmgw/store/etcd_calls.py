"""Calls to etcd over gRPC: endpoints in turn, a deadline, a login that is renewed, errors as llmgw's own.

Of aetcd only the messages and stubs are used: its client knows neither TLS nor several endpoints nor a login that
expires, and its watches neither resume nor wait for a slow reader.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog

from llmgw.errors import LeaseLost, LlmgwError, RetryableError, TerminalError
from llmgw.store.address import Address, Tls
from llmgw.store.api import ValueTooLarge
from llmgw.store.etcd_rpc import grpc, rpc

log = structlog.get_logger("llmgw.store")

DEADLINE: Final = 2.0
"""Seconds after which a call fails."""

TURN: Final = 0.7
"""Seconds that one endpoint has to answer, where there are others."""

POLL: Final = 0.02
"""Seconds between two looks whether a connection came about."""

OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd refuses clients that ask oftener than every 5 s
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),  # a list may be any size
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

_LOGIN_ENDED: Final = ("invalid auth token", "revision in auth store is old", "auth: revision")
_TIME_IS_UP: Final = ("context deadline exceeded", "context canceled")
_MAY_PASS: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member of the cluster."""

    target: str
    channel: Any
    kv: Any
    lease: Any
    watch: Any
    auth: Any
    maintenance: Any


class NoAnswer(RetryableError):
    """No endpoint answered in time: etcd is away, has no leader, or the network is broken."""


class Calls:
    """Channels to all endpoints. Connects when first needed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._endpoints: tuple[Endpoint, ...] = ()
        self._current = 0
        self._metadata: tuple[tuple[str, str], ...] | None = None if address.user else ()
        self._login = asyncio.Lock()
        self._streams: set[Any] = set()
        self._exchanges: set[asyncio.Timeout] = set()
        self._closed = False

    async def call(self, service: str, method: str, request: Any, *, again: bool) -> Any:
        """The answer to a request. `again`: to carry it out twice does no harm, so that it is tried until the deadline.

        Raises NoAnswer, or what etcd's answer means.
        """
        ends, last, login = asyncio.get_running_loop().time() + DEADLINE, "no connection", True
        while True:
            endpoint = await self.connected(ends)
            try:
                metadata = await self._logged_in(endpoint, ends)
                send = getattr(getattr(endpoint, service), method)
                return await send(request, timeout=self._turn(ends), metadata=metadata)
            except rpc.AioRpcError as error:
                if login and self._address.user and _is_logged_out(error):
                    self._metadata, login = None, False
                    continue
                if not _may_pass(error):
                    raise translated(error, self._address) from None
                last = error.details() or str(error.code())
                self.failed(endpoint)
                if not again:
                    raise NoAnswer(f"etcd did not say whether it wrote: {last}; look again") from None
            if asyncio.get_running_loop().time() + POLL >= ends:
                raise NoAnswer(f"no etcd answers at {self._address}: {last}")
            await asyncio.sleep(POLL)

    async def connected(self, ends: float | None = None) -> Endpoint:
        """The endpoint in use, or the next that takes a connection. Raises NoAnswer at `ends` (in the loop's time)."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + DEADLINE if ends is None else ends
        turn = loop.time() + TURN
        while not self._closed:
            self._endpoints = self._endpoints or tuple(map(self._open, self._address.targets))
            endpoint = self._endpoints[self._current]
            state = endpoint.channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.READY:
                return endpoint
            now = loop.time()
            if now + POLL >= ends:
                raise NoAnswer(f"no etcd answers at {self._address}")
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE or now >= turn:
                self.failed(endpoint)
                turn = now + TURN
            await asyncio.sleep(POLL)
        raise NoAnswer("the store is closed")

    def failed(self, endpoint: Endpoint) -> None:
        """The next one is tried, unless another call saw to that already."""
        if self._endpoints and self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    @asynccontextmanager
    async def stream(self, service: str, method: str) -> AsyncIterator[Any]:
        """A stream to write requests to and to read answers from. Raises NoAnswer, or what etcd's error means."""
        ends, streaming = asyncio.get_running_loop().time() + DEADLINE, None
        endpoint = await self.connected(ends)
        try:
            metadata = await self._logged_in(endpoint, ends)
            streaming = getattr(getattr(endpoint, service), method)(metadata=(*metadata, ("hasleader", "true")))
            self._streams.add(streaming)
            yield streaming
        except (rpc.AioRpcError, TimeoutError, asyncio.InvalidStateError) as error:
            self.failed(endpoint)
            if isinstance(error, rpc.AioRpcError):
                if _is_logged_out(error):
                    self.log_out()
                elif not _may_pass(error):
                    raise translated(error, self._address) from None
                raise NoAnswer(f"etcd at {endpoint.target}: {error.details()}") from None
            raise NoAnswer(f"etcd at {endpoint.target} does not answer") from None
        finally:
            if streaming is not None:
                self._streams.discard(streaming)
                streaming.cancel()

    @asynccontextmanager
    async def exchange(self) -> AsyncIterator[None]:
        """What is sent and answered at once on a stream: TimeoutError at the deadline, or when all is closed."""
        async with asyncio.timeout(0 if self._closed else DEADLINE) as limit:
            self._exchanges.add(limit)
            try:
                yield
            finally:
                self._exchanges.discard(limit)

    def refusal(self, text: str) -> TerminalError | None:
        return refusal(text, self._address)

    def log_out(self) -> None:
        """The next call logs in again."""
        self._metadata = None if self._address.user else ()

    async def close(self) -> None:
        self._closed = True
        for exchange in self._exchanges:  # gRPC does not always hear that a stream was cancelled before it began
            if not exchange.expired():
                exchange.reschedule(asyncio.get_running_loop().time())
        for streaming in tuple(self._streams):
            streaming.cancel()
        endpoints, self._endpoints = self._endpoints, ()
        for endpoint in endpoints:
            await endpoint.channel.close()

    def _turn(self, ends: float) -> float:
        left = max(POLL, ends - asyncio.get_running_loop().time())
        return left if len(self._endpoints) < 2 else min(left, TURN)

    async def _logged_in(self, endpoint: Endpoint, ends: float) -> tuple[tuple[str, str], ...]:
        async with self._login:
            if self._metadata is None:
                request = rpc.AuthenticateRequest(name=self._address.user, password=self._address.password)
                answer = await endpoint.auth.Authenticate(request, timeout=self._turn(ends))
                self._metadata = (("token", answer.token),)
            return self._metadata

    def _open(self, target: str) -> Endpoint:
        tls = self._address.tls
        if tls is None:
            channel = rpc.insecure_channel(target, options=OPTIONS)
        else:
            channel = rpc.secure_channel(target, _credentials(tls), options=OPTIONS)
        return Endpoint(
            target,
            channel,
            rpc.KVStub(channel),
            rpc.LeaseStub(channel),
            rpc.WatchStub(channel),
            rpc.AuthStub(channel),
            rpc.MaintenanceStub(channel),
        )


def _credentials(tls: Tls) -> Any:
    return grpc.ssl_channel_credentials(root_certificates=tls.ca, private_key=tls.key, certificate_chain=tls.cert)


def _is_logged_out(error: rpc.AioRpcError) -> bool:
    text = error.details() or ""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or any(known in text for known in _LOGIN_ENDED)


def _may_pass(error: rpc.AioRpcError) -> bool:
    """A member without a leader tells that the time was up as Go does, without a code."""
    return error.code() in _MAY_PASS or (error.details() or "").startswith(_TIME_IS_UP)


def translated(error: rpc.AioRpcError, address: Address) -> LlmgwError:
    """What etcd refused, as whoever has to act should read it."""
    text = error.details() or ""
    if error.code() is grpc.StatusCode.NOT_FOUND and "lease" in text:
        return LeaseLost("the lease ended")
    if "request is too large" in text:
        return ValueTooLarge(f"{address} does not take this much at once: raise etcd's --max-request-bytes")
    if "database space exceeded" in text:
        return RetryableError(
            f"{address} is full: compact and defragment it, raise --quota-backend-bytes, disarm the alarm"
        )
    return refusal(text, address) or RetryableError(f"{address}: {text or error.code()}")


def refusal(text: str, address: Address) -> TerminalError | None:
    """Where etcd does not let this user in, what must change."""
    if "authentication failed" in text:
        return TerminalError(f"{address} does not take the password of user {address.user}")
    if address.user is None and ("user name is empty" in text or "permission denied" in text):
        return TerminalError(f"{address} wants a user: set LLMGW_ETCD_USER and LLMGW_ETCD_PASSWORD")
    if "permission denied" in text:
        return TerminalError(f"{address}: user {address.user} may not read and write keys under {address.prefix}")
    return None
