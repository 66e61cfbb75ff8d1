"""Waiting for a revision: until it is served, or it is clear that it will not be."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmgw.admin.shapes import CatalogRow, StatusOutput
from llmgw.cli.text import short_revision
from llmgw.errors import UsageError
from llmgw.ids import FEWEST_DIGITS, is_named
from llmgw.units import format_seconds

if TYPE_CHECKING:
    from llmgw.cli.client import AdminClient

_DIGITS: Final = re.compile(r"[0-9a-f]{4,64}(\+dirty:[0-9a-f]+)?")

POLL: Final = 0.3  #: seconds between two looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`trouble`: why the revision is not served; None: it is."""

    status: StatusOutput
    trouble: str | None = None


class Waited:
    """What becomes of one revision, look by look. `asked`: it, or its beginning. Pure."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self._seen: str | None = None

    @property
    def came(self) -> bool:
        return self._seen is not None

    def look(self, row: CatalogRow) -> tuple[bool, str | None]:
        """Whether that is the end, and what the trouble is."""
        newest = row.attempted
        if newest is None or not is_named(newest, self._asked):
            if self._seen is None:
                return False, f"{self._asked} has not come: the newest revision is {short_revision(newest)}"
            return True, f"{short_revision(self._seen)} was superseded by {short_revision(newest)}"
        self._seen = newest
        short, told = short_revision(newest), {each.type: each for each in row.conditions if each.observed == newest}
        if row.problems:
            return True, f"{short} is invalid"
        if row.held is not None:
            return True, f"{short} is held: {row.held.message}"
        if row.applied == newest and "Ready" in told and told["Ready"].status:
            return True, None
        if (stalled := told.get("Stalled")) is not None and stalled.status:
            return True, f"{short} is stalled: {stalled.reason}: {stalled.message}"
        coming = told.get("Reconciling")
        return False, f"{short} is not served yet" + (f": {coming.message}" if coming and coming.message else "")


def meant(asked: str, source: str | None, here: Path) -> str:
    """The revision's digits. Other names (`HEAD`, a branch, a tag) are asked of the repository that the daemon follows,
    where it is on this machine, else of the one around `here`: a clone of it. Raises UsageError."""
    if _DIGITS.fullmatch(asked.lower()):
        return asked.lower()
    directory = Path(source) if source is not None and Path(source).is_dir() else here
    if (commit := _commit(directory, asked)) is not None:
        return commit
    raise UsageError(
        f"--wait {asked}: no revision of {directory} is called so; write the first digits of one, {FEWEST_DIGITS} at "
        "least: `llmgw status` shows those that the daemon knows, `git rev-parse HEAD` in a clone what was pushed"
    )


def _commit(directory: Path, name: str) -> str | None:
    from llmgw.catalog import git
    from llmgw.errors import CatalogUnreadable

    try:
        facts = git.facts(directory.resolve(), name)
    except (FileNotFoundError, CatalogUnreadable):
        return None
    return None if facts is None else facts.commit


def past(client: "AdminClient", asked: str) -> str | None:
    """Where a newer revision took its place, before anybody looked: what came of it. None: it may yet come."""
    from llmgw.admin.syncs import RevisionOutput, Standing
    from llmgw.cli.rows import problem_line

    told = client.get("revision", RevisionOutput, {"revision": asked})
    if told.standing is not Standing.SUPERSEDED:
        return None
    trouble = f"{short_revision(told.revision)} was superseded by {short_revision(told.newest)}"
    if told.problems:
        return f"{trouble}; it was invalid: {problem_line(told.problems[0])}"
    return f"{trouble}; {told.said}" if told.said else trouble


def settled(
    client: "AdminClient",
    asked: str,
    timeout: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Ask again and again, for `timeout` seconds at most. `asked`: digits. Raises as the client."""
    waited, deadline = Waited(asked), now() + timeout
    compared: set[str | None] = {None}  # the newest revisions that it was found not to precede
    while True:
        status = client.get("status", StatusOutput)
        done, trouble = waited.look(status.catalog)
        newest = status.catalog.attempted
        if not done and not waited.came and newest not in compared:
            compared.add(newest)
            told = past(client, asked)
            done, trouble = told is not None, told or trouble
        if done:
            return Outcome(status=status, trouble=trouble)
        if now() >= deadline:
            return Outcome(status=status, trouble=f"after {format_seconds(timeout)}: {trouble}")
        sleep(min(POLL, max(0.0, deadline - now())))
