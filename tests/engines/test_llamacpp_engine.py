"""The `llamacpp` engine on a real llama-server: every option is one that it takes, every file reaches it."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import struct
import zlib
from base64 import b64encode
from pathlib import Path
from typing import Any

import gguf_files
import jsonschema
import pytest
from llama_server import need_llama_server

from llmgw.engine import EngineLoad, HttpRequest, Level, ProfileSpec, Readiness, Slot, WeightsSpec
from llmgw.errors import EngineUnavailable
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId
from llmgw.testing.engine_checks import EngineCase, Running, running
from llmgw_llamacpp import args, binary
from llmgw_llamacpp.engine import LlamaCppEngine
from llmgw_llamacpp.options import DEVICE_OPTIONS, OPTIONS_SCHEMA

ENGINE = LlamaCppEngine()
VALIDATOR = jsonschema.Draft202012Validator(OPTIONS_SCHEMA)


def profile(**changes: Any) -> ProfileSpec:
    made: dict[str, Any] = {"context": 512, **changes}
    made["options"] = {"threads": 1, **made.get("options", {})}
    return ProfileSpec(name=ProfileName("p"), engine=EngineName("llamacpp"), **made)


def case(model: Path, chosen: ProfileSpec, **files: Path) -> EngineCase:
    need_llama_server()
    return EngineCase(engine=ENGINE, profile=chosen, files={"weights": model, **files})


def slot(tmp_path: Path, **changes: Any) -> Slot:
    made = Slot(
        replica=ReplicaId("r"), model=ModelName("m"), node=NodeName("n"), host="127.0.0.1", port=9, directory=tmp_path,
        files={"weights": Path("/w.gguf")},
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the binary where nothing is started."""
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\necho 'version: 7 (stand-in)' >&2\n")
    path.chmod(0o755)
    monkeypatch.setenv(binary.VARIABLE, str(path))
    return path


async def post(run: Running, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = HttpRequest(path=path, method="POST", body=json.dumps(body).encode(), timeout=60)
    status, answer = await run.send(request)
    return status, json.loads(answer)


async def complete(run: Running, tokens: int = 4) -> dict[str, Any]:
    status, answer = await post(run, "/completion", {"prompt": "One, two, three,", "n_predict": tokens, "top_k": 1})
    assert status == 200, answer
    assert answer["content"]
    return dict(answer)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PICTURE = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress((b"\0" + b"\xff\0\0" * 32) * 32))
    + _chunk(b"IEND", b"")
)
"""A red square."""

OPTIONS: list[dict[str, Any]] = [
    {"batch_size": 256, "ubatch_size": 128, "threads_batch": 1},
    {"flash_attn": "on", "cache_type_k": "q8_0", "cache_type_v": "q4_0", "cache_ram_mib": 16, "slots": True},
    {"rope_scaling": "yarn", "rope_scale": 2.0, "yarn_orig_ctx": 8192, "rope_freq_base": 100000.0},
    {"rope_freq_scale": 0.5, "context_shift": True, "check_tensors": True, "mmap": False},
    {"mlock": True, "verbosity": 3, "jinja": False},
    {"chat_template": "chatml", "chat_template_kwargs": {"enable_thinking": False}, "slots": False},
    {"reasoning": "off", "reasoning_format": "deepseek", "reasoning_budget": 0, "jinja": True},
]
TRIED_ELSEWHERE = {
    "binary", "threads", "embeddings", "pooling", "rerank", "lora_scales",
    "draft_n_max", "draft_n_min", "draft_p_min", "draft_type", "draft_cache_type_k", "draft_cache_type_v",
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids="+".join)
async def test_each_option_is_one_that_the_server_takes(options: dict[str, Any], smollm2: Path, tmp_path: Path) -> None:
    VALIDATOR.validate(options)
    async with running(case(smollm2, profile(options=options)), tmp_path) as run:
        await run.wait_ready()
        await complete(run)


def test_every_option_of_the_schema_is_tried() -> None:
    # What speaks of accelerators is taken by a build for the CPU only as a flag: see the test after this one.
    assert {name for options in OPTIONS for name in options} | TRIED_ELSEWHERE | DEVICE_OPTIONS == set(
        OPTIONS_SCHEMA["properties"]
    )


