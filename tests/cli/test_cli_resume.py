"""What `llmgw resume` says of the catalog that is followed again."""

import pytest

from llmgw.admin.shapes import CatalogRow, ProblemRow
from llmgw.cli.suspend import follows

PROBLEM = ProblemRow(file="a.yaml", line=1, column=1, path="$", message="no")


@pytest.mark.parametrize(
    ("attempted", "error", "problems", "told"),
    [
        ("bbbb", None, (), ": bbbb is next; `llmgw status` shows how it comes into force"),
        ("aaaa", None, (), "; aaaa stays in force"),
        ("bbbb", None, (PROBLEM,), "; aaaa stays in force, since bbbb is invalid: `llmgw status` says why"),
        ("bbbb", "no such host", (), "; aaaa stays in force while it cannot be read: no such host"),
    ],
)
def test_nothing_is_said_to_come_next_that_cannot(
    attempted: str, error: str | None, problems: tuple[ProblemRow, ...], told: str
) -> None:
    row = CatalogRow(
        source="/srv/catalog", attempted=attempted, applied="aaaa", applied_at=None, error=error, watcher="ok",
        problems=problems, conditions=(),
    )  # fmt: skip
    assert follows(row) == told
