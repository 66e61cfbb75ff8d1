"""The JSON Schemas of the output shapes, made from the shapes themselves.

`python -m llmgw.admin.schemas schemas/output` writes the committed files anew; a test fails when they differ.
"""

import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from llmgw.admin.archives import ARCHIVES
from llmgw.admin.capacities import CAPACITIES
from llmgw.admin.diffs import DIFFS
from llmgw.admin.key_routes import KEYS
from llmgw.admin.members import MEMBERS
from llmgw.admin.orders import ORDERS
from llmgw.admin.plans import PLANS
from llmgw.admin.shapes import OUTPUTS
from llmgw.admin.simulations import SIMULATIONS
from llmgw.admin.stories import STORIES
from llmgw.admin.syncs import SYNCS
from llmgw.notify.body import NOTIFICATIONS

ALL: Final = {
    **OUTPUTS,
    **STORIES,
    **CAPACITIES,
    **PLANS,
    **DIFFS,
    **SIMULATIONS,
    **MEMBERS,
    **KEYS,
    **ORDERS,
    **SYNCS,
    **ARCHIVES,
    **NOTIFICATIONS,
}
"""Every output by its schema's name."""


def file_name(output: str) -> str:
    return f"{output}.v1.schema.json"


def schema_of(output: str) -> dict[str, Any]:
    """Draft 2020-12. Further members are allowed: a shape gains fields."""
    schema = msgspec.json.schema(ALL[output])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"llmgw output: {output}",
        **schema,
    }


def text_of(output: str) -> str:
    """The committed form."""
    return msgspec.json.format(msgspec.json.encode(schema_of(output)), indent=2).decode() + "\n"


def write_all(directory: Path) -> None:
    for output in ALL:
        (directory / file_name(output)).write_text(text_of(output))


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
