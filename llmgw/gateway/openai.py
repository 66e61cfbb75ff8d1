"""The OpenAI surface as bytes: reading the model's name, changing it, error objects, lists. Does no I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from llmgw.gateway.params import Params

JSON: Final = b"application/json"
SHOWN: Final = 200
"""How much of a client's text (a model's name, say) an error message repeats, in characters."""
MAX_MEMBERS: Final = 10_000
"""Top-level members of a body that is rewritten; walking more would hold up every other request."""
LONGEST_RETRY: Final = 60
"""Seconds up to which OpenAI's and Anthropic's SDKs heed Retry-After."""


class Code(StrEnum):
    """`error.code`: what programs branch on."""

    BAD_REQUEST = "bad_request"
    BODY_TOO_LARGE = "body_too_large"
    ENGINE_LOST = "engine_lost"
    HEADERS_TOO_LARGE = "headers_too_large"
    INVALID_FORM = "invalid_form"
    INVALID_JSON = "invalid_json"
    KEY_EXPIRED = "key_expired"
    KEY_MISSING = "key_missing"
    KEY_REVOKED = "key_revoked"
    KEY_WRONG = "invalid_api_key"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MODEL_FAILED = "model_failed"
    MODEL_INACTIVE = "model_inactive"
    MODEL_LOADING = "model_loading"
    MODEL_MISSING = "model_missing"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    MODEL_UNSCHEDULABLE = "model_unschedulable"
    NOT_READY = "not_ready"
    OVERLOADED = "overloaded"
    PATH_NOT_FOUND = "path_not_found"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    QUEUE_FULL = "queue_full"
    RATE_LIMITED = "rate_limit_exceeded"
    REQUEST_TIMEOUT = "request_timeout"
    SHUTTING_DOWN = "shutting_down"
    SURFACE_NOT_SERVED = "surface_not_served"
    SYSTEM_STOPPED = "system_stopped"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    VERSION_NOT_SUPPORTED = "http_version_not_supported"


CLASSES: Final = {n: f"{n}xx" for n in range(10)}
"""Of statuses, by their first digit: what answers are counted by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """An answer that is an error. `retry_after` in whole seconds, at least 1; `allow`: the methods of a 405."""

    status: int
    code: Code
    message: str
    param: str | None = None
    retry_after: int | None = None
    allow: str | None = None


class BadBody(Exception):
    """A request body that names no model. `error` is the answer."""

    def __init__(self, message: str, code: Code, param: str | None = None, *, status: int = 400) -> None:
        super().__init__(message)
        self.error = ApiError(status=status, code=code, message=message, param=param)


class _Named(msgspec.Struct):
    model: str | msgspec.UnsetType = msgspec.UNSET


_read_named: Final = msgspec.json.Decoder(_Named).decode
_read_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


def read_model(body: bytes) -> str:
    """The name in the top-level member `model`. The whole body is checked to be JSON, and nothing of it is built.

    Raises BadBody, saying what is wrong and where.
    """
    try:
        model = _read_named(body).model
    except msgspec.ValidationError as error:
        if "$.model" in str(error):
            raise BadBody("'model' must be a string", Code.MODEL_MISSING, "model") from None
        raise BadBody(f"the body must be a JSON object with a 'model': {error}", Code.INVALID_JSON) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = (
            f"the body is not valid JSON: {error}" if body else "the body is empty: send a JSON object with a 'model'"
        )
        raise BadBody(what, Code.INVALID_JSON) from None
    except RecursionError:
        raise BadBody("the body is nested too deeply", Code.INVALID_JSON) from None
    if not isinstance(model, str) or not model:
        raise BadBody("the body names no 'model'; GET /v1/models lists them", Code.MODEL_MISSING, "model")
    return model


_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_KEY: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
"""Possessive: a key of megabytes must not be remembered character by character."""


def rewrite_model(body: bytes, name: str) -> bytes:
    """The body with the value of its top-level `model` replaced by `name`, and every other byte as it was.

    `body` is one that `read_model` accepted. One that has the same key twice with different values comes back with
    the last of each, which is what JSON parsers take. Raises BadBody for a body with more than MAX_MEMBERS members.
    """
    members = _members(body)
    spans = _spans_of_model(body, members)
    new = _encode(name)
    if spans is None:
        members["model"] = msgspec.Raw(new)
        return _encode(members)
    parts: list[bytes] = []
    done = 0
    for start, end in spans:
        parts += (body[done:start], new)
        done = end
    return b"".join((*parts, body[done:]))