async def test_the_flags_for_accelerators_are_ones_that_the_server_knows(smollm2: Path, tmp_path: Path) -> None:
    options = {
        "gpu_layers": 3, "split_mode": "layer", "tensor_split": [3, 1], "main_gpu": 0, "override_tensor": ["_exps=CPU"],
        "cpu_moe": True, "n_cpu_moe": 2, "kv_offload": False, "mmproj_offload": False, "draft_gpu_layers": 2,
    }  # fmt: skip
    VALIDATOR.validate(options)
    assert options.keys() == DEVICE_OPTIONS
    chosen = profile(options=options, devices=1)
    async with running(case(smollm2, chosen, draft=smollm2), tmp_path) as run:  # it warns, and uses the CPU
        await run.wait_ready()


# -- what is served


async def test_embeddings_are_served_when_asked_for(smollm2: Path, tmp_path: Path) -> None:
    chosen = profile(options={"embeddings": True, "pooling": "mean"})
    async with running(case(smollm2, chosen), tmp_path) as run:
        await run.wait_ready()
        status, answer = await post(run, "/v1/embeddings", {"input": ["a cat", "a dog"]})
        assert status == 200
        assert [len(row["embedding"]) for row in answer["data"]] == [576, 576]
    assert "embeddings" in ENGINE.surfaces(chosen)
    assert "embeddings" not in ENGINE.surfaces(profile())


async def test_reranking_is_served_when_asked_for(smollm2: Path, tmp_path: Path) -> None:
    chosen = profile(options={"rerank": True})
    async with running(case(smollm2, chosen), tmp_path) as run:
        await run.wait_ready()  # which asks it to rank one document
        documents = ["Paris is in France", "Bread is baked"]
        status, answer = await post(run, "/v1/rerank", {"query": "Where is Paris?", "documents": documents})
        assert status == 200
        assert sorted(each["index"] for each in answer["results"]) == [0, 1]
    assert ENGINE.surfaces(chosen) == {"rerank"}
    assert not VALIDATOR.is_valid({"rerank": True, "embeddings": True})


async def test_a_draft_model_proposes_tokens_that_are_accepted(smollm2: Path, tmp_path: Path) -> None:
    options = {
        "draft_n_max": 6, "draft_n_min": 1, "draft_p_min": 0.1, "draft_type": "draft-simple",
        "draft_cache_type_k": "q8_0", "draft_cache_type_v": "q8_0",
    }  # fmt: skip
    async with running(case(smollm2, profile(options=options), draft=smollm2), tmp_path) as run:
        await run.wait_ready()
        timings = (await complete(run, tokens=24))["timings"]
        assert timings["draft_n"] > 0
        assert timings["draft_n_accepted"] > timings["draft_n"] / 2, "it is the same model"


async def test_adapters_are_loaded_at_their_scales(smollm2: Path, tmp_path: Path) -> None:
    files = {role: gguf_files.adapter(tmp_path / f"{role}.gguf") for role in ("lora", "lora_1")}
    chosen = profile(options={"lora_scales": {"lora_1": 0.25}})
    VALIDATOR.validate(dict(chosen.options))
    async with running(case(smollm2, chosen, **files), tmp_path) as run:
        await run.wait_ready()
        loaded = json.loads((await run.send(HttpRequest(path="/lora-adapters")))[1])
        assert [(Path(each["path"]).name, each["scale"]) for each in loaded] == [
            ("lora.gguf", 1),
            ("lora_1.gguf", 0.25),
        ]


async def test_pictures_are_seen_through_a_projector(smollm2: Path, tmp_path: Path) -> None:
    projector = gguf_files.projector(tmp_path / "mmproj.gguf")
    async with running(case(smollm2, profile(), mmproj=projector), tmp_path) as run:
        await run.wait_ready()
        words = {"type": "text", "text": "What is it?"}
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(PICTURE).decode()}"}}
        taken = []
        for content in ([words], [words, picture]):
            body = {"max_tokens": 2, "messages": [{"role": "user", "content": content}]}
            status, answer = await post(run, "/v1/chat/completions", body)
            assert status == 200, answer
            taken.append(answer["usage"]["prompt_tokens"])
        assert taken[1] - taken[0] >= 16, "a token for each part of the picture"


