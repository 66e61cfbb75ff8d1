"""Forges and webhooks are told over real connections, also by way of servers that fail."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import structlog.testing
from forges import Answer, Forge, forge

from llmgw.catalog.spec import NotifyKind, NotifySpec, Occasion, SecretRef
from llmgw.clock import SystemClock
from llmgw.facts import Event
from llmgw.ids import Digest, ModelName, Revision
from llmgw.notify.notifier import Notifier
from llmgw.notify.requests import Request
from llmgw.notify.sending import LONGEST_ASKED, Sender, read_wait
from llmgw.notify.sending import Answer as Outcome
from llmgw.notify.targets import Pace
from llmgw.plan import ModelState, ModelStatus
from llmgw.store import keys
from llmgw.store.codec import encode
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied, CatalogStatus, Condition, ConditionType
from llmgw.units import Seconds, Wall

TOKEN, SECRET = "hunter2-token", "hunter2-secret"
COMMIT, NEXT = "a" * 40, "b" * 40
QUICK = Pace(first=Seconds(0.01), longest=Seconds(0.05), give_up=Seconds(0.3))
CERTIFICATE = Path(__file__).parents[1] / "weights" / "loopback.cert"
SCHEMA = Path(__file__).parents[2] / "schemas" / "output" / "notification.v1.schema.json"

pytestmark = pytest.mark.usefixtures("secrets")


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_TOKEN", TOKEN)
    monkeypatch.setenv("HOOK_SECRET", SECRET)


def target(server: Forge, kind: str = "github", name: str = "ci", **more: Any) -> NotifySpec:
    known: dict[str, Any] = {"name": name, "kind": NotifyKind(kind), "url": server.url}
    if kind != "webhook":
        known |= {"repository": "team/catalog", "token": SecretRef(from_env="FORGE_TOKEN")}
    return NotifySpec(**{**known, **more})


class World:
    """A store with a catalog in force, and what the notifier does about it."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        timeout: float = 5.0,
        pace: Pace = QUICK,
        sender: Callable[[NotifySpec], Sender] | None = None,
    ) -> None:
        self.store = store
        self.events: list[Event] = []
        self.notifier = Notifier(
            store=store,
            clock=SystemClock(),
            record=self.events.append,
            pace=pace,
            sender=sender or (lambda spec: Sender(spec, timeout=Seconds(timeout))),
        )

    async def tell(self, *specs: NotifySpec, cluster: str = "default") -> None:
        applied = Applied(
            revision=Revision(COMMIT), digest=Digest("d"), at=Wall(1), cluster=cluster, notify=tuple(specs)
        )
        await self.store.put(keys.APPLIED, encode(applied))

    async def is_now(self, revision: str, *, ready: bool = False, message: str = "0 of 1 models ready") -> None:
        conditions = tuple(
            Condition(type=kind, status=status, message=message, observed=Revision(revision))
            for kind, status in (
                (ConditionType.READY, ready),
                (ConditionType.RECONCILING, not ready),
                (ConditionType.STALLED, False),
            )
        )
        value = CatalogStatus(source="s", attempted=Revision(revision), conditions=conditions)
        await self.store.put(keys.CATALOG_STATUS, encode(value))

    def counts(self) -> dict[tuple[str, str], float]:
        (family,) = self.notifier.collect()
        return {(each.labels["target"], each.labels["outcome"]): each.value for each in family.samples}

    async def counted(self, outcome: str, count: float = 1, name: str = "ci") -> None:
        await until(lambda: self.counts().get((name, outcome), 0) >= count)


async def until(done: Callable[[], bool], within: float = 30) -> None:
    async with asyncio.timeout(within):
        while not done():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    task = asyncio.create_task(world.notifier.run())
    try:
        yield world
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def in_world(
    do: Callable[[World], Awaitable[None]], *, store: MemoryStore | None = None, **options: Any
) -> World:
    async with running(World(store or MemoryStore(), **options)) as world:
        await do(world)
    return world


