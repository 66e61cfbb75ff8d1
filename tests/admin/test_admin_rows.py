"""Rows of models that stay what they were are made once, and tell whatever is other."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from llmgw.admin import views
from llmgw.admin.reading import Seen
from llmgw.admin.shapes import ModelRow
from llmgw.catalog.spec import ModelSpec, ProfileSpec
from llmgw.facts import Footprint, Suspension
from llmgw.ids import Digest, EngineName, ModelName, ProfileName, ReplicaId, Revision
from llmgw.plan import ModelState, ModelStatus
from llmgw.store.values import Applied
from llmgw.units import Bytes, Wall


def seen_of(count: int) -> Seen:
    names = [ModelName(f"rows-{number:03}") for number in range(count)]
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("e"))
    return Seen(
        applied=Applied(revision=Revision("r1"), digest=Digest("d"), at=Wall(0)),
        models={name: ModelSpec(name=name, profiles=(profile,)) for name in names},
        explained={name: ModelStatus(model=name, state=ModelState.INACTIVE, reason="not asked for") for name in names},
    )


def rows(seen: Seen, now: float = 100) -> Mapping[str, ModelRow]:
    return {row.name: row for row in views.models(seen, Wall(now)).models}


@pytest.mark.parametrize("count", [10, 100])
def test_only_rows_of_models_that_changed_are_made_anew(count: int) -> None:
    seen = seen_of(count)
    before, name = rows(seen), ModelName("rows-007")
    failed = ModelStatus(model=name, state=ModelState.FAILED, reason="it failed", retry_at=Wall(50))
    after = rows(replace(seen, explained={**seen.explained, name: failed}))
    assert [each for each, row in after.items() if row is not before[each]] == [name]
    assert (after[name].state, after[name].reason, after[name].retry_at) == ("failed", "it failed", 100)


def test_a_row_tells_each_thing_that_it_is_made_of() -> None:
    seen, name = seen_of(1), ModelName("rows-000")
    first = rows(seen)[name]
    assert (first.state, first.spec_revision, first.footprint, first.suspension) == ("inactive", "r1", None, None)
    told = replace(seen.explained[name], replica=ReplicaId("x"), footprint=Footprint(host=Bytes(5), source="guess"))
    with_footprint = replace(seen, explained={name: told})
    assert rows(with_footprint)[name].footprint == 5
    assert rows(replace(seen, suspensions={name: Suspension(at=Wall(1), by="me")}))[name].suspension is not None
    renamed = replace(seen, models={name: replace(seen.models[name], description="other")})
    assert rows(renamed)[name].description == "other"
    assert seen.applied is not None
    assert rows(replace(seen, applied=replace(seen.applied, revision=Revision("r2"))))[name].spec_revision == "r2"
    assert rows(replace(seen, explained={}))[name].reason == "not looked at yet"
    assert rows(seen)[name] == first
