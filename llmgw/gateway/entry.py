"""Taking a request in: who may ask, for which model, and whether now; then an exchange begins."""

from llmgw.gateway import bodies
from llmgw.gateway.access import Trace
from llmgw.gateway.ends import Client
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.openai import ApiError, BadBody, Code
from llmgw.gateway.relay import Relay
from llmgw.gateway.request import Request
from llmgw.gateway.verdicts import denied, nothing_at


def begin(relay: Relay, client: Client, request: Request, *, near: str | None = None) -> "Exchange | None":
    """Take a POST that names a model. `near`: the known path that its path is like. None: it was answered already."""
    if (stopped := relay.table.stopped) is not None:  # before the body is looked at
        refuse(relay, client, request, relay.table.stop_refusal(stopped).answer(relay.clock.now().wall))
        return None
    if request.head.fields.foreign:
        message = "pages of other sites may not use the models here; one of this machine may"
        refuse(relay, client, request, ApiError(status=403, code=Code.ORIGIN_NOT_ALLOWED, message=message))
        return None
    try:
        name = bodies.read_model(request)
    except BadBody as bad:
        refuse(relay, client, request, bad.error)
        return None
    caller = request.caller
    if (error := denied(relay.table, caller, name) or caller.enter(relay.loop.time())) is not None:
        refuse(relay, client, request, error)
        return None
    if near is not None and not relay.table.may_serve(name, request.path):
        caller.leave()
        refuse(relay, client, request, nothing_at(request.path, near))
        return None
    exchange = Exchange(relay, client, request, name)
    exchange.route()
    return None if exchange.ended else exchange


def refuse(relay: Relay, client: Client, request: Request, error: ApiError) -> None:
    """Answer a request that belongs to no known model with an error."""
    relay.meters.of("").answered(error.status)
    request.caller.answered(error.status)
    if relay.access is not None:
        trace = Trace(status=error.status, code=error.code)
        relay.access.add(trace.line(request, client.peer, "", "", (0, 0), at=relay.clock.now().wall))
    client.refuse(request, error)
