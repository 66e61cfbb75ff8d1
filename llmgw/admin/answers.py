"""How the admin API answers: one JSON object, made by msgspec from a shape."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from llmgw.admin.shapes import NOT_NOW, NOT_THERE, ErrorBody, ErrorOutput
from llmgw.errors import LlmgwError, NoSuchRevision, RetryableError, TerminalError


class NotThere(TerminalError):
    """What was asked for does not exist: 404."""


class NotNow(TerminalError):
    """It cannot be done as things are: 409."""


def answer(shape: Any, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(shape), status, media_type="application/json", headers=headers)


def failure(status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """`code` is stable, for programs; `message` for a person."""
    return answer(ErrorOutput(error=ErrorBody(code=code, message=message)), status, headers=headers)


def add_handlers(app: FastAPI) -> None:
    """Whatever is raised becomes an answer of the one shape."""
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _bad_parameter)
    app.add_exception_handler(NotThere, _not_there)
    app.add_exception_handler(NoSuchRevision, _not_there)
    app.add_exception_handler(NotNow, _not_now)
    app.add_exception_handler(LlmgwError, _our_error)
    app.add_exception_handler(Exception, _bug)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
    message = f"no {request.scope['path']} here" if error.status_code == 404 else str(error.detail)
    return failure(error.status_code, codes.get(error.status_code, "error"), message, headers=error.headers)


async def _bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors())
    return failure(400, "bad_request", wrong)


async def _not_there(request: Request, error: Exception) -> Response:
    return failure(404, NOT_THERE, str(error))


async def _not_now(request: Request, error: Exception) -> Response:
    return failure(409, NOT_NOW, str(error))


async def _our_error(request: Request, error: Exception) -> Response:
    """The store that is away will be back."""
    return failure(503 if isinstance(error, RetryableError) else 500, "cannot_answer", str(error))


async def _bug(request: Request, error: Exception) -> Response:
    # Starlette raises it again after this answer, so that the server logs the traceback.
    return failure(500, "internal", "something went wrong here: the daemon's log has the details")
