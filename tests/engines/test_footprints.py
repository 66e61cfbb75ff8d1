"""Estimates held against real processes, and what the estimate of a split model says of each side."""

import importlib.util
from pathlib import Path
from typing import Any

import full_context
import gguf_files
import pytest
from llama_server import need_llama_server

from llmgw.engine import Engine, Footprint, Level, ProfileSpec, WeightsFact, WeightsSpec
from llmgw.ids import ProfileName
from llmgw.testing.engine_checks import EngineCase
from llmgw.units import GIB, MIB, Bytes, Wall
from llmgw.weights.footprint import kv_cache
from llmgw_cpu.engine import CpuEngine
from llmgw_llamacpp.engine import LlamaCppEngine
from llmgw_llamacpp.footprint import DEVICE_BASE

LLAMACPP = LlamaCppEngine()


def profile(engine: Engine = LLAMACPP, **changes: Any) -> ProfileSpec:
    made: dict[str, Any] = {"context": 2048, **changes}
    return ProfileSpec(name=ProfileName("p"), engine=engine.name, **made)


def known(metadata: dict[str, Any], size: int) -> WeightsFact:
    return WeightsFact(source="file:///m", entry=None, size=Bytes(size), last_wanted=Wall(0), metadata=metadata)


def need(engine: Engine) -> None:
    if isinstance(engine, LlamaCppEngine):
        need_llama_server()
    elif importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")


@pytest.mark.parametrize(
    ("engine", "kind"),
    [(CpuEngine(), "two slots"), (LLAMACPP, "repacked"), (LLAMACPP, "draft")],
    ids=["cpu, two slots", "llamacpp, repacked", "llamacpp, draft"],
)
async def test_the_estimate_holds_once_every_slot_is_full(
    engine: Engine, kind: str, smollm2: Path, tmp_path: Path
) -> None:
    need(engine)
    parallel = 2 if kind == "two slots" else 1
    chosen = profile(engine, context=512, parallel=parallel, options={"threads": 1, "cache_type_k": "q8_0"})
    files = {"weights": smollm2}
    if kind == "repacked":
        files = {"weights": gguf_files.requantised(smollm2, tmp_path / "q4_0.gguf")}
    elif kind == "draft":
        files["draft"] = smollm2
    facts = {role: full_context.fact(path) for role, path in files.items()}
    estimate = engine.footprint(chosen, facts, Level.FULL)
    assert estimate is not None
    peak = await full_context.peak_memory(EngineCase(engine=engine, profile=chosen, files=files), tmp_path)
    assert estimate.host == pytest.approx(peak, rel=0.15), f"{peak / MIB:.0f} MiB"


# -- split over devices

LAYERS = 6
EXPERTS = 64 * MIB
OTHER = MIB


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> WeightsFact:
    """Six layers, the first two dense, then four with 64 MiB of experts each; 1 MiB of everything else."""
    path = gguf_files.mixture(
        tmp_path_factory.mktemp("moe") / "m.gguf", layers=LAYERS, dense=2, expert_bytes=EXPERTS, other_bytes=OTHER
    )
    found = full_context.fact(path)
    path.unlink()
    figures = {"moe.embedding_length": 64, "moe.attention.head_count": 4, "moe.feed_forward_length": 64}
    return known({**found.metadata, **figures}, found.size)


def estimate(fact: WeightsFact, **changes: Any) -> Footprint:
    found = LLAMACPP.footprint(profile(**changes), {"weights": fact}, Level.FULL)
    assert found is not None
    return found


def test_without_devices_all_is_in_host_memory(experts: WeightsFact) -> None:
    found = estimate(experts)
    assert found.device == 0
    assert found.host > experts.size


def test_with_a_device_all_layers_are_on_it_and_the_embedding_is_not(experts: WeightsFact) -> None:
    found = estimate(experts, devices=1)
    assert found.device > experts.size - OTHER + DEVICE_BASE.device
    assert found.host < DEVICE_BASE.host + 64 * MIB


def test_layers_are_offloaded_from_the_last(experts: WeightsFact) -> None:
    none = estimate(experts, devices=1, options={"gpu_layers": 0}).device
    output = estimate(experts, devices=1, options={"gpu_layers": 1}).device
    two = estimate(experts, devices=1, options={"gpu_layers": 3}).device
    whole = estimate(experts, devices=1, options={"gpu_layers": LAYERS + 1}).device
    assert none == DEVICE_BASE.device
    assert output - none < 16 * MIB
    assert two - output > 2 * EXPERTS
    assert whole - output > 4 * EXPERTS
    assert whole == estimate(experts, devices=1).device == estimate(experts, devices=1, args=("-ngl", "99")).device


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"cpu_moe": True}},
        {"args": ("--cpu-moe",)},
        {"args": ("-cmoe",)},
        {"args": ("--cpu_moe",)},
        {"options": {"n_cpu_moe": LAYERS}},
        {"args": ("--n-cpu-moe", "6")},
        {"args": ("-ncmoe", "6")},
        {"options": {"override_tensor": [r"\.ffn_.*_exps\.=CPU"]}},
        {"args": ("-ot", r"exps=CPU")},
        {"args": ("--override-tensor", r"blk\.[0-9]+\.ffn_up_exps=CPU,attn_q=CUDA0")},
    ],
    ids=lambda changes: " ".join(map(str, changes.get("args", changes.get("options")))),
)
def test_experts_kept_on_the_host_are_counted_there_however_it_is_said(
    changes: dict[str, Any], experts: WeightsFact
) -> None:
    whole, kept = estimate(experts, devices=1), estimate(experts, devices=1, **changes)
    assert whole.device - kept.device == pytest.approx(4 * EXPERTS, rel=0.05)
    assert kept.host - whole.host == pytest.approx(4 * EXPERTS, rel=0.05)


