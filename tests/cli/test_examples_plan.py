"""Every catalog that we show people can be planned: all of its models find a place, each asked for by itself."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from llmgw.catalog.load import load_catalog
from llmgw.catalog.source import read_source
from llmgw.catalog.spec import Catalog
from llmgw.cli.offline import plan_offline
from llmgw.engine.manager import find_engines
from llmgw.units import Instant, Mono, Wall

EXAMPLES = Path(__file__).parents[2] / "catalog-examples"
ENGINES = find_engines()

WEDNESDAY = datetime(2026, 11, 25, tzinfo=UTC).timestamp()

NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


def roomy(catalog: Catalog) -> str:
    """Two machines with room for all, on which every file of the catalog lies already."""
    sources = {spec.source for model in catalog.models.values() for each in model.profiles for spec in each.every_file}
    weights = [{"source": source, "size": "5GiB"} for source in sorted(sources)]
    node = {
        "memory": "512GiB",
        "disk": "4TiB",
        "devices": [{"name": "NVIDIA H100 NVL", "memory": "94GiB", "count": 8}],
        "engines": ["cpu", "command", "llamacpp", "vllm"],
        "weights": weights,
    }
    nodes = [{"name": name, **node} for name in ("gpu-1", "workstation")]
    return json.dumps({"apiVersion": "llmgw/v1", "kind": "Fleet", "nodes": nodes})


def load(name: str) -> Catalog:
    return load_catalog(read_source(EXAMPLES / name), ENGINES.rules(), canonical=ENGINES.canonical).catalog


@pytest.mark.parametrize("name", NAMES)
def test_every_model_of_an_example_finds_a_place_where_there_is_room(name: str, tmp_path: Path) -> None:
    catalog, fleet = load(name), tmp_path / "fleet.yaml"
    fleet.write_text(roomy(catalog))
    for model in catalog.models.values():
        if model.external is not None:
            continue
        asked = [model.name] if model.scaling.on_demand else []
        acted = set()
        for hour in range(0, 24, 6) if model.scaling.windows else (12,):
            now = Instant(Mono(0.0), Wall(WEDNESDAY + hour * 3600.0))
            plan = plan_offline(catalog, fleet, ENGINES, tmp_path / "none", asked, now=now)
            assert (plan.valid, plan.settled) == (True, True)
            assert model.name not in {refused.model for refused in plan.refused}, plan.refused
            acted |= {action.model for action in plan.actions}
        assert model.name in acted


@pytest.mark.parametrize("name", [name for name in NAMES if (EXAMPLES / name / "fleet.yaml").exists()])
def test_an_example_is_planned_on_the_machines_beside_it(name: str, tmp_path: Path) -> None:
    plan = plan_offline(load(name), EXAMPLES / name / "fleet.yaml", ENGINES, tmp_path / "none")
    assert (plan.valid, plan.settled, plan.refused) == (True, True, ())
    assert plan.actions
