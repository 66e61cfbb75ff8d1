"""The admin API's OpenAPI document, made from the routes that exist and the shapes that they take and give.

Paths and parameters come from the routes, bodies and answers from the table here; a test holds them together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from llmgw.admin.answers import answer
from llmgw.admin.capacities import CAPACITIES, CapacityRequest
from llmgw.admin.diffs import DIFFS, DiffRequest
from llmgw.admin.key_routes import KEYS, KeyRequest, NamedKey
from llmgw.admin.members import MEMBERS, RestartRequest
from llmgw.admin.orders import ORDERS, RevisionRequest, SuspendRequest
from llmgw.admin.plans import PLANS, PlanRequest
from llmgw.admin.shapes import (
    OUTPUTS,
    CollectRequest,
    CordonRequest,
    ErrorOutput,
    ResetRequest,
    StopRequest,
    UncordonRequest,
    UpkeepRequest,
)
from llmgw.admin.stories import STORIES
from llmgw.admin.syncs import SYNCS, CatalogAnswer, SyncRequest

PATH: Final = "/openapi.json"
VERSION: Final = "1"
"""Of the API: the `v1` of its paths."""

SHAPES: Final[Mapping[str, Any]] = {
    **OUTPUTS, **STORIES, **CAPACITIES, **PLANS, **DIFFS, **MEMBERS, **KEYS, **ORDERS, **SYNCS,
    "catalog": CatalogAnswer,
}  # fmt: skip

ERRORS: Final[Mapping[str, str]] = {
    "400": "A parameter, or the body, is not as it should be.",
    "401": "The token is missing or wrong.",
    "404": "What is named does not exist.",
    "409": "It cannot be done as things are.",
    "413": "The body is too large.",
    "421": "Asked by a name that is not served.",
    "503": "It can be answered later: the store, a node or the leader is away.",
}
"""What any operation may answer instead. 500 is none of them: that would be a fault."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`gives`: an output's name, the inline schema of a small answer, or another media type. `refuses`: errors
    besides those that any may answer."""

    does: str
    gives: str | Mapping[str, Any]
    takes: type | None = None
    status: str = "200"
    refuses: Mapping[str, str] = field(default_factory=dict)


def _flag(name: str) -> Mapping[str, Any]:
    return {"type": "object", "required": [name], "properties": {name: {"const": True}}}


_API: Final[Mapping[tuple[str, str], Operation]] = {
    ("get", "/status"): Operation("Everything at a glance.", "status"),
    ("get", "/models"): Operation("The models of the catalog in force.", "models"),
    ("get", "/replicas"): Operation("The engines' processes.", "replicas"),
    ("get", "/nodes"): Operation("The machines.", "nodes"),
    ("get", "/events"): Operation("What happened, newest last.", "events"),
    ("post", "/stop"): Operation("Serve nothing, until told to.", "switch", StopRequest),
    ("post", "/start"): Operation("Serve again.", "switch"),
    ("get", "/collect"): Operation("What of the weights could go, and what is kept why.", "collect"),
    ("post", "/collect"): Operation("Remove weights that nothing wants.", "collect", CollectRequest),
    ("get", "/weights"): Operation("The weights on every node.", "weights"),
    ("post", "/weights"): Operation("Verify, pin or unpin weights.", "upkeep", UpkeepRequest),
    ("get", "/explain"): Operation("Why a model is as it is.", "explain"),
    ("post", "/reset"): Operation("Forget the failures of models, or of all.", "reset", ResetRequest),
    ("get", "/logs"): Operation("An engine's log; followed, lines of JSON that do not end.", "logs"),
    ("post", "/plan"): Operation("What a catalog would do.", "plan", PlanRequest),
    ("post", "/diff"): Operation("What differs between two catalogs.", "diff", DiffRequest),
    ("post", "/approve"): Operation("Let a revision that is held into force.", "order", RevisionRequest),
    ("post", "/apply"): Operation("Apply a revision where that is done by hand.", "order", RevisionRequest),
    ("post", "/rollback"): Operation("Go back to an earlier revision, and stay.", "order", RevisionRequest),
    ("post", "/suspend"): Operation("Leave a model, or the catalog, as it is.", "order", SuspendRequest),
    ("post", "/resume"): Operation("The opposite.", "order", SuspendRequest),
    ("get", "/history"): Operation("The revisions that were in force.", "history"),
    ("get", "/catalog"): Operation("The followed catalog, as it stands there or at a revision.", "catalog"),
    ("get", "/revision"): Operation("Whether a revision is the newest, superseded, or has not come.", "revision"),
    ("post", "/sync"): Operation("Look at the catalog's source now.", "sync", SyncRequest),
    ("post", "/cordon"): Operation("Place nothing more on a node, or empty it.", "cordon", CordonRequest),
    ("post", "/uncordon"): Operation("The opposite.", "cordon", UncordonRequest),
    ("get", "/capacities"): Operation("How many requests replicas were measured to take.", "capacities"),
    ("post", "/capacities"): Operation("Note what a replica was measured to take.", "capacities", CapacityRequest),
    ("get", "/keys"): Operation("The API keys, without what is secret of them.", "keys"),
    ("post", "/keys"): Operation("Make an API key.", "key", KeyRequest),
    ("post", "/keys/revoke"): Operation("Let an API key open nothing more.", "key", NamedKey),
    ("post", "/keys/forget"): Operation("Forget a key that was revoked.", "key", NamedKey),
    ("get", "/members"): Operation("The processes of a fleet.", "members"),
    ("post", "/restart"): Operation("Have processes of a fleet begin anew.", "members", RestartRequest),
    ("get", PATH): Operation("This document.", {"type": "object"}),
}
OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("get", "/healthz"): Operation("Whether the process lives. No token.", _flag("ok")),
    ("get", "/readyz"): Operation("Whether a catalog is in force. No token.", _flag("ready")),
    ("get", "/metrics"): Operation("Prometheus metrics. No token.", "text/plain"),
    ("post", "/webhook"): Operation(
        "A forge's call: signed, no token.", _flag("asked"), status="202", refuses={"403": "No secret is set."}
    ),
    **{(method, f"/api/v1{path}"): operation for (method, path), operation in _API.items()},
}


def openapi_routes(app: FastAPI) -> APIRouter:
    routes = APIRouter()

    @cache
    def made() -> dict[str, Any]:
        return document(app)

    @routes.get(PATH)
    async def openapi() -> Response:
        return answer(made())

    return routes


def document(app: FastAPI) -> dict[str, Any]:
    """OpenAPI 3.1 of the application's routes."""
    found = get_openapi(title="llmgw's admin API", version=VERSION, routes=app.routes)
    schemas, components = _components()
    for method, path, made in operations_in(found):
        operation = OPERATIONS[method, path]
        made["summary"] = operation.does
        made["responses"] = {operation.status: _given(operation, schemas), **_errors(operation, schemas[ErrorOutput])}
        if operation.takes is not None:
            content = {"application/json": {"schema": schemas[operation.takes]}}
            made["requestBody"] = {"content": content, "required": _needs(operation.takes)}
        if path.startswith("/api/"):
            made["security"] = [{"token": []}]
    found["components"] = {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    return found


def operations_in(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each operation's method, path and description."""
    for path, methods in document["paths"].items():
        for method, made in methods.items():
            yield method, path, made


def _components() -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each shape, a reference mostly, and what they refer to."""
    takes = {operation.takes for operation in OPERATIONS.values() if operation.takes is not None}
    kinds = [ErrorOutput, *sorted(takes, key=lambda kind: kind.__name__), *SHAPES.values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    return dict(zip(kinds, schemas, strict=True)), components


def _needs(kind: type) -> bool:
    """Whether there is anything that must be said: an empty body is an empty object."""
    return bool(msgspec.json.schema_components([kind])[1][kind.__name__].get("required"))


def _given(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    gives = operation.gives
    if not isinstance(gives, str):
        content = {"application/json": {"schema": dict(gives)}}
    elif "/" in gives:
        content = {gives: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": schemas[SHAPES[gives]]}}
    if gives == "logs":
        content["application/x-ndjson"] = {"schema": {"type": "string"}}
    if gives == "text/plain":
        content["application/openmetrics-text"] = {"schema": {"type": "string"}}
    return {"description": "As asked.", "content": content}


def _errors(operation: Operation, schema: Mapping[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": dict(schema)}}
    refused = {**ERRORS, **operation.refuses}
    return {status: {"description": text, "content": content} for status, text in refused.items()}
