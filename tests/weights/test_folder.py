"""A directory in Hugging Face layout as weights: what is told of it, and what is wrong with it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import tiny_llama

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused
from llmgw.units import Bytes
from llmgw.weights.cache import Cache
from llmgw.weights.folder import MOST_FILES, Folders, read_metadata
from llmgw.weights.naming import canonical


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def tiny(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "tiny"))


def spec(path: Path, sha256: str | None = None) -> WeightsSpec:
    return WeightsSpec(source=canonical(f"{path}/"), sha256=sha256)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


async def refusal(cache: Cache, wanted: WeightsSpec) -> str:
    assert cache.locate(wanted) is None
    with pytest.raises(WeightsRefused) as caught:
        await cache.fetch(wanted, reserve=Bytes(0), progress=lambda _: None)
    return str(caught.value)


async def test_a_directory_is_served_where_it_lies_with_its_figures(cache: Cache, tiny: Path) -> None:
    assert cache.locate(spec(tiny)) == tiny
    assert await cache.fetch(spec(tiny), reserve=Bytes(0), progress=lambda _: None) == tiny
    (fact,) = cache.facts([spec(tiny)])
    assert fact.entry is None
    assert fact.size == sum(file.stat().st_size for file in tiny.iterdir())
    assert fact.metadata["config.num_hidden_layers"] == 2
    assert fact.metadata["config.num_key_value_heads"] == 2
    assert fact.metadata["config.head_dim"] == 32
    assert fact.metadata["config.architecture"] == "LlamaForCausalLM"
    assert fact.metadata["safetensors.dtype"] == "BF16"
    header = 8 + int.from_bytes((tiny / "model.safetensors").read_bytes()[:8], "little")
    assert fact.metadata["safetensors.bytes"] == (tiny / "model.safetensors").stat().st_size - header


def test_a_look_is_taken_again_only_when_something_changed(tiny: Path) -> None:
    folders = Folders()
    first = folders.look(tiny)
    assert folders.look(tiny) is first
    edit(tiny / "config.json", num_hidden_layers=3)
    assert folders.look(tiny).metadata["config.num_hidden_layers"] == 3


def test_figures_of_the_text_part_count_where_a_model_has_several(tiny: Path) -> None:
    edit(tiny / "config.json", text_config={"num_hidden_layers": 9, "layer_types": ["full_attention"] * 2 + ["x"]})
    found = read_metadata(tiny)
    assert found["config.num_hidden_layers"] == 9
    assert found["config.layers.full_attention"] == 2
    assert found["config.hidden_size"] == 128


def test_the_index_tells_which_files_are_the_model(tiny: Path) -> None:
    whole = read_metadata(tiny)["safetensors.bytes"]
    shutil.copy(tiny / "model.safetensors", tiny / "consolidated.safetensors")
    assert read_metadata(tiny)["safetensors.bytes"] == 2 * whole
    index = {"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}
    (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_metadata(tiny)["safetensors.bytes"] == whole


async def test_links_to_files_are_followed_as_in_a_hub_cache(cache: Cache, tiny: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in tiny.iterdir():
        (snapshot / file.name).symlink_to(file)
    (fact,) = cache.facts([spec(snapshot)])
    assert fact.metadata["safetensors.bytes"]
    (tiny / "model.safetensors").unlink()
    assert "cannot be used" in await refusal(cache, spec(snapshot))


async def test_a_checksum_of_a_directory_is_refused(cache: Cache, tiny: Path) -> None:
    assert "leave `sha256` out" in await refusal(cache, spec(tiny, "0" * 64))


async def test_damage_is_found_before_an_engine_is_started(cache: Cache, tiny: Path) -> None:
    weights = tiny / "model.safetensors"
    data = weights.read_bytes()
    for content, word in (
        (data[:-1], "model.safetensors is cut short: "),
        (data[:100], "cut short or no safetensors file"),
        (b"", "cut short or no safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "cut short or no safetensors file"),
        (b"\x04\0\0\0\0\0\0\0nope", "damaged header"),
        (b'\x0e\0\0\0\0\0\0\0{"a": {"b":1}}', "damaged header"),
    ):
        weights.write_bytes(content)
        assert word in await refusal(cache, spec(tiny))
        assert cache.facts([spec(tiny)]) == ()
    weights.write_bytes(data)
    assert cache.locate(spec(tiny)) == tiny


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("config.json", "{", "config.json is no valid JSON"),
        ("config.json", "[" * 100_000, "config.json is no valid JSON"),
        ("config.json", "[]", "holds no JSON object"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "model-2.safetensors"}}', "copied whole"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../model.safetensors"}}', "names no files"),
        ("model.safetensors.index.json", "{}", "names no files"),
    ],
)
async def test_a_bad_description_is_named(name: str, text: str, word: str, cache: Cache, tiny: Path) -> None:
    (tiny / name).write_text(text)
    assert word in await refusal(cache, spec(tiny))


async def test_an_empty_directory_and_one_with_far_too_much_in_it_are_refused(cache: Cache, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    assert "empty" in await refusal(cache, spec(wrong))
    (wrong / "model.safetensors").touch()
    assert "holds 0 bytes" in await refusal(cache, spec(wrong))
    for index in range(MOST_FILES + 1):
        os.mknod(wrong / str(index))
    assert "name the directory of one model" in await refusal(cache, spec(wrong))


def test_an_adapter_tells_its_rank(tmp_path: Path) -> None:
    found = read_metadata(tiny_llama.write_lora(tmp_path / "lora", rank=4))
    assert found["adapter.rank"] == 4
    assert found["safetensors.files"] == 1


def test_figures_that_are_none_are_left_out(tiny: Path) -> None:
    edit(tiny / "config.json", hidden_size=float("inf"), head_dim=None, vocab_size=["x"], num_hidden_layers=10**30)
    assert not {"config.hidden_size", "config.head_dim", "config.vocab_size", "config.num_hidden_layers"} & set(
        read_metadata(tiny)
    )
