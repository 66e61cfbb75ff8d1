"""What the cache is asked every few seconds of a large catalog costs no more than looking at what is there."""

from pathlib import Path

import pytest
from calls import calls_of

from llmgw.catalog.spec import WeightsSpec
from llmgw.units import Wall
from llmgw.weights import naming
from llmgw.weights.cache import Cache


def wanted(models: int, here: Path) -> list[WeightsSpec]:
    """Each of a server, and one in place that is not there."""
    sources = [f"https://models.example.org/m{number}.gguf" for number in range(models)]
    return [WeightsSpec(source=source) for source in (*sources, *(f"file://{here}/m{n}.gguf" for n in range(models)))]


@pytest.mark.parametrize("models", [20, 200])
def test_what_entries_would_be_called_is_worked_out_when_other_weights_are_wanted(
    models: int, cache: Cache, tmp_path: Path
) -> None:
    specs = wanted(models, tmp_path)
    assert cache.facts(specs) == ()
    cache.mark_wanted(specs, Wall(1))
    with calls_of(naming.entry_name) as seen:
        assert cache.facts(list(specs)) == ()
        cache.mark_wanted(list(specs), Wall(2))
    assert seen == []


def test_a_file_in_place_is_seen_when_it_comes_and_goes_though_nothing_else_is_wanted(
    cache: Cache, tmp_path: Path
) -> None:
    specs = wanted(3, tmp_path)
    assert cache.facts(specs) == ()
    (tmp_path / "m1.gguf").write_bytes(b"1")
    assert [(fact.source, fact.size) for fact in cache.facts(specs)] == [(f"file://{tmp_path}/m1.gguf", 1)]
    (tmp_path / "m1.gguf").write_bytes(b"22")
    assert [fact.size for fact in cache.facts(specs)] == [2]
    assert cache.facts(specs[:-3]) == (), "it is not wanted any more"
    (tmp_path / "m1.gguf").unlink()
    assert cache.facts(specs) == ()
