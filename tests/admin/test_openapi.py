"""The OpenAPI document of the admin API: it describes the routes that exist, all of them, and is what it says it is."""

import json
from collections.abc import Iterator
from typing import Any

import daemon_seeds as seed
import httpx
import msgspec
import pytest
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from jsonschema import Draft202012Validator

from llmgw.admin.app import create_app
from llmgw.admin.openapi import OPERATIONS, document, operations_in
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore


@pytest.fixture
def app() -> FastAPI:
    return create_app(store=MemoryStore(), events=EventLog(), token="the-token", node=seed.NODE)


def served(app: FastAPI) -> set[tuple[str, str]]:
    found = get_openapi(title="", version="", routes=app.routes)
    return {(method, path) for method, path, _ in operations_in(found)}


async def test_every_route_is_described_and_nothing_else(app: FastAPI) -> None:
    assert set(OPERATIONS) == served(app), "llmgw/admin/openapi.py has a table of them"
    for method, path, made in operations_in(document(app)):
        assert made["summary"], path
        assert {"400", "401", "503"} < made["responses"].keys(), path
        assert "422" not in made["responses"], (method, path)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for key, text in value.items() if key == "$ref")
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


async def test_its_schemas_are_valid_and_what_they_refer_to_is_there(app: FastAPI) -> None:
    made = document(app)
    assert made["openapi"].startswith("3.1")
    schemas = made["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert {reference.removeprefix("#/components/schemas/") for reference in references(made)} <= set(schemas)
    assert made["paths"]["/api/v1/logs"]["get"]["parameters"][0]["name"] == "model"
    stop = made["paths"]["/api/v1/stop"]["post"]
    assert stop["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/StopRequest"}


async def test_it_is_served_to_who_has_the_token(app: FastAPI) -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert (await client.get("/api/v1/openapi.json")).status_code == 401
        told = await client.get("/api/v1/openapi.json", headers={"Authorization": "Bearer the-token"})
        assert told.json() == json.loads(msgspec.json.encode(document(app)))
