"""What there is to tell of a revision."""

import pytest

from llmgw.catalog.holds import Held, HoldReason
from llmgw.catalog.spec import NotifyKind, NotifySpec, Occasion
from llmgw.errors import Problem
from llmgw.ids import Revision
from llmgw.notify.occasions import STEADY, Finding, find, is_news
from llmgw.store.values import CatalogStatus, Condition, ConditionType
from llmgw.units import Wall

COMMIT, OTHER = Revision("a" * 40), Revision("b" * 40)
NOW = Wall(1000.0)
GITHUB = NotifySpec(name="ci", kind=NotifyKind.GITHUB, repository="o/r")
WEBHOOK = NotifySpec(name="hook", kind=NotifyKind.WEBHOOK, url="https://example.org")


def status(
    *,
    ready: bool = False,
    stalled: str = "",
    since: float = 0.0,
    observed: Revision = COMMIT,
    problems: tuple[Problem, ...] = (),
    held: Held | None = None,
    error: str | None = None,
) -> CatalogStatus:
    conditions = (
        Condition(type=ConditionType.READY, status=ready, message="1 of 2 models ready", observed=observed),
        Condition(type=ConditionType.RECONCILING, status=not ready, observed=observed),
        Condition(
            type=ConditionType.STALLED,
            status=bool(stalled),
            reason=stalled,
            message="m: why" if stalled else "",
            since=Wall(since),
            observed=observed,
        ),
    )
    return CatalogStatus(
        source="s", attempted=COMMIT, applied=OTHER, problems=problems, held=held, error=error, conditions=conditions
    )


PROBLEM = Problem("m.yaml", 3, 5, "$.name", "is wrong")
HELD = Held(reason=HoldReason.REMOVAL, message="it removes all")


@pytest.mark.parametrize(
    ("given", "occasion", "message"),
    [
        (status(), Occasion.APPLIED, "in force; 1 of 2 models ready"),
        (status(ready=True), Occasion.READY, "1 of 2 models ready"),
        (status(problems=(PROBLEM, PROBLEM), stalled="CatalogInvalid"), Occasion.INVALID, f"{PROBLEM} (and 1 more)"),
        (status(held=HELD, stalled="RemovalHeld"), Occasion.HELD, "it removes all"),
        (status(stalled="RolloutFailed", since=NOW), Occasion.ROLLOUT_FAILED, "m: why"),
        (status(stalled="ModelsNotServed"), Occasion.STALLED, "m: why"),
    ],
)
def test_the_state_of_a_revision_is_told_in_one_word_with_a_reason(
    given: CatalogStatus, occasion: Occasion, message: str
) -> None:
    finding, _ = find(given, NOW)
    assert finding is not None
    assert (finding.revision, finding.occasion, finding.message) == (COMMIT, occasion, message)


def test_a_model_that_is_stuck_for_a_moment_only_is_told_when_it_still_is_later() -> None:
    given = status(stalled="ModelsNotServed", since=NOW - 4)
    finding, wait = find(given, NOW)
    assert (finding, wait) == (None, STEADY - 4)
    assert wait is not None
    later, _ = find(given, Wall(NOW + wait))
    assert later is not None
    assert later.occasion is Occasion.STALLED


def test_conditions_that_know_nothing_of_the_newest_revision_yet_say_nothing_of_it() -> None:
    assert find(status(ready=True, observed=OTHER), NOW) == (None, None)
    assert find(CatalogStatus(source="s"), NOW) == (None, None)


def test_what_was_told_is_not_told_again() -> None:
    finding = Finding(revision=COMMIT, occasion=Occasion.READY)
    assert is_news(finding, GITHUB, None)
    assert not is_news(finding, GITHUB, finding.key)
    assert is_news(finding, GITHUB, (OTHER, Occasion.READY, ""))
    assert is_news(finding, GITHUB, (COMMIT, Occasion.STALLED, "ModelsNotServed"))


@pytest.mark.parametrize("last", [Occasion.READY, Occasion.STALLED, Occasion.ROLLOUT_FAILED])
def test_a_revision_that_had_settled_does_not_become_pending_because_a_model_loads(last: Occasion) -> None:
    loading = Finding(revision=COMMIT, occasion=Occasion.APPLIED)
    assert not is_news(loading, GITHUB, (COMMIT, last, ""))
    assert is_news(loading, GITHUB, (OTHER, last, ""))


def test_one_that_was_held_becomes_pending_once_it_is_approved() -> None:
    assert is_news(Finding(revision=COMMIT, occasion=Occasion.APPLIED), GITHUB, (COMMIT, Occasion.HELD, "RemovalHeld"))


@pytest.mark.parametrize("revision", [f"{COMMIT}+dirty:0123456789ab", "c" * 64])
def test_forges_are_told_of_commits_alone_and_webhooks_of_all(revision: str) -> None:
    finding = Finding(revision=Revision(revision), occasion=Occasion.READY)
    assert not is_news(finding, GITHUB, None)
    assert is_news(finding, WEBHOOK, None)


def test_a_source_that_cannot_be_read_says_nothing_against_a_commit() -> None:
    finding, _ = find(status(error="git is away", stalled="SourceUnavailable"), NOW)
    assert finding is not None
    assert not is_news(finding, GITHUB, None)
    assert is_news(finding, WEBHOOK, None)


def test_only_the_events_that_were_asked_for_are_told() -> None:
    spec = NotifySpec(name="n", kind=NotifyKind.WEBHOOK, url="https://x.example", events=(Occasion.INVALID,))
    assert not is_news(Finding(revision=COMMIT, occasion=Occasion.READY), spec, None)
    assert is_news(Finding(revision=COMMIT, occasion=Occasion.INVALID), spec, None)
