"""The webhook: who may call it, and that nothing of what others send is read before that is known."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from llmgw.admin.app import create_app
from llmgw.admin.webhook import MAX_BODY
from llmgw.catalog.access import SecretMissing
from llmgw.catalog.live import CatalogState
from llmgw.ids import NodeName, Revision
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore

SECRET = "hunter2"
BODY = b'{"ref": "refs/heads/main"}'


class Caller:
    """A forge. `looks` counts what its calls brought about."""

    def __init__(self, secret: str | None = SECRET) -> None:
        self.looks = 0
        self.read = 0  #: bytes of bodies that were asked for

        def known() -> str:
            if not secret:
                raise SecretMissing("the secret for webhooks is not there")
            return secret

        self.app = create_app(
            store=MemoryStore(),
            events=EventLog(),
            token="t0ken",
            node=NodeName("box"),
            refresh=self._refresh,
            webhook=None if secret is None else known,
        )

    async def _refresh(self, patience: float, weights: bool) -> tuple[CatalogState, bool]:
        self.looks += 1
        return CatalogState(source="x", attempted=Revision("abc"), applied=Revision("abc")), patience > 0

    async def _body(self, body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65536):
            self.read += len(body[start : start + 65536])
            yield body[start : start + 65536]

    async def call(self, body: bytes = BODY, *, path: str = "/webhook", **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx.AsyncClient(transport=transport, base_url="http://hooks.example.org") as client:
            return await client.post(path, content=self._body(body), headers=named)


def signed(body: bytes = BODY, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    "headers",
    [
        {"x_hub_signature_256": f"sha256={signed()}"},
        {"x_gitea_signature": signed()},
        {"x_forgejo_signature": signed().upper()},
        {"x_gitlab_token": SECRET},
    ],
)
async def test_who_knows_the_secret_has_the_source_looked_at(headers: dict[str, str]) -> None:
    caller = Caller()
    answer = await caller.call(**headers)
    assert (answer.status_code, caller.looks) == (202, 1)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x_hub_signature_256": signed()[:-1]},
        {"x_hub_signature_256": f"sha1={signed()}"},
        {"x_hub_signature_256": ""},
        {"x_gitlab_token": "hunter3"},
        {"x_gitlab_token": ""},
        {"authorization": "Bearer t0ken"},
    ],
)
async def test_without_a_signature_nothing_is_read(headers: dict[str, str]) -> None:
    caller = Caller()
    answer = await caller.call(**headers)
    assert (answer.status_code, caller.looks, caller.read) == (401, 0, 0)
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("claimed", [signed(b"other"), signed(secret="hunter3"), "0" * 64])
async def test_a_wrong_signature_is_refused(claimed: str) -> None:
    caller = Caller()
    answer = await caller.call(x_hub_signature_256=f"sha256={claimed}")
    assert (answer.status_code, caller.looks) == (401, 0)
    assert SECRET not in answer.text


async def test_a_body_that_says_that_it_is_huge_is_not_read() -> None:
    caller = Caller()
    answer = await caller.call(x_gitea_signature=signed(), content_length=str(MAX_BODY + 1))
    assert (answer.status_code, caller.looks, caller.read) == (413, 0, 0)


async def test_a_body_that_is_huge_without_saying_so_is_read_no_further() -> None:
    caller = Caller()
    body = bytes(MAX_BODY + 1_000_000)
    answer = await caller.call(body, x_gitea_signature=signed(body))
    assert (answer.status_code, caller.looks) == (413, 0)
    assert caller.read <= MAX_BODY + 131072


@pytest.mark.parametrize(("secret", "status"), [(None, 403), ("", 503)])
async def test_without_a_secret_nobody_may_call(secret: str | None, status: int) -> None:
    caller = Caller(secret)
    answer = await caller.call(x_gitlab_token="", x_gitea_signature=signed(secret=""))
    assert (answer.status_code, caller.looks, caller.read) == (status, 0, 0)


async def test_the_secret_of_the_webhook_opens_nothing_else() -> None:
    caller = Caller()
    for path in ("/api/v1/sync", "/webhook/", "/webhook/../api/v1/sync"):
        answer = await caller.call(path=path, x_gitlab_token=SECRET)
        assert answer.status_code in (401, 404, 421), path
    assert caller.looks == 0


async def test_many_calls_at_once_are_all_taken() -> None:
    caller = Caller()
    answers: list[Any] = await asyncio.gather(*(caller.call(x_gitlab_token=SECRET) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {202}
