"""The `cpu` engine on real processes: every option works, every failure has its name, the estimate holds."""

import asyncio
import dataclasses
import importlib.util
import json
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llmgw.catalog.spec import ProfileSpec
from llmgw.engine import EngineLoad, Exit, FailureKind, HttpRequest, Level, Readiness, Slot, WeightsFact
from llmgw.errors import EngineUnavailable
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId
from llmgw.testing.engine_checks import EngineCase, Running, running
from llmgw.units import MIB, Bytes, Wall
from llmgw.weights.gguf import read_metadata
from llmgw_cpu.engine import CpuEngine
from llmgw_cpu.footprint import estimate
from llmgw_cpu.options import OPTIONS_SCHEMA
from llmgw_cpu.server import STARTING, default_threads

ENGINE = CpuEngine()


def need_xllamacpp() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")


def profile(*, context: int = 512, parallel: int = 1, **options: Any) -> ProfileSpec:
    return ProfileSpec(
        name=ProfileName("p"), engine=EngineName("cpu"), context=context, parallel=parallel,
        options={"threads": 1, **options},
    )  # fmt: skip


def case(model: Path, chosen: ProfileSpec) -> EngineCase:
    need_xllamacpp()
    return EngineCase(engine=ENGINE, profile=chosen, files={"weights": model})


