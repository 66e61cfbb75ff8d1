"""Errors that a request gets for what its key may not ask, and for what became of its engine."""

from collections.abc import Iterable

from llmgw.gateway.keys import Caller
from llmgw.gateway.openai import ApiError, Code, shown
from llmgw.gateway.routes import Refusal, RoutingTable
from llmgw.ids import ModelName


def denied(table: RoutingTable, caller: Caller, name: str) -> ApiError | None:
    """Why it may not ask for what goes by that name; None: it may, or there is no such model."""
    if caller.key is None or not caller.key.models:
        return None
    model = table.find(name)
    if isinstance(model, Refusal):  # near names would tell of models that are none of its business
        text = f"no model {shown(name)} that the API key {caller.name!r} may ask for; GET /v1/models lists them"
        return ApiError(status=404, code=Code.MODEL_NOT_FOUND, message=text) if table.applied else None
    return None if caller.may_ask(*model.names) else not_allowed(caller, name)


def not_allowed(caller: Caller, name: str) -> ApiError:
    message = f"the API key {caller.name!r} is not for model {shown(name)}"
    return ApiError(status=403, code=Code.MODEL_NOT_ALLOWED, message=message, param="model")


def nothing_at(path: str, near: str | None) -> ApiError:
    """`near`: the path that was meant, perhaps."""
    hint = f"did you mean {near}?" if near is not None else "models are served under /v1/"
    return ApiError(status=404, code=Code.PATH_NOT_FOUND, message=f"there is nothing at {shown(path)}; {hint}")


def not_served(model: ModelName, path: str, surfaces: Iterable[str]) -> ApiError:
    """`surfaces`: what it does serve."""
    message = f"model {model!r} does not serve {path}: its engine has {', '.join(f'/v1/{each}' for each in surfaces)}"
    return ApiError(status=404, code=Code.SURFACE_NOT_SERVED, message=message, param="model")


def unusable(model: ModelName, why: str) -> ApiError:
    message = f"model {model!r} runs elsewhere, and cannot be asked: {why}"
    return ApiError(status=503, code=Code.MODEL_FAILED, message=message)


def lost(model: ModelName | None, why: str) -> ApiError:
    message = f"the engine of model {model!r} was lost: {why}"
    return ApiError(status=502, code=Code.ENGINE_LOST, message=message, retry_after=1)
