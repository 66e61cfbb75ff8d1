"""When progress is news."""

import pytest

from llmgw.agent.coming import Coming
from llmgw.facts import ComingFile, Progress
from llmgw.units import MIB, Bytes, Mono


def at(
    done: int,
    total: int | None = 100,
    *,
    rate: float | None = None,
    waiting: bool = False,
    waits_for: str = "",
) -> Progress:
    size = None if total is None else Bytes(total)
    return Progress(done=Bytes(done), total=size, rate=rate, waiting=waiting, waits_for=waits_for)


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
        heard.append(coming.hear("a", progress, Mono(now)))
    assert heard == [True, True, False, False, True, True, True]
    assert coming.progress == at(5)


def test_files_that_come_together_are_told_of_as_one_and_each() -> None:
    coming = Coming()
    assert coming.progress is None
    coming.hear("a", at(10, rate=2.0), Mono(0.0))
    coming.hear("b", at(0, 50, waiting=True), Mono(0.0))
    assert coming.progress == at(10, 150, rate=2.0), "one that waits does not hold up the others"
    assert coming.files == (
        ComingFile(source="a", progress=at(10, rate=2.0)),
        ComingFile(source="b", progress=at(0, 50, waiting=True)),
    )
    coming.hear("a", at(100, rate=2.0), Mono(1.0))
    coming.brought("a", 1.0)
    assert coming.progress == at(100, 150, waiting=True), "what is here counts on, and no longer has a rate"
    assert [file.source for file in coming.files] == ["b"]
    coming.hear("b", at(5, None), Mono(2.0))
    assert coming.progress == at(105, None), "the size of all is known once each is"
    coming.gave_up("b")
    assert coming.progress == at(100)
    assert coming.files == ()


def test_what_is_waited_for_is_told_while_all_that_is_left_waits() -> None:
    coming = Coming()
    coming.hear("a", at(0, waiting=True, waits_for="n2 to fetch it"), Mono(0.0))
    assert coming.hear("a", at(0, waiting=True, waits_for="n3 to fetch it"), Mono(0.1)), "another one is news"
    coming.hear("b", at(0, waiting=True), Mono(0.1))
    assert coming.progress == at(0, 200, waiting=True, waits_for="n3 to fetch it")
    coming.hear("b", at(1), Mono(0.2))
    assert coming.progress == at(1, 200)


@pytest.mark.parametrize(
    ("took", "text"), [(4.0, "pypi://x, 8.0 MiB in 4.0s (2.0 MiB/s)"), (0.0, "pypi://x, 8.0 MiB in 0.0s")]
)
def test_what_was_brought_is_told_with_bytes_time_and_rate(took: float, text: str) -> None:
    coming = Coming()
    coming.hear("pypi://x", at(8 * MIB, 8 * MIB), Mono(0.0))
    assert coming.brought("pypi://x", took) == text
