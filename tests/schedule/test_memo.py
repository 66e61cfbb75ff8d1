"""What was worked out before is kept while it holds, and not a moment longer."""

import pytest

from llmgw.memo import Kept, Once


class Counting:
    def __init__(self) -> None:
        self.made = 0

    def __call__(self, *of: object) -> tuple[object, ...]:
        self.made += 1
        return of


def test_once_makes_one_answer_for_each_object_and_not_for_its_equal() -> None:
    make = Counting()
    once = Once(make)
    first, second = [1], [1]
    assert once(first) is once(first)
    assert once(second) == once(first)
    assert make.made == 2


def test_once_forgets_all_with_one_more_than_it_keeps_and_answers_all_the_same() -> None:
    make = Counting()
    once = Once(make, most=2)
    values = [[number] for number in range(3)]
    assert [once(value) for value in (*values, *values)] == [(value,) for value in (*values, *values)]
    assert make.made > 3


def test_an_answer_is_kept_while_all_that_it_is_made_of_is_equal() -> None:
    make = Counting()
    kept = Kept[str, tuple[object, ...]](make)
    first = kept.of("a", [1], "x")
    assert kept.of("a", [1], "x") is first
    assert kept.of("b", [1], "x") == first
    assert kept.of("a", [2], "x") == ([2], "x")
    assert kept.of("a", [1], "x") == first
    assert make.made == 4


def test_a_failure_to_make_an_answer_is_kept_by_neither() -> None:
    tried = 0

    def make(_: object) -> str:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise ValueError("not yet")
        return "made"

    once, kept, value = Once(make), Kept[str, str](make), [1]
    with pytest.raises(ValueError, match="not yet"):
        once(value)
    with pytest.raises(ValueError, match="not yet"):
        kept.of("a", value)
    assert (once(value), kept.of("a", value)) == ("made", "made")
