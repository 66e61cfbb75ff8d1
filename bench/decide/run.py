"""How long deciding takes as fleets grow. Writes RESULTS.md and curve.svg beside it.

    python bench/decide/run.py [--write] [--largest 10000]

CPU time of this process (median of some runs), for fleets of 8 devices a node, ten replicas a node, a fifth as many
models as replicas: cold (nothing runs, everything is to be placed), changed (all runs; one model of ten replicas gets
another context), one load report more (all runs, one node's report is new), and a pass over what did not change.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from llmgw.catalog.spec import (
    Catalog,
    ClusterSpec,
    ModelSpec,
    NodeSpec,
    ProfileSpec,
    ScalingSpec,
    WeightsSpec,
    spec_digest,
)
from llmgw.cli.chart import line_chart
from llmgw.desired import desired
from llmgw.facts import (
    DeviceFact,
    DiskFact,
    EngineFact,
    EngineLoad,
    Footprint,
    Level,
    MemoryFact,
    NodeReport,
    Observed,
    Phase,
    ReplicaFact,
)
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision
from llmgw.plan import Plan
from llmgw.schedule.decider import Decider
from llmgw.units import GIB, Bytes, Instant, Mono, Wall

HERE = Path(__file__).resolve().parent
NOW = Instant(Mono(1000.0), Wall(1_000_000.0))
ENGINE = EngineName("llamacpp")
SIZES = (100, 300, 1000, 3000, 10_000)  # replicas
REPLICAS_A_NODE, DEVICES_A_NODE, REPLICAS_A_MODEL = 10, 8, 5


def fleet(replicas: int) -> tuple[Catalog, Observed]:
    """Nodes with nothing on them, and models for so many replicas; every third wants two devices."""
    nodes = {
        NodeName(f"n{number:05d}"): NodeSpec(pool=("a", "b", "c", "d")[number % 4])
        for number in range(replicas // REPLICAS_A_NODE)
    }
    models = [_model(number) for number in range(replicas // REPLICAS_A_MODEL)]
    catalog = Catalog(
        revision=Revision("r"),
        digest=Digest("d"),
        models={model.name: model for model in models},
        cluster=ClusterSpec(nodes=nodes),
    )
    reports = {name: _report(name) for name in nodes}
    footprints = {
        (spec_digest(model.name, model.profiles[0]), Level.FULL): Footprint(
            host=Bytes(GIB), device=Bytes((4 + number % 7) * GIB)
        )
        for number, model in enumerate(models)
    }
    return catalog, Observed(nodes=reports, replicas={}, recovery={}, footprints=footprints)


def _model(number: int) -> ModelSpec:
    profile = ProfileSpec(
        name=ProfileName("p"),
        engine=ENGINE,
        weights=WeightsSpec(source=f"file:///models/{number}.gguf", size=Bytes(4 * GIB)),
        devices=2 if number % 3 == 0 else 1,
    )
    scaling = ScalingSpec(min=REPLICAS_A_MODEL, max=REPLICAS_A_MODEL)
    return ModelSpec(name=ModelName(f"m{number:05d}"), profiles=(profile,), priority=number % 5, scaling=scaling)


def _report(name: NodeName) -> NodeReport:
    devices = tuple(
        DeviceFact(uuid=f"{name}-{index}", name="gpu", index=index, total=Bytes(24 * GIB), foreign=Bytes(0))
        for index in range(DEVICES_A_NODE)
    )
    return NodeReport(
        node=name,
        at=NOW.wall,
        memory=MemoryFact(total=Bytes(256 * GIB), available=Bytes(250 * GIB), foreign=Bytes(4 * GIB)),
        disk=DiskFact(total=Bytes(4096 * GIB), free=Bytes(2048 * GIB)),
        engines=(EngineFact(name=ENGINE, version="1"),),
        catalog=Digest("d"),
        devices=devices,
    )


def placed(plan: Plan, observed: Observed) -> Observed:
    """Everything launched, and ready."""
    facts = [
        ReplicaFact(
            id=ReplicaId(f"r{number:06d}"),
            model=launch.model,
            profile=launch.profile.name,
            engine=ENGINE,
            node=launch.node,
            spec=launch.spec,
            revision=Revision("r"),
            phase=Phase.READY,
            since=Wall(NOW.wall - 3600),
            devices=launch.devices,
            footprint=launch.footprint,
            load=EngineLoad(running=0, waiting=0),
        )
        for number, launch in enumerate(plan.launches)
    ]
    return replace(observed, replicas={fact.id: fact for fact in facts})


def timed(call: Callable[[], object], runs: int) -> float:
    """Median CPU seconds."""
    took: list[float] = []
    for _ in range(runs):
        gc.collect()
        begin = time.process_time()
        call()
        took.append(time.process_time() - begin)
    return statistics.median(took)


def measure(replicas: int) -> dict[str, float]:
    catalog, empty = fleet(replicas)
    wishes = desired(catalog, now=NOW)
    runs = 3 if replicas > 3000 else 5
    plan = Decider().decide(wishes, catalog, empty, NOW)
    assert len(plan.launches) == replicas, f"{len(plan.launches)} of {replicas} placed: {plan.unschedulable[:1]}"
    full = placed(plan, empty)
    decider = Decider()
    assert decider.decide(wishes, catalog, full, NOW).is_empty
    first = next(iter(catalog.models.values()))
    profile = replace(first.profiles[0], context=8192)
    other = replace(catalog, models={**catalog.models, first.name: replace(first, profiles=(profile,))})
    sizes = {
        **full.footprints,
        (spec_digest(first.name, profile), Level.FULL): Footprint(host=Bytes(GIB), device=Bytes(5 * GIB)),
    }
    changed = replace(full, footprints=sizes)

    def change() -> None:
        assert decider.decide(wishes, catalog, full, NOW).is_empty
        begin = time.process_time()
        found = decider.decide(wishes, other, changed, NOW)
        spent.append(time.process_time() - begin)
        assert len(found.launches) == REPLICAS_A_MODEL

    spent: list[float] = []
    for _ in range(runs):
        change()
    reports: list[float] = []
    for number in range(runs):
        node = next(iter(full.nodes))
        fresh = replace(full, nodes={**full.nodes, node: replace(full.nodes[node], at=Wall(NOW.wall + number))})
        begin = time.process_time()
        assert decider.decide(wishes, catalog, fresh, NOW).is_empty
        reports.append(time.process_time() - begin)
    reread = replace(full, nodes=dict(full.nodes), replicas=dict(full.replicas), footprints=dict(full.footprints))
    decider.decide(wishes, catalog, full, NOW)
    return {
        "cold": timed(lambda: Decider().decide(wishes, catalog, empty, NOW), runs),
        "changed": statistics.median(spent),
        "reported": statistics.median(reports),
        "unchanged": timed(lambda: decider.decide(tuple(wishes), catalog, reread, NOW), runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write RESULTS.md and curve.svg")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="replicas")
    options = parser.parse_args()
    found: dict[int, dict[str, float]] = {}
    for size in (size for size in SIZES if size <= options.largest):
        found[size] = measure(size)
        print(
            size,
            "replicas:",
            ", ".join(f"{what} {took * 1000:.1f} ms" for what, took in found[size].items()),
            flush=True,
        )
    if options.write:
        write(found)


def write(found: dict[int, dict[str, float]]) -> None:
    rows = "\n".join(
        f"| {size:,} | {size // REPLICAS_A_NODE:,} | {size // REPLICAS_A_MODEL:,} | "
        + " | ".join(f"{found[size][what] * 1000:.1f}" for what in ("cold", "changed", "reported", "unchanged"))
        + " |"
        for size in found
    )
    (HERE / "RESULTS.md").write_text(
        f"""# Deciding

`python bench/decide/run.py --write` on {datetime.now(UTC):%Y-%m-%d}: Python {sys.version.split()[0]}, one core.
CPU milliseconds of one decision, median. Nodes of 8 devices; every third model wants two. Cold: all is to be placed.
Changed: one model of {REPLICAS_A_MODEL} replicas gets another context. Reported: one node's report is new.
Unchanged: a pass over the same.

| replicas | nodes | models | cold | changed | reported | unchanged |
|---|---|---|---|---|---|---|
{rows}

![curve](curve.svg)
"""
    )
    curves = {
        what: [(float(size), took[what] * 1000) for size, took in found.items()]
        for what in ("cold", "changed", "reported", "unchanged")
    }
    chart = line_chart(curves, title="Deciding, by size of the fleet", x_label="replicas", y_label="CPU ms")
    (HERE / "curve.svg").write_text(chart)


if __name__ == "__main__":
    main()
