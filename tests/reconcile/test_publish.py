"""A catalog of more models than one transaction takes is put in force whole, as far as anybody can see."""

import secrets
from collections.abc import Sequence
from contextlib import suppress

import pytest
from etcds import Etcd
from make import catalog as make_catalog
from make import model as make_model

from llmgw.catalog.spec import Catalog
from llmgw.errors import RetryableError
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ReplicaId, Revision
from llmgw.plan import Endpoint
from llmgw.reconcile.sync import publish
from llmgw.store import keys
from llmgw.store.address import Address
from llmgw.store.api import Delete, Expect, Put, Store
from llmgw.store.codec import decode, encode
from llmgw.store.etcd import EtcdStore
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied
from llmgw.units import Instant, Mono, Wall

NOW = Instant(Mono(1.0), Wall(1.0))
MANY = 250


def catalog(digest: str, names: Sequence[str]) -> Catalog:
    made = make_catalog(*(make_model(name) for name in names))
    return Catalog(revision=Revision(digest), digest=Digest(digest), models=made.models, cluster=made.cluster)


def names(prefix: str) -> list[str]:
    return [f"{prefix}{number:03}" for number in range(MANY)]


class Observed(MemoryStore):
    """After each transaction: the models of the catalog in force are all there. May fail at a given one."""

    def __init__(self, fail_at: int = -1) -> None:
        super().__init__()
        self.transactions = 0
        self.fail_at = fail_at
        self.sizes: dict[str, int] = {}

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        self.transactions += 1
        if self.transactions == self.fail_at:
            raise RetryableError("away")
        revision = await super().txn(writes, expect=expect)
        entry = await self.get(keys.APPLIED)
        if entry is not None:
            digest = decode(entry.value, Applied).digest
            assert len((await self.list(f"{keys.MODELS}{digest}/")).entries) == self.sizes[digest]
        return revision


def endpoint(model: str) -> Put:
    id = ReplicaId(f"r-{model}")
    value = Endpoint(
        id=id,
        model=ModelName(model),
        url="http://127.0.0.1:1",
        names=(model,),
        engine=EngineName("cpu"),
        pool="default",
    )
    return Put(keys.endpoint(NodeName("n1"), id), encode(value))


async def put_in_force_twice(store: Store) -> None:
    await publish(store, catalog("one", names("a")), NOW)
    for name in names("a"):
        await store.txn([endpoint(name)])
    await publish(store, catalog("two", [*names("b"), "a007"]), NOW)
    models = [entry.key for entry in (await store.list(keys.MODELS)).entries]
    assert models == [f"catalog/models/two/{name}" for name in sorted([*names("b"), "a007"])]
    assert [entry.key for entry in (await store.list(keys.ENDPOINTS)).entries] == ["endpoints/n1/r-a007"]
    assert len((await store.list(keys.HISTORY)).entries) == 2


async def test_models_come_before_the_catalog_they_belong_to_and_go_after_it() -> None:
    store = Observed()
    store.sizes = {"one": MANY, "two": MANY + 1}
    await put_in_force_twice(store)
    before = store.transactions
    await publish(store, catalog("two", [*names("b"), "a007"]), NOW)
    assert store.transactions - before <= 1, "what is there already is not written again"


async def test_a_store_that_goes_away_in_between_has_one_catalog_in_force_and_the_next_attempt_does_the_rest() -> None:
    for fail_at in range(1, 12):
        store = Observed()
        store.sizes = {"one": MANY, "two": MANY}
        await publish(store, catalog("one", names("a")), NOW)
        store.fail_at = store.transactions + fail_at
        with suppress(RetryableError):
            await publish(store, catalog("two", names("b")), NOW)
        store.fail_at = -1
        await publish(store, catalog("two", names("b")), NOW)
        entry = await store.get(keys.APPLIED)
        assert entry is not None
        assert decode(entry.value, Applied).digest == "two"
        assert len((await store.list(keys.MODELS)).entries) == MANY
        assert len((await store.list(keys.HISTORY)).entries) == 2


async def test_etcd_takes_it_too(shared_etcd: Etcd) -> None:
    store = EtcdStore(Address(targets=(shared_etcd.target,), prefix=f"/test/{secrets.token_hex(8)}/"))
    try:
        await put_in_force_twice(store)
    finally:
        await store.close()


@pytest.mark.parametrize("count", [0, 1])
async def test_a_small_catalog_is_one_transaction_of_models_and_one_of_the_rest(count: int) -> None:
    store = Observed()
    store.sizes = {"one": count}
    await publish(store, catalog("one", names("a")[:count]), NOW)
    assert store.transactions == 1 + count
