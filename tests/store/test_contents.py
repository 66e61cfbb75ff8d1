"""Catalogs by their content: equal ones are the same keys, and what changed is all that is written and read."""

import weakref
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import model as make_model

from llmgw.catalog.spec import ModelSpec
from llmgw.errors import NewerFormat, TerminalError
from llmgw.ids import Digest, ModelName, Revision
from llmgw.store import keys
from llmgw.store.api import LARGEST, Entry, Put, Snapshot
from llmgw.store.codec import decode, encode
from llmgw.store.contents import FEW, LONGEST, Catalogs, Contents, NotWhole, content_of, contents_of
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied, CatalogPart
from llmgw.units import Wall

Models = Mapping[ModelName, ModelSpec]


def models(count: int, *, first: int = 0) -> dict[ModelName, ModelSpec]:
    return {spec.name: spec for spec in (make_model(f"m{number:06}") for number in range(first, first + count))}


def described(found: Models, number: int, text: str) -> dict[ModelName, ModelSpec]:
    name = ModelName(f"m{number:06}")
    return {**found, name: replace(found[name], description=text)}


def parts(contents: Contents) -> list[Mapping[ModelName, object]]:
    return [decode(contents.values[keys.part(part)], CatalogPart).models for part in contents.parts]


class Counted(MemoryStore):
    """What was read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[str] = []
        self.listed: list[str] = []

    async def get(self, key: str) -> Entry | None:
        self.got.append(key)
        return await super().get(key)

    async def list(self, prefix: str) -> Snapshot:
        self.listed.append(prefix)
        return await super().list(prefix)


async def put_in_force(store: MemoryStore, found: Models, digest: str = "d") -> Contents:
    contents = contents_of(found)
    for key, value in contents.values.items():
        await store.put(key, value)
    applied = Applied(revision=Revision("r"), digest=Digest(digest), at=Wall(1.0), parts=contents.parts)
    await store.put(keys.APPLIED, encode(applied))
    return contents


# -- what is written


@settings(max_examples=20)
@given(st.permutations(range(40)))
def test_equal_models_are_equal_contents_in_whatever_order_they_come(order: list[int]) -> None:
    found = models(40)
    shuffled = {name: found[name] for name in (list(found)[number] for number in order)}
    assert contents_of(shuffled) == contents_of(found)


@settings(max_examples=20)
@given(st.sets(st.integers(0, 400)), st.integers(0, 400))
def test_one_model_more_or_less_changes_two_parts_at_most(numbers: set[int], other: int) -> None:
    found = models(401)
    few = {name: spec for number, (name, spec) in enumerate(found.items()) if number in numbers | {other}}
    fewer = {name: spec for name, spec in few.items() if name != f"m{other:06}"}
    before, after = contents_of(few), contents_of(fewer)
    assert len(set(before.parts) - set(after.parts)) <= 2
    assert len(set(after.parts) - set(before.parts)) <= 2
    assert [name for part in parts(after) for name in part] == sorted(fewer), "each is in one part, in order"


def test_a_changed_model_is_one_other_spec_and_one_other_part() -> None:
    before, after = contents_of(models(2000)), contents_of(described(models(2000), 700, "other"))
    assert len(after.values.keys() - before.values.keys()) == 2
    assert len(before.values.keys() - after.values.keys()) == 2


def test_parts_are_neither_few_nor_large() -> None:
    found = contents_of(models(5000))
    assert 20 <= len(found.parts) <= 80
    sizes = [len(part) for part in parts(found)]
    assert max(sizes) <= LONGEST
    assert sum(sizes) == 5000


def test_a_part_of_the_longest_names_fits_into_a_value() -> None:
    part = CatalogPart(models={ModelName(f"{number:063}"): content_of(b"") for number in range(LONGEST)})
    assert len(encode(part)) < LARGEST / 4


def test_specs_come_before_the_parts_that_name_them() -> None:
    order = [key.startswith(keys.PARTS) for key in contents_of(models(300)).values]
    assert order == sorted(order)


# -- what is read


async def test_what_was_put_in_force_is_read_in_name_order() -> None:
    store = Counted()
    found = models(300)
    await put_in_force(store, dict(reversed(found.items())))
    read = await Catalogs().in_force(store)
    assert read is not None
    assert list(read.models.items()) == list(found.items())
    assert len(store.got) + len(store.listed) < FEW, "many are read at one go"


async def test_nothing_is_in_force_in_an_empty_store_and_an_empty_catalog_may_be() -> None:
    store = Counted()
    assert await Catalogs().in_force(store) is None
    await put_in_force(store, {})
    read = await Catalogs().in_force(store)
    assert read is not None
    assert read.models == {}


@pytest.mark.parametrize("count", [100, 1000, 3000])
async def test_of_a_catalog_in_which_one_model_changed_three_values_are_read(count: int) -> None:
    store, catalogs = Counted(), Catalogs()
    found = models(count)
    await put_in_force(store, found)
    before = await catalogs.in_force(store)
    await put_in_force(store, described(found, 70, "other"), "e")
    store.got, store.listed = [], []
    after = await catalogs.in_force(store)
    assert [key.rsplit("/", 1)[0] for key in store.got] == ["catalog", "catalog/parts", "catalog/specs/m000070"]
    assert store.listed == []
    assert before is not None
    assert after is not None
    assert [name for name in found if before.models[name] is not after.models[name]] == ["m000070"]


async def test_as_long_as_the_models_are_the_same_they_are_one_object() -> None:
    store, catalogs = Counted(), Catalogs()
    await put_in_force(store, models(5))
    first = await catalogs.in_force(store)
    store.got = []
    await put_in_force(store, models(5), "only the settings changed")
    store.got = []
    second = await catalogs.in_force(store)
    assert first is not None
    assert second is not None
    assert first.models is second.models
    assert store.got == [keys.APPLIED]


async def test_readers_share_what_is_in_force_and_nobody_keeps_what_was() -> None:
    store, readers = MemoryStore(), [Catalogs(), Catalogs()]
    seen: list[weakref.ref[ModelSpec]] = []
    for number in range(20):
        await put_in_force(store, described(models(3), 1, f"text {number}"))
        first, second = [await reader.in_force(store) for reader in readers]
        assert first is not None
        assert second is not None
        for name in first.models:
            assert first.models[name] is second.models[name]
        seen += [weakref.ref(model) for model in first.models.values()]
        del first, second
    assert len({id(model) for one in seen if (model := one()) is not None}) == 3


async def test_a_reader_of_two_stores_tells_each_ones_models() -> None:
    one, other, catalogs = Counted(), Counted(), Catalogs()
    await put_in_force(one, models(50))
    await put_in_force(other, models(50, first=30))
    for _ in range(2):
        for store, first in ((one, 0), (other, 30)):
            read = await catalogs.in_force(store)
            assert read is not None
            assert read.models == models(50, first=first)


@pytest.mark.parametrize("prefix", [keys.SPECS, keys.PARTS])
@pytest.mark.parametrize("count", [5, 300])
@pytest.mark.parametrize("damage", [None, b'{"v": 1}'])
async def test_a_catalog_of_which_something_is_missing_or_damaged_is_not_whole(
    prefix: str, count: int, damage: bytes | None
) -> None:
    store = Counted()
    contents = await put_in_force(store, models(count))
    key = [key for key in contents.values if key.startswith(prefix)][-1]
    await (store.delete(key) if damage is None else store.put(key, damage))
    with pytest.raises(NotWhole, match="catalog r"):
        await Catalogs().in_force(store)
    await store.put(key, contents.values[key])
    assert await Catalogs().in_force(store) is not None


async def test_a_model_of_a_newer_llmgw_is_told_and_the_others_are_read() -> None:
    store = Counted()
    raw = {ModelName("a"): b'{"v":99}', ModelName("b"): encode(make_model("b"))}
    part = encode(CatalogPart(models={name: content_of(each) for name, each in raw.items()}))
    applied = Applied(revision=Revision("r"), digest=Digest("d"), at=Wall(1.0), parts=(content_of(part),))
    await store.txn([Put(keys.spec(name, content_of(each)), each) for name, each in raw.items()])
    await store.txn([Put(keys.part(content_of(part)), part), Put(keys.APPLIED, encode(applied))])
    read = await Catalogs().in_force(store)
    assert read is not None
    assert list(read.models) == ["b"]
    assert isinstance(read.unreadable[ModelName("a")], NewerFormat)
    with pytest.raises(NewerFormat, match="catalog/specs/a/"):
        read.check()


async def test_catalogs_as_an_earlier_llmgw_kept_them_are_read() -> None:
    store = Counted()
    for name, spec in models(3).items():
        await store.put(keys.model(Digest("d"), name), encode(spec))
        await store.put(keys.model(Digest("other"), name), encode(replace(spec, description="not in force")))
    await store.put(keys.APPLIED, encode(Applied(revision=Revision("r"), digest=Digest("d"), at=Wall(1.0))))
    read = await Catalogs().in_force(store)
    assert read is not None
    assert read.models == models(3)


async def test_a_catalog_in_force_that_cannot_be_read_is_an_error() -> None:
    store = Counted()
    await store.put(keys.APPLIED, b"{")
    with pytest.raises(TerminalError, match="catalog/applied"):
        await Catalogs().in_force(store)
