"""The `vllm` engine without a vLLM: what it would run, what it reads out of answers, what it reckons."""

import dataclasses
import itertools
import json
import os
import shlex
import stat
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tiny_llama

from llmgw.engine import EngineLoad, Exit, FailureKind, HttpRequest, Level, ProfileSpec, Readiness, Slot, WeightsFact
from llmgw.engine.manager import find_engines
from llmgw.errors import EngineUnavailable
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId
from llmgw.units import GIB, MIB, Bytes, Wall
from llmgw.weights.folder import read_metadata
from llmgw_vllm import program
from llmgw_vllm.engine import VllmEngine
from llmgw_vllm.footprint import BASE, estimate, kv_cache

ENGINE = VllmEngine()
CORPUS = sorted((Path(__file__).parent / "corpus" / "vllm").glob("*.json"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write_lora(tmp_path_factory.mktemp("models") / "lora")


def profile(**changes: Any) -> ProfileSpec:
    made = ProfileSpec(
        name=ProfileName("p"), engine=EngineName("vllm"), context=1024, parallel=2, options={"python": sys.executable}
    )
    if "options" in changes:
        changes["options"] = {"python": sys.executable, **changes["options"]}
    return dataclasses.replace(made, **changes)


def slot(tmp_path: Path, *, devices: tuple[str, ...] = (), host: str = "127.0.0.1", **files: Path) -> Slot:
    return Slot(
        replica=ReplicaId("r"), model=ModelName("qwen"), node=NodeName("n"), host=host, port=8123, directory=tmp_path,
        files=files, devices=devices,
    )  # fmt: skip


def flags(chosen: ProfileSpec, at: Slot) -> dict[str, str]:
    """The flags of the command line with what follows each."""
    argv = [*ENGINE.launch(chosen, at, Level.FULL).argv, ""]
    return {
        word: "" if after.startswith("--") else after
        for word, after in itertools.pairwise(argv)
        if word.startswith("--")
    }


def fact(directory: Path, **metadata: str | int | float) -> WeightsFact:
    found = {**read_metadata(directory), **metadata}
    size = sum(file.stat().st_size for file in directory.iterdir())
    return WeightsFact(
        source=f"file://{directory}", entry=None, size=Bytes(size), last_wanted=Wall(0), metadata=found
    )  # fmt: skip


def valid(**options: Any) -> bool:
    return jsonschema.Draft202012Validator(ENGINE.options_schema).is_valid(options)


# -- the command line


def test_a_profile_becomes_flags(tiny: Path, tmp_path: Path) -> None:
    spec = ENGINE.launch(profile(args=("--swap-space", "0")), slot(tmp_path, weights=tiny), Level.FULL)
    argv = list(spec.argv)
    assert argv[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert argv[3:5] == ["--model", str(tiny)]
    assert argv[-2:] == ["--swap-space", "0"]
    found = flags(profile(), slot(tmp_path, weights=tiny))
    expected = {
        "--host": "127.0.0.1", "--port": "8123", "--served-model-name": "qwen", "--max-model-len": "1024",
        "--max-num-seqs": "2", "--tensor-parallel-size": "1", "--enforce-eager": "",
    }  # fmt: skip
    assert expected.items() <= found.items()
    assert spec.url == "http://127.0.0.1:8123"
    assert spec.key_variables == ("VLLM_API_KEY",)
    assert spec.env["HF_HUB_OFFLINE"] == spec.env["VLLM_NO_USAGE_STATS"] == "1"
    assert spec.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "CUDA_VISIBLE_DEVICES" not in spec.env


def test_the_cache_asked_for_is_the_cache_that_is_reckoned_with(tiny: Path, tmp_path: Path) -> None:
    at = slot(tmp_path, weights=tiny)
    asked = int(flags(profile(), at)["--kv-cache-memory-bytes"])
    assert asked == kv_cache(profile(), {"weights": fact(tiny).metadata})
    # layers x (keys, values) x heads x head length x bytes x (tokens and a block kept back)
    assert asked == 2 * 2 * 2 * 32 * 2 * (2 * 1024 + 128)
    assert flags(profile(options={"kv_cache_mib": 10}), at)["--kv-cache-memory-bytes"] == str(10 * MIB)
    share = flags(profile(options={"gpu_memory_utilization": 0.5}), at)
    assert share["--gpu-memory-utilization"] == "0.5"
    assert "--kv-cache-memory-bytes" not in share


@pytest.mark.parametrize(
    ("share", "said"),
    [(None, "0.01"), (0.0001, "0.01"), (0.301, "0.31"), (0.3, "0.30"), (0.999, "1.00"), (1.5, "1.00")],
)
def test_the_share_it_was_placed_for_is_what_it_demands_to_be_free(
    share: float | None, said: str, tiny: Path, tmp_path: Path
) -> None:
    at = dataclasses.replace(slot(tmp_path, weights=tiny, devices=("GPU-a",)), device_share=share)
    chosen = profile(devices=1)
    assert flags(chosen, at)["--gpu-memory-utilization"] == said
    whole = kv_cache(chosen, {"weights": fact(tiny).metadata})
    assert flags(chosen, at)["--kv-cache-memory-bytes"] == str(whole)


def test_with_a_declared_memory_it_sizes_its_own_cache_in_that_share(tiny: Path, tmp_path: Path) -> None:
    at = dataclasses.replace(slot(tmp_path, weights=tiny, devices=("GPU-a",)), device_share=0.5)
    declared = profile(devices=1, memory=Bytes(12 * GIB))
    found = flags(declared, at)
    assert found["--gpu-memory-utilization"] == "0.50"
    assert "--kv-cache-memory-bytes" not in found
    said = flags(profile(devices=1, memory=Bytes(12 * GIB), options={"kv_cache_mib": 10}), at)
    assert (said["--kv-cache-memory-bytes"], said["--gpu-memory-utilization"]) == (str(10 * MIB), "0.50")
    unknown = flags(declared, dataclasses.replace(at, device_share=None))
    assert (unknown["--gpu-memory-utilization"], "--kv-cache-memory-bytes" in unknown) == ("0.01", True)


def test_on_the_cpu_there_is_no_share_to_demand(tiny: Path, tmp_path: Path) -> None:
    at = dataclasses.replace(slot(tmp_path, weights=tiny), device_share=0.5)
    assert "--gpu-memory-utilization" not in flags(profile(memory=Bytes(12 * GIB)), at)


def test_accelerators_are_named_and_split_over(tiny: Path, tmp_path: Path) -> None:
    at = slot(tmp_path, weights=tiny, devices=("GPU-a", "GPU-b", "GPU-c", "GPU-d"))
    chosen = profile(devices=4, options={"pipeline_parallel": 2})
    spec = ENGINE.launch(chosen, at, Level.FULL)
    assert spec.env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b,GPU-c,GPU-d"
    found = flags(chosen, at)
    assert (found["--tensor-parallel-size"], found["--pipeline-parallel-size"]) == ("2", "2")
    assert "--enforce-eager" not in found
    whole = kv_cache(chosen, {"weights": fact(tiny).metadata})
    assert whole is not None
    assert found["--kv-cache-memory-bytes"] == str(whole // 4)
    for devices in (0, 1, 3):
        (wrong,) = ENGINE.check(profile(devices=devices, options={"pipeline_parallel": 2}))
        assert f"{devices} devices cannot be split into 2 stages" in wrong.message


def test_options_become_flags(tiny: Path, tmp_path: Path) -> None:
    options = {
        "dtype": "float16", "quantization": "fp8", "kv_cache_dtype": "fp8", "max_num_seqs": 7,
        "max_num_batched_tokens": 512, "runner": "generate", "enforce_eager": False, "enable_prefix_caching": False,
        "trust_remote_code": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3",
        "chat_template": "{{ messages }}", "cpu_bind": "0-3",
    }  # fmt: skip
    assert valid(**options)
    found = flags(profile(options=options), slot(tmp_path, weights=tiny))
    expected = {
        "--dtype": "float16", "--quantization": "fp8", "--kv-cache-dtype": "fp8", "--max-num-seqs": "7",
        "--max-num-batched-tokens": "512", "--runner": "generate", "--no-enable-prefix-caching": "",
        "--trust-remote-code": "", "--enable-auto-tool-choice": "", "--tool-call-parser": "hermes",
        "--reasoning-parser": "qwen3", "--chat-template": "{{ messages }}",
    }  # fmt: skip
    assert expected.items() <= found.items()
    assert "--enforce-eager" not in found
    spec = ENGINE.launch(profile(options=options), slot(tmp_path, weights=tiny), Level.FULL)
    assert spec.env["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"


def test_an_adapter_answers_to_the_models_name(tiny: Path, lora: Path, tmp_path: Path) -> None:
    found = flags(profile(), slot(tmp_path, weights=tiny, lora=lora))
    assert found["--lora-modules"] == f"qwen={lora}"
    assert found["--served-model-name"] == "qwen-base"
    assert found["--max-lora-rank"] == "16"
    high = tiny_llama.write_lora(tmp_path / "high", rank=33)
    assert flags(profile(), slot(tmp_path, weights=tiny, lora=high))["--max-lora-rank"] == "64"
    too_high = tiny_llama.write_lora(tmp_path / "too-high", rank=600)
    with pytest.raises(EngineUnavailable, match="rank is 600"):
        ENGINE.launch(profile(), slot(tmp_path, weights=tiny, lora=too_high), Level.FULL)


def test_a_draft_model_proposes_tokens(tiny: Path, tmp_path: Path) -> None:
    at = slot(tmp_path, weights=tiny, draft=tiny)
    assert json.loads(flags(profile(), at)["--speculative-config"]) == {"model": str(tiny), "num_speculative_tokens": 5}
    options = {"speculative": {"num_speculative_tokens": 3, "method": "eagle3"}}
    assert json.loads(flags(profile(options=options), at)["--speculative-config"])["num_speculative_tokens"] == 3
    alone = {"speculative": {"method": "ngram", "num_speculative_tokens": 4}}
    found = flags(profile(options=alone), slot(tmp_path, weights=tiny))
    assert json.loads(found["--speculative-config"]) == alone["speculative"]
    with_draft = int(flags(profile(), at)["--kv-cache-memory-bytes"])
    assert with_draft == 2 * int(flags(profile(), slot(tmp_path, weights=tiny))["--kv-cache-memory-bytes"])


def test_a_template_comes_from_a_file_or_from_the_options(tiny: Path, tmp_path: Path) -> None:
    at = slot(tmp_path, weights=tiny, chat_template=Path("/t.jinja"))
    assert flags(profile(), at)["--chat-template"] == "/t.jinja"
    (wrong,) = ENGINE.check(profile(options={"chat_template": "{{ x }}"}, files={"chat_template": object()}))
    assert "exclude each other" in wrong.message


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "1"), ("--port=1",), ("--api_key=x",), ("--served_model_name", "x"), ("--max-model-le", "5"),
        ("-tp", "2"), ("-tp=2",), ("--speculative-config.model", "x"), ("-sc.method=ngram",), ("--dtyp=half",),
        ("--swap-space", "0", "--model", "x"), ("--enable-lora",), ("--disable-log-stats",),
    ],
)  # fmt: skip
def test_flags_that_llmgw_sets_are_refused_in_args_with_advice(arguments: tuple[str, ...]) -> None:
    (wrong,) = ENGINE.check(profile(args=arguments))
    assert "does not belong in `args`: " in wrong.message
    assert wrong.path[0] == "args"
    assert arguments[int(wrong.path[1])].startswith("-")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model-impl", "transformers"), ("--config-format", "hf"), ("--max-logprobs=5",), ("--enable-log-requests",),
        ("--hf-overrides", '{"model": "--port"}'), ("--tokenizer-mode=mistral",), ("-O3",), ("-cc.mode=0",),
        ("--chat-template-content-format", "string"), ("--data-parallel-backend", "mp"), ("-x", "-1"),
        ("--max-num-partial-prefills", "2"),
    ],
)  # fmt: skip
def test_other_flags_pass(arguments: tuple[str, ...]) -> None:
    assert not ENGINE.check(profile(args=arguments))


