"""One request's way once its endpoint is found: send; bring the answer back as it comes.

An `Exchange` joins a client's request to an engine's answer. It ends exactly once: answered, refused, or its client
gone. Everything here runs in the event loop's callbacks; nothing awaits but dialling.
"""

from typing import Final

from llmgw.gateway import bodies
from llmgw.gateway.access import Trace
from llmgw.gateway.dialling import dial
from llmgw.gateway.early import Early
from llmgw.gateway.ends import Client
from llmgw.gateway.lines import Line
from llmgw.gateway.openai import ApiError, BadBody, Code
from llmgw.gateway.params import Params
from llmgw.gateway.relay import Held, Relay
from llmgw.gateway.reply import Answered, Reply
from llmgw.gateway.request import Request
from llmgw.gateway.routes import Route
from llmgw.gateway.seeking import NOTHING, Seeking
from llmgw.gateway.upstream import EngineConnection, Target
from llmgw.gateway.verdicts import lost, unusable
from llmgw.ids import ModelName
from llmgw.units import MIB

KEPT_BODY: Final = 8 * MIB
"""Bodies up to this size are kept until the engine answers, so that another can be asked."""
_IMPATIENT: Final = 30.0
"""Seconds without a byte after which a client that leaves makes the engine suspect: until then it changed its mind."""
CONNECT: Final = 5.0
"""Seconds to connect to an engine. It is ready, so its machine is what does not answer."""
MOST_KILLED: Final = 2
"""Engines that may end with one request in them before it is given up: it may be what kills them."""


class Exchange(Seeking):
    """One routed request, from its arrival to the end of its answer."""

    __slots__ = (
        "_begun", "_client", "_connection", "_eventless", "_kept", "_killed", "_line", "_reply", "_shape", "_target",
        "_trace", "ended",
    )  # fmt: skip

    def __init__(self, relay: Relay, client: Client, request: Request, name: str) -> None:
        super().__init__(relay, request, name)
        self._client = client
        self._shape: tuple[str, Params | None] = (name, None)  #: the model's name in the body, and what was done to it
        self._kept = True  #: the body is still there to be sent
        self._target: Target | None = None
        self._line: Line[Held] | None = None  #: of the target when it was taken
        self._connection: EngineConnection | None = None
        self._killed = 0  #: engines lost after they had the request, and before they answered
        self._begun = False  #: the client has the head of an answer
        self._eventless = False  #: and it is a stream of which no event has come
        self._trace = Trace()
        self._reply = Reply(request)
        self.ended = False

    # sending

    def _send(self, route: Route, target: Target) -> None:
        relay, model = self._relay, route.model
        if target.unusable is not None and not target.usable_by_now():
            self._answer_error(unusable(model, target.unusable))
            return
        # In another's place it is asked as it asks for itself: what was meant for the other may not suit it.
        params = relay.table.params.get(self._name if route.instead_of is None else model)
        if self._shape != (target.called, params):
            try:
                self._reshape(route, target.called, params)
            except BadBody as bad:
                self._answer_error(bad.error)
                return
        if self._tried:
            self._meter.retried += 1
        elif route.instead_of is not None and not self._fresh_only:
            self._meter.fallback += 1
        self._reply.extra = _stands_in(model) if route.instead_of is not None else b""
        self._asked = NOTHING  # when this engine is lost, that is another matter
        self._target, self._line = target, target.line
        self._trace.sent(target.id, "" if route.instead_of is None else model, relay.loop.time() - self._started)
        relay.taken(target, self._request.caller)
        self._meter.in_flight += 1
        # That a kept connection is stale shows only after sending, so a body that is not kept goes over a fresh one.
        idle = () if self._fresh_only or len(self._request.body) > KEPT_BODY else target.idle
        while idle:
            if self._send_over(idle.pop(), target):  # the one used last: the likeliest to be alive
                return
        relay.tasks.start(self._dial(target), "gateway dial")

    def _reshape(self, route: Route, called: str, params: Params | None) -> None:
        """Have the body name the model as it is called there, with its parameters. Raises BadBody."""
        request = self._request
        if request.original:
            request.body = request.original
        elif params is not None and len(request.body) <= KEPT_BODY and self._relay.table.models[route.model].fallback:
            request.original = request.body  # what was taken from it or put into it is not for the fallback
        request.body = bodies.rewrite(request, called, params)
        self._shape = called, params

    async def _dial(self, target: Target) -> None:
        try:
            connection = await dial(target, CONNECT)
        except (OSError, TimeoutError, ValueError) as error:
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
        asked = request.head
        head = b"POST %b HTTP/1.1\r\n%b%b%bContent-Length: %d\r\n\r\n" % (
            target.path(asked.target), target.head, asked.fields.forward, request.tag, len(body),
        )  # fmt: skip
        if not connection.send(self, head, body):
            return False
        self._connection = connection
        if len(body) > KEPT_BODY:
            self._kept = False
            request.body = b""
        return True

    # the engine's side

    def engine_answered(self, answered: Answered, length: int | None, body: bytes, done: bool) -> None:
        status, caller = answered.status, self._request.caller
        first = self._trace.first = self._relay.loop.time() - self._started
        self._trace.status = status
        self._meter.first_byte.add(first)
        caller.first_byte.add(first)
        self._meter.answered(status)
        caller.answered(status)
        self._request.release()
        self._begun = True
        target = self._target
        if target is not None:
            if target.losses:
                self._relay.answers(target)
            if status >= 400:
                self._refused_by(target, status)
        reply = self._reply
        head = reply.head(answered, length)
        if reply.is_stream:
            self._eventless = True
            self._look_for_event(body)
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
        if self._eventless:
            self._look_for_event(body)
        self._reply.tally.add(body)
        data = self._reply.framed(body, done)
        if done:
            self._complete()
        if data:
            self._client.write(data)
        if done:
            self._client.finish(keep_alive=self._reply.keep_alive)

    def _look_for_event(self, body: bytes) -> None:
        """An engine may send its head, and comments, long before it has read the prompt."""
        if b"data:" in body:
            self._eventless = False
            after = self._trace.first_token = self._relay.loop.time() - self._started
            self._meter.first_token.add(after)
            self._request.caller.first_token.add(after)

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
            self.reconsider()
        else:
            self._answer_error(lost(target.model, why))

    # the client's side

    def cancel(self) -> None:
        """The client is gone: so is the reason for the engine to go on."""
        if self.ended:
            return
        self._meter.cancelled += 1
        self._request.caller.cancelled += 1
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

    # the gateway's side

    def _comment(self, text: str) -> None:
        reply = self._reply
        if not isinstance(reply, Early):
            reply = self._reply = Early(self._request)
            self._client.write(reply.opening())
        self._client.write(reply.comment(text))

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
        took = self._relay.loop.time() - self._started
        self._meter.duration.add(took)
        self._request.caller.duration.add(took)
        if self._line is not None:
            self._line.answered(took - (self._trace.held or 0.0))
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
        request, stay = self._request, self._stay
        if stay is not None:
            self._stop_waiting()
        request.release()
        request.caller.leave()
        tokens = self._count_tokens()
        if self._relay.access is not None:
            self._relay.access.add(
                self._trace.line(
                    self._request, self._client.peer, self._model or "", self._name, tokens,
                    at=self._relay.clock.now().wall, took=self._relay.loop.time() - self._started,
                    tries=len(self._tried | {self._trace.replica}) if self._tried else 1,
                )
            )  # fmt: skip
        self.ended = True


def _stands_in(model: ModelName) -> bytes:
    return b"X-LLMGW-Fallback: %b\r\n" % model.encode()
