"""What an agent takes from the catalog in force: of a whole one alone, and anew only what changed of it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from make import catalog as make_catalog
from make import model as make_model

from llmgw.agent.wanted import Wanted
from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, WeightsSpec
from llmgw.errors import TerminalError
from llmgw.ids import Digest, EngineName, ModelName, ProfileName, Revision
from llmgw.plan import Rollout
from llmgw.reconcile.publishing import Publisher
from llmgw.store import keys
from llmgw.store.api import Change
from llmgw.store.codec import encode
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied
from llmgw.units import Instant, Mono, Wall

NOW = Instant(Mono(1.0), Wall(1.0))


def model(name: str, source: str) -> ModelSpec:
    weights = WeightsSpec(source=source)
    return replace(
        make_model(name),
        profiles=(ProfileSpec(name=ProfileName("p"), engine=EngineName("e"), weights=weights),),
    )


def catalog(digest: str, sources: Mapping[str, str]) -> Catalog:
    made = make_catalog(*(model(name, source) for name, source in sources.items()))
    return replace(made, revision=Revision(digest), digest=Digest(digest))


def many(count: int, **others: str) -> dict[str, str]:
    return {f"m{number:05}": f"/srv/{number}" for number in range(count)} | others


def sources(wanted: Wanted) -> set[str]:
    return {spec.source for spec in wanted.specs()}


class Told:
    """An agent's side of a store: it hears each change in turn."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.publisher = Publisher(self.store)
        self.wanted = Wanted()
        self._heard = 0

    async def changes(self) -> list[Change]:
        changes: list[Change] = []
        async for batch in self.store.watch(keys.CATALOG, from_revision=self._heard):
            changes += batch
            break
        self._heard = changes[-1].revision
        return changes

    async def hear(self) -> int:
        changes = await self.changes()
        for change in changes:
            self.wanted.changed(change.key, change.value)
        return len(changes)


async def test_until_all_models_are_known_what_was_wanted_before_goes_on() -> None:
    told = Told()
    await told.publisher.publish(catalog("one", many(200)), NOW)
    await told.hear()
    assert (told.wanted.applied, sources(told.wanted)) == ("one", set(many(200).values()))
    await told.publisher.publish(catalog("two", many(150, m00007="/srv/other", new="/srv/new")), NOW)
    changes = await told.changes()
    seen = set()
    for change in changes:
        told.wanted.changed(change.key, change.value)
        seen.add((told.wanted.applied, frozenset(sources(told.wanted))))
    two = frozenset(many(150, m00007="/srv/other", new="/srv/new").values())
    assert seen == {("one", frozenset(many(200).values())), ("two", two)}


async def test_in_whatever_order_word_comes_only_a_whole_catalog_counts() -> None:
    told = Told()
    await told.publisher.publish(catalog("one", many(200)), NOW)
    changes = sorted(await told.changes(), key=lambda change: change.key)  # as a list of the store has them
    assert changes[0].key == keys.APPLIED
    for change in changes:
        assert told.wanted.specs() == ()
        assert told.wanted.applied is None
        told.wanted.changed(change.key, change.value)
    assert (told.wanted.applied, sources(told.wanted)) == ("one", set(many(200).values()))


@pytest.mark.parametrize("count", [100, 1000])
async def test_one_changed_model_is_a_handful_of_changes_to_hear(count: int) -> None:
    told = Told()
    await told.publisher.publish(catalog("c0", many(count)), NOW)
    await told.hear()
    for number in range(1, 4):
        changed = many(count, m00007=f"/srv/other-{number}")
        await told.publisher.publish(catalog(f"c{number}", changed), NOW)
        assert await told.hear() <= 8, "each is decoded once, if at all"
        assert sources(told.wanted) == set(changed.values())


async def test_the_same_files_are_the_same_object_until_one_changes() -> None:
    told = Told()
    await told.publisher.publish(catalog("one", many(20)), NOW)
    await told.hear()
    before = told.wanted.specs()
    assert told.wanted.specs() is before
    rollout = Rollout(
        good=model("m00001", "/srv/good").profiles, good_revision=Revision("r0"), wanted="w",
        revision=Revision("r1"), at=Wall(1.0),
    )  # fmt: skip
    told.wanted.changed(keys.rollout(ModelName("m00001")), encode(rollout))
    assert sources(told.wanted) == {*many(20).values(), "/srv/good"}
    told.wanted.changed(keys.rollout(ModelName("m00001")), None)
    assert told.wanted.specs() == before


async def test_a_catalog_that_ceases_to_be_in_force_wants_nothing() -> None:
    told = Told()
    await told.publisher.publish(catalog("one", many(3)), NOW)
    await told.hear()
    told.wanted.changed(keys.APPLIED, None)
    assert (told.wanted.applied, told.wanted.specs()) == (None, ())


async def test_a_value_that_cannot_be_read_changes_nothing() -> None:
    told = Told()
    await told.publisher.publish(catalog("one", many(3)), NOW)
    await told.hear()
    for key in (keys.APPLIED, f"{keys.PARTS}x", f"{keys.SPECS}m/x"):
        with pytest.raises(TerminalError):
            told.wanted.changed(key, b'{"v":99}')
    assert (told.wanted.applied, sources(told.wanted)) == ("one", set(many(3).values()))


def test_models_of_an_earlier_llmgw_lie_under_the_digest() -> None:
    wanted = Wanted()
    for digest, source in (("d1", "/srv/old"), ("d2", "/srv/new")):
        wanted.changed(keys.model(Digest(digest), ModelName("m")), encode(model("m", source)))
    applied = Applied(revision=Revision("r"), digest=Digest("d2"), at=Wall(1.0))
    wanted.changed(keys.APPLIED, encode(applied))
    assert (wanted.applied, sources(wanted)) == ("d2", {"/srv/new"})
