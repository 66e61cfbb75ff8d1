"""`llmgw status --wait`: when a revision counts as served, and when as one that will not be."""

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.admin.shapes import CatalogRow, ConditionRow, HoldRow, ProblemRow, StatusOutput
from llmgw.admin.syncs import RevisionOutput, Standing
from llmgw.cli.settling import Waited, meant, settled
from llmgw.errors import UsageError

WANTED, OTHER, NEWER = "a" * 40, "b" * 40, "c" * 40


def condition(kind: str, holds: bool, *, observed: str = WANTED, message: str = "") -> ConditionRow:
    reason = "ModelsNotServed" if holds and kind == "Stalled" else ""
    return ConditionRow(type=kind, status=holds, reason=reason, message=message, since=1.0, observed=observed)


def row(attempted: str | None, applied: str | None, *conditions: ConditionRow, **fields: Any) -> CatalogRow:
    return CatalogRow(
        source="x", attempted=attempted, applied=applied, applied_at=1.0, error=None, watcher="ok",
        problems=fields.pop("problems", ()), conditions=conditions, **fields,
    )  # fmt: skip


READY = row(WANTED, WANTED, condition("Ready", True), condition("Stalled", False))


def test_a_revision_that_is_in_force_and_ready_is_served() -> None:
    assert Waited(WANTED[:7]).look(READY) == (True, None)


def test_conditions_that_do_not_know_of_it_yet_say_nothing() -> None:
    waited = Waited(WANTED)
    before = row(WANTED, WANTED, condition("Ready", True, observed=OTHER), condition("Stalled", True, observed=OTHER))
    assert waited.look(before)[0] is False
    assert waited.look(READY) == (True, None)


def test_it_is_waited_for_until_it_comes_and_while_models_load() -> None:
    waited = Waited(WANTED)
    assert waited.look(row(None, None))[0] is False
    done, why = waited.look(row(OTHER, OTHER, condition("Ready", True, observed=OTHER)))
    assert (done, "has not come" in (why or "")) == (False, True)
    loading = row(WANTED, WANTED, condition("Ready", False), condition("Reconciling", True, message="ant: starting"))
    assert waited.look(loading) == (False, f"{WANTED[:12]} is not served yet: ant: starting")


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (row(WANTED, OTHER, problems=(ProblemRow(file="a", line=1, column=1, path="$", message="m"),)), "is invalid"),
        (row(WANTED, OTHER, held=HoldRow(reason="RemovalHeld", message="removes all")), "is held: removes all"),
        (
            row(WANTED, WANTED, condition("Ready", False), condition("Stalled", True, message="ant broke")),
            "is stalled: ModelsNotServed: ant broke",
        ),
    ],
)
def test_what_will_not_come_right_by_itself_ends_the_wait(seen: CatalogRow, why: str) -> None:
    assert Waited(WANTED).look(seen) == (True, f"{WANTED[:12]} {why}")


def test_a_newer_revision_ends_the_wait_but_not_one_that_was_there_before() -> None:
    waited = Waited(WANTED)
    assert waited.look(row(NEWER, NEWER))[0] is False
    assert waited.look(row(WANTED, NEWER))[0] is False
    assert waited.look(row(NEWER, NEWER)) == (True, f"{WANTED[:12]} was superseded by {NEWER[:12]}")


class Client:
    """Answers with the given catalog rows, the last for ever. `past`: of the revision, beside which newest ones."""

    def __init__(self, *rows: CatalogRow, **past: RevisionOutput) -> None:
        self._rows = list(rows)
        self._past = past
        self._newest = ""
        self.asked = 0
        self.time = 0.0

    def get(self, path: str, kind: type[Any], params: Any = None) -> Any:
        if path == "revision":
            self.asked += 1
            unknown = RevisionOutput(asked=WANTED, standing=Standing.UNKNOWN)
            return self._past.get(self._newest[0], unknown)
        row = self._rows.pop(0) if len(self._rows) > 1 else self._rows[0]
        self._newest = row.attempted or ""
        return StatusOutput(llmgw="0", node="n", catalog=row, stopped=None, models=(), nodes=())

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def wait(client: Client, asked: str = WANTED, timeout: float = 60) -> tuple[str | None, float]:
    outcome = settled(client, asked, timeout, now=client.now, sleep=client.sleep)  # type: ignore[arg-type]
    msgspec.json.encode(outcome.status)
    return outcome.trouble, client.time


