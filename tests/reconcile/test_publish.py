"""A catalog of more models than one transaction takes is put in force whole, as far as anybody can see, and costs what
changed."""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum

import pytest
from etcds import Etcd
from hypothesis import given, settings
from hypothesis import strategies as st
from make import catalog as make_catalog
from make import model as make_model

from llmgw.catalog.spec import Catalog, ModelSpec
from llmgw.errors import RetryableError, StaleRevision
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ReplicaId, Revision
from llmgw.plan import Endpoint
from llmgw.reconcile.publishing import LOOK_EVERY, Publisher, publish
from llmgw.store import contents, keys
from llmgw.store.address import Address
from llmgw.store.api import Delete, Entry, Expect, Put, Snapshot, Store
from llmgw.store.codec import decode, encode
from llmgw.store.contents import Catalogs, contents_of
from llmgw.store.etcd import EtcdStore
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied
from llmgw.units import Instant, Mono, Wall

NOW = Instant(Mono(1.0), Wall(1.0))
MANY = 250


def catalog(digest: str, names: Sequence[str]) -> Catalog:
    made = make_catalog(*(make_model(name) for name in names))
    return Catalog(revision=Revision(digest), digest=Digest(digest), models=made.models, cluster=made.cluster)


def changed(before: Catalog, digest: str, name: str) -> Catalog:
    """One model's description is another."""
    one = replace(before.models[ModelName(name)], description=f"as of {digest}")
    return replace(before, revision=Revision(digest), digest=Digest(digest), models={**before.models, one.name: one})


def names(prefix: str, count: int = MANY) -> list[str]:
    return [f"{prefix}{number:05}" for number in range(count)]


class Observed(MemoryStore):
    """After each transaction: the catalog in force can be read, whole. May fail at a given one."""

    def __init__(self, fail_at: int = -1) -> None:
        super().__init__()
        self.transactions = 0
        self.writes: list[Put | Delete] = []
        self.listed: list[str] = []
        self.fail_at = fail_at
        self.sizes: dict[str, int] = {}

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        self.transactions += 1
        if self.transactions == self.fail_at:
            raise RetryableError("away")
        revision = await super().txn(writes, expect=expect)
        self.writes += writes
        if await self.get(keys.APPLIED) is not None and self.sizes:
            found = await in_force(self)
            assert len(found) == self.sizes[(await applied(self)).digest]
        return revision

    async def list(self, prefix: str) -> Snapshot:
        self.listed.append(prefix)
        return await super().list(prefix)


async def applied(store: Store) -> Applied:
    entry = await store.get(keys.APPLIED)
    assert entry is not None, "a catalog is in force"
    return decode(entry.value, Applied)


async def in_force(store: Store) -> dict[ModelName, ModelSpec]:
    found = await Catalogs().in_force(store)
    assert found is not None, "a catalog is in force"
    return dict(found.check().models)


async def stored(store: Store) -> set[str]:
    prefixes = (keys.SPECS, keys.PARTS, keys.MODELS)
    return {entry.key for prefix in prefixes for entry in (await store.list(prefix)).entries}


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
    publisher = Publisher(store)
    one, two = catalog("one", names("a")), catalog("two", [*names("b"), "a00007"])
    await publisher.publish(one, NOW)
    for name in names("a"):
        await store.txn([endpoint(name)])
    await publisher.publish(two, NOW)
    assert await in_force(store) == two.models
    assert await stored(store) == {*contents_of(one.models).values, *contents_of(two.models).values}
    assert [entry.key for entry in (await store.list(keys.ENDPOINTS)).entries] == ["endpoints/n1/r-a00007"]
    assert len((await store.list(keys.HISTORY)).entries) == 2


async def test_models_come_before_the_catalog_they_belong_to_and_go_after_it() -> None:
    store = Observed()
    store.sizes = {"one": MANY, "two": MANY + 1}
    await put_in_force_twice(store)
    store.writes = []
    await publish(store, catalog("two", [*names("b"), "a00007"]), NOW)
    assert [write.key for write in store.writes if isinstance(write, Put)] == [keys.APPLIED], "all else was there"


