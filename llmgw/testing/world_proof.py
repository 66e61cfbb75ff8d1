"""One random world from its seed: 200 steps of whatever may happen, then calm; what must be true all along, and after.

python -m llmgw.testing.world_proof SEED [STEPS]        the story of one seed, and whether it held
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from llmgw.ids import ModelName
from llmgw.plan import Plan
from llmgw.schedule.think import Thought, think
from llmgw.testing.world import World
from llmgw.testing.world_checks import Checks, Violation
from llmgw.testing.world_controller import Mind
from llmgw.testing.world_oracle import beyond_wishes, could_serve, missing
from llmgw.testing.world_random import Lot, another, draw, mishaps
from llmgw.testing.world_values import Behaviour, Rules
from llmgw.units import Seconds, format_bytes

STEPS: Final = 200
STEP: Final = 15.0  #: mean seconds of one
CALM: Final = 3 * 3600.0  #: seconds in which everything must come to rest
REST: Final = 1200.0  #: seconds at its end in which nothing may happen any more
IN_TIME: Final = 150.0
"""Seconds from a request for a model until it is served, where it fits: a minimum residency, and a slow start."""

_TOLD: Final = 60  #: lines of the story that a failure shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a world that held came to."""

    passes: int
    decisions: int
    loads: int
    evictions: int
    served: int
    settled_after: float  #: seconds of calm until the last thing was done
    busy_passes: int  #: in the calm, that did something


def prove(seed: int, mind: Mind | None = None, *, steps: int = STEPS) -> Outcome:
    """Run it. Raises Violation with the rule that broke, the story's end and how to see it again."""
    lot = draw(seed)
    life = _Life(seed, lot, mind)
    try:
        life.live(steps)
        return life.rest()
    except Exception as error:
        story = "\n".join([*list(life.world.story)[-_TOLD:], *life.world.picture(), *_decision(life.world)])
        again = f"python -m llmgw.testing.world_proof {seed}" + (f" {steps}" if steps != STEPS else "")
        at = f"{life.world.agenda.time:.1f} s"
        kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
        raise Violation(f"seed {seed}, at {at}: {kind}{error}\n{story}\nsee it again: {again}") from error


def _decision(world: World) -> Iterator[str]:
    """The last one, in lines."""
    plan = world.controller.thought.plan if world.controller.thought else Plan()
    for stop in plan.stops:
        what = "evict" if stop.eviction else "stop"
        yield f"last decision: {what} {stop.model} {stop.replica} on {stop.node}: {stop.reason} {stop.detail}"
    for one in plan.launches:
        takes = f"{format_bytes(one.footprint.host)} host, {format_bytes(one.footprint.device)} device"
        devices = " ".join(one.devices)
        yield f"last decision: launch {one.model} {one.profile.name} {one.level} on {one.node}: {takes} {devices}"
    for refused in plan.unschedulable:
        yield f"last decision: refuse {refused.model}: {refused}"
    for name, why in plan.waiting.items():
        yield f"last decision: {name} waits: {why}"