async def test_a_split_model_is_started_by_its_first_part(smollm2: Path, tmp_path: Path) -> None:
    first, *_ = gguf_files.split(smollm2, tmp_path, 3)
    async with running(case(first, profile()), tmp_path) as run:
        await run.wait_ready()
        await complete(run)


async def test_a_chat_template_may_be_a_file(smollm2: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}")
    async with running(case(smollm2, profile(), chat_template=template), tmp_path) as run:
        await run.wait_ready()
        framed = await post(run, "/apply-template", {"messages": [{"role": "user", "content": "hello"}]})
        assert framed[1]["prompt"] == "[user]hello"


async def test_each_slot_has_the_whole_context_and_the_model_its_own_name(smollm2: Path, tmp_path: Path) -> None:
    async with running(case(smollm2, profile(context=1024, parallel=3)), tmp_path) as run:
        await run.wait_ready()
        slots = json.loads((await run.send(HttpRequest(path="/slots")))[1])
        assert [each["n_ctx"] for each in slots] == [1024, 1024, 1024]
        models = json.loads((await run.send(HttpRequest(path="/v1/models")))[1])
        assert [each["id"] for each in models["data"]] == ["under-test"]


async def test_the_key_is_in_neither_argv_nor_log(smollm2: Path, tmp_path: Path) -> None:
    async with running(case(smollm2, profile(options={"verbosity": 5})), tmp_path) as run:
        await run.wait_ready()
        await complete(run)
        argv = Path(f"/proc/{run.process.pid}/cmdline").read_bytes()
        assert b"key-of-the-engine" not in argv
        assert "key-of-the-engine" not in run.tail()