async def test_a_store_that_goes_away_in_between_has_one_catalog_in_force_and_the_next_attempt_does_the_rest() -> None:
    for fail_at in range(1, 12):
        store = Observed()
        store.sizes = {"one": MANY, "two": MANY}
        publisher = Publisher(store)
        await publisher.publish(catalog("one", names("a")), NOW)
        store.fail_at = store.transactions + fail_at
        with suppress(RetryableError):
            await publisher.publish(catalog("two", names("b")), NOW)
        store.fail_at = -1
        # By the same controller, or by one that knows nothing of the attempt.
        await (publisher if fail_at % 2 else Publisher(store)).publish(catalog("two", names("b")), NOW)
        assert (await applied(store)).digest == "two"
        assert len(await in_force(store)) == MANY
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


@pytest.mark.parametrize("models", [100, 1000, 3000])
async def test_one_changed_model_is_a_handful_of_writes_however_many_there_are(models: int) -> None:
    store = Observed()
    publisher = Publisher(store)
    found = catalog("c0", names("a", models))
    await publisher.publish(found, NOW)
    for number in range(1, 4):
        store.writes, store.listed = [], []
        found = changed(found, f"c{number}", f"a{number * 7:05}")
        await publisher.publish(found, NOW, before=found)
        put = [write.key.partition("/")[2].partition("/")[0] for write in store.writes if isinstance(write, Put)]
        assert sorted(put) == ["applied", "history", "parts", "specs"]
        assert len(store.writes) - len(put) <= 2, "what the catalog before the last one had of its own goes"
        assert not {keys.SPECS, keys.PARTS, keys.HISTORY} & set(store.listed), "it is known what is there"
    assert await in_force(store) == found.models


async def test_what_neither_the_catalog_in_force_nor_the_one_before_it_needs_is_removed() -> None:
    store, publisher = Observed(), Publisher(Observed())
    publisher = Publisher(store)
    catalogs = [catalog("c0", names("a", 300))]
    for number in range(1, 6):
        catalogs.append(changed(catalogs[-1], f"c{number}", "a00007"))
    for each in catalogs:
        await publisher.publish(each, NOW)
    needed = [set(contents_of(each.models).values) for each in catalogs[-2:]]
    assert await stored(store) == needed[0] | needed[1]
    cluster = replace(catalogs[-1].cluster, protect=True)
    await publisher.publish(replace(catalogs[-1], digest=Digest("other"), cluster=cluster), NOW)
    assert await stored(store) == needed[0] | needed[1], "the models are the same as before, so nothing went"
    await publisher.publish(catalogs[-2], NOW)
    assert await in_force(store) == catalogs[-2].models


async def test_a_new_controller_keeps_what_was_in_force_and_removes_what_nobody_needs() -> None:
    store = Observed()
    first = catalog("one", names("a", 20))
    await publish(store, first, NOW)
    left = contents_of(catalog("never", names("x", 5)).models).values
    await store.txn([Put(key, value) for key, value in left.items()])  # by one that died on the way
    second = changed(first, "two", "a00003")
    await publish(store, second, NOW)
    assert await stored(store) == {*contents_of(first.models).values, *contents_of(second.models).values}


async def test_a_reader_between_two_publications_finds_one_of_the_catalogs_whole() -> None:
    """It reads `catalog/applied`, then another catalog, or a third, is put in force, then it reads the rest."""
    for publications in (1, 2, 3):
        store = Overtaken()
        publisher = Publisher(store)
        found = catalog("c0", names("a", 300))
        await publisher.publish(found, NOW)
        coming = []
        for number in range(1, publications + 1):
            found = changed(found, f"c{number}", "a00007")
            coming.append(found)
        store.overtake = [(publisher, each) for each in coming]
        read = await Catalogs().in_force(store)
        assert read is not None
        assert (
            read.models == {c.digest: c.models for c in (catalog("c0", names("a", 300)), *coming)}[read.applied.digest]
        )
        assert (read.applied.digest == "c0") == (publications == 1), "one publication leaves what a reader needs"


class Overtaken(MemoryStore):
    """Right after somebody read `catalog/applied`, others are put in force."""

    overtake: Sequence[tuple[Publisher, Catalog]] = ()

    async def get(self, key: str) -> Entry | None:
        found = await super().get(key)
        if key == keys.APPLIED:
            due, self.overtake = self.overtake, ()
            for publisher, each in due:
                await publisher.publish(each, NOW)
        return found


