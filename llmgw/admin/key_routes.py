"""API keys: who may ask the gateways. A token is told once, when it is made; what is kept does not tell it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llmgw.admin import reading
from llmgw.admin.answers import NotNow, NotThere, answer
from llmgw.admin.bodies import read_body
from llmgw.admin.shapes import VERSION, Time
from llmgw.catalog.schemas import did_you_mean
from llmgw.catalog.yamldoc import quoted
from llmgw.clock import Clock
from llmgw.errors import StaleRevision
from llmgw.facts import Event
from llmgw.ids import is_name
from llmgw.store import keys
from llmgw.store.api import Entry, Store
from llmgw.store.codec import decode, encode
from llmgw.store.events import EventLog
from llmgw.store.tokens import digest, new_token
from llmgw.store.values import ApiKey
from llmgw.units import Wall

Limit = Annotated[int, msgspec.Meta(ge=1, description="At least 1.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """An API key. `models` empty: all; a limit that is null: there is none. `state`: active, expired or revoked."""

    name: str
    id: str
    state: str
    models: tuple[str, ...]
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None
    created: Time
    by: str
    expires: Time | None
    revoked: Time | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysOutput:
    """`llmgw keys list`. `required`: whether gateways ask for a key."""

    version: int = VERSION
    required: bool
    keys: tuple[KeyRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOutput:
    """`llmgw keys create`, `revoke` and `forget`. `token`: of a new key, told this once. `required`: whether gateways
    ask for a key from now on."""

    version: int = VERSION
    changed: bool
    key: KeyRow
    required: bool
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequest:
    """The body of `POST /api/v1/keys`. `expires_in`: seconds from now."""

    name: str
    models: tuple[str, ...] = ()
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    concurrency: Limit | None = None
    expires_in: Annotated[float, msgspec.Meta(gt=0)] | None = None
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedKey:
    """The body of `POST /api/v1/keys/revoke` and `/keys/forget`. `key`: its name or its id."""

    key: str
    by: str = ""


KEYS: Final[dict[str, Any]] = {"keys": KeysOutput, "key": KeyOutput}


def key_routes(store: Store, events: EventLog, clock: Clock) -> APIRouter:
    routes = APIRouter()

    def record(name: str, reason: str, by: str) -> None:
        events.record(Event(at=clock.now().wall, subject=f"key/{name}", reason=reason, message=f"by {_who(by)}"))

    async def output(key: ApiKey, *, changed: bool, token: str | None = None) -> Response:
        there = (await store.list(keys.API_KEYS)).entries
        row = key_row(key, clock.now().wall)
        return answer(KeyOutput(changed=changed, key=row, required=bool(there), token=token))

    @routes.get("/keys")
    async def list_keys() -> Response:
        known = await _known(store)
        rows = tuple(key_row(key, clock.now().wall) for key, _ in known)
        return answer(KeysOutput(required=bool(known), keys=rows))

    @routes.post("/keys")
    async def create(request: Request) -> Response:
        asked = await read_body(request, KeyRequest)
        if not is_name(asked.name):
            what = "letters, digits, `.`, `_` and `-`, in lower case, 63 at most"
            raise HTTPException(400, f"{quoted(asked.name)} is no name for a key: {what}")
        await _check_models(store, asked.models)
        now = clock.now().wall
        before = await store.get(keys.api_key(asked.name))
        if before is not None and _read(before).revoked is None:
            raise NotNow(f"there is a key {quoted(asked.name)}: choose another name, or revoke that one first")
        id, token = new_token()
        key = ApiKey(
            id=id,
            name=asked.name,
            digest=digest(token.encode()),
            created=now,
            by=_who(asked.by),
            models=asked.models,
            requests_per_minute=asked.requests_per_minute,
            tokens_per_minute=asked.tokens_per_minute,
            concurrency=asked.concurrency,
            expires=None if asked.expires_in is None else Wall(now + asked.expires_in),
        )
        try:
            await store.put(keys.api_key(key.name), encode(key), if_revision=before.revision if before else 0)
        except StaleRevision:
            raise NotNow(f"another key {quoted(asked.name)} was made just now") from None
        record(key.name, "created", asked.by)
        return await output(key, changed=True, token=token)

    @routes.post("/keys/revoke")
    async def revoke(request: Request) -> Response:
        asked = await read_body(request, NamedKey)
        key, entry = await _find(store, asked.key)
        if key.revoked is not None:
            return await output(key, changed=False)
        revoked = replace(key, revoked=clock.now().wall)
        await store.put(entry.key, encode(revoked), if_revision=entry.revision)
        record(key.name, "revoked", asked.by)
        return await output(revoked, changed=True)

    @routes.post("/keys/forget")
    async def forget(request: Request) -> Response:
        asked = await read_body(request, NamedKey)
        key, entry = await _find(store, asked.key)
        if key.revoked is None:
            raise NotNow(f"the key {quoted(key.name)} is in use: `llmgw keys revoke {key.name}` first")
        await store.delete(entry.key)
        record(key.name, "forgotten", asked.by)
        return await output(key, changed=True)

    return routes


async def _known(store: Store) -> Sequence[tuple[ApiKey, Entry]]:
    return [(_read(entry), entry) for entry in (await store.list(keys.API_KEYS)).entries]


def _read(entry: Entry) -> ApiKey:
    return decode(entry.value, ApiKey, where=entry.key)


async def _find(store: Store, asked: str) -> tuple[ApiKey, Entry]:
    """By name or id. Raises NotThere, with what may have been meant."""
    known = await _known(store)
    for key, entry in known:
        if asked in (key.name, key.id):
            return key, entry
    hint = did_you_mean(asked, {key.name for key, _ in known}) or "; `llmgw keys list` lists what there is"
    raise NotThere(f"no key {quoted(asked)}{hint}")


async def _check_models(store: Store, asked: Sequence[str]) -> None:
    """A name that is not in the catalog is a typing error, and would be found out by whoever gets the key."""
    known = {name for model in (await reading.look(store)).models.values() for name in model.names}
    for name in asked:
        if name not in known:
            hint = did_you_mean(name, known) or "; `llmgw models` lists what there is"
            raise NotThere(f"no model {quoted(name)} in the catalog in force{hint}")


def key_row(key: ApiKey, now: Wall) -> KeyRow:
    expired = key.expires is not None and key.expires <= now
    return KeyRow(
        name=key.name,
        id=key.id,
        state="revoked" if key.revoked is not None else "expired" if expired else "active",
        models=key.models,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        concurrency=key.concurrency,
        created=key.created,
        by=key.by,
        expires=key.expires,
        revoked=key.revoked,
    )


def _who(by: str) -> str:
    return by.strip()[:200] or "someone"
