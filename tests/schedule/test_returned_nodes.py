"""A node that was given up is back, and so is what it ran."""

from make import NOW, catalog, model, observed, replica
from test_decide import plan_for

from llmgw.ids import ReplicaId
from llmgw.plan import Reason
from llmgw.units import Wall


def test_what_was_replaced_goes_and_what_replaced_it_stays() -> None:
    a = model("a")
    old, new = replica(a, "old", since=Wall(NOW.wall - 900)), replica(a, "new")
    world = observed(old, new, sizes=[(a, 4)], replaced=frozenset({ReplicaId("old")}))
    plan = plan_for(catalog(a), world)
    assert plan.keep == {"a": ("new",)}
    assert [(stop.replica, stop.reason) for stop in plan.stops] == [("old", Reason.DUPLICATE)]


def test_what_came_back_serves_where_nothing_replaced_it() -> None:
    a = model("a")
    world = observed(replica(a, "old"), sizes=[(a, 4)], replaced=frozenset({ReplicaId("old")}))
    plan = plan_for(catalog(a), world)
    assert (plan.keep, plan.stops) == ({"a": ("old",)}, ())