def test_the_first_layers_experts_are_those_kept_by_number(experts: WeightsFact) -> None:
    whole = estimate(experts, devices=1).device
    assert whole - estimate(experts, devices=1, options={"n_cpu_moe": 2}).device == 0, "the first two have none"
    three = estimate(experts, devices=1, args=("--n-cpu-moe", "3")).device
    assert whole - three == pytest.approx(EXPERTS, rel=0.05)


def test_a_cache_kept_on_the_host_is_counted_there(experts: WeightsFact) -> None:
    on, off = (estimate(experts, devices=1, context=65536, args=args) for args in ((), ("-nkvo",)))
    assert on.device - off.device == off.host - on.host > 0


def test_several_devices_have_buffers_each(experts: WeightsFact) -> None:
    one, two = (estimate(experts, devices=count) for count in (1, 2))
    assert two.device - one.device >= DEVICE_BASE.device


def test_what_args_say_of_types_and_batches_counts_as_options_do(smollm2: Path) -> None:
    fact = full_context.fact(smollm2)
    for args, options in (
        (("-ctk", "q8_0", "--cache_type_v", "q8_0"), {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
        (("-ub", "1024"), {"ubatch_size": 1024}),
        (("-fa", "off"), {"flash_attn": "off"}),
    ):
        said = estimate(fact, args=args)
        assert said == estimate(fact, options=options) != estimate(fact)
    assert estimate(fact, options={"ubatch_size": 256}, args=("-ub", "1024")) == estimate(fact, args=("-ub", "1024"))


def test_beside_the_weights_everything_it_loads_counts(smollm2: Path) -> None:
    fact, spec = full_context.fact(smollm2), WeightsSpec(source="file:///x")
    alone = estimate(fact).host
    for role, least in (("draft", fact.size + 40 * MIB), ("mmproj", fact.size + 64 * MIB), ("lora_2", fact.size)):
        chosen = profile(draft=spec) if role == "draft" else profile(files={role: spec})
        assert LLAMACPP.footprint(chosen, {"weights": fact}, Level.FULL) is None, "not on the node yet: unknown"
        found = LLAMACPP.footprint(chosen, {"weights": fact, role: fact}, Level.FULL)
        assert found is not None
        assert found.host - alone >= least
    assert estimate(fact, options={"cache_ram_mib": 100}).host == alone + 100 * MIB


def test_without_metadata_the_size_alone_gives_a_guess() -> None:
    found = estimate(known({}, 1000))
    assert (found.host, found.source) == (1200, "guess")
    assert LLAMACPP.footprint(profile(), {}, Level.FULL) is None


# -- caches of less usual models


def metadata(**figures: Any) -> dict[str, Any]:
    base = {"block_count": 10, "embedding_length": 1000, "attention.head_count": 10}
    return {"general.architecture": "x", **{f"x.{key}": value for key, value in {**base, **figures}.items()}}


def test_heads_that_differ_by_layer_are_added_up() -> None:
    plain = kv_cache(metadata(**{"attention.head_count_kv": 2}), tokens=10)
    mixed = metadata(**{"attention.head_count_kv.length": 10, "attention.head_count_kv.sum": 10})
    assert plain == 10 * 20 * 100 * 4
    assert kv_cache(mixed, tokens=10) == plain / 2, "half of the layers have no attention"


def test_latent_attention_keeps_no_values_of_its_own() -> None:
    latent = metadata(
        **{"attention.head_count_kv": 1, "attention.key_length": 576, "attention.value_length": 512,
           "attention.key_length_mla": 192}
    )  # fmt: skip
    assert kv_cache(latent, tokens=10) == 10 * 10 * 576 * 2


def test_a_large_models_estimate_takes_milliseconds(experts: WeightsFact) -> None:
    figures = {**experts.metadata, "moe.block_count": 94, "tensors.blk.*.ffn_up_exps.weight.layers": 94}
    figures |= {"tensors.blk.*.ffn_up_exps.weight": 100 * GIB}
    found = estimate(known(figures, 110 * GIB), devices=4, options={"n_cpu_moe": 47})
    assert found.device == pytest.approx(50 * GIB, rel=0.1)