def test_variables_that_would_undo_what_llmgw_sets_are_refused_or_overruled(
    tiny: Path, tmp_path: Path, monkeypatch
) -> None:
    at = slot(tmp_path, weights=tiny)
    for name in ("VLLM_CPU_KVCACHE_SPACE", "CUDA_VISIBLE_DEVICES", "VLLM_API_KEY"):
        with pytest.raises(EngineUnavailable, match=f"{name} does not belong in `env`: "):
            ENGINE.launch(profile(env={name: "1"}), at, Level.FULL)
    plain = tuple(ENGINE.launch(profile(), at, Level.FULL).argv)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    assert tuple(ENGINE.launch(profile(), at, Level.FULL).argv) == ("env", "-u", "VLLM_CPU_KVCACHE_SPACE", *plain)


def test_what_is_no_directory_or_has_no_figures_is_refused_with_advice(tiny: Path, tmp_path: Path) -> None:
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(EngineUnavailable, match="is a file; GGUF files are for"):
        ENGINE.launch(profile(), slot(tmp_path, weights=gguf), Level.FULL)
    with pytest.raises(EngineUnavailable, match="needs `weights`"):
        ENGINE.launch(profile(), slot(tmp_path), Level.FULL)
    bare = tiny_llama.write(tmp_path / "bare")
    (bare / "config.json").write_text("{}")
    with pytest.raises(EngineUnavailable, match=r"options\.kv_cache_mib"):
        ENGINE.launch(profile(), slot(tmp_path, weights=bare), Level.FULL)
    ENGINE.launch(profile(options={"kv_cache_mib": 5}), slot(tmp_path, weights=bare), Level.FULL)
    (bare / "model.safetensors").write_bytes(b"")
    with pytest.raises(EngineUnavailable, match="cut short"):
        ENGINE.launch(profile(), slot(tmp_path, weights=bare), Level.FULL)