async def test_what_an_earlier_llmgw_put_in_force_is_read_and_replaced() -> None:
    store = Observed()
    found = catalog("one", names("a", 3))
    for name, model in found.models.items():
        await store.put(keys.model(found.digest, name), encode(model))
    await store.put(keys.APPLIED, encode(Applied(revision=found.revision, digest=found.digest, at=Wall(1.0))))
    assert await in_force(store) == found.models
    await publish(store, found, NOW)
    assert await in_force(store) == found.models
    assert await stored(store) == set(contents_of(found.models).values), "nothing of the former form is left"


async def test_what_was_deleted_or_damaged_by_hand_is_written_again() -> None:
    store = Observed()
    publisher, found = Publisher(store), catalog("one", names("a", 300))
    await publisher.publish(found, NOW)
    spec, part = (
        next(key for key in await stored(store) if "a00009" in key),
        keys.part(contents_of(found.models).parts[0]),
    )
    await store.delete(spec)
    await store.put(part, b"{}")
    with pytest.raises(contents.NotWhole, match="one"):
        await Catalogs().in_force(store)
    later = Instant(Mono(NOW.mono + LOOK_EVERY + 1), NOW.wall)
    await publisher.publish(found, later)
    assert await in_force(store) == found.models
    await store.delete(spec)
    await publish(store, found, NOW)  # by a controller that has just begun
    assert await in_force(store) == found.models


class Deed(StrEnum):
    PUBLISH = "publish"
    BREAK_OFF = "break off"  #: the store goes away on the way
    BEGIN_ANEW = "begin anew"  #: another controller
    RESTART = "restart"  #: of the embedded store: only what is durable is left


deeds = st.lists(
    st.tuples(st.sampled_from(Deed), st.sets(st.integers(0, 5), max_size=4), st.integers(1, 3)), max_size=12
)


@settings(max_examples=40)
@given(deeds)
async def test_whatever_happens_what_was_put_in_force_is_whole_and_little_else_is_there(
    happens: list[tuple[Deed, set[int], int]],
) -> None:
    store = Observed()
    publisher, coming = Publisher(store), [catalog("c0", ["m0"])]
    await publisher.publish(coming[0], NOW)
    for number, (deed, wanted, after) in enumerate(happens, start=1):
        one = catalog(f"c{number}", [f"m{each}" for each in sorted(wanted)])
        match deed:
            case Deed.PUBLISH:
                await publisher.publish(one, NOW)
                coming.append(one)
            case Deed.BREAK_OFF:
                store.fail_at = store.transactions + after
                with suppress(RetryableError):
                    await publisher.publish(one, NOW)
                store.fail_at = -1
                coming.append(one)
            case Deed.BEGIN_ANEW:
                publisher = Publisher(store)
            case Deed.RESTART:
                durable = [Put(entry.key, entry.value) for entry in (await store.list(keys.APPLIED)).entries]
                store = Observed()
                publisher = Publisher(store)
                await store.txn(durable)
                await publisher.publish(coming[-1], NOW)
        found = {each.digest: each.models for each in coming}[(await applied(store)).digest]
        assert await in_force(store) == found, "also where the next one was broken off"
        await publisher.publish(coming[-1], NOW)
        assert await in_force(store) == coming[-1].models
        assert set(contents_of(coming[-1].models).values) <= await stored(store)
        others = [set(contents_of(each.models).values) for each in coming]
        there = await stored(store)
        assert any(there <= others[-1] | each for each in others), "and one more catalog, at most"


async def test_one_who_leads_no_more_changes_nothing() -> None:
    store = Deposed()
    publisher, found = Publisher(store), catalog("one", names("a", 300))
    await publisher.publish(found, NOW)
    before = await stored(store), await applied(store)
    store.deposed = True
    with pytest.raises(StaleRevision):
        await publisher.publish(changed(found, "two", "a00001"), NOW)
    assert (await stored(store), await applied(store)) == before


class Deposed(Observed):
    deposed = False

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        if self.deposed:
            raise StaleRevision("another leads")
        return await super().txn(writes, expect=expect)
