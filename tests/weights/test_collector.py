"""What may be removed, and why the rest stays."""

from hypothesis import given
from hypothesis import strategies as st

from llmgw.facts import WeightsFact
from llmgw.ids import Digest, Revision
from llmgw.units import Bytes, Instant, Mono, Seconds, Wall
from llmgw.weights.collector import Applied, kept_revisions, listing

NOW = Instant(Mono(0), Wall(1_000_000))
DAY = 86_400.0


def fact(
    source: str, *, age: float = 10 * DAY, size: int = 100, in_use: bool = False, entry: bool = True
) -> WeightsFact:
    return WeightsFact(
        source=source, entry=f"v1-{source}" if entry else None, size=Bytes(size), last_wanted=Wall(NOW.wall - age),
        in_use=in_use,
    )  # fmt: skip


def applied(name: str, *sources: str, digest: str | None = None) -> Applied:
    return Applied(revision=Revision(name), digest=Digest(digest or name), sources=frozenset(sources))


def reasons(*facts: WeightsFact, **given: object) -> dict[str, str]:
    settings: dict[str, object] = {
        "wanted": (),
        "history": (),
        "min_age": Seconds(DAY),
        "keep_revisions": 3,
        "now": NOW,
    }
    return {listed.source: str(listed) for listed in listing(facts, **{**settings, **given})}  # type: ignore[arg-type]


def test_only_what_the_catalog_in_force_does_not_want_is_listed() -> None:
    assert reasons(fact("a"), fact("b"), wanted={"a"}) == {"b": "removable: last wanted 10d ago"}


def test_files_in_place_are_never_listed() -> None:
    assert reasons(fact("file:///x", entry=False)) == {}


def test_each_reason_to_keep_is_named() -> None:
    history = [applied("old", "ancient"), applied("aaa", "r3"), applied("bbb", "r2"), applied("ccc")]
    assert reasons(
        fact("used", in_use=True), fact("also used"), fact("coming"), fact("r2"), fact("r3"), fact("ancient"),
        fact("young", age=3600),
        history=history, in_use={"also used"}, being_fetched={"coming"},
    ) == {
        "used": "kept: in use",
        "also used": "kept: in use",
        "coming": "kept: being fetched",
        "r2": "kept: revision bbb is 2 of 3",
        "r3": "kept: revision aaa is 3 of 3",
        "ancient": "removable: last wanted 10d ago",
        "young": "kept: too young (last wanted 1h ago, kept for 1d)",
    }  # fmt: skip


def test_nothing_is_removable_while_the_catalog_is_not_surely_known() -> None:
    found = reasons(fact("a"), fact("b", in_use=True), stale="the catalog is invalid")
    assert set(found.values()) == {"kept: the catalog is invalid"}


def test_uncommitted_states_and_repeats_do_not_push_out_a_revision() -> None:
    history = [
        applied("r1"),
        applied("r2"),
        applied("r2+dirty:1", digest="x"),
        applied("r2+dirty:2", digest="y"),
        applied("r3", digest="r2"),
    ]
    assert [kept.revision for kept in kept_revisions(history, 2)] == ["r3", "r1"]
    assert kept_revisions(history, 0) == ()


def test_the_largest_comes_first() -> None:
    assert list(reasons(fact("small", size=1), fact("large", size=9))) == ["large", "small"]


def test_a_stamp_from_the_future_counts_as_now() -> None:
    assert reasons(fact("a", age=-5 * DAY))["a"].startswith("kept: too young")


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 3 * DAY), st.booleans()), unique_by=lambda t: t[0]),
    st.sets(st.sampled_from("abcdef")),
    st.lists(st.sets(st.sampled_from("abcdef")), max_size=5),
    st.integers(0, 4),
    st.booleans(),
)
def test_nothing_that_anyone_may_want_is_ever_removable(
    found: list[tuple[str, float, bool]], wanted: set[str], past: list[set[str]], keep: int, stale: bool
) -> None:
    history = [applied(str(number), *sources) for number, sources in enumerate(past)]
    facts = [fact(source, age=age, in_use=used) for source, age, used in found]
    listed = listing(
        facts, wanted=wanted, history=history, min_age=Seconds(DAY), keep_revisions=keep, now=NOW,
        stale="unreadable" if stale else None,
    )  # fmt: skip
    recent = set().union(*past[len(past) - keep :]) if keep else set()
    by_source = {each.source: each for each in facts}
    for entry in listed:
        if entry.removable:
            assert not stale
            assert entry.source not in wanted | recent
            assert not by_source[entry.source].in_use
            assert NOW.since(by_source[entry.source].last_wanted) >= DAY


ONE, OTHER, ELSEWHERE = f"hf://o/r/a.gguf@{'ab' * 20}", f"hf://o/r/b.gguf@{'cd' * 20}", f"hf://o/s/a.gguf@{'ab' * 20}"


def test_a_source_whose_revision_nobody_resolved_keeps_every_entry_of_its_repository() -> None:
    facts = [fact(source) for source in (ONE, OTHER, ELSEWHERE)]
    assert set(reasons(*facts, wanted={"hf://o/r/a.gguf@v1"})) == {ELSEWHERE}
    assert reasons(*facts, in_use={"hf://o/r/c.gguf"})[OTHER] == "kept: in use"
    assert reasons(*facts, history=[applied("rev", "hf://o/r/c.gguf")])[ONE] == "kept: revision rev is 1 of 3"
    assert reasons(*facts, being_fetched={"hf://o/r"})[ELSEWHERE].startswith("removable")


def test_a_resolved_source_keeps_its_own_revision_alone() -> None:
    older = f"{ONE[:-40]}{'ef' * 20}"
    assert reasons(fact(ONE), fact(older), wanted={ONE}) == {older: "removable: last wanted 10d ago"}