class _Life:
    def __init__(self, seed: int, lot: Lot, mind: Mind | None) -> None:
        self._random = Random(seed + 1)
        self._lot = lot
        self._calm = False
        self.checks = Checks(mind=mind or think, random=Random(seed + 2))
        self.world = World(
            lot.fleet,
            lot.catalog,
            mind=mind,
            seed=seed,
            rules=Rules(looks_every=Seconds(15), pass_after=Seconds(0.3), resync=Seconds(600), fetch_rate=1e9),
            behaviours=self._behaviour,
            watcher=self.checks,
        )

    def _behaviour(self, model: ModelName) -> Behaviour:
        found = self._lot.behaviours.get(model, Behaviour())
        return replace(found, takes=min(1.0, found.takes), crashes=None) if self._calm else found

    def live(self, steps: int) -> None:
        """Whatever may happen."""
        random, world = self._random, self.world
        faults = mishaps(random, self._lot)
        pushed = 0
        for _ in range(steps):
            world.run(until=world.agenda.time + min(4 * STEP, random.expovariate(1 / STEP)))
            self._physics()
            dice = random.random()
            if dice < 0.5:
                name = random.choice(sorted(world.controller.catalog.models))
                for _ in range(random.choice((1, 1, 2, 8))):
                    world.request(name, random.expovariate(1 / 10))
            elif dice < 0.58:
                world.happen(next(faults))
            elif dice < 0.60:
                pushed += 1
                world.push(another(random, self._lot, world.controller.catalog, pushed))

    def _physics(self) -> None:
        """What really runs fits, unless other programs grew or an engine took more than it was counted for."""
        honest = all(one.takes <= 1.0 for one in self._lot.behaviours.values())
        for node in self.world.nodes.values():
            if node.grew or not honest:
                continue
            taken = node.host_taken() + node.foreign_host
            if taken > node.total:
                raise Violation(f"{node.name}: {taken} bytes of host memory are in use, of {node.total}")
            for uuid, device in node.devices.items():
                taken = node.device_taken(uuid) + node.foreign_device[uuid]
                if taken > device.total:
                    raise Violation(f"{uuid}: {taken} bytes are in use, of {device.total}")

    def rest(self) -> Outcome:
        """Faults stop, engines behave, nobody asks: it comes to rest, and everything that is wanted and fits is up."""
        world, began = self.world, self.world.agenda.time
        self._calm = True
        world.tell("calm")
        world.cure()
        world.run(until=began + CALM / 3)
        self._encore()
        # Two clocks that never jump again: by whole hours, so that no window begins or ends in the last minutes.
        until = began + CALM
        until += (2700 - (world.agenda.now.wall + CALM)) % 3600
        world.run(until=until)
        busy = [at for at in self.checks.busy_passes if at > began]
        late = [at for at in busy if at > until - REST]
        if late:
            raise Violation(
                f"not at rest after {CALM:.0f} s: {len(late)} passes of the last {REST:.0f} s did something"
            )
        world.controller.reconcile()
        world.controller.reconcile()
        self._at_rest()
        models = world.tally.models.values()
        return Outcome(
            passes=world.tally.passes,
            decisions=self.checks.decisions,
            loads=sum(one.loads for one in models),
            evictions=sum(one.evictions for one in models),
            served=sum(one.served for one in models),
            settled_after=max(busy, default=began) - began,
            busy_passes=len(busy),
        )

    def _encore(self) -> None:
        """Each on-demand model is asked for once, one right after the other: they make room for one another in time."""
        world = self.world
        for name, model in sorted(world.controller.catalog.models.items()):
            if not model.scaling.on_demand:
                continue
            before, asked = world.tally.of(name).served, world.agenda.time
            world.request(name, 1.0)
            world.run(until=asked + 2)
            known = world.controller.known
            node = could_serve(known, model) if known is not None else None
            while world.tally.of(name).served == before and world.agenda.time < asked + IN_TIME:
                world.run(until=world.agenda.time + 5)
            if node is not None and world.tally.of(name).served == before:
                raise Violation(f"{name} fits on {node}, and was not served within {IN_TIME:.0f} s of being asked for")

    def _at_rest(self) -> None:
        known, thought = self.world.controller.known, self.world.controller.thought
        assert known is not None
        assert thought is not None
        wrong = [*_moving(thought), *beyond_wishes(known, thought), *missing(known, thought)]
        if wrong:
            raise Violation("at rest, but " + "; ".join(wrong))


def _moving(thought: Thought) -> Iterator[str]:
    for name in ("launches", "stops"):
        if getattr(thought.plan, name):
            yield f"the plan has {name}: {getattr(thought.plan, name)}"
    for name in ("recovery", "scaling"):
        if getattr(thought, name):
            yield f"{name} changes: {getattr(thought, name)}"


def main(args: Sequence[str]) -> int:
    """`SEED [STEPS]`: how it went. 1: it did not hold; 64: not so called."""
    if not 1 <= len(args) <= 2 or not all(arg.isdecimal() for arg in args):
        asked = any(arg in ("-h", "--help") for arg in args)
        (sys.stdout if asked else sys.stderr).write(f"{__doc__}")
        return 0 if asked else 64
    seed, *more = map(int, args)
    try:
        sys.stdout.write(f"{prove(seed, steps=more[0] if more else STEPS)}\n")
    except Violation as broken:
        sys.stdout.write(f"{broken}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
