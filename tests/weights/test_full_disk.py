"""A disk that is full to the last byte is when somebody collects: it works, and is told of."""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from llmgw.clock import SystemClock
from llmgw.units import Seconds
from llmgw.weights.cache import Cache
from llmgw.weights.doomed import Refusal
from llmgw.weights.naming import entry_name
from llmgw.weights.upkeep import Asker, Upkeep

ASKER = Asker(by="operator")


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small one."""
    at, image = tmp_path / "disk", tmp_path / "image"
    at.mkdir()
    how = ["-t", "tmpfs", "-o", "size=1m", "none"]
    if request.param == "ext4":
        with image.open("wb") as file:
            file.truncate(2 * 1024 * 1024)
        made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image], capture_output=True)
        how = ["-o", "loop", str(image)] if made.returncode == 0 else ["none"]
    if os.geteuid() != 0 or subprocess.run(["mount", *how, at], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


class Place:
    """A cache, its upkeep and the audit log on one disk."""

    def __init__(self, disk: Path) -> None:
        self.disk, self.log = disk, disk / "collected.log"
        self.cache = Cache(disk / "weights", cluster_id="c1", clock=SystemClock())
        self.cache.open()
        self.upkeep = Upkeep(self.cache, node="n1", log=self.log, clock=SystemClock())

    def put(self, name: str) -> str:
        content, source = name.encode() * 50_000, f"pypi://models==1/{name}.gguf"
        entry = entry_name(source, None)
        (self.cache.root / entry / "files").mkdir(parents=True)
        (self.cache.root / entry / "files" / "x.gguf").write_bytes(content)
        file = {"path": "files/x.gguf", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest = {"v": 1, "source": source, "files": [file], "fetched_at": 1_000_000.0}
        (self.cache.root / entry / "manifest.json").write_text(json.dumps(manifest))
        return entry

    def fill(self) -> None:
        fd = os.open(self.disk / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (4096, 1):
                _write_until_full(fd, b"x" * size)
        finally:
            os.close(fd)

    async def remove(self, entry: str) -> int:
        return (await self.upkeep.remove(entry, min_age=Seconds(0), asker=ASKER)).size

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def _write_until_full(fd: int, data: bytes) -> None:
    with suppress(OSError):
        while True:
            os.write(fd, data)


async def test_on_a_full_disk_weights_are_removed_and_told_of(disk: Path) -> None:
    place = Place(disk)
    entries = [place.put("a"), place.put("b")]
    await place.upkeep.finish()  # as the agent does when it starts
    place.fill()
    for entry in entries:
        assert await place.remove(entry) == 50_000
        assert not (place.cache.root / entry).exists()
        place.fill()  # somebody else takes what was freed, but for what is kept once more
    assert [line["entry"] for line in place.told() if line["what"] == "removed"] == entries
    assert {line["what"] for line in place.told()} <= {"removing", "left", "removed"}


async def test_without_the_room_that_is_kept_nothing_is_touched_and_no_line_is_half_there(disk: Path) -> None:
    place = Place(disk)
    entry = place.put("a")
    first = json.dumps({"what": "removed", "pad": "x" * 3900}) + "\n"
    place.log.write_text(first)
    place.fill()
    with pytest.raises(
        Refusal, match=r"No space left on device, so that no line could tell of it: free some KiB for: "
    ):
        await place.remove(entry)
    assert place.log.read_text() == first
    assert (place.cache.root / entry / "files" / "x.gguf").stat().st_size == 50_000
    (disk / "ballast").unlink()
    assert await place.remove(entry) == 50_000
    assert [line["what"] for line in place.told()] == ["removed", "removing", "removed"]


async def test_a_cache_that_may_not_be_written_to_is_none_to_keep_room_in(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.cache.root / ".llmgw-spare").mkdir()  # whatever keeps it from being written
    await place.upkeep.finish()
    assert (tmp_path / "collected.spare").stat().st_size == 65_536
    (place.cache.root / ".llmgw-spare").rmdir()
    (place.cache.root / ".llmgw-spare").symlink_to(tmp_path / "mine")
    await place.upkeep.finish()
    assert not (tmp_path / "mine").exists(), "no link is followed"


async def test_no_room_is_kept_where_the_cache_s_disk_is_away(tmp_path: Path) -> None:
    place = Place(tmp_path)
    entry = place.put("a")
    (place.cache.root / ".llmgw-cache").unlink()
    with pytest.raises(Refusal, match="its disk is not mounted"):
        await place.remove(entry)
    assert {path.name for path in place.cache.root.iterdir()} == {entry}
