"""What was worked out before is kept while it holds, and not a moment longer."""

import pytest

from llmgw.memo import Kept, Living, Once


class Counting:
    def __init__(self) -> None:
        self.made = 0

    def __call__(self, *of: object) -> tuple[object, ...]:
        self.made += 1
        return of


class Thing:
    """Equal to any other; its hash is not to be had."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    __hash__ = None  # type: ignore[assignment]


def test_once_makes_one_answer_for_each_object_and_not_for_its_equal() -> None:
    make = CountingThings()
    once = Once(make)
    first, second = Thing(), Thing()
    assert once(first) == once(first) == 1
    assert once(second) == 2


def test_what_is_known_of_an_object_goes_with_it_and_is_never_taken_for_anothers() -> None:
    known: Living[Thing, int] = Living()
    once = Once(CountingThings())
    stays = Thing()
    known.put(stays, -1)
    for number in range(1000):  # most of them where the one before was
        thing = Thing()
        assert known.get(thing) is None
        known.put(thing, number)
        assert known.get(thing) == number
        assert once(thing) == once(thing) == number + 1
    del thing
    assert (len(known), known.get(stays)) == (1, -1)


class CountingThings:
    def __init__(self) -> None:
        self.made = 0

    def __call__(self, of: Thing) -> int:
        self.made += 1
        return self.made


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

    once, kept, value = Once(make), Kept[str, str](make), Thing()
    with pytest.raises(ValueError, match="not yet"):
        once(value)
    with pytest.raises(ValueError, match="not yet"):
        kept.of("a", value)
    assert (once(value), kept.of("a", value)) == ("made", "made")