def reshape(body: bytes, name: str, params: Params) -> bytes:
    """The body with another model's name and other parameters; the values of its other members are as they were.

    `body` is one that `read_model` accepted. Raises BadBody for a body with more than MAX_MEMBERS members.
    """
    members = _members(body)
    shaped: dict[str, Any] = {member: value for member, value in members.items() if member not in params.strip}
    shaped.update(params.set)
    for member, value in params.default.items():
        shaped.setdefault(member, value)
    shaped["model"] = name
    return _encode(shaped)


def _members(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        members = _read_members(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"the body is not valid JSON: {error}", Code.INVALID_JSON) from None
    if len(members) > MAX_MEMBERS:
        raise BadBody(f"the body has more than {MAX_MEMBERS:,} top-level members", Code.INVALID_JSON)
    return members


def _spans_of_model(body: bytes, members: dict[str, msgspec.Raw]) -> list[tuple[int, int]] | None:
    """Where the values of top-level `model` members lie, or None when a key occurs with two different values.

    Walks from member to member by the length of each value: JSON already known to be good needs no second parser. A
    value that is not the one expected, or does not end where a value must, is how a repeated key shows itself.
    """
    found: list[tuple[int, int]] = []
    at = _skip(body, body.index(b"{") + 1)
    while (key := _KEY.match(body, at)) is not None:
        at = _skip(body, key.end()) + 1  # the colon
        at = _skip(body, at)
        name = msgspec.json.decode(key.group())
        value = bytes(members[name])
        end = at + len(value)
        follows = _skip(body, end)
        if not body.startswith(value, at) or body[follows : follows + 1] not in (b",", b"}"):
            return None
        if name == "model":
            found.append((at, end))
        at = _skip(body, follows + 1)
    return found


def _skip(body: bytes, at: int) -> int:
    match = _SPACE.match(body, at)
    return match.end() if match else at


def shown(text: str) -> str:
    """A client's text as an error message repeats it: quoted, of bounded length."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def error_body(error: ApiError, path: str = "") -> bytes:
    """The OpenAI error object. Under /v1/messages it is an Anthropic one at the same time."""
    inner = _error_object(error, path)
    return _encode({"type": "error", "error": inner} if _is_anthropic(path) else {"error": inner})


def error_event(error: ApiError, path: str) -> bytes:
    """The server-sent event that ends a stream whose engine was lost.

    Chat and completions streams carry unnamed events; /v1/messages and /v1/responses name theirs, and clients there
    look for `event: error`. The SDKs raise on the `error` member in each case.
    """
    return event_of(_error_object(error, path), path)


def event_of(inner: Mapping[str, Any], path: str) -> bytes:
    """The same of an error object as it stands."""
    if _is_anthropic(path):
        return b"event: error\ndata: %b\n\n" % _encode({"type": "error", "error": inner})
    if path.startswith("/v1/responses"):
        named = {"type": "error", **{each: inner.get(each) for each in ("code", "message", "param")}, "error": inner}
        return b"event: error\ndata: %b\n\n" % _encode(named)
    return b"data: %b\n\n" % _encode({"error": inner})


def _is_anthropic(path: str) -> bool:
    return path.startswith("/v1/messages")


def _error_object(error: ApiError, path: str) -> dict[str, Any]:
    kind = _anthropic_type_of(error.status) if _is_anthropic(path) else _type_of(error.status)
    return {"message": error.message, "type": kind, "param": error.param, "code": error.code}


_ANTHROPIC: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
"""By status, as Anthropic's API reference lists them; its clients look at the type, not at a code."""


def _anthropic_type_of(status: int) -> str:
    return _ANTHROPIC.get(status) or ("api_error" if status >= 500 else "invalid_request_error")


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    if status in (401, 403):
        return "authentication_error" if status == 401 else "permission_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def model_object(
    name: str,
    *,
    created: int,
    aliases: tuple[str, ...],
    state: str,
    description: str,
    fallback: str | None = None,
    variants: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A model as GET /v1/models shows it. What OpenAI's object lacks comes after what it has."""
    return {
        "id": name, "object": "model", "created": created, "owned_by": "llmgw",
        "aliases": aliases, "state": state, "description": description, "fallback": fallback,
        "variants": variants,
    }  # fmt: skip


def model_list(models: list[dict[str, Any]]) -> bytes:
    return _encode({"object": "list", "data": models})


def encode(value: Any) -> bytes:
    """Any answer of ours as JSON."""
    return _encode(value)