def superseded(**fields: Any) -> RevisionOutput:
    return RevisionOutput(asked=WANTED, standing=Standing.SUPERSEDED, revision=WANTED, newest=NEWER, **fields)


def test_a_revision_that_was_superseded_before_anybody_looked_is_not_waited_for() -> None:
    told = f"{WANTED[:12]} was superseded by {NEWER[:12]}"
    assert wait(Client(row(NEWER, NEWER), c=superseded())) == (told, 0)
    assert wait(Client(row(NEWER, NEWER), c=superseded(said="it was held"))) == (f"{told}; it was held", 0)
    fault = ProblemRow(file="a.yaml", line=1, column=2, path="$.x", message="unknown key")
    assert wait(Client(row(NEWER, NEWER), c=superseded(problems=(fault,)))) == (
        f"{told}; it was invalid: a.yaml:1:2: $.x: unknown key",
        0,
    )
    passed_over = Client(row(OTHER, OTHER), row(OTHER, OTHER), row(NEWER, OTHER), c=superseded())
    assert wait(passed_over)[0] == told
    assert passed_over.asked == 2, "once for each newest revision"


def test_the_wait_ends_with_the_last_look_or_its_time() -> None:
    assert wait(Client(row(OTHER, OTHER), row(WANTED, OTHER), READY))[0] is None
    trouble, took = wait(Client(row(OTHER, OTHER)))
    assert trouble == f"after 1m: {WANTED} has not come: the newest revision is {OTHER[:12]}"
    assert took == pytest.approx(60)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with two commits, the first one tagged."""
    (tmp_path / "clone" / "below").mkdir(parents=True)
    for words in (
        ["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "1"], ["tag", "v1"],
        ["commit", "-q", "--allow-empty", "-m", "2"],
    ):  # fmt: skip
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path / "clone"), *who, *words], check=True)
    return tmp_path / "clone"


def commit(clone: Path, name: str) -> str:
    done = subprocess.run(["git", "-C", str(clone), "rev-parse", name], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize("digits", [WANTED, "abcd", "ABCD", f"{WANTED[:12]}+dirty:{OTHER[:12]}"])
def test_digits_of_a_revision_are_taken_as_they_are(digits: str, tmp_path: Path) -> None:
    assert meant(digits, None, tmp_path) == digits.lower()


@pytest.mark.parametrize("name", ["HEAD", "main", "v1", "HEAD~1"])
def test_a_name_is_asked_of_the_repository_that_is_followed_here(name: str, clone: Path, tmp_path: Path) -> None:
    assert meant(name, str(clone), tmp_path) == commit(clone, name)
    assert meant(name, str(clone / "below"), tmp_path) == commit(clone, name)


def test_a_name_is_asked_of_the_clone_around_where_the_repository_is_elsewhere(clone: Path, tmp_path: Path) -> None:
    assert meant("HEAD", "https://git.example.org/catalog.git", clone / "below") == commit(clone, "HEAD")


@pytest.mark.parametrize("name", ["HEAD", "ab", "nowhere", "--all", ""])
def test_what_names_no_revision_says_at_once_what_to_give(name: str, tmp_path: Path) -> None:
    for source in (None, str(tmp_path), "https://git.example.org/catalog.git"):
        with pytest.raises(UsageError, match="write the first digits of one, 4 at least: `llmgw status` shows"):
            meant(name, source, tmp_path)
