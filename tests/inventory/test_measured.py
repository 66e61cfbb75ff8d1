"""Measured memory: what counts, what is kept, and that it decides the next launch."""

from dataclasses import replace
from pathlib import Path

import pytest
from harness import Repo, eventually, serving
from harness import model as document
from make import NODE, NOW, catalog, gib, model, replica, report, spec_of

from llmgw.catalog.spec import ModelSpec, RecoverySettings
from llmgw.engine.manager import Engines
from llmgw.engine.sizes import Sizes
from llmgw.facts import Footprint, Level, Measured, Phase, ReplicaFact
from llmgw.ids import ReplicaId, SpecDigest
from llmgw.reconcile import measured
from llmgw.reconcile.observe import measured_footprints
from llmgw.units import GIB, MIB, Instant, Mono, Wall

A = model("a")
KEY = (spec_of(A), NODE)
DAY = 86400


def seen(peak: float = 2, *, age: float = 400, **fields: object) -> ReplicaFact:
    """A replica of A that has been ready for `age` seconds."""
    more = {"served": True, "resident_peak": gib(peak), "since": Wall(NOW.wall - age), **fields}
    return replica(A, **more)  # type: ignore[arg-type]


def later(seconds: float) -> Instant:
    return Instant(Mono(NOW.mono + seconds), Wall(NOW.wall + seconds))


def declared(memory: float) -> ModelSpec:
    return replace(A, profiles=(replace(A.profiles[0], memory=gib(memory)),))


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (seen(), True),
        (seen(age=299), False),  # not stable yet
        (seen(served=False), False),  # never asked anything
        (seen(resident_peak=None), False),
        (seen(level=Level.DEGRADED), False),  # another size altogether
        (seen(age=1, phase=Phase.DRAINING), True),  # ended after it served
        (seen(age=1, phase=Phase.FAILED), True),
        (seen(age=1, phase=Phase.FAILED, served=False), False),
        (seen(age=400, phase=Phase.STARTING), False),
    ],
)
def test_a_peak_counts_once_the_replica_proved_itself_or_ended_after_serving(fact: ReplicaFact, expected: bool) -> None:
    assert measured.counts(fact, RecoverySettings(), NOW) is expected


def test_the_highest_peak_is_kept_and_a_lower_one_changes_nothing() -> None:
    first = measured.account({}, [seen(2)], catalog(A), NOW)
    assert first[KEY] == Measured(host=gib(2), at=NOW.wall, replicas=(ReplicaId("a-1"),))
    known = {KEY: first[KEY]}
    assert measured.account(known, [seen(1)], catalog(A), later(10)) == {}  # type: ignore[arg-type]
    grown = measured.account(known, [seen(3)], catalog(A), later(10))[KEY]  # type: ignore[arg-type]
    assert grown is not None
    assert (grown.host, grown.samples) == (gib(3), 1)


def test_each_replica_is_one_sample_and_device_memory_is_kept_too() -> None:
    facts = [seen(2, device_peak=gib(5)), seen(1, id="a-2", device_peak=gib(6))]
    one = measured.account({}, facts, catalog(A), NOW)[KEY]
    assert one is not None
    assert (one.host, one.device, one.samples) == (gib(2), gib(6), 2)


def test_what_is_vouched_for_is_written_anew_once_a_day_and_no_oftener() -> None:
    known = {KEY: Measured(host=gib(2), at=NOW.wall, replicas=(ReplicaId("a-1"),))}
    assert measured.account(known, [seen(2)], catalog(A), later(DAY - 1)) == {}
    renewed = measured.account(known, [seen(2)], catalog(A), later(DAY))[KEY]
    assert renewed is not None
    assert renewed.at == NOW.wall + DAY


def test_a_spec_that_left_is_forgotten_after_thirty_days_and_one_in_the_catalog_never() -> None:
    gone = (SpecDigest("gone"), NODE)
    known = {key: Measured(host=gib(1), at=NOW.wall) for key in (KEY, gone)}
    assert measured.account(known, [], catalog(A), later(30 * DAY)) == {}
    assert measured.account(known, [], catalog(A), later(30 * DAY + 1)) == {gone: None}


def test_no_more_than_a_thousand_are_kept_the_catalogs_own_last_to_go() -> None:
    known = {(SpecDigest(f"s{n:04}"), NODE): Measured(host=gib(1), at=Wall(NOW.wall - n)) for n in range(1000)}
    known[KEY] = Measured(host=gib(1), at=Wall(0))
    assert measured.account(known, [], catalog(A), NOW) == {(SpecDigest("s0999"), NODE): None}


def test_a_peak_above_the_declaration_is_told_once_with_both_figures() -> None:
    known = {KEY: Measured(host=gib(3), at=NOW.wall)}
    told, events = measured.warnings(known, catalog(declared(2)), NOW)
    (event,) = events
    assert (event.subject, event.reason) == ("model/a", "memory underdeclared")
    assert "3.0 GiB" in event.message
    assert "2.0 GiB" in event.message
    assert measured.warnings({**known, **told}, catalog(declared(2)), NOW) == ({}, [])
    assert measured.warnings({**known, **told}, catalog(declared(2.5)), NOW)[1]  # another declaration, told anew
    assert measured.warnings(known, catalog(declared(3)), NOW) == ({}, [])


def test_declared_wins_over_measured_and_measured_over_a_guess() -> None:
    one = Measured(host=gib(3), at=NOW.wall)
    assert measured_footprints(catalog(A), {KEY: one}) == {KEY: Footprint(host=gib(3), source="measured")}
    assert measured_footprints(catalog(declared(2)), {KEY: one}) == {}
    (footprint,) = Sizes(Engines()).of(catalog(declared(2)), [report()]).footprints.values()
    assert (footprint.host, footprint.source) == (gib(2), "declared")


def test_without_a_figure_of_the_device_a_measurement_says_nothing_of_a_profile_that_uses_one() -> None:
    profile = replace(A.profiles[0], devices=1)
    assert measured.footprint(Measured(host=gib(3), at=NOW.wall), profile) is None
    both = measured.footprint(Measured(host=gib(3), device=gib(5), at=NOW.wall), profile)
    assert both == Footprint(host=gib(3), device=gib(5), source="measured")


# -- for real


def test_a_second_launch_uses_what_the_first_one_was_seen_to_take(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    cluster = "apiVersion: llmgw/v1\nkind: Cluster\nrecovery: {stable: 1s, backoff: 100ms}\n"
    repo.commit({"m.yaml": document("smol", smollm2, context=512), "cluster.yaml": cluster})
    with serving(repo.path, tmp_path / "home") as daemon:
        first = daemon.ready("smol")["smol"]
        assert first["footprint_source"] in ("estimate", "guess")
        daemon.chat("smol", max_tokens=4)
        store = daemon.state / "store"
        eventually(lambda: list(store.glob("measured*")), within=30, what="a measurement on disk")
        took = daemon.replicas()["smol"]["resident_peak"]
        daemon.cli("stop")
        eventually(lambda: not daemon.seen("replicas")["replicas"], what="it is stopped")
        daemon.cli("start")
        second = daemon.ready("smol")["smol"]
        assert second["id"] != first["id"]
        assert second["footprint_source"] == "measured"
        assert took <= second["footprint"] <= took + 64 * MIB
        assert 50 * MIB < second["footprint"] < 2 * GIB
