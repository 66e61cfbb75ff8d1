"""Who stays in memory. A brute-force oracle states the contract; the greedy code must agree with it."""

from itertools import pairwise, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.schedule.residency import HOST, Item, Residency, schedule
from llmgw.units import Bytes, Wall

ids = st.sampled_from("abcdef")
items = st.builds(
    Item,
    id=ids,
    costs=st.integers(-2, 12).map(lambda size: {HOST: size}),
    priority=st.integers(0, 3),
    pinned=st.booleans(),
    active=st.booleans(),
    yields=st.booleans(),
    last_used=st.integers(0, 3).map(lambda t: Wall(float(t))),
)
crowds = st.lists(items, max_size=7)
budgets = st.integers(0, 30).map(lambda size: {HOST: size})


def item(id: str, cost: int, **more: object) -> Item:
    return Item(id=id, costs={HOST: cost}, **more)  # type: ignore[arg-type]


def size(item: Item) -> int:
    return max(0, item.costs[HOST])


def test_the_higher_priority_serves_and_the_other_is_reported() -> None:
    plan = schedule([item("low", 6), item("high", 6, priority=5)], [], {HOST: 10})
    assert plan.launch == ("high",)
    assert plan.unschedulable == ("low",)
    assert plan.room == {"low": {HOST: 4}}


def test_one_that_does_not_fit_is_skipped_not_waited_for() -> None:
    plan = schedule([item("big", 20, priority=9), item("small", 3)], [], {HOST: 10})
    assert plan.launch == ("small",)
    assert plan.unschedulable == ("big",)


def test_among_equals_a_resident_stays() -> None:
    plan = schedule([item("a", 6), item("z", 6)], [item("z", 6)], {HOST: 10})
    assert plan == Residency(launch=(), evict=(), unschedulable=("a",), room={"a": {HOST: Bytes(4)}})


def test_a_higher_priority_evicts_an_idle_resident() -> None:
    plan = schedule([item("a", 6), item("b", 6, priority=1)], [item("a", 6)], {HOST: 10})
    assert plan.launch == ("b",)
    assert plan.evict == ("a",)


def test_what_is_decoding_is_never_evicted() -> None:
    plan = schedule([item("a", 6), item("b", 6, priority=1)], [item("a", 6, active=True)], {HOST: 10})
    assert plan.evict == ()
    assert plan.unschedulable == ("b",)


def test_a_decoding_resident_nobody_wants_stays_too() -> None:
    assert schedule([], [item("a", 6, active=True)], {HOST: 0}).evict == ()


def test_pinned_overrides_the_budget() -> None:
    assert schedule([item("a", 60, pinned=True)], [], {HOST: 10}).launch == ("a",)


def test_nothing_is_kept_for_its_own_sake() -> None:
    assert schedule([], [item("a", 1)], {HOST: 10}).evict == ("a",)


def test_a_negative_cost_is_nothing() -> None:
    assert schedule([item("a", -5), item("b", 10)], [], {HOST: 10}).launch == ("a", "b")


def test_of_a_duplicate_the_pinned_one_counts_then_the_higher_priority() -> None:
    plan = schedule([item("a", 99, priority=9), item("a", 1, pinned=True)], [], {HOST: 5})
    assert plan.launch == ("a",)
    plan = schedule([item("a", 2, priority=1), item("a", 99)], [], {HOST: 5})
    assert plan.launch == ("a",)


@given(crowds, crowds, budgets)
@settings(max_examples=200)
def test_the_order_of_the_input_changes_nothing(
    desired: list[Item], resident: list[Item], budget: dict[str, int]
) -> None:
    assert schedule(desired, resident, budget) == schedule(desired[::-1], resident[::-1], budget)


@given(crowds, crowds, budgets)
def test_applied_and_asked_again_nothing_changes(
    desired: list[Item], resident: list[Item], budget: dict[str, int]
) -> None:
    first = schedule(desired, resident, budget)
    wanted, present = {i.id: i for i in desired}, {i.id: i for i in resident}
    after = [i for i in resident if i.id not in first.evict] + [wanted[id] for id in first.launch if id not in present]
    # what was launched is idle and as wanted; what stayed is as it was
    second = schedule(desired, after, budget)
    assert second.evict == ()
    assert second.launch == ()


@given(crowds, crowds, budgets)
def test_the_budget_holds_unless_forced(desired: list[Item], resident: list[Item], budget: dict[str, int]) -> None:
    plan = schedule(desired, resident, budget)
    forced = {i.id for i in desired if i.pinned} | {i.id for i in resident if i.pinned or i.active}
    unforced = set(plan.launch) - forced
    assert all(id in {i.id for i in desired} for id in plan.launch)
    if unforced:
        kept = (set(plan.launch) | {i.id for i in resident}) - set(plan.evict)
        cheapest = {id: min(size(i) for i in [*desired, *resident] if i.id == id) for id in kept}
        assert sum(cheapest.values()) <= budget[HOST]


@given(crowds, crowds, budgets)
def test_no_active_or_pinned_resident_is_evicted(
    desired: list[Item], resident: list[Item], budget: dict[str, int]
) -> None:
    plan = schedule(desired, resident, budget)
    # of a duplicate id one item counts; forced only if that one says so
    clear = {i.id for i in resident if i.pinned or i.active} - {i.id for i in resident if not (i.pinned or i.active)}
    assert not clear & set(plan.evict)


def oracle(desired: list[Item], resident: list[Item], budget: dict[str, int]) -> set[str]:
    """Greedy with skip, by trying every admission order and keeping the one that the rules demand."""
    present = {i.id: i for i in resident}
    wanted = {i.id: i for i in desired}
    forced = {i.id for i in desired if i.pinned} | {i.id for i in resident if i.pinned or i.active}

    def before(a: Item, b: Item) -> bool:
        def key(i: Item) -> tuple[int, bool, int, float, str]:
            here = present.get(i.id)
            return (-i.priority, i.yields, 0 if here else 1, -max(i.last_used, here.last_used if here else 0), i.id)

        return key(a) <= key(b)

    rest = [i for i in desired if i.id not in forced]
    for order in permutations(rest):
        if all(before(a, b) for a, b in pairwise(order)):
            kept = set(forced)
            used = sum(size(wanted.get(id) or present[id]) for id in forced)
            for i in order:
                if used + size(i) <= budget[HOST]:
                    kept.add(i.id)
                    used += size(i)
            return kept
    raise AssertionError("some order obeys the rules")


@given(
    st.lists(items, max_size=5, unique_by=lambda i: i.id),
    st.lists(items, max_size=5, unique_by=lambda i: i.id),
    budgets,
)
def test_brute_force_agrees(desired: list[Item], resident: list[Item], budget: dict[str, int]) -> None:
    plan = schedule(desired, resident, budget)
    kept = oracle(desired, resident, budget)
    present = {i.id for i in resident}
    assert set(plan.evict) == present - kept
    assert set(plan.launch) == kept - present
    assert set(plan.unschedulable) == {i.id for i in desired} - kept
