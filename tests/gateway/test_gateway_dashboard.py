"""The Grafana dashboard in the docs shows what a gateway tells."""

import json
import re
from pathlib import Path
from typing import Any

from gateway_rig import Rig, post

DASHBOARD: Any = json.loads((Path(__file__).parents[2] / "docs" / "grafana" / "llmgw.json").read_text())


async def test_every_metric_on_the_dashboard_is_one_that_a_gateway_exposes(rig: Rig) -> None:
    await rig.serving()
    wire = await rig.wire()
    wire.send(post({"model": "m"}))
    assert (await wire.answer()).status == 200
    told: set[str] = set()
    for family in rig.gateway.collect():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "summary": ["_sum", "_count"]}.get(
            family.type, [""]
        )
        told |= {family.name + end for end in ends}
    shown = {
        name
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
        for name in re.findall(r"llmgw_\w+", target["expr"])
    }
    assert len(shown) > 8
    assert shown <= told, shown - told


def test_each_panel_has_a_place_and_a_source_of_its_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({json.dumps(panel["gridPos"]) for panel in panels})
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource"]
    assert isinstance(DASHBOARD["schemaVersion"], int)
