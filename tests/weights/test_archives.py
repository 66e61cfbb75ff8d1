"""Weights carried between caches: real files, real archives, and archives that somebody made for harm."""

import asyncio
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers import Site, serve

from llmgw.catalog.spec import WeightsSpec
from llmgw.cli.archives import choose
from llmgw.cli.main import main
from llmgw.clock import SystemClock
from llmgw.units import GIB, MIB, Bytes, Wall
from llmgw.weights.archive import INDEX, ArchiveRefused, Packed, opened
from llmgw.weights.cache import Cache
from llmgw.weights.exporting import to_directory, to_tar
from llmgw.weights.importing import check_room, take
from llmgw.weights.manifest import MANIFEST, Manifest, ManifestFile
from llmgw.weights.naming import entry_name
from llmgw.weights.upkeep import Upkeep

MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: one
aliases: [second]
profiles:
  - name: own
    engine: command
    memory: 1GiB
    weights: {{source: "{url}/a.bin"}}
    options: {{command: [run, "{{port}}", "{{weights}}"]}}
"""
PARTS = [f"/m-0000{number}-of-00002.gguf" for number in (1, 2)]


def nothing(_: int) -> None:
    pass


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as running:
        running.files = {path: os.urandom(2 * MIB + 5) for path in ("/a.bin", *PARTS)}
        yield running


@pytest.fixture
def held(cache: Cache) -> list[Packed]:
    """Two entries: a file, and one of two parts."""
    entry(cache, "https://example.org/a.bin", "a.bin")
    entry(cache, f"https://example.org{PARTS[0]}", *(part[1:] for part in PARTS))
    return sorted(choose(cache, [], {}), key=lambda packed: len(packed.manifest.files))


def entry(cache: Cache, source: str, *names: str) -> None:
    """As a download leaves it."""
    home = cache.root / entry_name(source, None)
    files = []
    for name in names:
        data = os.urandom(2 * MIB + 5)
        (home / "files").mkdir(parents=True, exist_ok=True)
        (home / "files" / name).write_bytes(data)
        files.append(ManifestFile(path=f"files/{name}", size=len(data), sha256=hashlib.sha256(data).hexdigest()))
    found = Manifest(source=source, files=tuple(files), fetched_at=1_000_000.0)
    (home / MANIFEST).write_bytes(msgspec.json.encode(found))


@pytest.fixture
def other(tmp_path: Path, clock: SystemClock) -> Cache:
    made = Cache(tmp_path / "other", cluster_id="c2", clock=clock)
    made.open()
    return made


def bring(path: Path, into: Cache) -> None:
    with opened(path) as archive:
        for packed in archive.index.entries:
            if into.held(packed.entry) is None:
                take(into.root, archive, packed, Wall(5.0), nothing)


def contents(cache: Cache) -> dict[str, bytes]:
    found = sorted(cache.root.glob("v1-*/files/*"))
    return {str(path.relative_to(cache.root)): path.read_bytes() for path in found}


def export(cache: Cache, held: list[Packed], path: Path) -> Path:
    if path.suffix == ".tar":
        to_tar(cache.root, held, path, nothing)
    else:
        to_directory(cache.root, held, path, nothing)
    return path


@pytest.mark.parametrize("name", ["w.tar", "stick"])
def test_what_was_exported_is_imported_byte_for_byte(
    cache: Cache, held: list[Packed], other: Cache, tmp_path: Path, name: str
) -> None:
    path = export(cache, held, tmp_path / name)
    bring(path, other)
    assert contents(other) == contents(cache)
    assert len(contents(other)) == 3
    for packed in held:
        assert other.locate(WeightsSpec(source=packed.manifest.source)) is not None
    assert {fact.last_wanted for fact in other.facts(())} == {5.0}
    assert not list(other.root.glob("partial-*"))
    assert {left.name for left in tmp_path.iterdir()} >= {name}
    assert not list(tmp_path.glob(".*"))


def test_a_directory_gains_what_it_lacks(cache: Cache, held: list[Packed], other: Cache, tmp_path: Path) -> None:
    stick = tmp_path / "stick"
    assert to_directory(cache.root, held[:1], stick, nothing) == set()
    written: list[int] = []
    assert to_directory(cache.root, held, stick, written.append) == {held[0].entry}
    assert sum(written) == held[1].manifest.size
    bring(stick, other)
    assert contents(other) == contents(cache)


def test_an_export_that_was_cut_off_is_no_archive_and_the_next_one_goes_on(
    cache: Cache, held: list[Packed], other: Cache, tmp_path: Path
) -> None:
    def give_up(count: int) -> None:
        written.append(count)
        if sum(written) > held[0].manifest.size + MIB:
            raise KeyboardInterrupt

    written: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        to_tar(cache.root, held, tmp_path / "w.tar", give_up)
    written = []
    with pytest.raises(KeyboardInterrupt):
        to_directory(cache.root, held, tmp_path / "stick", give_up)
    assert not (tmp_path / "w.tar").exists()
    with opened(tmp_path / "stick") as archive:
        assert [packed.entry for packed in archive.index.entries] == [held[0].entry]
    export(cache, held, tmp_path / "stick")
    bring(tmp_path / "stick", other)
    assert contents(other) == contents(cache)


def test_a_corrupt_entry_is_not_exported(cache: Cache, held: list[Packed], tmp_path: Path) -> None:
    flip(cache.root / held[1].entry / held[1].manifest.files[1].path)
    for name in ("w.tar", "stick"):
        with pytest.raises(ArchiveRefused, match=r"not as it was fetched.*llmgw weights verify"):
            export(cache, held, tmp_path / name)
    assert not (tmp_path / "w.tar").exists()


@pytest.mark.parametrize("name", ["w.tar", "stick"])
def test_a_flipped_byte_in_an_archive_is_refused(
    cache: Cache, held: list[Packed], other: Cache, tmp_path: Path, name: str
) -> None:
    path = export(cache, held, tmp_path / name)
    flip(path if path.is_file() else path / held[1].entry / held[1].manifest.files[0].path, at=-20_000)
    with pytest.raises(ArchiveRefused, match=r"damaged in the archive.*copy it again"):
        bring(path, other)
    assert len(list(other.root.glob("v1-*"))) <= 1
    assert not list(other.root.glob("partial-*"))


def flip(path: Path, *, at: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.9999])
def test_a_truncated_archive_is_refused_before_anything_is_written(
    cache: Cache, held: list[Packed], other: Cache, tmp_path: Path, share: float
) -> None:
    path = export(cache, held, tmp_path / "w.tar")
    end = sum(packed.manifest.size for packed in held)  # trailing zeros of a tar are no loss
    os.truncate(path, int(end * share))
    with pytest.raises(ArchiveRefused, match=r"cut short|no archive"):
        bring(path, other)
    assert contents(other) == {}


def with_index(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, bytes]], None]:
    def edit(members: dict[str, bytes]) -> None:
        index = json.loads(members[INDEX])
        change(index)
        members[INDEX] = json.dumps(index).encode()

    return edit


def first_file(index: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = index["entries"][0]["manifest"]["files"][0]
    return found


HARM: dict[str, Callable[[dict[str, bytes]], None]] = {
    "another file at the end": lambda members: members.update(evil=b"x"),
    "a path out of it": lambda members: members.update({"../evil": b"x"}),
    "an index of nothing": lambda members: members.update({INDEX: b"{}"}),
    "an index that is none": lambda members: members.update({INDEX: b"\xff"}),
    "a newer format": with_index(lambda index: index.update(v=99)),
    "a path that leaves": with_index(lambda index: first_file(index).update(path="files/../../../evil")),
    "an absolute path": with_index(lambda index: first_file(index).update(path="/tmp/evil")),
    "a path beside the files": with_index(lambda index: first_file(index).update(path="manifest.json")),
    "an entry with another name": with_index(lambda index: index["entries"][0].update(entry="v1-sha256-" + "0" * 64)),
    "an entry that is none": with_index(lambda index: index["entries"][0].update(entry="../evil")),
    "an entry twice": with_index(lambda index: index["entries"].append(index["entries"][0])),
    "a size that is none": with_index(lambda index: first_file(index).update(size=-1)),
    "a local file as an entry": with_index(lambda index: index["entries"][0]["manifest"].update(source="file:///x")),
    "a model where no file is": with_index(lambda index: index["entries"][0]["manifest"].update(folder="..")),
    "a file that it lacks": with_index(
        lambda index: index["entries"][0]["manifest"]["files"].append(
            {"path": "files/b", "size": 1, "sha256": "0" * 64}
        )
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_an_archive_that_was_made_for_harm_writes_nothing(
    cache: Cache, held: list[Packed], other: Cache, tmp_path: Path, harm: str
) -> None:
    path = export(cache, held, tmp_path / "w.tar")
    with tarfile.open(path) as tar:
        members = {info.name: tar.extractfile(info).read() for info in tar.getmembers()}  # type: ignore[union-attr]
    HARM[harm](members)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ArchiveRefused):
        bring(path, other)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_member_that_is_no_file_is_refused(
    cache: Cache, held: list[Packed], other: Cache, tmp_path: Path, kind: bytes
) -> None:
    path = export(cache, held, tmp_path / "w.tar")
    with tarfile.open(path) as tar:
        index = tar.extractfile(INDEX).read()  # type: ignore[union-attr]
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(INDEX)
        info.size = len(index)
        tar.addfile(info, io.BytesIO(index))
        bad = tarfile.TarInfo(f"{held[0].entry}/{held[0].manifest.files[0].path}")
        bad.type, bad.linkname = kind, "/etc/passwd"
        tar.addfile(bad)
    with pytest.raises(ArchiveRefused):
        bring(path, other)
    assert contents(other) == {}


def test_links_in_a_directory_are_not_followed(cache: Cache, held: list[Packed], other: Cache, tmp_path: Path) -> None:
    for number, place in enumerate((f"{held[0].entry}/{held[0].manifest.files[0].path}", held[0].entry)):
        stick = export(cache, held[:1], tmp_path / f"stick{number}")
        moved = tmp_path / f"elsewhere{number}"
        (stick / place).rename(moved)
        (stick / place).symlink_to(moved)
        with pytest.raises(ArchiveRefused, match=r"no plain file"):
            bring(stick, other)
    assert contents(other) == {}


@pytest.mark.parametrize("harm", ["a link", "cut short", "gone"])
def test_a_directory_is_looked_through_before_its_first_entry_is_taken(
    cache: Cache, held: list[Packed], other: Cache, tmp_path: Path, harm: str
) -> None:
    stick = export(cache, held, tmp_path / "stick")
    last = opened_index(stick)[-1]
    file = stick / last.entry / last.manifest.files[-1].path
    if harm == "cut short":
        os.truncate(file, 5)
    else:
        file.unlink()
    if harm == "a link":
        file.symlink_to("/etc/passwd")
    with pytest.raises(ArchiveRefused, match="copy the directory again"):
        bring(stick, other)
    assert contents(other) == {}


def opened_index(stick: Path) -> tuple[Packed, ...]:
    with opened(stick) as archive:
        return archive.index.entries


def test_a_header_of_impossible_size_is_not_read(other: Cache, tmp_path: Path) -> None:
    path = tmp_path / "w.tar"
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 64 * GIB
    with path.open("wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(65 * GIB)  # sparse
    with pytest.raises(ArchiveRefused, match=r"impossible size"):
        bring(path, other)


def test_room_is_looked_at_before_the_first_byte(
    cache: Cache, held: list[Packed], other: Cache, tmp_path: Path
) -> None:
    path = export(cache, held, tmp_path / "w.tar")
    with opened(path) as archive:
        check_room(other.root, archive, set(), Bytes(0))
        with pytest.raises(ArchiveRefused, match=r"no room.*4.0 MiB|no room.*6.0 MiB"):
            check_room(other.root, archive, set(), Bytes(1 << 60))
        check_room(other.root, archive, {packed.entry for packed in held}, Bytes(1 << 60))


async def test_an_import_and_a_fetch_of_one_entry_do_not_disturb_each_other(
    cache: Cache, other: Cache, tmp_path: Path, site: Site
) -> None:
    spec = WeightsSpec(source=f"{site.url}/a.bin")
    await cache.fetch(spec, reserve=Bytes(0), progress=lambda _: None)
    path = export(cache, choose(cache, [], {}), tmp_path / "w.tar")
    site.stall_at = MIB
    fetching = asyncio.ensure_future(other.fetch(spec, reserve=Bytes(0), progress=lambda _: None))
    async with asyncio.timeout(30):
        while not list(other.root.glob("partial-*/entry/files/*")):
            await asyncio.sleep(0.01)
    await asyncio.to_thread(bring, path, other)
    imported = other.locate(spec)
    assert imported is not None
    inode = imported.stat().st_ino
    site.stall_at = None
    site.go_on.set()
    assert await fetching == imported
    assert imported.stat().st_ino == inode
    assert not list(other.root.glob("partial-*"))


def test_two_imports_at_once_end_as_one(cache: Cache, held: list[Packed], other: Cache, tmp_path: Path) -> None:
    path = export(cache, held, tmp_path / "w.tar")
    threads = [threading.Thread(target=bring, args=(path, other)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(other) == contents(cache)
    assert not list(other.root.glob("partial-*"))


async def test_what_was_imported_can_be_verified(
    cache: Cache, held: list[Packed], other: Cache, tmp_path: Path, clock: SystemClock
) -> None:
    bring(export(cache, held, tmp_path / "w.tar"), other)
    upkeep = Upkeep(other, node="n1", log=tmp_path / "log", clock=clock)
    assert [(await upkeep.verify(packed.entry)).trouble for packed in held] == [(), ()]


def test_the_commands_say_what_was_done(tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        out = capsys.readouterr()
        return int(exit.value.code or 0), out.out, out.err

    first, second, archive = tmp_path / "s1", tmp_path / "s2", tmp_path / "w.tar"
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog/a.yaml").write_text(MODEL.format(url=site.url))
    export = ("weights", "export", "--to", archive, "--state", first)
    assert run("pull", f"{site.url}/a.bin", f"{site.url}{PARTS[0]}", "--state", first)[0] == 0
    code, out, _ = run(*export, "second", "--catalog", tmp_path / "catalog", "--json")
    (row,) = json.loads(out)["entries"]
    assert (code, row["state"], row["source"], row["size"]) == (0, "exported", f"{site.url}/a.bin", 2 * MIB + 5)
    for state in ("imported", "there"):
        code, out, _ = run("weights", "import", archive, "--state", second, "--json")
        assert (code, [row["state"] for row in json.loads(out)["entries"]]) == (0, [state])
    code, _, err = run(*export, "b")
    assert (code, "are b: name a source or an entry" in err) == (64, True)
    code, _, err = run(*export)
    assert (code, "exists" in err) == (1, True)
    code, _, err = run("weights", "import", tmp_path / "catalog", "--state", second)
    assert (code, "no export of llmgw" in err) == (1, True)


@pytest.mark.parametrize(("name", "instead"), [("w.zip", "w.tar"), ("w.tar.gz", "w.tar"), ("w.TAR", "w.tar")])
def test_no_directory_is_made_that_is_called_as_another_kind_of_archive(
    name: str, instead: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="64"):
        main(["weights", "export", "--to", str(tmp_path / name), "--state", str(tmp_path / "state")])
    assert f"write --to {tmp_path / instead}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