async def test_two_builds_run_side_by_side(smollm2: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "llama-server"
    shutil.copytree(Path(need_llama_server()).parent, other.parent)
    async with (
        running(case(smollm2, profile()), tmp_path) as one,
        running(case(smollm2, profile(options={"binary": str(other)})), tmp_path) as two,
    ):
        for run, path in ((one, need_llama_server()), (two, str(other))):
            await run.wait_ready()
            assert os.readlink(f"/proc/{run.process.pid}/exe") == os.path.realpath(path)


# -- which binary


def test_a_binary_is_found_by_variable_or_path_and_its_version_told(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ENGINE.fingerprint().version == "7 (stand-in)"
    monkeypatch.delenv(binary.VARIABLE)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    assert binary.default() == str(program)


def test_without_a_binary_the_engine_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(binary.VARIABLE, str(tmp_path / "nowhere"))
    why = ENGINE.fingerprint().why
    assert why is not None
    for way in ("options.binary", "LLMGW_LLAMA_SERVER", "PATH", "https://"):
        assert way in why
    assert ENGINE.fingerprint().own_program == ("binary",), "a profile that names one needs no default"
    with pytest.raises(EngineUnavailable, match="no llama-server was found"):
        ENGINE.launch(profile(), slot(tmp_path), Level.FULL)


@pytest.mark.parametrize("script", ["exit 1", "echo no >&2; exit 127", "kill -4 $$"])
def test_a_binary_that_cannot_run_here_is_unavailable(script: str, program: Path) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    why = ENGINE.fingerprint().why
    assert why is not None
    assert str(program) in why


def test_a_profiles_own_binary_that_is_missing_is_named(program: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"options\.binary: /opt/none/llama-server is no program on this node"):
        ENGINE.launch(profile(options={"binary": "/opt/none/llama-server"}), slot(tmp_path), Level.FULL)


# -- the command line


def argv(tmp_path: Path, chosen: ProfileSpec, **changes: Any) -> list[str]:
    return list(ENGINE.launch(chosen, slot(tmp_path, **changes), Level.FULL).argv)


@pytest.mark.parametrize("flag", sorted(args.OWNED))
def test_a_flag_that_is_llmgws_own_is_refused_with_advice(flag: str, program: Path, tmp_path: Path) -> None:
    for spelt in {flag, flag.replace("-", "_").replace("__", "--", 1) if flag.startswith("--") else flag}:
        with pytest.raises(EngineUnavailable, match=r"is not for a profile to set: .{10,}"):
            argv(tmp_path, profile(args=("--top-k", "3", spelt, "x")))


def test_a_profile_that_contradicts_itself_is_refused(program: Path, tmp_path: Path) -> None:
    wrong: list[tuple[ProfileSpec, dict[str, Any], str]] = [
        (profile(), {"files": {}}, "needs `weights`"),
        (profile(options={"gpu_layers": 3}), {}, r"options\.gpu_layers: speaks of accelerators"),
        (profile(args=("-ngl", "99")), {}, "-ngl speaks of accelerators"),
        (profile(options={"draft_n_max": 3}), {}, r"options\.draft_n_max: needs `draft`"),
        (profile(options={"lora_scales": {"lora": 1}}), {}, r"options\.lora_scales\.lora: `files` has no adapter"),
        (
            profile(options={"chat_template": "chatml"}),
            {"files": {"weights": Path("/w"), "chat_template": Path("/t")}},
            "names a chat template too",
        ),
        (profile(options={"chat_template": "llama3"}), {}, r"options\.chat_template: is no Jinja text, and no name"),
        (profile(devices=1, options={"override_tensor": ["(=CPU"]}), {}, "must be a regular expression"),
        (profile(), {"files": {"weights": Path("/w"), "lora": Path("/a,b.gguf")}}, "',' or ':'"),
    ]
    for chosen, changes, said in wrong:
        with pytest.raises(EngineUnavailable, match=said):
            argv(tmp_path, chosen, **changes)


@pytest.mark.parametrize(
    "chosen",
    [
        profile(options={"chat_template": "chatml"}),
        profile(options={"chat_template": "{{ messages[0].content }}"}),
        profile(options={"chat_template": "llama3", "jinja": False}),
        profile(options={"chat_template": "llama3"}, args=("--no-jinja",)),
    ],
)
def test_a_template_is_jinja_text_or_a_name_where_names_are_known(
    chosen: ProfileSpec, program: Path, tmp_path: Path
) -> None:
    line = argv(tmp_path, chosen)
    assert line[line.index("--chat-template") + 1] == chosen.options["chat_template"]


def test_what_is_wrong_is_said_when_the_catalog_is_read() -> None:
    wrong = profile(args=("--top-k", "3", "--port", "8080", "-ngl", "9"), options={"draft_n_max": 3, "cpu_moe": True})
    assert [each.path for each in ENGINE.check(wrong)] == [
        ("args", 2), ("args", 4), ("options", "cpu_moe"), ("options", "draft_n_max"),
    ]  # fmt: skip
    spec = WeightsSpec(source="file:///x")
    assert not ENGINE.check(profile(weights=spec, draft=spec, options={"draft_n_max": 3}, args=("--top-k", "3")))


def test_further_flags_come_last_so_that_they_count(program: Path, tmp_path: Path) -> None:
    made = argv(tmp_path, profile(args=("--verbosity", "4", "--top-k", "3")))
    assert made[-4:] == ["--verbosity", "4", "--top-k", "3"]


def test_accelerators_are_those_of_the_slot_and_no_others(program: Path, tmp_path: Path) -> None:
    spec = ENGINE.launch(profile(devices=2), slot(tmp_path, devices=("GPU-a", "GPU-b")), Level.FULL)
    assert spec.env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert [*spec.argv][[*spec.argv].index("--gpu-layers") :][:4] == ["--gpu-layers", "auto", "--fit", "on"]
    spec = ENGINE.launch(profile(), slot(tmp_path), Level.FULL)
    assert spec.env["CUDA_VISIBLE_DEVICES"] == ""
    assert [*spec.argv][[*spec.argv].index("--device") :][:2] == ["--device", "none"]


def test_a_context_given_is_never_changed_behind_our_back(program: Path, tmp_path: Path) -> None:
    made = argv(tmp_path, profile(context=1000, parallel=3))
    assert made[made.index("--ctx-size") + 1] == "3000"
    assert made[made.index("--fit") + 1] == "off"


@pytest.mark.parametrize(
    ("changes", "batch"),
    [
        ({}, "128"),
        ({"parallel": 32}, "256"),
        ({"options": {"ubatch_size": 1024}}, "1024"),
        ({"args": ("-ub", "1024")}, "1024"),
        ({"options": {"batch_size": 2048}}, "2048"),
        ({"args": ("-b", "2048")}, None),
        ({"args": ("--batch_size", "2048")}, None),
        ({"env": {"LLAMA_ARG_BATCH": "2048"}}, None),
        ({"devices": 1}, None),
        ({"options": {"embeddings": True}}, None),
        ({"options": {"rerank": True}}, None),
        ({"draft": WeightsSpec(source="file:///x")}, None),
        ({"files": {"mmproj": WeightsSpec(source="file:///x")}}, None),
    ],
    ids=str,
)
def test_prompts_are_taken_in_small_batches_on_a_cpu_unless_the_profile_says_otherwise(
    changes: dict[str, Any], batch: str | None, program: Path, tmp_path: Path
) -> None:
    files = {role: Path("/w.gguf") for role in ("weights", *changes.get("files", {}), *({"draft"} & changes.keys()))}
    made = argv(tmp_path, profile(**changes), files=files)
    told = [value for flag, value in itertools.pairwise(made) if flag == "--batch-size"]
    assert told == ([] if batch is None else [batch])


# -- pure parts


def test_load_is_read_from_metrics_or_is_unknown() -> None:
    text = b"# HELP x\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n"
    assert ENGINE.read_load(200, text) == EngineLoad(running=2, waiting=5)
    assert ENGINE.read_load(200, b"nonsense") is None
    assert ENGINE.read_load(503, text) is None


def test_answers_of_probes_are_told_apart() -> None:
    health, decode = ENGINE.probes(profile())
    assert ENGINE.read_probe(health, 503, b"") is Readiness.LOADING
    assert ENGINE.read_probe(health, 404, b"") is Readiness.LOADING
    assert ENGINE.read_probe(decode, 401, b"") is Readiness.BROKEN
    assert ENGINE.read_probe(decode, 200, b"") is Readiness.READY


def test_a_smaller_level_has_less_context_and_the_smallest_no_accelerator() -> None:
    full = profile(
        context=32768, devices=1, exclusive=True, memory=5, options={"gpu_layers": 20, "cache_type_k": "q8_0"}
    )
    degraded, minimal = (ENGINE.shrink(full, level) for level in (Level.DEGRADED, Level.MINIMAL))
    assert degraded is not None
    assert minimal is not None
    assert (degraded.context, degraded.devices, degraded.memory) == (16384, 1, None)
    assert (minimal.context, minimal.devices, minimal.memory) == (8192, 0, None)
    assert (degraded.exclusive, minimal.exclusive) == (True, False)
    assert minimal.options == {"threads": 1, "cache_type_k": "q8_0"}
    assert ENGINE.shrink(profile(context=2048), Level.DEGRADED) is None
    assert ENGINE.shrink(profile(context=2048), Level.MINIMAL) is None
    small = ENGINE.shrink(profile(context=2048, devices=1), Level.MINIMAL)
    assert small is not None
    assert (small.context, small.devices) == (2048, 0)
    tied = ENGINE.shrink(profile(context=8192, devices=1, args=("-ot", "exps=CPU")), Level.MINIMAL)
    assert tied is not None
    assert tied.devices == 1, "its flags make no sense without one"


def test_roles_are_those_that_the_profile_can_name() -> None:
    assert ENGINE.roles is not None
    spec = WeightsSpec(source="file:///x")
    named = profile(weights=spec, draft=spec, files={"mmproj": spec, "lora": spec, "chat_template": spec})
    assert named.roles.keys() <= ENGINE.roles
    assert all(re.fullmatch(r"lora(_\d)?", role) for role in ENGINE.roles if role.startswith("lora"))