async def test_github_gets_pending_then_success(server: Forge) -> None:
    async def do(world: World) -> None:
        await world.tell(target(server))
        await world.is_now(COMMIT)
        await world.counted("sent")
        await world.is_now(COMMIT, ready=True, message="1 of 1 models ready")
        await world.counted("sent", 2)

    await in_world(do)
    assert [call.path for call in server.calls] == [f"/repos/team/catalog/statuses/{COMMIT}"] * 2
    first, second = (call.json for call in server.calls)
    assert first == {"state": "pending", "context": "llmgw", "description": "in force; 0 of 1 models ready"}
    assert second == {"state": "success", "context": "llmgw", "description": "1 of 1 models ready"}
    assert server.calls[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert server.calls[0].headers["content-type"] == "application/json"


async def test_gitea_gets_the_same_at_its_own_address_and_clusters_have_a_status_each(server: Forge) -> None:
    async def do(world: World) -> None:
        await world.tell(target(server, "gitea", url=f"{server.url}/api/v1/"), cluster="home")
        await world.is_now(COMMIT, ready=True, message="x" * 200)
        await world.counted("sent")

    await in_world(do)
    (call,) = server.calls
    assert call.path == f"/api/v1/repos/team/catalog/statuses/{COMMIT}"
    assert call.headers["authorization"] == f"token {TOKEN}"
    assert call.json == {"state": "success", "context": "llmgw/home", "description": "x" * 137 + "..."}


async def test_gitlab_gets_its_own_words_and_its_refusal_of_a_known_state_is_no_failure(server: Forge) -> None:
    message = b'{"message": "Cannot transition status via :enqueue from :pending"}'
    server.answers = [Answer(400, body=message)]

    async def do(world: World) -> None:
        await world.tell(target(server, "gitlab", repository="group/sub/catalog"))
        await world.is_now(COMMIT)
        await world.counted("sent")

    world = await in_world(do)
    (call,) = server.calls
    assert call.path == f"/api/v4/projects/group%2Fsub%2Fcatalog/statuses/{COMMIT}"
    assert call.query == {"state": "pending", "name": "llmgw", "description": "in force; 0 of 1 models ready"}
    assert call.headers["private-token"] == TOKEN
    assert world.events == []


async def test_a_webhook_gets_json_of_the_documented_shape_signed_with_its_secret(server: Forge) -> None:
    spec = target(server, "webhook", url=f"{server.url}/hook?x=1", secret=SecretRef(from_env="HOOK_SECRET"))

    async def do(world: World) -> None:
        model = ModelStatus(model=ModelName("m"), state=ModelState.LOADING, reason="starting", wanted=1)
        await world.store.put(keys.explain(ModelName("m")), encode(model))
        await world.tell(spec, cluster="home")
        await world.is_now(f"{COMMIT}+dirty:0123456789ab")
        await world.counted("sent")

    await in_world(do)
    (call,) = server.calls
    assert (call.path, call.query) == ("/hook", {"x": "1"})
    jsonschema.validate(call.json, json.loads(SCHEMA.read_text()))
    told = call.json
    assert (told["version"], told["cluster"], told["event"]) == (1, "home", "applied")
    assert told["revision"] == f"{COMMIT}+dirty:0123456789ab"
    assert told["models"] == [{"name": "m", "state": "loading", "reason": "starting", "wanted": 1, "ready": 0}]
    assert [each["type"] for each in told["conditions"]] == ["Ready", "Reconciling", "Stalled"]
    digest = hmac.new(SECRET.encode(), call.body, hashlib.sha256).hexdigest()
    assert call.headers["x-llmgw-signature-256"] == f"sha256={digest}"
    assert call.headers["x-llmgw-event"] == "applied"


async def test_a_server_that_fails_is_asked_again_until_it_takes_it(server: Forge) -> None:
    server.answers = [Answer(500), Answer(429), Answer(502)]

    async def do(world: World) -> None:
        await world.tell(target(server))
        await world.is_now(COMMIT, ready=True)
        await world.counted("sent")

    world = await in_world(do)
    assert world.counts() == {("ci", "sent"): 1, ("ci", "retried"): 3}
    assert len({call.body for call in server.calls}) == 1
    assert world.events == []


async def test_a_refusal_is_told_as_an_event_once_without_the_token(server: Forge) -> None:
    server.always = Answer(401)

    async def do(world: World) -> None:
        await world.tell(target(server))
        await world.is_now(COMMIT)
        await world.counted("given_up")
        await world.is_now(COMMIT, ready=True)
        await world.counted("given_up", 2)
        await world.is_now(COMMIT, ready=True, message="another")

    world = await in_world(do)
    assert len(server.calls) == 2, "not tried again by itself"
    (event,) = world.events
    assert (event.subject, event.reason) == ("notify/ci", "notification refused")
    assert event.message == f"applied of {COMMIT[:12]}: status 401: is the token right, and has it not expired?"


async def test_the_time_that_a_server_asks_for_is_waited(server: Forge) -> None:
    server.answers = [Answer(403, {"Retry-After": "1"})]
    began = asyncio.get_running_loop().time()

    async def do(world: World) -> None:
        await world.tell(target(server))
        await world.is_now(COMMIT, ready=True)
        await world.counted("sent")

    await in_world(do)
    assert asyncio.get_running_loop().time() - began >= 1.0
    assert len(server.calls) == 2


async def test_a_server_that_answers_too_late_is_given_up_after_a_while(server: Forge) -> None:
    server.always = Answer(after=30)

    async def do(world: World) -> None:
        await world.tell(target(server))
        await world.is_now(COMMIT, ready=True)
        await world.counted("given_up")

    world = await in_world(do, timeout=0.1)
    assert len(server.calls) >= 2
    assert [event.reason for event in world.events] == ["notification given up"]


def test_when_to_come_again_is_said_in_seconds_or_as_a_date_or_by_when_a_limit_begins_anew() -> None:
    now = Wall(1_700_000_000.0)  # Tue, 14 Nov 2023 22:13:20 GMT
    assert read_wait({"retry-after": "7"}, now) == Seconds(7)
    assert read_wait({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, now) == Seconds(30)
    assert read_wait({"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, now) == Seconds(0)
    assert read_wait({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1700000060"}, now) == Seconds(60)
    assert read_wait({"x-ratelimit-remaining": "9", "x-ratelimit-reset": "1700000060"}, now) is None
    assert read_wait({"retry-after": "99999999"}, now) == LONGEST_ASKED
    assert read_wait({"retry-after": "soon"}, now) is None
    assert read_wait({}, now) is None


async def test_a_fault_in_sending_ends_nothing(server: Forge) -> None:
    class Faulty(Sender):
        async def send(self, made: Request, now: Wall) -> Outcome:
            raise ValueError(made.url)

    world = World(MemoryStore(), sender=Faulty)
    async with running(world):
        await world.tell(target(server))
        await world.is_now(COMMIT)
        await world.counted("given_up")
        await world.is_now(NEXT)
        await world.counted("given_up", 2)
    (event,) = world.events
    assert event.message == f"applied of {COMMIT[:12]}: ValueError; the log has more"


async def test_a_store_that_cannot_be_read_for_a_while_is_read_again(server: Forge) -> None:
    world = World(MemoryStore())
    with structlog.testing.capture_logs() as logged:
        async with running(world):
            await world.store.put(keys.APPLIED, b"{")
            await until(lambda: any(line["event"] == "notifications_wait" for line in logged))
            await world.tell(target(server))
            await world.is_now(COMMIT)
            await world.counted("sent")


async def test_a_server_is_told_nothing_before_its_certificate_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    with forge(CERTIFICATE) as server:

        async def refused(world: World) -> None:
            await world.tell(target(server))
            await world.is_now(COMMIT, ready=True)
            await world.counted("given_up")

        world = await in_world(refused)
        assert "CERTIFICATE_VERIFY_FAILED" in world.events[0].message
        assert server.calls == []

        async def believed(world: World) -> None:
            await world.tell(target(server))
            await world.is_now(COMMIT, ready=True)
            await world.counted("sent")

        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        await in_world(believed)
        assert len(server.calls) == 1


async def test_a_redirect_is_not_followed_and_takes_no_token_along(server: Forge) -> None:
    server.always = Answer(307, {"Location": "http://elsewhere.example/x"})

    async def do(world: World) -> None:
        await world.tell(target(server))
        await world.is_now(COMMIT, ready=True)
        await world.counted("given_up")

    world = await in_world(do)
    assert len(server.calls) == 1
    assert "it is elsewhere to elsewhere.example" in world.events[0].message


async def test_a_token_that_is_not_there_is_told_by_where_it_was_looked_for(
    server: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORGE_TOKEN")

    async def do(world: World) -> None:
        await world.tell(target(server))
        await world.is_now(COMMIT, ready=True)
        await world.counted("given_up")

    world = await in_world(do)
    assert server.calls == []
    assert world.events[0].message.endswith("the token of ci is not there: the variable FORGE_TOKEN is not set")


async def test_one_that_is_slow_holds_up_nobody_else_and_gets_the_newest_alone(server: Forge) -> None:
    server.answers = [Answer(503)]
    slow = Pace(first=Seconds(0.4), longest=Seconds(0.4))

    async def do(world: World) -> None:
        await world.tell(target(server, name="slow"))
        await world.is_now(COMMIT)
        await world.counted("retried", name="slow")
        await world.tell(target(server, name="slow"), target(server, "gitea", name="quick"))
        await world.counted("sent", name="quick")
        await world.is_now(COMMIT, ready=True)
        await world.counted("sent", name="slow")

    world = await in_world(do, pace=slow)
    assert world.counts()["slow", "replaced"] == 1
    told = [call.json["state"] for call in server.calls if call.path.startswith("/repos/")]
    assert told == ["pending", "success"]


async def test_a_daemon_that_begins_anew_does_not_repeat_what_was_told(server: Forge, tmp_path: Path) -> None:
    async def first(world: World) -> None:
        await world.tell(target(server))
        await world.is_now(COMMIT, ready=True)
        await world.counted("sent")
        await until(lambda: (tmp_path / "store").exists() and any((tmp_path / "store").rglob("*notified*")))

    store = MemoryStore(tmp_path / "store")
    await in_world(first, store=store)
    await store.close()

    async def second(world: World) -> None:
        await world.tell(target(server))
        await world.is_now(COMMIT)
        await world.is_now(COMMIT, ready=True)
        await world.is_now(NEXT, ready=True)
        await world.counted("sent")

    again = MemoryStore(tmp_path / "store")
    again.load()
    await in_world(second, store=again)
    assert [call.path.rpartition("/")[2] for call in server.calls] == [COMMIT, NEXT]


async def test_another_place_under_the_same_name_is_told_from_the_start_and_who_left_is_forgotten(
    server: Forge,
) -> None:
    store = MemoryStore()

    async def do(world: World) -> None:
        await world.is_now(COMMIT, ready=True)
        await world.tell(target(server), target(server, name="other"))
        await world.counted("sent")
        await world.counted("sent", name="other")
        await world.tell(target(server, repository="team/moved"))
        await world.counted("sent", 2)

    await in_world(do, store=store)
    assert server.calls[-1].path == f"/repos/team/moved/statuses/{COMMIT}"
    assert [entry.key for entry in (await store.list(keys.NOTIFIED)).entries] == ["notified/ci"]


async def test_events_that_were_not_asked_for_are_not_sent(server: Forge) -> None:
    async def do(world: World) -> None:
        await world.tell(target(server, events=(Occasion.READY,)))
        await world.is_now(COMMIT)
        await world.is_now(COMMIT, ready=True)
        await world.counted("sent")

    await in_world(do)
    assert [call.json["state"] for call in server.calls] == ["success"]
