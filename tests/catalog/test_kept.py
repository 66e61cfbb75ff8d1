"""Earlier catalogs on disk: kept by a further name, found by their digest, ten of them."""

import os
from pathlib import Path

from llmgw.catalog import kept
from llmgw.catalog.live import save_last_good
from llmgw.catalog.spec import Catalog, ClusterSpec
from llmgw.ids import Digest, Revision


def catalog(name: str) -> Catalog:
    return Catalog(revision=Revision(f"r-{name}"), digest=Digest(name), cluster=ClusterSpec(name=name))


def put_in_force(last_good: Path, *names: str) -> None:
    before = None
    for name in names:
        if before is not None:
            kept.keep(last_good, Digest(before))
        save_last_good(last_good, catalog(name))
        before = name


def test_the_last_good_and_those_before_it_are_found_by_digest(tmp_path: Path) -> None:
    last_good = tmp_path / "last-good" / "catalog.json"
    put_in_force(last_good, "a", "b", "c")
    for name in ("a", "b", "c"):
        assert kept.find(last_good, Digest(name)) == catalog(name)
    assert kept.find(last_good, Digest("d")) is None


def test_ten_are_kept_and_one_that_was_in_force_again_is_not_the_oldest(tmp_path: Path) -> None:
    last_good = tmp_path / "last-good" / "catalog.json"
    put_in_force(
        last_good, "a", "b", *(f"n{number}" for number in range(8)), "a", *(f"m{number}" for number in range(4))
    )
    assert len(list((last_good.parent / "earlier").iterdir())) == kept.MOST
    assert kept.find(last_good, Digest("b")) is None
    assert kept.find(last_good, Digest("a")) == catalog("a")


def test_what_is_damaged_or_under_a_wrong_name_is_not_used(tmp_path: Path) -> None:
    last_good = tmp_path / "last-good" / "catalog.json"
    put_in_force(last_good, "a", "b", "c")
    earlier = last_good.parent / "earlier"
    (earlier / "a.json").unlink()
    (earlier / "a.json").write_text("{")
    os.link(earlier / "b.json", earlier / "x.json")
    assert kept.find(last_good, Digest("a")) is None
    assert kept.find(last_good, Digest("x")) is None


def test_where_nothing_can_be_kept_the_catalog_comes_into_force_all_the_same(tmp_path: Path) -> None:
    last_good = tmp_path / "last-good" / "catalog.json"
    save_last_good(last_good, catalog("a"))
    (last_good.parent / "earlier").write_text("in the way")
    put_in_force(last_good, "a", "b")
    assert kept.find(last_good, Digest("b")) == catalog("b")
