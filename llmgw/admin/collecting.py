"""What `llmgw collect` lists, from store values. Pure, and nothing here deletes."""

from collections.abc import Iterable, Sequence

from llmgw.admin.reading import Seen
from llmgw.admin.shapes import CollectOutput, WeightsRow
from llmgw.catalog.spec import WeightsSettings, WeightsSpec
from llmgw.facts import NodeReport, Phase
from llmgw.ids import NodeName
from llmgw.plan import Assignment
from llmgw.store.values import CatalogStatus, HistoryEntry
from llmgw.units import Instant
from llmgw.weights.collector import Applied, Listed, listing
from llmgw.weights.naming import canonical


def collect_listing(seen: Seen, history: Sequence[HistoryEntry], now: Instant, *, dry_run: bool) -> CollectOutput:
    """Every cache entry that the catalog in force does not want; with `dry_run` only those that may go."""
    stale = why_stale(seen)
    rows = [
        _row(node, entry)
        for node in sorted(seen.reports)
        for entry in _of_node(seen, seen.reports[node], history, now, stale)
        if entry.removable or not dry_run
    ]
    return CollectOutput(
        dry_run=dry_run,
        stale=stale,
        removable=sum(row.size for row in rows if row.removable),
        kept=sum(row.size for row in rows if not row.removable),
        entries=tuple(rows),
    )


def why_stale(seen: Seen) -> str | None:
    """Why the catalog in force is not surely the operator's latest, or None when it is."""
    status = seen.status or CatalogStatus(source="")
    if seen.applied is None:
        return "no catalog is in force"
    if status.error is not None:
        return "the catalog's source cannot be read"
    if status.problems:
        return "the newest catalog is invalid"
    if status.attempted != seen.applied.revision:
        return "the newest catalog is not applied"
    return None


def _of_node(
    seen: Seen, report: NodeReport, history: Sequence[HistoryEntry], now: Instant, stale: str | None
) -> tuple[Listed, ...]:
    settings = seen.applied.weights if seen.applied else WeightsSettings()
    fetching = {fact.id for fact in report.replicas if fact.phase is Phase.FETCHING}
    # A replica that no report calls fetching may yet be starting: its weights count as in use.
    here = [assignment for assignment in seen.assignments.values() if assignment.node == report.node]
    return listing(
        report.weights,
        wanted=_sources(
            one for spec in seen.models.values() for profile in spec.profiles for one in profile.every_file
        ),
        history=[Applied(revision=h.revision, digest=h.digest, sources=frozenset(h.sources)) for h in history],
        min_age=settings.min_age,
        keep_revisions=settings.keep_revisions,
        now=now,
        in_use=_sources(_files(assignment for assignment in here if assignment.replica not in fetching)),
        being_fetched=_sources(_files(assignment for assignment in here if assignment.replica in fetching)),
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
