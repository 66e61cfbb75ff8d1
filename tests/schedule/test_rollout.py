"""A model's way to a new spec, and back where that fails."""

from dataclasses import replace

from make import NOW, catalog, failed, model, observed, replica, spec_of

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec
from llmgw.facts import Action, Failure, FailureKind, Phase, RecoveryRecord, ReplicaFact
from llmgw.ids import EngineName, ModelName, ProfileName, ReplicaId, Revision
from llmgw.plan import ModelState, Rollout
from llmgw.schedule import rollout
from llmgw.schedule.think import Known, Thought, think
from llmgw.units import Wall

NAME = ModelName("ant")
OLD, NEW, NEWER = (model("ant", context=context) for context in (4096, 8192, 2048))
SIZES = [(each, 4.0) for each in (OLD, NEW, NEWER)]
R1, R2, R3 = (Revision(name) for name in ("r1", "r2", "r3"))


def at(revision: Revision, *models: ModelSpec) -> Catalog:
    return replace(catalog(*models), revision=revision)


def begun(**fields: object) -> Rollout:
    found = rollout.begin(at(R1, OLD), at(R2, NEW), {}, {NAME}, NOW)[NAME]
    assert found is not None
    return replace(found, **fields)  # type: ignore[arg-type]


def record(action: Action = Action.QUARANTINE, attempts: int = 4) -> RecoveryRecord:
    return RecoveryRecord(
        model=NAME, attempts=attempts, last=Failure(kind=FailureKind.CRASH, reason="it broke", at=NOW.wall),
        last_replica=ReplicaId("x"), retry_at=Wall(NOW.wall + 60), action=action,
    )  # fmt: skip


def thought(current: Catalog, one: Rollout, *facts: ReplicaFact, new: RecoveryRecord | None = None) -> Thought:
    """As a pass has it: the effective catalog, and the rollouts that concern it. `new`: failures of the new spec."""
    rollouts = {NAME: one}
    effective = rollout.effective(current, rollouts)
    records = {} if new is None else {spec_of(NEW): new}
    seen = observed(*facts, sizes=SIZES, recovery=records)
    return think(Known(catalog=effective, observed=seen, rollouts=rollouts), NOW)


def test_a_rollout_begins_where_a_model_that_served_is_launched_otherwise() -> None:
    found = begun()
    assert (found.good, found.good_revision, found.revision) == (OLD.profiles, R1, R2)
    assert rollout.begin(at(R1, OLD), at(R2, NEW), {}, set(), NOW) == {}, "it never served"
    described = replace(OLD, description="other", priority=3)
    assert rollout.begin(at(R1, OLD), at(R2, described), {}, {NAME}, NOW) == {}, "nothing of it is launched anew"
    assert rollout.begin(at(R1), at(R2, NEW), {}, {NAME}, NOW) == {}, "it is new"


def test_a_newer_revision_takes_the_place_of_a_rollout_and_what_served_before_stays_what_it_returns_to() -> None:
    failing = begun(failed=NOW.wall, why="it broke")
    newer = rollout.begin(at(R2, NEW), at(R3, NEWER), {NAME: failing}, {NAME}, NOW)[NAME]
    assert newer is not None
    assert (newer.good, newer.good_revision, newer.revision, newer.failed) == (OLD.profiles, R1, R3, None)
    ready = rollout.begin(at(R2, NEW), at(R3, NEWER), {NAME: begun(ready=True)}, {NAME}, NOW)[NAME]
    assert ready is not None
    assert (ready.good, ready.good_revision) == (NEW.profiles, R2), "the one between was ready too"


def test_going_back_to_what_served_or_away_altogether_ends_a_rollout() -> None:
    failing = begun(failed=NOW.wall)
    assert rollout.begin(at(R2, NEW), at(R3, OLD), {NAME: failing}, {NAME}, NOW) == {NAME: None}
    assert rollout.begin(at(R2, NEW), at(R3), {NAME: failing}, {NAME}, NOW) == {NAME: None}
    assert rollout.begin(at(R2, NEW), at(R3, NEW), {NAME: failing}, {NAME}, NOW) == {}, "the same again changes nothing"


def test_while_the_new_spec_may_yet_come_up_nothing_is_decided() -> None:
    for fact in (replica(NEW, phase=Phase.STARTING), replica(NEW, phase=Phase.FETCHING)):
        assert thought(at(R2, NEW), begun(), fact).rollouts == {}
    assert thought(at(R2, NEW), begun()).rollouts == {}, "it is being launched"
    backing_off = record(Action.RETRY, attempts=2)
    assert thought(at(R2, NEW), begun(), new=backing_off).rollouts == {}


