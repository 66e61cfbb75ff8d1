"""What differs from the catalog in force, over the admin API."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import httpx
import msgspec
import pytest
from test_admin_api import TOKEN, StillClock, check

from llmgw.admin.app import create_app
from llmgw.admin.diffs import DiffRequest
from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.load import load_catalog
from llmgw.catalog.place import Directory
from llmgw.catalog.source import read_source
from llmgw.catalog.spec import Catalog
from llmgw.engine.manager import Engines, find_engines
from llmgw.reconcile.comparing import Comparing
from llmgw.store.events import EventLog

MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: NAME
profiles:
  - {name: p, engine: command, memory: 1MiB, options: {command: [a, "{port}"]}, env: {TOKEN: hunter2}}
"""


def model(name: str, command: str = "a") -> str:
    return MODEL.replace("NAME", name).replace("[a,", f"[{command},")


@pytest.fixture(scope="module")
def engines() -> Engines:
    return find_engines()


class Api:
    """The application following the catalog in `path`, of which what was there first is in force."""

    def __init__(self, seeds: seed.Seeds, path: Path, engines: Engines) -> None:
        self.path = path
        self.engines = engines
        self.live = LiveCatalog(str(path))
        self.app = create_app(
            store=seeds.store,
            events=EventLog(),
            token=TOKEN,
            node=seed.NODE,
            clock=StillClock(),
            compare=Comparing(live=self.live, place=Directory(path), engines=engines).sides,
        )

    def load(self, text: str) -> Catalog:
        (self.path / "a.yaml").write_text(text)
        return load_catalog(read_source(self.path), self.engines.rules()).catalog

    async def ask(self, token: str = TOKEN, **fields: Any) -> httpx.Response:
        return await self.post(msgspec.json.encode(DiffRequest(**fields)), token)

    async def post(self, content: bytes, token: str = TOKEN) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as client:
            headers = {"Authorization": f"Bearer {token}"}
            return await client.post("/api/v1/diff", content=content, headers=headers)

    async def told(self, **fields: Any) -> Any:
        reply = await self.ask(**fields)
        assert reply.status_code == 200, reply.text
        assert "hunter" not in reply.text
        check("diff", reply.json())
        return reply.json()


@pytest.fixture
async def api(tmp_path: Path, engines: Engines) -> AsyncIterator[Api]:
    seeds = await seed.full()
    api = Api(seeds, tmp_path, engines)
    api.live.accept(api.load(model("one")), StillClock().now())
    yield api
    await seeds.store.close()


async def test_the_catalog_in_force_is_compared_with_its_directory_as_it_stands_on_disk(api: Api) -> None:
    assert (await api.told())["differs"] is False
    api.load(model("one", command="b").replace("hunter2", "hunter3"))
    told = await api.told()
    assert (told["differs"], told["restarts"]) == (True, ["one"])
    assert [(row["path"], row["old"], row["new"], row["effect"]) for row in told["changes"]] == [
        ("profiles.p.options.command", '["a", "{port}"]', '["b", "{port}"]', "restart"),
        ("profiles.p.env.TOKEN", "(hidden)", "(hidden)", "restart"),
    ]


async def test_another_catalog_may_be_sent_and_be_either_side(api: Api) -> None:
    other = api.load(model("one") + "---\n" + model("two"))
    forth, back = await api.told(catalog=other), await api.told(catalog=other, reverse=True)
    assert [(row["model"], row["change"]) for row in forth["changes"]] == [("two", "added")]
    assert [(row["model"], row["change"]) for row in back["changes"]] == [("two", "removed")]
    assert (forth["old"], forth["new"]) == (back["new"], back["old"])
    assert (forth["restarts"], back["restarts"]) == ([], ["two"])


async def test_a_model_that_stands_under_anothers_name_is_told(api: Api) -> None:
    sent = msgspec.json.encode(DiffRequest(catalog=api.load(model("one"))))
    answer = await api.post(sent.replace(b'{"one":', b'{"two":'))
    assert answer.status_code == 400
    assert "the model 'one' stands under the name 'two'" in answer.json()["error"]["message"]


async def test_a_directory_that_holds_no_valid_catalog_is_told_with_every_problem(api: Api) -> None:
    (api.path / "b.yaml").write_text("apiVersion: llmgw/v1\nkind: Modell\n")
    told = await api.told()
    assert (told["valid"], told["invalid"], told["differs"]) == (False, "on disk", False)
    assert ("b.yaml", 2) in [(problem["file"], problem["line"]) for problem in told["problems"]]
    assert len(told["problems"]) > 1


async def test_without_a_catalog_in_force_there_is_nothing_to_compare(api: Api, tmp_path: Path) -> None:
    nothing = Comparing(live=LiveCatalog("x"), place=Directory(tmp_path), engines=api.engines)
    seeds = await seed.full()
    api.app = create_app(store=seeds.store, events=EventLog(), token=TOKEN, node=seed.NODE, compare=nothing.sides)
    reply = await api.ask()
    assert reply.status_code == 404
    assert "no catalog is in force yet" in reply.json()["error"]["message"]
    api.app = create_app(store=seeds.store, events=EventLog(), token=TOKEN, node=seed.NODE)
    assert (await api.ask()).status_code == 404
    await seeds.store.close()


async def test_the_token_is_needed(api: Api) -> None:
    assert (await api.ask(token="other")).status_code == 401
