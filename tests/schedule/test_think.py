"""A pass as a whole: what only shows when its parts work together."""

from dataclasses import replace

from fleets import ON_DEMAND, Fleet, cpu_model, node
from make import NOW, spec_of

from llmgw.facts import Action, Failure, FailureKind, RecoveryRecord
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.plan import ModelState
from llmgw.schedule.think import Known, Thought, think


def thought(fleet: Fleet, **fields: object) -> Thought:
    return think(Known(catalog=fleet.catalog, observed=fleet.observed, asks=fleet.asks, **fields), NOW)  # type: ignore[arg-type]


def given_up(name: str) -> RecoveryRecord:
    return RecoveryRecord(
        model=ModelName(name),
        attempts=4,
        last=Failure(kind=FailureKind.OOM, reason="out of memory", at=NOW.wall),
        last_replica=ReplicaId("r"),
        retry_at=None,
        action=Action.QUARANTINE,
    )


def covered_fleet() -> Fleet:
    fleet = Fleet(node("a", host=16))
    main = fleet.has(cpu_model("main", fallback=ModelName("small")), 4)
    fleet.has(cpu_model("small", scaling=ON_DEMAND), 1)
    fleet.fields["recovery"] = {(spec_of(main), NodeName("a")): given_up("main")}
    return fleet


def test_a_model_that_gave_up_has_its_fallback_loaded_and_named() -> None:
    found = thought(covered_fleet())
    assert [launch.model for launch in found.plan.launches] == ["small"]
    assert {status.model: status.fallback for status in found.statuses} == {"main": "small", "small": None}


def test_a_fallback_serves_until_the_model_is_ready_though_its_failures_are_forgotten() -> None:
    fleet = covered_fleet()
    main = fleet.models[ModelName("main")]
    fleet.fields["recovery"] = {}
    assert {status.fallback for status in thought(fleet).statuses} == {None}
    kept = thought(fleet, covered=frozenset({main.name}))
    assert {status.model: status.fallback for status in kept.statuses}["main"] == "small"
    fleet.runs(main, "a")
    ready = thought(fleet, covered=frozenset({main.name}))
    assert {status.fallback for status in ready.statuses} == {None}


def test_one_that_gave_way_is_inactive_until_it_is_asked_for() -> None:
    fleet = Fleet(node("a", host=4))
    other = fleet.has(cpu_model("other", scaling=ON_DEMAND), 4)
    fleet.asked(other, 60, used=1)
    fleet.runs(other, "a")
    gone = fleet.has(cpu_model("gone", scaling=ON_DEMAND), 4)
    fleet.asked(gone, 400, used=300)
    states = {status.model: status.state for status in thought(fleet).statuses}
    assert states == {"gone": ModelState.INACTIVE, "other": ModelState.READY}
    fleet.asks[gone.name] = replace(fleet.asks[gone.name], asked=NOW.wall)
    assert {status.model: status.state for status in thought(fleet).statuses}["gone"] is ModelState.LOADING
