"""How the admin API answers: one JSON object, made by msgspec from a shape."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from llmgw.admin.shapes import ErrorBody, ErrorOutput


def answer(shape: Any, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(shape), status, media_type="application/json", headers=headers)


def failure(status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """`code` is stable, for programs; `message` for a person."""
    return answer(ErrorOutput(error=ErrorBody(code=code, message=message)), status, headers=headers)
