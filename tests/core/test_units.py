"""Sizes, durations and names as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.ids import is_name, node_name
from llmgw.units import Instant, Mono, Wall, format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * 2**30), ("4.7 GiB", int(4.7 * 2**30)), ("500MB", 500_000_000), ("0B", 0), (1024, 1024)],
)
def test_a_size_is_a_number_and_a_unit(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "24", "-1GiB", "24GiB\n", "1e9B", "24gib", True, -5, "NaNGiB"])
def test_what_is_no_size_is_refused_with_an_example(text: str | int) -> None:
    with pytest.raises(ValueError, match="such as 24GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400), (3, 3), (0.25, 0.25)]
)
def test_a_duration_is_numbers_and_units(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "15", "15m\n", "-3s", "1 h", True, -1, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused_with_an_example(text: str | float) -> None:
    with pytest.raises(ValueError, match="such as 30s"):
        parse_seconds(text)


@given(st.integers(min_value=0, max_value=2**50))
def test_a_printed_size_is_readable_and_near(size: int) -> None:
    number, unit = format_bytes(size).split(" ")
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert abs(float(number) * scale - size) <= scale * 0.051


def test_durations_print_their_two_largest_units() -> None:
    assert [format_seconds(s) for s in (0.26, 9.96, 65, 3600, 5400, 90061)] == [
        "0.3s", "10.0s", "1m5s", "1h", "1h30m", "1d1h",
    ]  # fmt: skip


def test_time_since_a_stamp_from_the_future_is_zero() -> None:
    assert Instant(Mono(0), Wall(100)).since(Wall(130)) == 0


@pytest.mark.parametrize("name", ["a", "qwen3-8b", "gemma-3.270m_q4", "x" * 63])
def test_names_that_are_allowed(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a b", "x" * 64, "a\n", "ä", ".a"])
def test_names_that_are_not(name: str) -> None:
    assert not is_name(name)


@given(st.text())
def test_any_host_name_gives_a_legal_node_name(text: str) -> None:
    assert is_name(node_name(text))
