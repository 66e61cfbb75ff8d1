"""What there is to tell of the newest revision. Pure: from values, at a time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from llmgw.catalog.spec import NotifyKind, NotifySpec, Occasion
from llmgw.ids import Revision
from llmgw.store.values import CatalogStatus, Condition, ConditionType
from llmgw.units import Seconds, Wall

STEADY: Final = Seconds(10)
"""A model that cannot be served for less long may but wait for another to make room."""

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")

_SETTLED: Final = frozenset({Occasion.READY, Occasion.STALLED, Occasion.ROLLOUT_FAILED})
"""After these an on-demand model that loads, or one that starts again, is no news of the revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is so now. `reason`: another one is told anew; `message`: for a person."""

    revision: Revision
    occasion: Occasion
    reason: str = ""
    message: str = ""
    expected: bool = False  #: held, as the operator said
    of_source: bool = False  #: the source cannot be read: nothing is wrong with the revision

    @property
    def key(self) -> tuple[Revision, Occasion, str]:
        """What is told once."""
        return self.revision, self.occasion, self.reason


def find(status: CatalogStatus, now: Wall) -> tuple[Finding | None, Seconds | None]:
    """What there is to tell, and in how many seconds to ask again though nothing changes; None: no need to."""
    revision, found = status.attempted, {each.type: each for each in status.conditions}
    if revision is None or any(each.observed != revision for each in found.values()):
        return None, None
    if status.problems and status.error is None:
        more = f" (and {len(status.problems) - 1} more)" if len(status.problems) > 1 else ""
        message = f"{status.problems[0]}{more}"
        return Finding(revision=revision, occasion=Occasion.INVALID, message=message), None
    if status.held is not None and status.error is None:
        held = status.held
        finding = Finding(
            revision=revision,
            occasion=Occasion.HELD,
            reason=held.reason,
            message=held.message,
            expected=held.reason.is_expected,
        )
        return finding, None
    return _of_conditions(revision, found, now, of_source=status.error is not None)


def _of_conditions(
    revision: Revision, found: Mapping[ConditionType, Condition], now: Wall, *, of_source: bool
) -> tuple[Finding | None, Seconds | None]:
    ready, stalled = found.get(ConditionType.READY), found.get(ConditionType.STALLED)
    if ready is None or stalled is None:
        return None, None
    if stalled.status:
        if stalled.reason == "RolloutFailed":
            message = stalled.message
            return Finding(revision=revision, occasion=Occasion.ROLLOUT_FAILED, message=message), None
        left = stalled.since + STEADY - now
        if left > 0:
            return None, Seconds(min(left, STEADY))
        finding = Finding(
            revision=revision,
            occasion=Occasion.STALLED,
            reason=stalled.reason,
            message=stalled.message,
            of_source=of_source,
        )
        return finding, None
    if ready.status:
        return Finding(revision=revision, occasion=Occasion.READY, message=ready.message), None
    message = f"in force; {ready.message}"
    return Finding(revision=revision, occasion=Occasion.APPLIED, message=message), None


def is_news(finding: Finding, spec: NotifySpec, last: tuple[Revision, Occasion, str] | None) -> bool:
    """Whether `spec` is to be told, who was told `last`."""
    if finding.occasion not in spec.events or finding.key == last:
        return False
    if spec.kind is not NotifyKind.WEBHOOK and (finding.of_source or not is_commit(finding.revision)):
        return False
    settled = last is not None and last[0] == finding.revision and last[1] in _SETTLED
    return not (finding.occasion is Occasion.APPLIED and settled)


def is_commit(revision: Revision) -> bool:
    """Not a changed tree, nor a directory outside git: of those no forge knows anything."""
    return _COMMIT.fullmatch(revision) is not None
