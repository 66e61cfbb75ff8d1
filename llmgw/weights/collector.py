"""Which cache entries may go. Pure: it lists, with reasons; whoever deletes asks the node, which checks again.

An entry stays while anything might want it: the catalog in force, the last revisions applied (a rollback should not
download), an engine, a fetch, or its age. When the catalog is not surely known, everything stays.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from llmgw.facts import WeightsFact
from llmgw.ids import Digest, Revision
from llmgw.units import Bytes, Instant, Seconds, format_seconds
from llmgw.weights.lookup import WantedSources


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One entry that the catalog in force does not want. `reason` says why it is kept, or how long nobody wanted it."""

    entry: str
    source: str
    size: Bytes
    removable: bool
    reason: str

    def __str__(self) -> str:
        return f"removable: {self.reason}" if self.removable else f"kept: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A catalog that was in force: its revision, content digest and the canonical sources that it wanted."""

    revision: Revision
    digest: Digest
    sources: Collection[str]


def listing(
    entries: Sequence[WeightsFact],
    *,
    wanted: Collection[str],
    history: Sequence[Applied],
    min_age: Seconds,
    keep_revisions: int,
    now: Instant,
    in_use: Collection[str] = (),
    being_fetched: Collection[str] = (),
    stale: str | None = None,
) -> tuple[Listed, ...]:
    """Every entry that the catalog in force does not want, largest first.

    `wanted`, `in_use` and `being_fetched` are canonical sources (one whose revision was never resolved keeps all of its
    repository); `history` is oldest first; `stale` says why the
    catalog is not surely the operator's latest (invalid, unreadable, held): then nothing is removable. The order of
    reasons: stale, pinned, in use, being fetched, a kept revision wants it, too young. Files served in place are
    somebody else's and never listed. A corrupt entry is of no use to anybody: its age alone counts. An unfinished
    download counts as last wanted when something of it last came.
    """
    kept = [(applied.revision, WantedSources(applied.sources)) for applied in kept_revisions(history, keep_revisions)]
    now_wanted, used, coming = WantedSources(wanted), WantedSources(in_use), WantedSources(being_fetched)
    found = []
    for fact in entries:
        if fact.entry is None or (fact.source in now_wanted and not fact.corrupt):
            continue
        age = now.since(fact.last_wanted)
        reason = stale or _hold(fact, used, coming) or _revision(fact, kept, keep_revisions)
        if reason is None and age < min_age:
            reason = f"too young (last wanted {format_seconds(age)} ago, kept for {format_seconds(min_age)})"
        found.append(
            Listed(
                entry=fact.entry,
                source=fact.source,
                size=fact.size,
                removable=reason is None,
                reason=reason or f"{_what(fact)}last wanted {format_seconds(age)} ago",
            )
        )
    return tuple(sorted(found, key=lambda listed: (-listed.size, listed.entry)))


def _what(fact: WeightsFact) -> str:
    return "corrupt, " if fact.corrupt else "unfinished, " if fact.unfinished else ""


def kept_revisions(history: Sequence[Applied], keep: int) -> tuple[Applied, ...]:
    """The last `keep` applied catalogs that differ in content, newest first.

    Uncommitted states in between do not count: an afternoon of edits must not push out the last release.
    """
    kept: dict[Digest, Applied] = {}
    for applied in reversed(history):
        if len(kept) >= keep:
            break
        if "+dirty:" not in applied.revision:
            kept.setdefault(applied.digest, applied)
    return tuple(kept.values())


def _hold(fact: WeightsFact, in_use: WantedSources, being_fetched: WantedSources) -> str | None:
    if fact.pinned is not None:
        return f"pinned by {fact.pinned}"
    if fact.corrupt:  # what is used or fetched is another copy
        return None
    if fact.in_use or fact.source in in_use:
        return "in use"
    return "being fetched" if fact.source in being_fetched else None


def _revision(fact: WeightsFact, kept: Sequence[tuple[Revision, WantedSources]], keep: int) -> str | None:
    if fact.corrupt:
        return None
    for number, (revision, wanted) in enumerate(kept, start=1):
        if fact.source in wanted:
            return f"revision {revision[:12]} is {number} of {keep}"
    return None