def slot(tmp_path: Path, **changes: Any) -> Slot:
    made = Slot(
        replica=ReplicaId("r"), model=ModelName("m"), node=NodeName("n"), host="127.0.0.1", port=9, directory=tmp_path,
        files={"weights": Path("/w.gguf")},
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def fact(model: Path) -> WeightsFact:
    return WeightsFact(
        source=f"file://{model}", entry=None, size=Bytes(model.stat().st_size), last_wanted=Wall(0),
        metadata=read_metadata(model),
    )  # fmt: skip


async def post(run: Running, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = HttpRequest(path=path, method="POST", body=json.dumps(body).encode(), timeout=60)
    status, answer = await run.send(request)
    return status, json.loads(answer)


async def complete(run: Running) -> None:
    status, answer = await post(run, "/v1/completions", {"prompt": "One, two, three,", "max_tokens": 4})
    assert status == 200, answer
    assert answer["choices"][0]["text"]


OPTIONS = [
    {},
    {"batch_size": 256, "ubatch_size": 128},
    {"flash_attn": "off"},
    {"flash_attn": "on", "cache_type_k": "q8_0", "cache_type_v": "q4_0"},
    {"cache_type_k": "bf16", "cache_type_v": "f32"},
    {"rope_freq_base": 10000.0, "rope_freq_scale": 0.5},
    {"context_shift": True, "prompt_cache_mib": 64},
    {"check_tensors": True, "verbosity": 1},
    {"chat_template": "chatml"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "none")
async def test_each_option_starts_an_engine_that_answers(
    options: dict[str, Any], smollm2: Path, tmp_path: Path
) -> None:
    chosen = profile(**options)
    jsonschema.Draft202012Validator(OPTIONS_SCHEMA).validate(dict(chosen.options))
    async with running(case(smollm2, chosen), tmp_path) as run:
        await run.wait_ready()
        await complete(run)


@pytest.mark.parametrize("name", ["llama3", "chatlm", "chatml\n", ""])
def test_a_name_that_would_be_taken_for_the_template_itself_is_refused(name: str) -> None:
    judge = jsonschema.Draft202012Validator(OPTIONS_SCHEMA)
    assert not judge.is_valid({"chat_template": name})
    assert judge.is_valid({"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})


def test_every_option_of_the_schema_is_tried() -> None:
    tried = {name for options in OPTIONS for name in options} | {"threads", "embeddings", "pooling"}
    assert tried == set(OPTIONS_SCHEMA["properties"])


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
async def test_embeddings_are_served_when_asked_for(pooling: str, smollm2: Path, tmp_path: Path) -> None:
    chosen = profile(embeddings=True, pooling=pooling)
    async with running(case(smollm2, chosen), tmp_path) as run:
        await run.wait_ready()
        status, answer = await post(run, "/v1/embeddings", {"input": ["a cat", "a dog"]})
        assert status == 200
        assert [len(row["embedding"]) for row in answer["data"]] == [576, 576]
        await complete(run)
    assert "embeddings" in ENGINE.surfaces(chosen)
    assert "embeddings" not in ENGINE.surfaces(profile())


async def test_each_slot_has_the_whole_context_and_the_model_its_own_name(smollm2: Path, tmp_path: Path) -> None:
    async with running(case(smollm2, profile(context=1024, parallel=3)), tmp_path) as run:
        await run.wait_ready()
        slots = json.loads((await run.send(HttpRequest(path="/slots")))[1])
        assert [each["n_ctx"] for each in slots] == [1024, 1024, 1024]
        models = json.loads((await run.send(HttpRequest(path="/v1/models")))[1])
        assert [each["id"] for each in models["data"]] == ["under-test"]


async def test_the_models_own_template_or_the_chosen_one_frames_a_chat(smollm2: Path, tmp_path: Path) -> None:
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    async with running(case(smollm2, profile(chat_template="chatml")), tmp_path) as run:
        await run.wait_ready()
        status, answer = await post(run, "/v1/chat/completions", {**question, "temperature": 0, "max_tokens": 20})
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
        framed = (await post(run, "/apply-template", question))[1]["prompt"]
        assert "SmolLM" not in framed
    async with running(case(smollm2, profile()), tmp_path) as run:
        await run.wait_ready()
        assert "named SmolLM" in (await post(run, "/apply-template", question))[1]["prompt"]


async def test_the_key_is_in_neither_argv_nor_log(smollm2: Path, tmp_path: Path) -> None:
    async with running(case(smollm2, profile(verbosity=5)), tmp_path) as run:
        await run.wait_ready()
        await complete(run)
        argv = Path(f"/proc/{run.process.pid}/cmdline").read_bytes()
        assert b"key-of-the-engine" not in argv
        assert "key-of-the-engine" not in run.tail()


async def test_the_quiet_log_does_not_grow_with_requests(smollm2: Path, tmp_path: Path) -> None:
    async with running(case(smollm2, profile()), tmp_path) as run:
        await run.wait_ready()
        before = run.log.stat().st_size
        for _ in range(5):
            await complete(run)
        assert run.log.stat().st_size == before


# -- what went wrong


def damaged(kind: str, model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "damaged.gguf"
    data = b"" if kind == "missing" else model.read_bytes()
    match kind:
        case "missing":
            return tmp_path / "nowhere.gguf"
        case "garbage":
            path.write_bytes(b"\x00\x01not a model" * 1000)
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "architecture":
            key = b"general.architecture" + struct.pack("<IQ", 8, 5)
            path.write_bytes(data.replace(key + b"llama", key + b"hydra", 1))
    return path


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("missing", "cannot be opened.*nowhere.gguf.*No such file"),
        ("garbage", "not a GGUF file"),
        ("empty", "not a GGUF file"),
        ("truncated", "cut short or damaged"),
        ("architecture", "architecture 'hydra'"),
    ],
)
async def test_bad_weights_are_terminal_and_named(kind: str, cause: str, smollm2: Path, tmp_path: Path) -> None:
    async with running(case(damaged(kind, smollm2, tmp_path), profile()), tmp_path) as run:
        verdict = run.verdict(await run.ended(30))
    assert verdict.kind is FailureKind.TERMINAL
    assert re.search(cause, verdict.reason), verdict.reason


async def test_a_bad_chat_template_is_terminal(smollm2: Path, tmp_path: Path) -> None:
    async with running(case(smollm2, profile(chat_template="{% if %}")), tmp_path) as run:
        verdict = run.verdict(await run.ended(30))
    assert (verdict.kind, "chat template" in verdict.reason) == (FailureKind.TERMINAL, True)


async def test_a_quantised_value_cache_without_flash_attention_is_terminal(smollm2: Path, tmp_path: Path) -> None:
    async with running(case(smollm2, profile(flash_attn="off", cache_type_v="q8_0")), tmp_path) as run:
        verdict = run.verdict(await run.ended(30))
    assert (verdict.kind, "flash" in verdict.reason) == (FailureKind.TERMINAL, True), verdict


async def test_a_cache_beyond_all_memory_is_oom(smollm2: Path, tmp_path: Path) -> None:
    async with running(case(smollm2, profile(context=12_000_000)), tmp_path) as run:
        verdict = run.verdict(await run.ended(60))
    assert (verdict.kind, "KV cache" in verdict.reason) == (FailureKind.OOM, True), verdict


async def test_sigterm_ends_it_while_it_loads(smollm2: Path, tmp_path: Path) -> None:
    async with running(case(smollm2, profile()), tmp_path) as run:
        while STARTING not in run.tail():
            assert run.process.returncode is None
        run.process.terminate()
        await run.ended(5)


def test_only_the_last_run_in_a_log_is_judged() -> None:
    log = f"{STARTING}\ncouldn't bind HTTP server socket\n{STARTING}\nfailed to allocate buffer for kv cache\n"
    assert ENGINE.classify(Exit(code=1), log).kind is FailureKind.OOM
    assert not ENGINE.classify(Exit(code=1), log).port_clash


def test_a_kill_from_outside_is_a_crash_unless_the_log_speaks_of_memory() -> None:
    assert ENGINE.classify(Exit(signal=9), "").kind is FailureKind.CRASH
    assert ENGINE.classify(Exit(signal=9), "llmgw: the kernel's oom_kill").kind is FailureKind.OOM
    assert "signal 9" in ENGINE.classify(Exit(signal=9), "").reason


async def test_without_a_key_it_does_not_start(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(case(smollm2, profile()), tmp_path) as run:
        spec = run.spec
    child = await asyncio.create_subprocess_exec(*spec.argv, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(30):
        _, errors = await child.communicate()
    assert child.returncode == 1
    assert b"LLMGW_ENGINE_KEY" in errors


# -- pure parts


@pytest.mark.parametrize(
    ("chosen", "batch"),
    [
        (profile(), 128),
        (profile(parallel=32), 256),
        (profile(ubatch_size=1024), 1024),
        (profile(batch_size=2048), 2048),
        (profile(batch_size=64), 64),
    ],
    ids=["one slot", "many slots", "large micro-batches", "large", "small"],
)
def test_prompts_are_taken_in_small_batches_unless_the_profile_says_otherwise(
    chosen: ProfileSpec, batch: int, tmp_path: Path, smollm2: Path
) -> None:
    launch = ENGINE.launch(chosen, slot(tmp_path), Level.FULL)
    assert json.loads(launch.argv[-1])["options"]["batch_size"] == batch
    # No more is computed at once than is taken at once, and it takes memory accordingly.
    same = dataclasses.replace(chosen, options={**chosen.options, "batch_size": batch, "ubatch_size": min(batch, 512)})
    if "ubatch_size" not in chosen.options:
        assert estimate(chosen, fact(smollm2)) == estimate(same, fact(smollm2))


def test_launch_refuses_what_it_would_ignore(tmp_path: Path) -> None:
    for wrong, word in (
        (dataclasses.replace(profile(), args=("--x",)), "args"),
        (dataclasses.replace(profile(), devices=1), "devices"),
    ):
        with pytest.raises(EngineUnavailable, match=word):
            ENGINE.launch(wrong, slot(tmp_path), Level.FULL)
    with pytest.raises(EngineUnavailable, match="weights"):
        ENGINE.launch(profile(), slot(tmp_path, files={}), Level.FULL)


def test_an_ipv6_address_is_bracketed_in_the_url(tmp_path: Path) -> None:
    assert ENGINE.launch(profile(), slot(tmp_path, host="::1"), Level.FULL).url == "http://[::1]:9"


def test_answers_of_probes_are_told_apart() -> None:
    health, decode = ENGINE.probes(profile())
    assert ENGINE.read_probe(health, 503, b"") is Readiness.LOADING
    assert ENGINE.read_probe(health, 404, b"") is Readiness.LOADING
    assert ENGINE.read_probe(decode, 401, b"") is Readiness.BROKEN
    assert ENGINE.read_probe(decode, 200, b"") is Readiness.READY


def test_load_is_read_from_metrics_or_is_unknown() -> None:
    text = b"# HELP x\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n"
    assert ENGINE.read_load(200, text) == EngineLoad(running=2, waiting=5)
    assert ENGINE.read_load(200, b"nonsense") is None
    assert ENGINE.read_load(503, text) is None


def test_finding_the_engine_does_not_load_llama_into_this_process() -> None:
    assert ENGINE.fingerprint().version
    assert "xllamacpp" not in sys.modules


def test_default_threads_leave_a_core_to_others() -> None:
    assert 1 <= default_threads() <= max(1, len(os.sched_getaffinity(0)) - 1)


# -- memory


@pytest.mark.parametrize(
    "chosen",
    [
        profile(context=512),
        profile(context=4096, parallel=2),
        profile(context=8192, cache_type_k="q8_0", cache_type_v="q8_0"),
        profile(context=2048, ubatch_size=1024),
    ],
    ids=["small", "two slots", "quantised cache", "large batch"],
)
async def test_the_estimate_is_within_15_percent_of_peak_memory(
    chosen: ProfileSpec, smollm2: Path, tmp_path: Path
) -> None:
    async with running(case(smollm2, chosen), tmp_path) as run:
        await run.wait_ready()
        words = "word " * min(300, chosen.context - 50)
        assert (await post(run, "/completion", {"prompt": words, "n_predict": 4}))[0] == 200
        status = Path(f"/proc/{run.process.pid}/status").read_text()
        peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024
    assert estimate(chosen, fact(smollm2)).host == pytest.approx(peak, rel=0.15), f"{peak / MIB:.0f} MiB"


def test_without_metadata_the_size_alone_gives_a_guess() -> None:
    bare = WeightsFact(source="file:///w", entry=None, size=Bytes(1000), last_wanted=Wall(0))
    found = ENGINE.footprint(profile(), {"weights": bare}, Level.FULL)
    assert found is not None
    assert (found.host, found.source) == (1200, "guess")
    assert ENGINE.footprint(profile(), {}, Level.FULL) is None


def test_more_context_slots_and_bits_cost_more(smollm2: Path) -> None:
    weights = fact(smollm2)
    base = estimate(profile(context=2048), weights).host
    assert estimate(profile(context=4096), weights).host > base
    assert estimate(profile(context=2048, parallel=2), weights).host > base
    assert estimate(profile(context=2048, cache_type_k="f32"), weights).host > base
    assert estimate(profile(context=2048, cache_type_k="q4_0"), weights).host < base
    assert estimate(profile(context=2048, prompt_cache_mib=100), weights).host == base + 100 * MIB
    assert estimate(profile(context=2048, flash_attn="off"), weights).host > base
