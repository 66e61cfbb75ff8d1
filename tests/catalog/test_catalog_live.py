"""What is in force, and what of it survives on disk."""

import json
import stat
from dataclasses import replace
from pathlib import Path

from calls import calls_of
from catalog_texts import load, model

from llmgw.catalog.live import FORMAT, CatalogState, LiveCatalog, load_last_good, save_last_good
from llmgw.catalog.spec import Catalog, canonical_json, spec_digest
from llmgw.errors import Problem
from llmgw.ids import Digest, Revision
from llmgw.units import Instant, Mono, Wall


def at(seconds: float) -> Instant:
    return Instant(Mono(seconds), Wall(seconds))


def catalog(**more: str) -> Catalog:
    return load({"a.yaml": model(**more)}).catalog


BAD = [Problem("a.yaml", 1, 1, "$", "wrong")]


def test_an_accepted_catalog_is_in_force() -> None:
    live = LiveCatalog("./catalog")
    first = catalog()
    assert live.current is None
    assert live.accept(first, at(5))
    assert live.current is first
    assert live.state() == CatalogState(
        source="./catalog", attempted=first.revision, applied=first.revision, applied_at=Wall(5)
    )


def test_a_rejected_revision_changes_nothing_but_what_is_said() -> None:
    live = LiveCatalog("x")
    first = catalog()
    live.accept(first, at(5))
    live.reject(Revision("bad"), problems=BAD, now=at(6))
    assert live.current is first
    state = live.state()
    assert (state.attempted, state.applied, state.applied_at) == ("bad", first.revision, 5)
    assert state.problems == tuple(BAD)


def test_going_back_to_the_very_revision_in_force_clears_the_problems_and_swaps_nothing() -> None:
    live = LiveCatalog("x")
    first = catalog()
    live.accept(first, at(5))
    live.reject(Revision("bad"), problems=BAD, now=at(6))
    assert not live.accept(catalog(), at(7))
    assert live.current is first
    state = live.state()
    assert (state.attempted, state.applied_at, state.problems) == (first.revision, 5, ())


def test_a_source_that_cannot_be_read_leaves_the_revision_known_last() -> None:
    live = LiveCatalog("x")
    live.accept(catalog(), at(5))
    live.reject(None, error="gone", now=at(6))
    assert (live.state().attempted, live.state().error) == (catalog().revision, "gone")
    live.accept(catalog(), at(7))
    assert live.state().error is None


def test_the_same_content_under_another_revision_differs() -> None:
    live = LiveCatalog("x")
    first = catalog()
    live.accept(first, at(5))
    other = Catalog(revision=Revision("c0ffee"), digest=first.digest, models=first.models, cluster=first.cluster)
    assert live.accept(other, at(6))
    assert live.state().applied_at == 6


def test_the_watchers_word_is_kept_beside() -> None:
    live = LiveCatalog("x")
    live.watcher = "degraded: no inotify"
    live.accept(catalog(), at(1))
    assert live.state().watcher == live.watcher == "degraded: no inotify"


def test_the_last_good_catalog_comes_back_equal(tmp_path: Path) -> None:
    saved = load(
        {
            "a.yaml": model(
                profile="options: {threads: 2, flash_attn: 'on'}\nenv: {A: x, B: {from_env: Y}}\nmemory: 2GiB",
                extra="aliases: [x]\n",
            ),
            "b.yaml": "apiVersion: llmgw/v1\nkind: Cluster\nnodes: {box: {budget: {host: 1GiB}}}\n",
        }
    ).catalog
    path = tmp_path / "last-good" / "catalog.json"
    save_last_good(path, saved)
    found, why = load_last_good(path)
    assert (found, why) == (saved, None)
    assert found is not None
    old, new = saved.models["qwen"], found.models["qwen"]
    assert spec_digest(old.name, old.profiles[0]) == spec_digest(new.name, new.profiles[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_last_good_that_is_missing_damaged_or_of_another_format_is_never_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    assert load_last_good(path) == (None, None)
    path.mkdir()
    assert "cannot read" in (load_last_good(path)[1] or "")
    path.rmdir()
    for raw in (b"", b"{", b"\xff", b'{"format": 1}', b'{"format": 1, "catalog": {"revision": 3}}', b"[" * 100000):
        path.write_bytes(raw)
        found, why = load_last_good(path)
        assert found is None
        assert "damaged" in (why or ""), raw[:20]
    path.write_bytes(b'{"format": 2, "catalog": "of a new kind"}')
    assert load_last_good(path) == (None, f"{path} has format 2, this llmgw reads 1")


def test_what_is_written_is_the_whole_catalog_whatever_of_it_was_encoded_before(tmp_path: Path) -> None:
    file = tmp_path / "last-good" / "catalog.json"
    first = load({f"{name}.yaml": model(name) for name in "abc"}).catalog
    save_last_good(file, first, Wall(5))
    changed = load({"b.yaml": model("b", "priority: 3\n")}).catalog.models
    second = replace(first, digest=Digest("d"), models={**first.models, **changed})
    save_last_good(file, second, Wall(6))
    whole = canonical_json({"format": FORMAT, "catalog": second, "at": 6})
    assert json.loads(file.read_bytes()) == json.loads(whole)
    assert load_last_good(file) == (second, None)


def test_of_a_catalog_that_differs_in_one_model_one_is_encoded(tmp_path: Path) -> None:
    file = tmp_path / "catalog.json"
    first = load({f"m{number}.yaml": model(f"m{number}") for number in range(30)}).catalog
    save_last_good(file, first)
    changed = load({"m7.yaml": model("m7", "priority: 3\n")}).catalog.models
    fresh = {name: replace(each) for name, each in changed.items()}  # as the loader made it, it is encoded already
    with calls_of(canonical_json) as seen:
        save_last_good(file, replace(first, models={**first.models, **fresh}))
    assert [each["value"].name for each in seen] == ["m7"]
