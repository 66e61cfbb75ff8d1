"""Measured memory over passes: remembered, told of, and counted at the next launch."""

from dataclasses import replace

from make import catalog, gib, model
from test_controller import World

from llmgw.facts import Footprint, Measured
from llmgw.store import keys
from llmgw.store.codec import decode
from llmgw.units import Bytes

A = model("a")


async def kept(world: World) -> dict[str, Measured]:
    return {e.key: decode(e.value, Measured) for e in (await world.store.list(keys.MEASURED)).entries}


async def use(world: World, peak: Bytes) -> None:
    """Every replica has served and has been ready for long."""
    world.clock.advance(400)
    for id, fact in world.replicas.items():
        world.replicas[id] = replace(fact, served=True, resident_peak=peak)
    await world.tell()
    await world.controller.reconcile()


async def test_the_controller_remembers_what_it_saw_and_tells_of_a_low_declaration_once() -> None:
    world = World()
    await world.push(A)  # declared: 4 GiB
    await world.tell()
    await world.settle()
    await use(world, gib(5))
    await use(world, gib(5))
    (one,) = (await kept(world)).values()
    assert (one.host, one.warned_for) == (gib(5), gib(4))
    told = [event for event in world.events if event.reason == "memory underdeclared"]
    assert len(told) == 1
    assert "4.0 GiB" in told[0].message


async def test_the_next_launch_is_counted_with_what_the_last_one_took() -> None:
    world = World()
    await world.push(A)
    await world.tell()
    await world.settle()
    await use(world, gib(1.5))
    undeclared = replace(catalog(A), digest="other")  # type: ignore[arg-type]
    world.live.accept(undeclared, world.clock.now())
    for id in list(world.replicas):
        await world.fail(id)
    await world.controller.reconcile()
    await world.act()
    world.clock.advance(10)
    await world.settle()
    (assignment,) = (await world.assignments()).values()
    assert assignment.footprint == Footprint(host=gib(1.5), source="measured")
