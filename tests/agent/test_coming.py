"""When progress is news."""

import pytest

from llmgw.agent.coming import Coming
from llmgw.facts import Progress
from llmgw.units import MIB, Bytes, Mono


def at(done: int, total: int | None = 100, *, waiting: bool = False) -> Progress:
    return Progress(done=Bytes(done), total=None if total is None else Bytes(total), waiting=waiting)


def test_progress_is_news_once_a_second_and_whenever_something_turns() -> None:
    coming, heard = Coming(), []
    for now, progress in (
        (0.0, at(0, waiting=True)),
        (0.1, at(0)),  # its turn has come
        (0.2, at(10)),
        (0.9, at(20)),
        (1.2, at(30)),
        (1.3, at(100)),  # done
        (1.4, at(5)),  # the next file
    ):
        heard.append(coming.hear(progress, Mono(now)))
    assert heard == [True, True, False, False, True, True, True]
    assert coming.progress == at(5)


@pytest.mark.parametrize(
    ("took", "text"), [(4.0, "pypi://x, 8.0 MiB in 4.0s (2.0 MiB/s)"), (0.0, "pypi://x, 8.0 MiB in 0.0s")]
)
def test_what_was_brought_is_told_with_bytes_time_and_rate(took: float, text: str) -> None:
    coming = Coming()
    coming.hear(at(8 * MIB, 8 * MIB), Mono(0.0))
    assert coming.brought("pypi://x", took) == text