def test_a_spec_that_is_ready_has_served_and_one_that_proved_stable_is_the_good_one() -> None:
    fresh = replica(NEW, since=NOW.wall)
    assert thought(at(R2, NEW), begun(), fresh).rollouts == {NAME: begun(ready=True)}
    stable = replica(NEW, since=Wall(NOW.wall - 301))
    assert thought(at(R2, NEW), begun(ready=True), stable).rollouts == {NAME: None}


def test_a_spec_that_breaks_after_it_was_ready_has_not_served() -> None:
    found = thought(at(R2, NEW), begun(ready=True), new=record(Action.RETRY, attempts=1))
    assert found.rollouts == {NAME: begun(ready=False)}


def test_in_quarantine_the_model_alone_returns_to_what_served() -> None:
    other = model("bee")
    current, old = at(R2, NEW, other), replica(OLD, "old")
    failing = thought(current, begun(), old, failed(NEW, "new", kind=FailureKind.TERMINAL))
    after = failing.rollouts[NAME]
    assert after is not None
    assert (after.failed, after.why) == (NOW.wall, "it broke (failed once)")
    assert failing.due == NOW.wall, "the next pass follows at once"
    (event,) = [event for event in failing.events if event.reason == "rollout failed"]
    assert event.message == "r2: it broke (failed once); it returns to r1"
    assert "old" not in {stop.replica for stop in failing.plan.stops}

    back = thought(current, after, old)
    assert [launch.model for launch in back.plan.launches] == []
    assert back.plan.stops == ()
    status = next(status for status in back.statuses if status.model == NAME)
    assert (status.state, status.spec_revision) == (ModelState.READY, R1)
    assert status.reason == "r2 failed: it broke (failed once); as of r1"
    assert next(status for status in back.statuses if status.model == "bee").rollout_failed == ""


def test_a_rollout_that_fails_is_told_by_the_pass_that_sees_it() -> None:
    """Whoever looks between two passes must not read that the model is stuck, and not why."""
    found = thought(at(R2, NEW), begun(), replica(OLD, "old"), new=record())
    status = next(status for status in found.statuses if status.model == NAME)
    assert (status.state, status.spec_revision) == (ModelState.READY, R1)
    assert status.rollout_failed == "r2 failed: it broke (failed 4 times in a row)"


def test_where_the_old_one_had_to_make_room_it_is_launched_again() -> None:
    back = thought(at(R2, NEW), begun(failed=NOW.wall, why="it broke"))
    (launch,) = back.plan.launches
    assert launch.profile == OLD.profiles[0]


def test_a_further_profile_is_tried_before_the_rollout_fails() -> None:
    second = ProfileSpec(name=ProfileName("q"), engine=EngineName("cpu"), context=1024)
    two = replace(NEW, profiles=(*NEW.profiles, second))
    one = rollout.begin(at(R1, OLD), at(R2, two), {}, {NAME}, NOW)[NAME]
    assert one is not None
    sizes = [*SIZES, (replace(NEW, profiles=(second,)), 4.0)]
    seen = observed(sizes=sizes, recovery={spec_of(NEW): record()})
    found = think(Known(catalog=at(R2, two), observed=seen, rollouts={NAME: one}), NOW)
    assert [launch.profile.name for launch in found.plan.launches] == ["q"]
    assert found.rollouts == {}


def test_before_nodes_report_nothing_fails() -> None:
    seen = observed(sizes=SIZES, recovery={spec_of(NEW): record()})
    found = think(Known(catalog=at(R2, NEW), observed=seen, rollouts={NAME: begun()}, settled=False), NOW)
    assert found.rollouts == {}


def test_only_how_it_is_launched_is_as_before() -> None:
    newest = replace(NEW, aliases=("new",), priority=7)
    one = replace(begun(failed=NOW.wall), wanted=rollout.digest_of(NAME, newest.profiles))
    back = rollout.effective(at(R2, newest), {NAME: one}).models[NAME]
    assert (back.profiles, back.aliases, back.priority) == (OLD.profiles, ("new",), 7)
    assert rollout.effective(at(R3, NEWER), {NAME: one}).models[NAME] == NEWER, "it concerns another spec"


def test_what_needs_a_companion_that_left_does_not_return() -> None:
    drafted = replace(OLD, profiles=(replace(OLD.profiles[0], draft_model=ModelName("bee")),))
    one = begun(failed=NOW.wall, good=drafted.profiles)
    assert rollout.returned(at(R2, NEW), {NAME: one}) == {}
    assert set(rollout.returned(at(R2, NEW, model("bee")), {NAME: one})) == {NAME}
