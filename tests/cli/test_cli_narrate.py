"""What `llmgw up` tells, look by look. Each test reads as a story."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import daemon_seeds as seed
import pytest
from calls import calls_of

from llmgw.admin import reading
from llmgw.admin.reading import Seen
from llmgw.catalog.holds import Held, HoldReason
from llmgw.catalog.spec import ScalingSpec
from llmgw.cli import narrate
from llmgw.cli.narrate import Fetch, Narrator
from llmgw.facts import Phase, Progress, ReplicaFact, WeightsFact
from llmgw.ids import ModelName, ReplicaId
from llmgw.plan import ModelState, ModelStatus, Reason, Rejection, Stopped
from llmgw.store import keys
from llmgw.store.codec import encode
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied, CatalogStatus
from llmgw.units import GIB, MIB, Bytes, Wall

URL = "http://127.0.0.1:8080"
NOW = float(seed.NOW)


def look(
    *statuses: ModelStatus,
    replicas: tuple[ReplicaFact, ...] = (),
    weights: tuple[WeightsFact, ...] = (),
    models: Mapping[Any, Any] | None = None,
    **fields: Any,
) -> Seen:
    """The store with model `smol` in force, and what is known of it."""
    return Seen(
        applied=Applied(revision=seed.GOOD, digest=seed.DIGEST, at=seed.NOW),
        models={seed.SMOL: seed.model(seed.SMOL, seed.SMOL_SOURCE)} if models is None else models,
        explained={status.model: status for status in statuses},
        reports={seed.NODE: seed.report(*replicas, weights=weights)},
        **fields,
    )


def loading(reason: str = "fetching", **fields: Any) -> ModelStatus:
    return seed.told(seed.SMOL, ModelState.LOADING, reason, replica=ReplicaId("r1"), **fields)


def is_ready(**fields: Any) -> ModelStatus:
    return seed.told(seed.SMOL, ModelState.READY, replica=ReplicaId("r1"), **fields)


def test_a_first_start_is_told_from_the_catalog_to_the_ready_line() -> None:
    narrator = Narrator(URL)
    assert narrator.lines(look(), NOW) == ["catalog aaaaaaaaaaaa: 1 model: smol"]
    fetch = look(loading(), replicas=(seed.fetching("r1", seed.SMOL, 0, 93 * MIB),))
    assert narrator.lines(fetch, NOW) == ["smol: fetching its weights (93.0 MiB)"]
    assert narrator.ready(fetch) == []
    got = (seed.cached(seed.SMOL_SOURCE),)
    start = look(loading("starting"), replicas=(seed.replica("r1", seed.SMOL, Phase.STARTING),), weights=got)
    assert narrator.lines(start, NOW) == ["smol: its weights' licence is Apache-2.0", "smol: loading into cpu"]
    up = look(is_ready(), replicas=(seed.ready("r1", seed.SMOL),), weights=got)
    assert narrator.lines(up, NOW) == ["smol: ready"]
    line, curl = narrator.ready(up)
    assert line == "ready: http://127.0.0.1:8080/v1 serves 1 model: smol"
    assert curl.startswith("curl http://127.0.0.1:8080/v1/chat/completions ")
    assert '"model": "smol"' in curl


def test_the_request_to_paste_is_one_that_the_model_answers() -> None:
    chats, embeds = is_ready(surfaces=("chat/completions",)), is_ready(surfaces=("embeddings",))
    assert len(Narrator(URL).ready(look(chats))) == 2
    assert Narrator(URL).ready(look(embeds)) == ["ready: http://127.0.0.1:8080/v1 serves 1 model: smol"]


def test_models_that_load_when_asked_for_are_enough_to_be_ready() -> None:
    lazy = {seed.SMOL: seed.model(seed.SMOL, scaling=ScalingSpec(min=0, on_demand=True))}
    idle = look(seed.told(seed.SMOL, ModelState.INACTIVE, "on demand, and not asked for"), models=lazy)
    line, curl = Narrator(URL).ready(idle)
    assert line == "ready: http://127.0.0.1:8080/v1 serves its model, which loads when it is asked for: smol"
    assert '"model": "smol"' in curl
    outside = look(seed.told(seed.SMOL, ModelState.INACTIVE, "outside its windows"))
    assert Narrator(URL).ready(outside) == []


def test_nothing_is_told_twice() -> None:
    narrator, up = Narrator(URL), look(is_ready(), replicas=(seed.ready("r1", seed.SMOL),))
    assert narrator.lines(up, NOW)
    assert narrator.ready(up)
    assert (narrator.lines(up, NOW), narrator.ready(up)) == ([], [])


def test_the_ready_line_is_told_once_however_often_models_go_and_come() -> None:
    narrator = Narrator(URL)
    assert narrator.ready(look(is_ready()))
    assert narrator.lines(look(loading("placing", attempts=1, retry_at=Wall(NOW + 2))), NOW)
    assert narrator.ready(look(is_ready())) == []


def test_the_ready_line_waits_for_every_model_that_can_come_up() -> None:
    models = {name: seed.model(name) for name in (seed.QWEN, seed.SMOL)}
    qwen = seed.told(seed.QWEN, ModelState.READY)
    narrator = Narrator(URL)
    assert narrator.ready(look(qwen, models=models)) == []
    assert narrator.ready(look(qwen, loading(), models=models)) == []
    assert narrator.ready(look(qwen, loading(attempts=1), models=models)) == []
    stuck = seed.told(seed.SMOL, ModelState.UNSCHEDULABLE, "host memory")
    assert narrator.ready(look(qwen, stuck, models=models))[0] == f"ready: {URL}/v1 serves 1 of 2 models: qwen"


def test_a_model_that_keeps_failing_does_not_hold_back_the_ready_line() -> None:
    models = {name: seed.model(name) for name in (seed.QWEN, seed.SMOL)}
    seen = look(seed.told(seed.QWEN, ModelState.READY), loading("crashed", attempts=2), models=models)
    assert Narrator(URL).ready(seen)


def test_there_is_no_ready_line_while_no_model_serves() -> None:
    assert Narrator(URL).ready(look(seed.told(seed.SMOL, ModelState.UNSCHEDULABLE, "no room"))) == []
    assert Narrator(URL).ready(look(is_ready(), stopped=Stopped(at=seed.NOW, by="alice"))) == []
    assert Narrator(URL).ready(Seen()) == []


def test_an_empty_catalog_is_ready_and_has_no_request_to_paste() -> None:
    assert Narrator(URL).ready(look(models={})) == [f"ready: {URL}/v1 (the catalog has no models)"]


def test_an_invalid_catalog_is_told_with_each_problem_and_so_is_its_repair() -> None:
    narrator = Narrator(URL)
    good = CatalogStatus(source="/srv", attempted=seed.GOOD, applied=seed.GOOD)
    bad = CatalogStatus(source="/srv", attempted=seed.BAD, applied=seed.GOOD, problems=(seed.PROBLEM,))
    narrator.lines(look(is_ready(), status=good), NOW)
    assert narrator.lines(look(is_ready(), status=bad), NOW) == [
        "catalog bbbbbbbbbbbb is invalid; aaaaaaaaaaaa stays in force",
        "  models.yaml:3:5: $.profiles[0].engine: no engine 'vlm'; did you mean 'vllm'?",
    ]
    assert narrator.lines(look(is_ready(), status=bad), NOW) == []
    assert narrator.lines(look(is_ready(), status=good), NOW) == ["catalog aaaaaaaaaaaa is in order again"]


def test_a_revision_that_is_held_is_told_with_what_to_do() -> None:
    narrator, held = Narrator(URL), Held(reason=HoldReason.REMOVAL, message="removes all; `llmgw approve bbbbbbbbbbbb`")
    status = CatalogStatus(source="/srv", attempted=seed.BAD, applied=seed.GOOD, held=held)
    narrator.lines(look(is_ready(), status=replace(status, held=None, attempted=seed.GOOD)), NOW)
    expected = ["catalog bbbbbbbbbbbb is held: removes all; `llmgw approve bbbbbbbbbbbb`"]
    assert narrator.lines(look(is_ready(), status=status), NOW) == expected
    assert narrator.lines(look(is_ready(), status=status), NOW) == []


def test_an_invalid_catalog_at_the_first_start_says_that_nothing_is_served() -> None:
    bad = CatalogStatus(source="/srv", attempted=seed.BAD, problems=(seed.PROBLEM,))
    lines = Narrator(URL).lines(Seen(status=bad), NOW)
    assert lines[0] == "catalog bbbbbbbbbbbb is invalid; nothing is served until it is fixed"


def test_a_catalog_that_cannot_be_read_says_why() -> None:
    gone = CatalogStatus(source="/srv", error="no directory /srv")
    assert Narrator(URL).lines(Seen(status=gone), NOW)[0].startswith("the catalog cannot be read: no directory /srv")


def test_a_failure_is_told_once_a_try_with_the_wait() -> None:
    narrator = Narrator(URL)
    again = {"retry_at": Wall(NOW + 4)}
    first = look(loading("being placed: bad magic (failed once)", attempts=1, **again))
    assert narrator.lines(first, NOW)[-1] == "smol: being placed: bad magic (failed once); next try in 4.0s"
    assert narrator.lines(first, NOW + 1) == []
    second = look(loading("being placed: bad magic (failed 2 times in a row)", attempts=2, **again))
    assert len(narrator.lines(second, NOW)) == 1
    over = look(seed.told(seed.SMOL, ModelState.FAILED, "bad magic (failed 4 times in a row)", attempts=4))
    assert narrator.lines(over, NOW) == ["smol: failed: bad magic (failed 4 times in a row)"]


def test_a_model_without_room_is_told_once_though_its_figures_change() -> None:
    narrator, said = Narrator(URL), []
    for have in range(3):
        refusal = Rejection(
            node=seed.NODE, reason=Reason.HOST_MEMORY, need=Bytes(9 * GIB), have=Bytes(GIB + have * GIB // 8)
        )
        status = seed.told(seed.SMOL, ModelState.UNSCHEDULABLE, rejections=(refusal,))
        said += [line for line in narrator.lines(look(status), NOW) if line.startswith("smol")]
    assert said == [
        "smol: cannot be placed: host memory (need 9.0 GiB, have 1.0 GiB on gpu-1)",
    ]


def test_an_engine_that_ran_on_is_told_as_such() -> None:
    adopted = seed.replica("r1", seed.SMOL, Phase.READY, adopted=True)
    lines = Narrator(URL).lines(look(is_ready(), replicas=(adopted,)), NOW)
    assert lines[-1] == "smol: ready (its engine ran on from before)"


def test_the_switch_and_a_removed_model_are_told() -> None:
    narrator = Narrator(URL)
    narrator.lines(look(is_ready()), NOW)
    stopped = look(seed.told(seed.SMOL, ModelState.STOPPED), stopped=Stopped(at=seed.NOW, by="alice"))
    assert narrator.lines(stopped, NOW) == ["stopped by alice: `llmgw start` serves again"]
    assert narrator.lines(look(is_ready()), NOW)[0] == "started again"
    assert "smol: removed" in narrator.lines(look(models={}), NOW)


def test_a_degraded_watcher_is_told() -> None:
    status = CatalogStatus(source="/srv", attempted=seed.GOOD, watcher="degraded: polling")
    assert "watching the catalog: degraded: polling" in Narrator(URL).lines(look(status=status), NOW)


def test_fetches_are_those_of_the_models_that_load_with_the_rate_that_their_node_tells() -> None:
    narrator = Narrator(URL)

    def at(done: int, rate: float | None) -> Seen:
        fetching = seed.fetching("r1", seed.SMOL, done, 100)
        progress = Progress(done=Bytes(done), total=Bytes(100), rate=rate)
        return look(loading(), replicas=(replace(fetching, progress=progress),))

    assert narrator.fetches(at(10, None)) == [Fetch(model=seed.SMOL, done=10, total=100, rate=None)]
    assert narrator.fetches(at(30, 10.0)) == [Fetch(model=seed.SMOL, done=30, total=100, rate=10.0)]
    assert narrator.fetches(look(is_ready(), replicas=(seed.ready("r1", seed.SMOL),))) == []


def test_a_local_file_has_no_licence_line_and_an_unstated_one_says_so() -> None:
    unstated = look(is_ready(), weights=(seed.cached(seed.SMOL_SOURCE, licence=None),))
    assert "smol: its weights' licence is not stated by their source" in Narrator(URL).lines(unstated, NOW)
    local = look(is_ready(), models={seed.SMOL: seed.model(seed.SMOL, "file:///m.gguf")})
    assert not any("licence" in line for line in Narrator(URL).lines(local, NOW))


@pytest.mark.parametrize("models", [20, 200])
def test_only_models_of_which_something_changed_are_looked_into(models: int) -> None:
    names = [ModelName(f"m{number}") for number in range(models)]
    specs = {name: seed.model(name, "https://models.example.org/x.gguf") for name in names}
    idle = {name: seed.told(name, ModelState.INACTIVE, "on demand, and not asked for") for name in names}
    replicas = (seed.ready("r1", names[7]),)
    weights = (seed.cached(seed.SMOL_SOURCE),)
    narrator = Narrator(URL)
    assert len(narrator.lines(look(*idle.values(), models=specs, weights=weights), NOW)) == models + 1
    idle[names[7]] = seed.told(names[7], ModelState.READY, replica=ReplicaId("r1"))
    with calls_of(narrate._story) as told:
        lines = narrator.lines(look(*idle.values(), models=specs, weights=weights, replicas=replicas), NOW)
    assert (lines, len(told)) == (["m7: ready"], 1)


def test_a_licence_is_told_when_the_weights_come_or_the_model_that_wants_them() -> None:
    narrator = Narrator(URL)
    other = {seed.QWEN: seed.model(seed.QWEN, "https://models.example.org/x.gguf")}
    here = (seed.cached(seed.SMOL_SOURCE),)
    assert not [line for line in narrator.lines(look(models=other, weights=here), NOW) if "licence" in line]
    both = {**other, seed.SMOL: seed.model(seed.SMOL, seed.SMOL_SOURCE)}
    told = narrator.lines(look(models=both, weights=here), NOW)
    assert "smol: its weights' licence is Apache-2.0" in told
    assert not [line for line in narrator.lines(look(models=both, weights=here), NOW) if "licence" in line]


async def test_what_is_known_of_a_model_is_read_anew_only_where_it_changed() -> None:
    store = MemoryStore()
    idle = seed.told(seed.SMOL, ModelState.INACTIVE, "on demand, and not asked for")
    await store.put(keys.explain(seed.SMOL), encode(idle))
    first, second = await reading.look(store), await reading.look(store)
    assert first.explained == {seed.SMOL: idle}
    assert second.explained[seed.SMOL] is first.explained[seed.SMOL]
    await store.put(keys.explain(seed.SMOL), encode(is_ready()))
    assert (await reading.look(store)).explained == {seed.SMOL: is_ready()}
