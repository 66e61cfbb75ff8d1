"""A store that is away, or whose catalog is replaced between two reads, is nothing that clients notice."""

import asyncio
from dataclasses import replace

import pytest
from gateway_rig import PATIENCE, Rig, applied, echo, get, model, until

from llmgw.errors import RetryableError
from llmgw.gateway import view
from llmgw.ids import ModelName
from llmgw.store import codec, keys
from llmgw.store.api import Delete, Entry, Put, Snapshot
from llmgw.store.contents import contents_of
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied


class Away(MemoryStore):
    """Answers no read while `away`."""

    away = False
    refused = 0

    async def get(self, key: str) -> Entry | None:
        self._look()
        return await super().get(key)

    async def list(self, prefix: str) -> Snapshot:
        self._look()
        return await super().list(prefix)

    def _look(self) -> None:
        if self.away:
            self.refused += 1
            raise RetryableError("no etcd answers")


async def test_while_the_store_is_away_the_gateway_serves_and_then_it_takes_in_what_changed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "RETRY", 0.01)
    rig.store.__class__ = Away
    assert isinstance(rig.store, Away)
    await rig.serving(echo)
    rig.store.away = True
    new = model("new")
    await rig.publish_quietly(new)
    await until(lambda: rig.store.refused > 3, "reads are tried again")
    assert (await rig.post({"model": "m"})).status == 200
    assert (await rig.post({"model": "new"})).status == 404
    rig.store.away = False
    await rig.settle()
    assert (await rig.post({"model": "m"})).status == 200
    assert {one["id"] for one in (await rig.ask(get("/v1/models"))).json["data"]} == {"m", "new"}


class Replaced(MemoryStore):
    """As if others wrote meanwhile: right after the catalog in force was read, another is put in force."""

    hurry = False

    async def get(self, key: str) -> Entry | None:
        found = await super().get(key)
        if key == keys.APPLIED and self.hurry:
            self.hurry = False
            before = [e.key for prefix in (keys.PARTS, keys.SPECS) for e in (await self.list(prefix)).entries]
            other = contents_of({name: model(name, description="other") for name in (ModelName("m"), ModelName("n"))})
            await self.txn([Put(key, value) for key, value in other.values.items()])
            assert found is not None
            value = codec.decode(found.value, Applied)
            await self.put(keys.APPLIED, codec.encode(replace(value, parts=other.parts)))
            await self.txn([Delete(key) for key in before])
        return found


async def test_a_catalog_that_is_replaced_between_two_reads_is_not_taken_for_an_empty_one(rig: Rig) -> None:
    rig.store.__class__ = Replaced
    assert isinstance(rig.store, Replaced)
    await rig.serving(echo)
    statuses: list[int] = []

    async def ask() -> None:
        while len(statuses) < 200:
            statuses.append((await rig.post({"model": "m"})).status)

    asking = asyncio.create_task(ask())
    rig.store.hurry = True
    await rig.store.txn([Put("explain/none", b"{}")])  # something is to be read
    await until(lambda: not rig.store.hurry, "it was replaced")
    await asking
    assert set(statuses) == {200}


async def test_a_catalog_that_is_not_all_there_yet_is_served_once_it_is(rig: Rig) -> None:
    """As after a restart of the embedded store: `catalog/applied` is there, and does not change."""
    contents = contents_of({(spec := model("m")).name: spec})
    await rig.store.put(keys.APPLIED, codec.encode(replace(applied(), parts=contents.parts)))
    await rig.settle()
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.code) == (503, "not_ready")
    for key, value in contents.values.items():
        await rig.store.put(key, value)
    await until_listed(rig, "m")


async def test_a_catalog_of_which_something_is_missing_leaves_the_one_before_in_service(rig: Rig) -> None:
    await rig.serving(echo)
    contents = contents_of({(spec := model("n")).name: spec})
    spec_key, part_key = contents.values
    await rig.store.put(part_key, contents.values[part_key])
    await rig.store.put(keys.APPLIED, codec.encode(replace(applied(7), parts=contents.parts)))
    await rig.settle()
    assert (await rig.post({"model": "m"})).status == 200
    assert (await rig.post({"model": "n"})).status == 404
    await rig.store.put(spec_key, contents.values[spec_key])
    await rig.store.put(keys.APPLIED, codec.encode(replace(applied(8), parts=contents.parts)))
    await until_listed(rig, "n")


async def until_listed(rig: Rig, name: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while [one["id"] for one in (await rig.ask(get("/v1/models"))).json.get("data", ())] != [name]:
            await asyncio.sleep(0.01)
