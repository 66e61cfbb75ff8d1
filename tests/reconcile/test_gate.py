"""Which valid catalogs may come into force by themselves."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.catalog.holds import Held, HoldReason
from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, ProfileSpec, Sync
from llmgw.facts import Suspension
from llmgw.ids import Digest, EngineName, ModelName, ProfileName, Revision
from llmgw.reconcile.gate import Orders, judge
from llmgw.store.values import Approval, Pinned
from llmgw.units import Wall

AT = Wall(1_000_000.0)
NAMES = [ModelName(f"m{number}") for number in range(9)]


def catalog(names: Iterable[str], *, protected: Collection[str] = (), digest: str = "", **cluster: Any) -> Catalog:
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("cpu"))
    models = {
        ModelName(name): ModelSpec(name=ModelName(name), profiles=(profile,), protect=name in protected)
        for name in names
    }  # fmt: skip
    label = digest or ",".join(models)
    return Catalog(
        revision=Revision(f"r:{label}"), digest=Digest(label), models=models, cluster=ClusterSpec(**cluster)
    )  # fmt: skip


def reason(held: Held | None) -> HoldReason | None:
    return None if held is None else held.reason


@pytest.mark.parametrize(
    ("before", "left", "expected"),
    [
        (1, 0, HoldReason.REMOVAL),
        (3, 0, HoldReason.REMOVAL),
        (3, 1, None),
        (4, 2, None),
        (4, 1, HoldReason.REMOVAL),
        (9, 5, None),
        (9, 4, HoldReason.REMOVAL),
        (9, 9, None),
    ],
)
def test_all_models_or_more_than_half_of_many_are_not_removed_unasked(
    before: int, left: int, expected: HoldReason | None
) -> None:
    assert reason(judge(catalog(NAMES[:left]), catalog(NAMES[:before]), Orders())) == expected


def test_a_model_under_another_name_is_one_removed() -> None:
    renamed = catalog([f"new-{name}" for name in NAMES[:4]])
    held = judge(renamed, catalog(NAMES[:4]), Orders())
    assert held is not None
    assert held.models == ("m0", "m1", "m2", "m3")
    assert judge(catalog(["other"]), catalog(NAMES[:3]), Orders()) is None


def test_where_nothing_was_ever_in_force_nothing_is_removed() -> None:
    assert judge(catalog([]), None, Orders()) is None


def test_an_approval_is_of_one_revision() -> None:
    before, after = catalog(NAMES[:4]), catalog(NAMES[:1])
    approval = Approval(revision=after.revision, at=AT, by="ann", removal=True)
    assert judge(after, before, Orders(approval=approval)) is None
    assert judge(after, before, Orders(), removal_approved=True) is None
    assert reason(judge(catalog(NAMES[1:2]), before, Orders(approval=approval))) == HoldReason.REMOVAL
    applied = Approval(revision=after.revision, at=AT, by="ann")
    assert reason(judge(after, before, Orders(approval=applied))) == HoldReason.REMOVAL


def test_what_counts_as_protected_is_what_the_catalog_in_force_says() -> None:
    before = catalog(NAMES[:3], protected=["m1"])
    unprotected_and_gone = catalog(["m0", "m2"])
    assert reason(judge(unprotected_and_gone, before, Orders())) == HoldReason.PROTECTED
    assert judge(catalog(["m1", "m2"]), before, Orders()) is None
    assert judge(unprotected_and_gone, before, Orders(), removal_approved=True) is None


def test_a_protected_cluster_keeps_every_model_and_itself() -> None:
    before = catalog(NAMES[:3], protect=True, name="home")
    assert reason(judge(catalog(NAMES[:2], name="home"), before, Orders())) == HoldReason.PROTECTED
    assert reason(judge(catalog(NAMES[:4]), before, Orders())) == HoldReason.PROTECTED, "the document is gone"
    assert judge(catalog(NAMES[:3], name="home", digest="off"), before, Orders()) is None, "protection taken away"


def test_a_suspended_model_is_not_removed() -> None:
    orders = Orders(suspensions={NAMES[0]: Suspension(at=AT, by="ann")})
    assert reason(judge(catalog(NAMES[1:3]), catalog(NAMES[:3]), orders)) == HoldReason.PROTECTED
    assert judge(catalog(NAMES[:2]), catalog(NAMES[:3]), orders) is None


def test_with_manual_sync_each_revision_waits_and_the_first_too() -> None:
    manual = catalog(NAMES[:2], sync=Sync.MANUAL)
    assert reason(judge(manual, None, Orders())) == HoldReason.MANUAL
    newer = catalog(NAMES[:3])
    assert reason(judge(newer, manual, Orders())) == HoldReason.MANUAL, "it does not free itself"
    for removal in (False, True):
        approval = Approval(revision=newer.revision, at=AT, by="ann", removal=removal)
        assert judge(newer, manual, Orders(approval=approval)) is None
    assert reason(judge(newer, manual, Orders(), removal_approved=True)) == HoldReason.MANUAL


def test_what_was_gone_back_to_stays_and_so_does_what_is_suspended() -> None:
    old, new = catalog(NAMES[:1]), catalog(NAMES[:2])
    pinned = Pinned(revision=old.revision, digest=old.digest, at=AT, by="ann")
    suspended = Suspension(at=AT, by="ann")
    assert reason(judge(new, old, Orders(pinned=pinned, suspended=suspended))) == HoldReason.ROLLED_BACK
    assert reason(judge(new, old, Orders(suspended=suspended))) == HoldReason.SUSPENDED
    assert judge(new, None, Orders(suspended=suspended)) is None, "there is nothing to stay with"
    approval = Approval(revision=new.revision, at=AT, by="ann", removal=True)
    assert reason(judge(new, old, Orders(pinned=pinned, approval=approval))) == HoldReason.ROLLED_BACK


subsets = st.frozensets(st.sampled_from(NAMES))


@given(subsets, subsets, st.sampled_from(Sync), st.booleans())
def test_content_that_is_in_force_needs_nobodys_leave(
    names: frozenset[ModelName], pinned: frozenset[ModelName], sync: Sync, protect: bool
) -> None:
    current = catalog(sorted(names), sync=sync, protect=protect)
    back = catalog(sorted(pinned))
    orders = Orders(
        pinned=Pinned(revision=back.revision, digest=back.digest, at=AT, by="ann"),
        suspended=Suspension(at=AT, by="ann"),
    )
    assert judge(current, current, orders) is None


@given(subsets, subsets)
def test_unasked_never_are_all_models_removed_nor_most_of_many(
    before: frozenset[ModelName], after: frozenset[ModelName]
) -> None:
    if judge(catalog(sorted(after)), catalog(sorted(before)), Orders()) is None and before != after:
        assert after or not before
        assert len(before) < 4 or len(before - after) * 2 <= len(before)
