"""Bodies of requests to the admin API."""

from typing import Final, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

T = TypeVar("T")

MAX_BODY: Final = 64 * 1024


async def read_body(request: Request, kind: type[T], *, limit: int = MAX_BODY) -> T:
    """The body as a `kind`; an empty one is an empty object.

    Raises HTTPException: 413 beyond `limit` bytes, 400 where it is no such object.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise HTTPException(413, f"the body is larger than {limit} bytes")
    try:
        return msgspec.json.decode(bytes(body) or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise HTTPException(400, f"the body is not as it should be: {error}") from error
