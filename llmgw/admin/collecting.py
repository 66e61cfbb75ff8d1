"""What `llmgw collect` lists, from store values. Pure, and nothing here deletes."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from llmgw.admin.answers import NotThere
from llmgw.admin.reading import Seen
from llmgw.admin.shapes import CollectOutput, WeightsRow
from llmgw.catalog.spec import ModelSpec, WeightsSettings, WeightsSpec
from llmgw.catalog.yamldoc import quoted
from llmgw.facts import NodeReport, Phase
from llmgw.ids import NodeName
from llmgw.plan import Assignment
from llmgw.store.staleness import why_stale
from llmgw.store.values import HistoryEntry, UpkeepOutcome
from llmgw.units import Instant, Seconds
from llmgw.weights.collector import Applied, Listed, listing
from llmgw.weights.naming import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the operator says for once instead of the catalog, and what alone is looked at. None: as it says; all."""

    older_than: Seconds | None = None
    keep_revisions: int | None = None
    node: NodeName | None = None
    model: str | None = None

    def settings(self, catalog: WeightsSettings) -> WeightsSettings:
        return WeightsSettings(
            min_age=catalog.min_age if self.older_than is None else self.older_than,
            keep_revisions=catalog.keep_revisions if self.keep_revisions is None else self.keep_revisions,
        )


def collect_listing(
    seen: Seen,
    history: Sequence[HistoryEntry],
    now: Instant,
    *,
    dry_run: bool,
    limits: Limits = Limits(),
    stale: str | None = None,
) -> CollectOutput:
    """Every cache entry that the catalog in force does not want; with `dry_run` only those that may go.

    `stale`: why it is not surely the operator's latest, where the store does not tell. Raises NotThere.
    """
    stale = why_stale(seen.applied, seen.status) or stale
    sources = None if limits.model is None else _sources_of(limits.model, seen, history)
    settings = limits.settings(seen.applied.weights if seen.applied else WeightsSettings())
    rows = [
        _row(node, entry)
        for node in sorted(seen.reports)
        if limits.node in (None, node)
        for entry in _of_node(seen, seen.reports[node], history, now, settings, stale)
        if (entry.removable or not dry_run) and (sources is None or entry.source in sources)
    ]
    return CollectOutput(
        dry_run=dry_run,
        stale=stale,
        removable=sum(row.size for row in rows if row.removable),
        kept=sum(row.size for row in rows if not row.removable),
        entries=tuple(rows),
        unlisted=sum(seen.reports[node].unlisted for node in seen.reports if limits.node in (None, node)),
        plan_id=plan_id(seen, rows),
    )


def plan_id(seen: Seen, rows: Iterable[WeightsRow]) -> str:
    """Another as soon as another entry may go, or another catalog is in force."""
    told = hashlib.sha256(str(seen.applied.digest if seen.applied else None).encode())
    for row in sorted((row.node, row.entry) for row in rows if row.removable):
        told.update("\0".join(("", *row)).encode())
    return told.hexdigest()[:12]


def collected(
    listed: CollectOutput,
    answers: Mapping[NodeName, Mapping[str, UpkeepOutcome]],
    unreached: Mapping[NodeName, str],
) -> CollectOutput:
    """The listing of what could go, with what became of each. `unreached`: nodes that did not answer whole, and why."""
    rows = [_outcome(row, answers.get(NodeName(row.node), {}).get(row.entry), unreached) for row in listed.entries]
    return replace(
        listed,
        dry_run=False,
        entries=tuple(rows),
        collected=True,
        removed=sum(row.size for row in rows if row.outcome == "removed"),
        refused=sum(row.outcome == "refused" for row in rows),
        unreached={str(node): why for node, why in unreached.items()},
    )


def _outcome(row: WeightsRow, told: UpkeepOutcome | None, unreached: Mapping[NodeName, str]) -> WeightsRow:
    if told is None:
        why = unreached.get(NodeName(row.node), "the node did not answer")
        return replace(row, outcome="unknown", reason=why)
    return replace(row, outcome="removed" if told.done else "refused", reason=told.text)


def wanted_sources(seen: Seen, models: Iterable[ModelSpec] | None = None) -> frozenset[str]:
    """By these models, else by all of the catalog in force, and by what they may return to."""
    specs = seen.models.values() if models is None else models
    profiles = [profile for spec in specs for profile in spec.profiles]
    if models is None:  # what a rollout that fails returns to
        profiles += [profile for rollout in seen.rollouts.values() for profile in rollout.good]
    return _sources(each for profile in profiles for each in profile.every_file)


def _sources_of(model: str, seen: Seen, history: Sequence[HistoryEntry]) -> frozenset[str]:
    """All that a model ever wanted, as far as is remembered. Raises NotThere."""
    found = [spec for spec in seen.models.values() if model in spec.names]
    before = [entry.models[model] for entry in history if model in entry.models]
    if not found and not before:
        raise NotThere(f"no catalog that is remembered had a model {quoted(model)}; `llmgw collect` lists by source")
    return wanted_sources(seen, found).union(*before)


def _of_node(
    seen: Seen,
    report: NodeReport,
    history: Sequence[HistoryEntry],
    now: Instant,
    settings: WeightsSettings,
    stale: str | None,
) -> tuple[Listed, ...]:
    fetching = {fact.id for each in seen.reports.values() for fact in each.replicas if fact.phase is Phase.FETCHING}
    # A replica that no report calls fetching may yet be starting: its weights count as in use. Those of other nodes
    # count too, for a cache may be shared.
    given = list(seen.assignments.values())
    return listing(
        report.weights,
        wanted=wanted_sources(seen),
        history=[Applied(revision=h.revision, digest=h.digest, sources=frozenset(h.sources)) for h in history],
        min_age=settings.min_age,
        keep_revisions=settings.keep_revisions,
        now=now,
        in_use=_sources(_files(assignment for assignment in given if assignment.replica not in fetching)),
        being_fetched=_sources(_files(assignment for assignment in given if assignment.replica in fetching)),
        stale=stale,
    )


def _files(assignments: Iterable[Assignment]) -> Iterable[WeightsSpec]:
    return (spec for assignment in assignments for spec in assignment.profile.roles.values())


def _sources(specs: Iterable[WeightsSpec]) -> frozenset[str]:
    return frozenset(canonical(spec.source) for spec in specs)


def _row(node: NodeName, listed: Listed) -> WeightsRow:
    return WeightsRow(
        node=node,
        entry=listed.entry,
        source=listed.source,
        size=listed.size,
        removable=listed.removable,
        reason=listed.reason,
    )
