"""Models in several files: counted whole, missed when a part is."""

from pathlib import Path

import gguf_files
import pytest

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused
from llmgw.units import Bytes
from llmgw.weights import split
from llmgw.weights.cache import Cache
from llmgw.weights.gguf import read_tensors
from llmgw.weights.manifest import metadata_of


def spec(path: Path, sha256: str | None = None) -> WeightsSpec:
    return WeightsSpec(source=f"file://{path}", sha256=sha256)


async def get(cache: Cache, wanted: WeightsSpec) -> Path:
    return await cache.fetch(wanted, reserve=Bytes(0), progress=lambda _: None)


@pytest.fixture(scope="module")
def whole_parts(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return gguf_files.split(smollm2, tmp_path_factory.mktemp("split"), 3)


@pytest.fixture
def parts(whole_parts: list[Path], tmp_path: Path) -> list[Path]:
    """Links to `whole_parts`: a test may remove one, but writes only to a copy."""
    directory = tmp_path / "models"
    directory.mkdir()
    for part in whole_parts:
        (directory / part.name).hardlink_to(part)
    return [directory / part.name for part in whole_parts]


def test_the_parts_of_a_model_follow_from_the_name_of_its_first() -> None:
    assert [part.name for part in split.parts(Path("/m/a-00001-of-00002.gguf"))] == [
        "a-00001-of-00002.gguf",
        "a-00002-of-00002.gguf",
    ]
    for plain in ("/m/a.gguf", "/m/a-1-of-2.gguf", "/m/a-00001-of-00001.gguf", "/m/a-00001-of-99999.gguf"):
        assert split.parts(Path(plain)) == (Path(plain),)


async def test_a_split_model_counts_as_the_whole_that_it_was_made_from(
    parts: list[Path], smollm2: Path, cache: Cache
) -> None:
    assert await get(cache, spec(parts[0])) == parts[0]
    (fact,) = cache.facts([spec(parts[0])])
    assert fact.size == sum(part.stat().st_size for part in parts)
    whole = {name: figure for name, figure in metadata_of(smollm2).items() if name != "tensors.rest"}
    assert whole.items() <= fact.metadata.items()


async def test_a_missing_part_is_named(parts: list[Path], cache: Cache) -> None:
    parts[1].unlink()
    assert cache.locate(spec(parts[0])) is None
    with pytest.raises(WeightsRefused, match=r"lacks 1 of the model's 3 parts: model-00002-of-00003\.gguf"):
        await get(cache, spec(parts[0]))
    assert cache.facts([spec(parts[0])]) == ()


async def test_another_than_the_first_part_and_a_checksum_of_one_are_refused(parts: list[Path], cache: Cache) -> None:
    with pytest.raises(WeightsRefused, match=r"not the first of its 3 parts: name model-00001-of-00003\.gguf"):
        await get(cache, spec(parts[1]))
    with pytest.raises(WeightsRefused, match="split into several files"):
        await get(cache, spec(parts[0], "0" * 64))


async def test_a_changed_part_changes_the_fact(parts: list[Path], cache: Cache) -> None:
    copied = parts[2].read_bytes()
    parts[2].unlink()
    parts[2].write_bytes(copied)
    (before,) = cache.facts([spec(parts[0])])
    with parts[2].open("ab") as file:
        file.write(bytes(4096))
    (after,) = cache.facts([spec(parts[0])])
    assert after.size == before.size + 4096


def test_tensors_are_told_by_kind_and_add_up_to_the_file(smollm2: Path) -> None:
    found = read_tensors(smollm2)
    assert found["tensors.blk.*.ffn_up.weight.layers"] == 30
    sizes = [size for name, size in found.items() if not name.endswith(".layers") and ".type." not in name]
    assert found["tensors.type.3"] > 60_000_000, "Q4_1"
    assert smollm2.stat().st_size - 2 * 1024 * 1024 < sum(sizes) < smollm2.stat().st_size


def test_experts_after_dense_layers_are_told_apart(tmp_path: Path) -> None:
    path = gguf_files.mixture(tmp_path / "m.gguf", layers=6, dense=2, expert_bytes=64_000, other_bytes=6_400)
    found = read_tensors(path)
    assert found["tensors.blk.*.ffn_up_exps.weight"] == 4 * 64_000
    assert found["tensors.blk.*.ffn_up_exps.weight.layers"] == 4
    assert found["tensors.blk.*.ffn_up.weight.layers"] == 2
    assert found["tensors.output.weight"] == 6_400
