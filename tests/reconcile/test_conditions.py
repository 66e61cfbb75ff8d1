"""The three conditions of a catalog, from how its models fare."""

from llmgw.catalog.live import CatalogState
from llmgw.ids import ModelName, NodeName, ProfileName, Revision
from llmgw.plan import ModelState, ModelStatus, Reason, Rejection
from llmgw.reconcile.status import conditions
from llmgw.store.values import Condition, ConditionType
from llmgw.units import Instant, Mono, Wall

NOW = Instant(wall=Wall(1_000.0), mono=Mono(0.0))


def stalled(*models: ModelStatus) -> Condition:
    state = CatalogState(source="catalog", attempted=Revision("r2"), applied=Revision("r2"))
    return next(one for one in conditions(state, models, (), NOW) if one.type is ConditionType.STALLED)


def test_a_stall_without_a_reason_of_its_own_is_told_by_what_each_node_says() -> None:
    refusal = Rejection(
        node=NodeName("n1"),
        profile=ProfileName("default"),
        reason=Reason.QUARANTINED,
        detail="it broke 4 times in a row",
    )
    moving = ModelStatus(
        model=ModelName("ant"), state=ModelState.READY, wanted=1, ready=1, outdated=1, rejections=(refusal,)
    )
    found = stalled(moving)
    assert (found.status, found.reason) == (True, "ModelsNotServed")
    assert found.message.startswith("ant: ")
    assert "it broke" in found.message
