"""docs/operations.md, docs/gateway.md: states, metrics, failures and error codes are those of the code."""

from typing import Any

import docs_text
import pytest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, InfoMetricFamily

from llmgw.admin.app import create_app
from llmgw.admin.metrics import families, process
from llmgw.admin.reading import Seen
from llmgw.agent import meters as agent_meters
from llmgw.agent.ports import DEFAULT_PORTS
from llmgw.catalog.spec import RecoverySettings
from llmgw.clock import SystemClock
from llmgw.facts import Action, Failure, FailureKind, Level, Phase, RecoveryRecord, ReplicaFact
from llmgw.gateway.meters import Meters
from llmgw.gateway.openai import Code
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.notify.notifier import Notifier
from llmgw.plan import ModelState, Reason
from llmgw.reconcile.meters import Meters as Passes
from llmgw.schedule import recovery
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied, ConditionType
from llmgw.units import Instant, Mono, Wall

OPERATIONS = docs_text.text_of("operations")
STEPS = {
    Action.RETRY: "again",
    Action.DEGRADE: "degraded",
    Action.MINIMAL: "minimal",
    Action.FALLBACK: "fallback",
    Action.QUARANTINE: "quarantine",
}  #: as the table of failures calls them


def named(text: str, header: str) -> list[str]:
    return [word for row in docs_text.rows(text, header) for word in docs_text.words(row[0])]


def exposed(family: Any) -> str:
    if isinstance(family, CounterMetricFamily):
        return f"{family.name}_total"
    return f"{family.name}_info" if isinstance(family, InfoMetricFamily) else str(family.name)


def scraped() -> list[Any]:
    meters = Meters()
    meters.of("m").answered(200)
    applied = Applied(revision=Revision("r"), digest=Digest("d"), at=Wall(1))
    return [
        *process(),
        *families(Seen(applied=applied)),
        *Passes().collect(),
        *Notifier(store=MemoryStore(), clock=SystemClock(), record=lambda event: None).collect(),
        *meters.collect(connections=0, buffered=0),
        *agent_meters.collect([]),
    ]


def test_every_metric_of_a_scrape_is_documented_and_no_other() -> None:
    assert named(OPERATIONS, "metric") == [exposed(family) for family in scraped()]


def test_documented_labels_are_the_metrics() -> None:
    labels = {docs_text.words(row[0])[0]: docs_text.words(row[1]) for row in docs_text.rows(OPERATIONS, "metric")}
    for family in scraped():
        if isinstance(family, InfoMetricFamily):
            found = set(family.samples[0].labels)
        elif isinstance(family, HistogramMetricFamily):
            found = {name for sample in family.samples for name in sample.labels} - {"le"}
        else:
            found = set(family._labelnames)
        assert set(labels[exposed(family)]) == found, family.name


def test_every_request_of_the_admin_api_is_documented_and_no_other() -> None:
    app = create_app(store=MemoryStore(), events=EventLog(), token="t", node=NodeName("n"))
    paths = app.openapi()["paths"]
    served = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    assert set(named(OPERATIONS, "request")) == served


def test_every_state_of_a_model_has_its_advice() -> None:
    assert named(OPERATIONS, "state") == list(ModelState)


def test_every_reason_is_explained() -> None:
    part = docs_text.section("operations", "## Why is my model not up?")
    assert [reason for reason in Reason if f"`{reason}`" not in part] == []


def test_every_condition_is_documented() -> None:
    assert named(OPERATIONS, "condition") == list(ConditionType)


def test_the_engine_ports_are_the_documented_ones() -> None:
    assert f"{DEFAULT_PORTS.start}-{DEFAULT_PORTS.stop - 1}" in OPERATIONS


def test_every_kind_of_failure_is_documented() -> None:
    assert named(OPERATIONS, "kind") == list(FailureKind)


@pytest.mark.parametrize("row", docs_text.rows(OPERATIONS, "kind"), ids=lambda row: row[0])
def test_failures_lead_to_what_is_documented(row: list[str]) -> None:
    record: RecoveryRecord | None = None
    for attempt, step in enumerate(row[2:], start=1):
        failure = Failure(kind=FailureKind(docs_text.words(row[0])[0]), reason="r", at=Wall(1))
        fact = ReplicaFact(
            id=ReplicaId(f"r{attempt}"),
            model=ModelName("m"),
            profile=ProfileName("p"),
            engine=EngineName("e"),
            node=NodeName("n"),
            spec=SpecDigest("s"),
            revision=Revision("1"),
            phase=Phase.FAILED,
            since=Wall(1),
            failure=failure,
        )
        record = recovery.account(
            fact,
            record,
            RecoverySettings(),
            Instant(Mono(0), Wall(1)),
            levels=(Level.DEGRADED, Level.MINIMAL),
            has_fallback=True,
        )
        assert STEPS[record.action] == step, attempt


def test_every_error_code_of_the_gateway_is_documented_and_no_other() -> None:
    assert sorted(named(docs_text.text_of("gateway"), "code")) == sorted(Code)
