"""One request's way: find an endpoint, or wait for one; send; bring the answer back as it comes.

An `Exchange` joins a client's request to an engine's answer. It ends exactly once: answered, refused, or its client
gone. Everything here runs in the event loop's callbacks; nothing awaits but dialling.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from llmgw.gateway import bodies
from llmgw.gateway.access import Trace
from llmgw.gateway.early import Early, wants_stream
from llmgw.gateway.ends import Client
from llmgw.gateway.http1 import Request
from llmgw.gateway.lines import Line
from llmgw.gateway.openai import ApiError, BadBody, Code
from llmgw.gateway.params import Params
from llmgw.gateway.relay import Held, Relay
from llmgw.gateway.reply import Reply
from llmgw.gateway.routes import Hold, Refusal, Resolution, Route, queue_full, still_busy, still_loading
from llmgw.gateway.stay import Stay
from llmgw.gateway.surface import SLOTLESS
from llmgw.gateway.upstream import EngineConnection, Headers, Target, dial
from llmgw.gateway.verdicts import lost, not_served, unusable
from llmgw.ids import ModelName, ReplicaId
from llmgw.units import MIB, Seconds, Wall

KEPT_BODY: Final = 8 * MIB
"""Bodies up to this size are kept until the engine answers, so that another can be asked."""
_IMPATIENT: Final = 30.0
"""Seconds without a byte after which a client that leaves makes the engine suspect: until then it changed its mind."""
CONNECT: Final = 5.0
"""Seconds to connect to an engine. It is ready, so its machine is what does not answer."""
REPLACED: Final = 10.0
"""Seconds to wait for word that a model whose every endpoint was lost is being restarted, or runs elsewhere by now. It
is on its way; where the leader died as well, another leads first, which takes some 5 s."""
_NOTHING: Final[Mapping[ModelName, Wall]] = {}
MOST_KILLED: Final = 2
"""Engines that may end with one request in them before it is given up: it may be what kills them."""


class Exchange:
    """One routed request, from its arrival to the end of its answer."""

    __slots__ = (
        "_asked", "_begun", "_client", "_connection", "_fresh_only", "_kept", "_killed", "_line", "_lost_at",
        "_meter", "_model", "_name", "_near", "_relay", "_reply", "_request", "_shape", "_size", "_started", "_stay",
        "_target", "_trace", "_tried", "ended",
    )  # fmt: skip

    def __init__(self, relay: Relay, client: Client, request: Request, name: str) -> None:
        self._relay = relay
        self._client = client
        self._request = request
        self._name = name
        self._shape: tuple[str, Params | None] = (name, None)  #: the model's name in the body, and what was done to it
        self._kept = True  #: the body is still there to be sent
        self._size = len(request.body)
        self._started = relay.loop.time()
        self._model: ModelName | None = None  #: that was asked for, by name or alias
        self._asked: Mapping[ModelName, Wall] = _NOTHING  #: when on-demand models were asked for on its behalf
        self._near: int | None = None  #: what it has in common with others, where that is of interest
        self._meter = relay.meters.of("")
        self._target: Target | None = None
        self._line: Line[Held] | None = None  #: of the target when it was taken
        self._connection: EngineConnection | None = None
        self._tried: frozenset[ReplicaId] = frozenset()
        self._killed = 0  #: engines lost after they had the request, and before they answered
        self._lost_at = 0.0
        self._fresh_only = False
        self._stay: Stay | None = None  #: while this request waits, for an endpoint or for a slot
        self._begun = False  #: the client has the head of an answer
        self._trace = Trace()
        self._reply = Reply(request)
        self.ended = False

    def route(self) -> None:
        """Send, hold, or refuse, by the table in force."""
        self._go(self._relay.table.resolve(self._name, fallback=self._request.fallback))

    def _go(self, resolution: Resolution) -> None:
        if self._stay is not None and not self._stay.goes_on(resolution):
            self._stop_waiting()
        if isinstance(resolution, Refusal):
            self._is_for(resolution.model)
            self._answer_error(resolution.answer(self._relay.clock.now().wall))
            return
        self._is_for(resolution.named)
        if resolution.wants:
            self._ask(resolution.wants)
        if isinstance(resolution, Route):
            if self._stay is None:  # one that waits for a slot is called when its turn comes
                self._send(resolution)
        elif (verdict := resolution.settled(self._asked.get(resolution.model))) is not None:
            self._answer_error(verdict.answer(self._relay.clock.now().wall))
        else:  # counted from the request's arrival, however often an engine is lost
            self._hold(resolution.model, self._started + self._limit())

    def _is_for(self, model: ModelName | None) -> None:
        if model is not None and model != self._model:
            self._model = model
            self._meter = self._relay.meters.of(model)

    def _ask(self, models: Iterable[ModelName]) -> None:
        """Ask for on-demand models that are not ready; for each once, however long the request waits."""
        if new := [model for model in models if model not in self._asked]:
            self._asked = {**self._asked, **self._relay.ask(new)}

    # waiting

    def _hold(self, model: ModelName, until: float) -> None:
        """Wait for an endpoint."""
        if self._stay is not None:
            self._stay.extend(until, self._waited)
        elif not self._stays(model, None, until):
            self._turn_away(queue_full(model, self._relay.admission.waiting(model)))

    def _queue(self, model: ModelName, line: Line[Held]) -> None:
        """Wait for a slot. One whose engine was lost has waited before."""
        relay = self._relay
        applied = relay.table.applied
        until = relay.loop.time() + (applied.gateway.queue_timeout if applied else 0)
        if not self._stays(model, line, until):
            after = relay.busy_for(model)
            self._turn_away(queue_full(model, relay.admission.waiting(model), ready=True, after=after))

    def _stays(self, model: ModelName, line: Line[Held] | None, until: float) -> bool:
        stay = Stay(self._relay, self, self._request.caller, model, self._model, self._size, line)
        if stay.begin(until, self._waited, first=bool(self._tried)):
            self._stay = stay
            if self._comments():
                stay.tell(self._comment)
        return self._stay is not None

    def _comments(self) -> bool:
        """Whether the client is to be told that it waits."""
        spec = self._relay.table.models.get(self._model) if self._model is not None else None
        wanted = self._request.comments
        if wanted is None:
            wanted = spec is not None and spec.stream_comments
        return wanted and wants_stream(self._request.body)

    def _comment(self, text: str) -> None:
        reply = self._reply
        if not isinstance(reply, Early):
            reply = self._reply = Early(self._request)
            self._client.write(reply.opening())
        self._client.write(reply.comment(text))

    def _turn_away(self, error: ApiError) -> None:
        self._meter.turned_away += 1
        self._answer_error(error)

    def _limit(self) -> Seconds:
        applied = self._relay.table.applied
        return applied.gateway.cold_start_timeout if applied else Seconds(0)

    def reconsider(self) -> None:
        """The table changed while this request waits."""
        self.route()

    def serve(self) -> bool:
        """Its turn has come: send it where there is a free slot. False: none of them will do."""
        resolution = self._relay.table.resolve(self._name, fallback=self._request.fallback)
        if self._stay is None or not self._stay.goes_on(resolution) or not isinstance(resolution, Route):
            self._go(resolution)
            return False
        return self._send(resolution)

    def turn_away(self) -> None:
        """The gateway closes, and waits no longer for this request."""
        if self._connection is not None:
            self._connection.abandon()
        self._release()
        message = "the gateway is shutting down"
        error = ApiError(status=503, code=Code.SHUTTING_DOWN, message=message, retry_after=1)
        if self._begun:
            self._break_off(error)
        else:
            self._answer_error(error)

    def _stop_waiting(self) -> None:
        if self._stay is not None:
            self._stay.end()
            self._stay = None

    def _waited(self) -> None:
        """For as long as the cluster allows: say how far the model is. Or for news of a lost engine that never came."""
        relay, stay = self._relay, self._stay
        now = relay.loop.time()
        resolution = relay.table.resolve(self._name, fallback=self._request.fallback)
        if stay is not None and stay.line is not None:
            error = still_busy(stay.model, Seconds(stay.seconds(now)), stay.line.size, relay.busy_for(stay.model))
            self._turn_away(error)
        elif isinstance(resolution, Hold):
            self._answer_error(still_loading(resolution, Seconds(now - self._started), relay.clock.now().wall))
        else:
            self._answer_error(lost(self._model, "no other replica could be asked"))

    # sending

    def _send(self, route: Route) -> bool:
        """False: it has to wait, or goes on waiting."""
        relay, model, path = self._relay, route.model, self._request.path
        if relay.table.affinity and self._near is None and not self._tried:
            self._near = relay.common(model, self._request)
        excluded = self._tried
        if (lacking := relay.table.lacking.get(model)) is not None and (those := lacking.get(path)) is not None:
            if len(those) == len(route.endpoints):
                surfaces = sorted({each for one in route.endpoints for each in one.surfaces or ()})
                self._answer_error(not_served(model, path, surfaces))
                return True
            excluded |= those
        target = relay.choose(model, excluded, self._near, turn=self._stay is not None)
        if target is None:
            target = self._without_slot(model, excluded)
            if target is None:
                return False
        if self._stay is not None:
            self._stop_waiting()
        if target.unusable is not None:
            self._answer_error(unusable(model, target.unusable))
            return True
        # In another's place it is asked as it asks for itself: what was meant for the other may not suit it.
        params = relay.table.params.get(self._name if route.instead_of is None else model)
        if self._shape != (target.called, params):
            try:
                self._request.body = bodies.rewrite(self._request, target.called, params)
            except BadBody as bad:
                self._answer_error(bad.error)
                return True
            self._shape = target.called, params
        if self._tried:
            self._meter.retried += 1
        elif route.instead_of is not None and not self._fresh_only:
            self._meter.fallback += 1
        self._reply.extra = _stands_in(model) if route.instead_of is not None else b""
        self._asked = _NOTHING  # when this engine is lost, that is another matter
        self._target, self._line = target, target.line
        self._trace.sent(target.id, "" if route.instead_of is None else model, relay.loop.time() - self._started)
        relay.taken(target, self._request.caller)
        self._meter.in_flight += 1
        # That a kept connection is stale shows only after sending, so a body that is not kept goes over a fresh one.
        fresh = self._fresh_only or len(self._request.body) > KEPT_BODY
        connection = None if fresh else target.take_idle()
        if connection is None or not self._send_over(connection, target):
            relay.tasks.start(self._dial(target), "gateway dial")
        return True

    def _without_slot(self, model: ModelName, excluded: frozenset[ReplicaId]) -> Target | None:
        """No endpoint may be asked now: wait for a slot, or for an endpoint, unless it goes without a slot."""
        relay = self._relay
        left = relay.any_of(model, excluded)
        if left is not None and self._request.path in SLOTLESS:
            return left
        if left is None:  # all were lost just now, and the controller will say what comes of it
            self._stop_waiting()
            self._hold(model, self._lost_at + REPLACED)
        elif self._stay is None and left.line is not None:
            self._queue(model, left.line)
        return None

    async def _dial(self, target: Target) -> None:
        try:
            connection = await dial(target, CONNECT)
        except (OSError, TimeoutError) as error:
            self._not_reached(target, f"cannot connect: {error or 'timed out'}")
            return
        if self._target is not target:  # the client left meanwhile
            connection.park()
        elif not self._send_over(connection, target):
            self._not_reached(target, "it closed the connection")

    def _not_reached(self, target: Target, why: str) -> None:
        if self._target is target:
            self._release()
            self._try_another(target, why)

    def _send_over(self, connection: EngineConnection, target: Target) -> bool:
        request, body = self._request, self._request.body
        head = b"POST %b HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n" % (
            target.path(request.target), target.head, request.forward, len(body),
        )  # fmt: skip
        if not connection.send(self, head, body):
            return False
        self._connection = connection
        if len(body) > KEPT_BODY:
            self._kept = False
            request.body = b""
        return True

    # the engine's side

    def engine_answered(self, status: int, headers: Headers, body: bytes, done: bool) -> None:
        first = self._trace.first = self._relay.loop.time() - self._started
        self._trace.status = status
        self._meter.first_byte.add(first)
        self._meter.answered(status)
        self._request.caller.answered(status)
        self._request.release()
        self._begun = True
        target = self._target
        if target is not None:
            if target.losses:
                self._relay.answers(target)
            if status >= 400:
                self._refused_by(target, status)
        reply = self._reply
        head = reply.head(status, headers)
        reply.tally.begin(body, stream=reply.is_stream)
        data = head + reply.framed(body, done)
        if done:
            self._complete()
        self._client.write(data)
        if done:
            self._client.finish(keep_alive=self._reply.keep_alive)

    @staticmethod
    def _refused_by(target: Target, status: int) -> None:
        if target.external is None:
            target.failures += status >= 500
        elif status == 401:
            target.read_key()

    def engine_sent(self, body: bytes, done: bool) -> None:
        self._reply.tally.add(body)
        data = self._reply.framed(body, done)
        if done:
            self._complete()
        if data:
            self._client.write(data)
        if done:
            self._client.finish(keep_alive=self._reply.keep_alive)

    def engine_lost(self, why: str, *, answered: bool, stale: bool) -> None:
        target = self._target
        if target is None:
            return
        self._release()
        if stale:  # engines close kept connections when they like: that says nothing about this one
            self._fresh_only = True
            self.route()
            return
        if self._begun or answered:
            self._relay.suspect(target, why)
            self._meter.engine_lost += 1
            error = lost(target.model, why)
            if self._begun:
                self._break_off(error)
            else:
                self._answer_error(error)
            return
        self._killed += 1
        self._try_another(target, why)

    def _try_another(self, target: Target, why: str) -> None:
        """Nothing of an answer came: another may be asked."""
        relay = self._relay
        relay.suspect(target, why)
        self._meter.engine_lost += 1
        self._tried |= {target.id}
        self._lost_at = relay.loop.time()
        if self._killed < MOST_KILLED and self._kept and target.external is None:  # which nobody starts anew
            self.route()
        else:
            self._answer_error(lost(target.model, why))

    # the client's side

    def cancel(self) -> None:
        """The client is gone: so is the reason for the engine to go on."""
        if self.ended:
            return
        self._meter.cancelled += 1
        self._trace.cancelled = True
        if self._target is not None and not self._begun and self._relay.loop.time() - self._started > _IMPATIENT:
            self._target.failures += 1
        if self._connection is not None:
            self._connection.abandon()
        self._release()
        self._end()

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    # the answer

    def _break_off(self, error: ApiError) -> None:
        """In the middle of an answer: the client must not take what it has for all."""
        self._trace.code = error.code
        self._end()
        last = self._reply.broken_off(error)
        if last is None:
            self._client.abort()
            return
        self._client.write(last)
        self._client.finish(keep_alive=False)

    def _answer_error(self, error: ApiError) -> None:
        self._meter.answered(error.status)
        self._request.caller.answered(error.status)
        self._trace.status = error.status
        if isinstance(self._reply, Early):
            self._break_off(error)
            return
        self._trace.code = error.code
        self._end()
        self._client.refuse(self._request, error)

    def _complete(self) -> None:
        self._meter.duration.add(self._relay.loop.time() - self._started)
        self._release()
        self._end()

    def _count_tokens(self) -> tuple[int, int]:
        """Of whatever there was of an answer: a client that leaves has used what its engine did until then."""
        if not self._begun:
            return 0, 0
        given, made = self._reply.tally.result()
        if given or made:
            self._meter.tokens_in += given
            self._meter.tokens_out += made
            self._request.caller.used(given, made, self._relay.loop.time())
        return given, made

    def _release(self) -> None:
        if self._target is not None:
            self._meter.in_flight -= 1
            self._relay.released(self._target, self._line, self._request.caller)
            self._target = self._connection = self._line = None

    def _end(self) -> None:
        self._stop_waiting()
        self._request.release()
        self._request.caller.leave()
        tokens = self._count_tokens()
        if self._relay.access is not None:
            self._relay.access.add(
                self._trace.line(
                    self._request, self._client.peer, self._model or "", self._name, tokens,
                    at=self._relay.clock.now().wall, took=self._relay.loop.time() - self._started,
                    tries=1 + len(self._tried),
                )
            )  # fmt: skip
        self.ended = True


def _stands_in(model: ModelName) -> bytes:
    return b"X-LLMGW-Fallback: %b\r\n" % model.encode()
