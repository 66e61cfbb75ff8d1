"""Writes an archive of cache entries, hashing what it writes: what is not as it was fetched leaves no machine."""

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO

import msgspec

from llmgw.statedir import sync_directory, write_atomic
from llmgw.units import format_bytes
from llmgw.weights.archive import CHUNK, INDEX, ArchiveRefused, Index, Packed, read_index
from llmgw.weights.inside import hold
from llmgw.weights.manifest import ManifestFile

Told = Callable[[int], None]
"""Bytes that were written since it was called last."""


def to_tar(root: Path, entries: Sequence[Packed], path: Path, told: Told) -> None:
    """One file, there whole or not at all. Blocks. Raises ArchiveRefused, OSError."""
    if os.path.lexists(path):
        raise ArchiveRefused(f"{path} exists: name another, or remove it")
    _check_room(path.parent, sum(each.manifest.size for each in entries))
    partial = path.with_name(f".{path.name}.partial")  # an earlier one's, that was killed, is written over
    try:
        with partial.open("wb") as out:
            with tarfile.TarFile(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, copybufsize=CHUNK) as tar:
                index = _encoded(entries)
                tar.addfile(_member(INDEX, len(index)), BytesIO(index))
                for packed in entries:
                    for file in packed.manifest.files:
                        with _opened(root, packed, file) as source:
                            reading = _Hashing(source, packed, file, told)
                            tar.addfile(_member(f"{packed.entry}/{file.path}", file.size), reading)  # type: ignore[arg-type]
                            reading.check()
            out.flush()
            os.fsync(out.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)


def to_directory(root: Path, entries: Sequence[Packed], path: Path, told: Told) -> set[str]:
    """Entry by entry, each there whole or not at all: a second call goes on where a first one ended. The entries that
    were there already. Blocks. Raises ArchiveRefused, OSError."""
    path.mkdir(parents=True, exist_ok=True)
    there = _there(path)
    lacking = [packed for packed in entries if packed.entry not in there]
    _check_room(path, sum(packed.manifest.size for packed in lacking))
    for packed in lacking:
        partial = path / f".{packed.entry}.partial"
        shutil.rmtree(partial, ignore_errors=True)  # an earlier one's, that was killed
        try:
            for file in packed.manifest.files:
                _copy(root, packed, file, partial / file.path, told)
            shutil.rmtree(path / packed.entry, ignore_errors=True)  # of an export that the index never told of
            partial.rename(path / packed.entry)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        sync_directory(path)
        there[packed.entry] = packed
        write_atomic(path / INDEX, _encoded(list(there.values())))
    return {packed.entry for packed in entries} - {packed.entry for packed in lacking}


def _there(path: Path) -> dict[str, Packed]:
    try:
        index = read_index((path / INDEX).read_bytes(), path)
    except FileNotFoundError:
        if any(not name.startswith(".") for name in os.listdir(path)):
            raise ArchiveRefused(f"{path} holds other things: name a new or empty directory") from None
        return {}
    return {packed.entry: packed for packed in index.entries if (path / packed.entry).is_dir()}


def _copy(root: Path, packed: Packed, file: ManifestFile, target: Path, told: Told) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _opened(root, packed, file) as source, target.open("xb") as out:
        reading = _Hashing(source, packed, file, told)
        while chunk := reading.read(CHUNK):
            out.write(chunk)
        reading.check()
        out.flush()
        os.fsync(out.fileno())


def _opened(root: Path, packed: Packed, file: ManifestFile) -> IO[bytes]:
    folder, _, name = file.path.rpartition("/")
    with hold(root) as top, top.enter(packed.entry) as inside, inside.enter_below(folder) as parent:
        return os.fdopen(parent.open_file(name), "rb", buffering=0)


class _Hashing:
    """A file that is read from its start to its end."""

    def __init__(self, source: IO[bytes], packed: Packed, file: ManifestFile, told: Told) -> None:
        self._source, self._packed, self._file, self._told = source, packed, file, told
        self._digest = hashlib.sha256()
        self._done = 0

    def read(self, count: int) -> bytes:
        chunk = self._source.read(count)
        self._digest.update(chunk)
        self._done += len(chunk)
        self._told(len(chunk))
        return chunk

    def check(self) -> None:
        """Raises ArchiveRefused."""
        if self._done != self._file.size or self._digest.hexdigest() != self._file.sha256:
            raise ArchiveRefused(
                f"{self._packed.entry} ({self._packed.manifest.source}) is not as it was fetched: "
                f"`llmgw weights verify {self._packed.entry}` sets it aside"
            )


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _encoded(entries: Sequence[Packed]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(Index(entries=tuple(entries))), indent=1) + b"\n"


def _check_room(directory: Path, need: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < need:
        raise ArchiveRefused(
            f"no room in {directory}: it takes {format_bytes(need)}, {format_bytes(free)} is free; name a place on "
            "another disk with --to"
        )
