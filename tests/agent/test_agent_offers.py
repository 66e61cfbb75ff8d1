"""What gateways are told of a ready engine: its slots and what it serves, by its plugin's word."""

from pathlib import Path

from agent_world import Node, ScriptEngine

from llmgw.agent.offers import Offer, offer_of
from llmgw.catalog.spec import ProfileSpec
from llmgw.facts import Phase
from llmgw.ids import EngineName, ProfileName
from llmgw_command.engine import CommandEngine
from llmgw_cpu.engine import CpuEngine
from llmgw_llamacpp.engine import LlamaCppEngine
from llmgw_vllm.engine import VllmEngine


class Declares(ScriptEngine):
    """Says of itself what it can."""

    def request_slots(self, profile: ProfileSpec) -> int | None:
        return 3

    def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
        return frozenset({"rerank", "embeddings"})


def profile(engine: str, **more: object) -> ProfileSpec:
    return ProfileSpec(name=ProfileName("p"), engine=EngineName(engine), **more)  # type: ignore[arg-type]


def test_engines_whose_slots_bind_say_how_many_and_the_others_take_what_comes() -> None:
    offers = {
        engine.name: offer_of(engine, profile(engine.name, parallel=4))
        for engine in (CpuEngine(), LlamaCppEngine(), VllmEngine(), CommandEngine())
    }
    assert {name: offer.slots for name, offer in offers.items()} == {
        "cpu": 4, "llamacpp": 4, "vllm": None, "command": None,
    }  # fmt: skip


def test_an_engine_that_declares_no_surface_may_serve_anything() -> None:
    assert offer_of(ScriptEngine(), profile("script")) == Offer(slots=None, surfaces=None)
    assert offer_of(CommandEngine(), profile("command")).surfaces is None
    assert offer_of(Declares(), profile("script")) == Offer(slots=3, surfaces=("embeddings", "rerank"))


async def test_a_node_reports_what_a_ready_engine_offers(node: Node, tmp_path: Path) -> None:
    node.engine = Declares()
    node.engines.by_name[node.engine.name] = node.engine  # type: ignore[index]
    async with node.agent():
        await node.assign(node.assignment("r"))
        fact = await node.until(Phase.READY, "r")
    assert (fact.slots, fact.surfaces) == (3, ("embeddings", "rerank"))
