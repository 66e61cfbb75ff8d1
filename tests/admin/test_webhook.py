"""The webhook: who may call it, and that nothing of what others send is read before that is known."""

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from llmgw.admin.app import create_app
from llmgw.admin.webhook import MAX_BODY
from llmgw.catalog.live import CatalogState
from llmgw.ids import NodeName, Revision
from llmgw.secretref import SecretMissing
from llmgw.store import election, keys
from llmgw.store.codec import encode
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Member, Role
from llmgw.units import Wall

SECRET = "hunter2"
BODY = b'{"ref": "refs/heads/main"}'


class Caller:
    """A forge. `looks` counts what its calls brought about."""

    def __init__(
        self, secret: str | None = SECRET, *, store: MemoryStore | None = None, controller: str | None = None
    ) -> None:
        self.looks = 0
        self.read = 0  #: bytes of bodies that were asked for

        def known() -> str:
            if not secret:
                raise SecretMissing("the secret for webhooks is not there")
            return secret

        self.app = create_app(
            store=store or MemoryStore(),
            events=EventLog(),
            token="t0ken",
            node=NodeName("box"),
            refresh=self._refresh,
            webhook=None if secret is None else known,
            controller=controller,
            leads=lambda: controller is None,
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


async def test_a_controller_that_stands_by_passes_a_call_on_to_the_one_that_leads() -> None:
    taken: list[tuple[str, str | None, bytes]] = []

    class Leader(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.append((self.path, self.headers["authorization"], body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Leader)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    store = MemoryStore()
    try:
        caller = Caller(store=store, controller="c2")
        answer = await caller.call(x_gitlab_token=SECRET)
        assert answer.status_code == 503
        assert "no controller leads just now" in answer.text
        url = f"http://127.0.0.1:{server.server_address[1]}"
        known = Member(
            role=Role.CONTROLLER,
            name="c1",
            instance="i",
            since=Wall(1),
            version="0",
            host="h",
            pid=1,
            place="p",
            url=url,
        )
        await store.put(keys.member(Role.CONTROLLER, "c1"), encode(known))
        await store.put(keys.LEADER, encode(election.Leader(name="c1", at=Wall(1))))
        assert (await caller.call(x_gitlab_token="another")).status_code == 401
        assert (await caller.call(x_gitlab_token=SECRET)).status_code == 202
    finally:
        server.shutdown()
        server.server_close()
    assert [(path, token) for path, token, _ in taken] == [("/api/v1/sync", "Bearer t0ken")]
    assert json.loads(taken[0][2])["patience"] == 0
    assert caller.looks == 0


async def test_many_calls_at_once_are_all_taken() -> None:
    caller = Caller()
    answers: list[Any] = await asyncio.gather(*(caller.call(x_gitlab_token=SECRET) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {202}