def test_ipv6_addresses_are_bracketed_in_the_url(tiny: Path, tmp_path: Path) -> None:
    spec = ENGINE.launch(profile(), slot(tmp_path, host="::1", weights=tiny), Level.FULL)
    assert spec.url == "http://[::1]:8123"


def test_options_are_checked_by_the_schema() -> None:
    assert valid()
    assert valid(speculative={"method": "ngram", "num_speculative_tokens": 2})
    for wrong in (
        {"dtype": "half"}, {"python": "python"}, {"gpu_memory_utilization": 0}, {"gpu_memory_utilization": 1.1},
        {"python": "/p", "binary": "/b"}, {"kv_cache_mib": 5, "gpu_memory_utilization": 0.5}, {"speculative": {}},
        {"speculative": {"model": "/m", "method": "eagle"}}, {"chat_template": "/a/file.jinja"}, {"max_lora_rank": 20},
        {"tool_call_parser": "--x y"}, {"cpu_bind": "all"}, {"nope": 1},
    ):  # fmt: skip
        assert not valid(**wrong), wrong


# -- which program


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_program_is_the_profiles_or_that_of_the_environment(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv(program.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailable, match="vLLM is not on this node; install vLLM"):
        program.find({})
    binary = script(tmp_path / "vllm", f"#!{sys.executable}\n")
    assert program.find({}).argv == (str(binary), "serve")
    monkeypatch.setenv(program.VARIABLE, sys.executable)
    assert program.find({}).argv[0] == sys.executable
    assert program.find({"binary": str(binary)}).argv == (str(binary), "serve")
    for name, wrong in (("options.python", {"python": "/no/python"}), ("options.binary", {"binary": str(tmp_path)})):
        with pytest.raises(EngineUnavailable, match=f"{name} is /"):
            program.find(wrong)


def test_served_by_the_program_the_model_comes_without_a_flag(tiny: Path, tmp_path: Path) -> None:
    binary = script(tmp_path / "vllm", "#!/bin/sh\n")
    chosen = dataclasses.replace(profile(), options={"binary": str(binary)})
    argv = list(ENGINE.launch(chosen, slot(tmp_path, weights=tiny), Level.FULL).argv)
    assert argv[:3] == [str(binary), "serve", str(tiny)]


def test_a_python_without_vllm_is_told_from_one_that_does_not_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    here = shlex.quote(sys.executable)
    for python, why in (
        (
            script(tmp_path / "without", f'#!/bin/sh\nexec {here} -S "$@"\n'),
            "has no vLLM; install",
        ),
        (script(tmp_path / "broken", "#!/bin/sh\nexit 3\n"), "cannot be asked for vLLM"),
    ):
        monkeypatch.setenv(program.VARIABLE, str(python))
        found = ENGINE.fingerprint()
        assert found.why is not None
        assert why in found.why
    there = script(tmp_path / "there", '#!/bin/sh\necho noise\necho \'{"there": true, "version": "0.32.0"}\'\n')
    monkeypatch.setenv(program.VARIABLE, str(there))
    found = ENGINE.fingerprint()
    assert (found.version, found.path, found.why) == ("0.32.0", str(there), None)
    binary = script(tmp_path / "vllm", f"#!{there}\n")
    assert program.look(program.find({"binary": str(binary)})) == (None, None)  # no interpreter that could be asked


# -- answers


def test_ready_means_health_and_then_a_token() -> None:
    health, decode = ENGINE.probes(profile())
    assert (health.path, decode.path) == ("/health", "/v1/completions")
    assert ENGINE.read_probe(health, 200, b"") is Readiness.READY
    assert ENGINE.read_probe(health, 503, b"") is Readiness.LOADING
    assert ENGINE.read_probe(decode, 400, b"") is Readiness.BROKEN
    assert ENGINE.read_probe(decode, 500, b"") is Readiness.LOADING
    _, embed = ENGINE.probes(profile(options={"runner": "pooling"}))
    assert embed.path == "/v1/embeddings"
    assert ENGINE.read_probe(embed, 404, b"") is Readiness.READY
    assert ENGINE.read_probe(embed, 401, b"") is Readiness.BROKEN


METRICS = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 2.0
vllm:num_requests_running{engine="1",model_name="qwen"} 1.0
vllm:num_requests_waiting{engine="0",model_name="qwen"} 3.0
vllm:num_requests_waiting{engine="1",model_name="qwen"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="qwen",reason="capacity"} 3.0
"""


def test_load_is_read_from_the_metrics_and_summed_over_engines() -> None:
    assert ENGINE.load(profile()) == HttpRequest(path="/metrics")
    assert ENGINE.read_load(200, METRICS) == EngineLoad(running=3, waiting=3)
    assert ENGINE.read_load(500, METRICS) is None
    assert ENGINE.read_load(200, b"python_info 1\n") is None


def test_the_paths_served_depend_on_what_the_model_does() -> None:
    assert "chat/completions" in ENGINE.surfaces(profile())
    assert "embeddings" in ENGINE.surfaces(profile(options={"runner": "pooling"}))


# -- memory


def test_the_estimate_is_tensors_cache_and_process(tiny: Path) -> None:
    found = estimate(profile(), {"weights": fact(tiny)})
    assert found is not None
    assert found.source == "estimate"
    assert found.device == 0
    kv = kv_cache(profile(), {"weights": fact(tiny).metadata})
    assert kv is not None
    assert 0 < found.host - BASE - kv - int(fact(tiny).metadata["safetensors.bytes"]) < 8 * MIB


def test_more_context_or_requests_take_more_and_a_narrower_cache_less(tiny: Path) -> None:
    def kv(**changes: Any) -> int:
        return kv_cache(profile(**changes), {"weights": fact(tiny).metadata}) or 0

    assert kv(context=4096) > kv(context=2048) > kv(context=1024)
    assert kv(context=4096, parallel=4) > kv(context=4096)
    assert 2 * kv(options={"kv_cache_dtype": "fp8"}) == kv()
    assert kv(options={"dtype": "float32"}) == 2 * kv()


def test_compressed_attention_counts_one_vector_for_each_token(tiny: Path) -> None:
    latent = {**fact(tiny).metadata, "config.kv_lora_rank": 512, "config.qk_rope_head_dim": 64}
    assert kv_cache(profile(), {"weights": latent}) == 2 * (512 + 64) * 2 * (2 * 1024 + 128)


def test_numbers_stored_wider_than_they_are_computed_shrink_when_loaded(tiny: Path) -> None:
    wide = fact(tiny, **{"safetensors.dtype": "F32"})
    as_it_is = estimate(profile(options={"dtype": "float32"}), {"weights": wide})
    narrowed = estimate(profile(), {"weights": wide})
    assert as_it_is is not None
    assert narrowed is not None
    assert as_it_is.host > narrowed.host


def test_the_estimate_is_none_where_it_depends_on_the_machine_or_on_a_file_to_come(tiny: Path) -> None:
    assert estimate(profile(), {}) is None
    assert estimate(profile(options={"gpu_memory_utilization": 0.5}), {"weights": fact(tiny)}) is None
    with_draft = profile(draft=object())
    assert estimate(with_draft, {"weights": fact(tiny)}) is None
    both = estimate(with_draft, {"weights": fact(tiny), "draft": fact(tiny)})
    alone = estimate(profile(), {"weights": fact(tiny)})
    assert both is not None
    assert alone is not None
    assert both.host > alone.host


def test_without_tensor_headers_it_is_a_guess_from_the_size(tiny: Path) -> None:
    bare = dataclasses.replace(fact(tiny), size=Bytes(10 * GIB), metadata={})
    found = estimate(profile(), {"weights": bare})
    assert found is not None
    assert (found.source, found.host) == ("guess", 12 * GIB + BASE)


def test_on_accelerators_the_model_lies_there_and_the_processes_on_the_host(tiny: Path) -> None:
    one = estimate(profile(devices=1), {"weights": fact(tiny)})
    two = estimate(profile(devices=2), {"weights": fact(tiny)})
    assert one is not None
    assert two is not None
    assert one.device > 0
    assert two.host > one.host
    assert two.device > one.device


def test_smaller_levels_shorten_the_context_and_take_less(tiny: Path) -> None:
    full = profile(context=16384)
    sizes = [full]
    for level in (Level.DEGRADED, Level.MINIMAL):
        smaller = ENGINE.shrink(full, level)
        assert smaller is not None
        sizes.append(smaller)
    assert [each.context for each in sizes] == [16384, 8192, 4096]
    found = [ENGINE.footprint(each, {"weights": fact(tiny)}, Level.FULL) for each in sizes]
    hosts = [each.host for each in found if each is not None]
    assert hosts == sorted(hosts, reverse=True)
    assert len(set(hosts)) == 3
    assert ENGINE.shrink(profile(context=1024), Level.MINIMAL) is None


def test_a_cache_of_a_chosen_size_shrinks_with_the_context(tiny: Path) -> None:
    chosen = ENGINE.shrink(profile(context=8192, options={"kv_cache_mib": 101}), Level.DEGRADED)
    share = ENGINE.shrink(profile(context=8192, options={"gpu_memory_utilization": 0.9}), Level.MINIMAL)
    assert chosen is not None
    assert share is not None
    assert chosen.options["kv_cache_mib"] == 51
    assert "gpu_memory_utilization" not in share.options
    assert ENGINE.footprint(share, {"weights": fact(tiny)}, Level.MINIMAL) is not None


# -- ends


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_an_end_of_the_corpus_is_told_for_what_it_was(file: Path) -> None:
    case = json.loads(file.read_text())
    verdict = ENGINE.classify(Exit(**case["exit"]), case["log"])
    assert (str(verdict.kind), verdict.port_clash) == (case["kind"], case.get("port_clash", False)), verdict
    assert case["reason"] in verdict.reason
    assert "\n" not in verdict.reason
    assert len(verdict.reason) < 500


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) >= 15


@pytest.mark.parametrize("exit", [Exit(code=0), Exit(code=1), Exit(signal=9), Exit()])
def test_an_end_without_a_word_is_a_crash_even_with_exit_code_0(exit: Exit) -> None:
    verdict = ENGINE.classify(exit, "")
    assert verdict.kind is FailureKind.CRASH
    assert verdict.reason


def test_the_engine_is_found_through_its_entry_point() -> None:
    engines = find_engines()
    assert "vllm" in engines.by_name
    assert engines.rules()["vllm"].roles == {"weights", "draft", "lora", "chat_template"}
