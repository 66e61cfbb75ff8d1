"""Weights on their way between machines that share no network: an index, and beside it the files of whole entries.

Either a tar, whose first member is the index and whose others are exactly the files that it names, in its order; or a
directory of the same shape. Nothing of an archive is believed: names are checked before anything is written, content
by its checksums.
"""

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec

from llmgw.errors import TerminalError
from llmgw.weights import naming
from llmgw.weights.inside import hold
from llmgw.weights.manifest import VERSION, Manifest, ManifestFile

INDEX: Final = "llmgw-weights.json"
FORMAT: Final = 1
CHUNK: Final = 1024 * 1024

_LARGEST_INDEX: Final = 64 * 1024 * 1024  #: bytes
_MOST_READ: Final = 4 * 1024 * 1024
"""Bytes that are read of a tar at once: a header that speaks of more is no header."""


class ArchiveRefused(TerminalError):
    """It cannot be read, or not be written; the text says what to do."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, as it is called in a cache."""

    entry: str
    manifest: Manifest


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """`v` is the archive's format."""

    v: int = FORMAT
    entries: tuple[Packed, ...]

    @property
    def size(self) -> int:
        return sum(each.manifest.size for each in self.entries)


class Archive(Protocol):
    """One that is read. Its methods block, and raise ArchiveRefused and OSError."""

    @property
    def index(self) -> Index: ...

    def open(self, packed: Packed, number: int) -> IO[bytes]:
        """The entry's file of that number."""


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Raises ArchiveRefused: also where it holds more or less than its index says."""
    try:
        if path.is_dir():
            yield _Directory(path)
        else:
            with path.open("rb", buffering=0) as file:
                yield _Tar(path, file)
    except OSError as error:
        raise ArchiveRefused(f"cannot read {path}: {error.strerror or error}") from error


class _Tar:
    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        try:
            self._tar = tarfile.TarFile(fileobj=_Bounded(file), mode="r")  # type: ignore[arg-type] # it only reads
            self.index, self._members = self._look()
        except (tarfile.TarError, EOFError, ValueError, UnicodeError) as error:
            raise ArchiveRefused(
                f"{path} is no archive that `llmgw weights export` made, or was cut short ({error}): copy it again"
            ) from error

    def _look(self) -> tuple[Index, dict[tuple[str, str], tarfile.TarInfo]]:
        """All headers first: nothing is written of an archive that holds something else."""
        first = self._tar.next()
        if first is None or first.name != INDEX or not first.isreg() or first.size > _LARGEST_INDEX:
            raise ArchiveRefused(f"{self._path} is no archive that `llmgw weights export` made: {INDEX} comes first")
        content = self._tar.extractfile(first)
        assert content is not None, "it is a file"
        index = read_index(b"".join(iter(lambda: content.read(CHUNK), b"")), self._path)
        members = {}
        for packed in index.entries:
            for file in packed.manifest.files:
                members[packed.entry, file.path] = self._expect(packed, file)
        if (more := self._tar.next()) is not None:
            raise ArchiveRefused(f"{self._path} holds {more.name!r}, which its index does not name: export it again")
        return index, members

    def _expect(self, packed: Packed, file: ManifestFile) -> tarfile.TarInfo:
        name = f"{packed.entry}/{file.path}"
        found = self._tar.next()
        if found is None:
            raise ArchiveRefused(f"{self._path} ends before {name}: it was cut short; copy it again")
        if found.name != name or found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or found.size != file.size:
            raise ArchiveRefused(
                f"{self._path} holds {found.name!r} ({found.size} bytes) where its index names the file {name} of "
                f"{file.size} bytes: export it again"
            )
        return found

    def open(self, packed: Packed, number: int) -> IO[bytes]:
        found = self._tar.extractfile(self._members[packed.entry, packed.manifest.files[number].path])
        assert found is not None, "it is a file"
        return found


class _Bounded:
    """A file for tarfile to read, that gives no more at once than any true header takes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.tell, self.seek = file.tell, file.seek

    def read(self, count: int = -1) -> bytes:
        if not 0 <= count <= _MOST_READ:
            raise tarfile.ReadError("a header of impossible size")
        parts = []
        while count and (part := self._file.read(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class _Directory:
    def __init__(self, path: Path) -> None:
        self._path = path
        with hold(path) as top:
            try:
                fd = top.open_file(INDEX)
            except FileNotFoundError as error:
                raise ArchiveRefused(
                    f"{path} holds no {INDEX}: it is no export of llmgw, or was not copied whole"
                ) from error
            with os.fdopen(fd, "rb") as file:
                self.index = read_index(file.read(_LARGEST_INDEX + 1), path)
        for packed in self.index.entries:  # nothing is written of a directory that lacks something
            for number, _ in enumerate(packed.manifest.files):
                self.open(packed, number).close()

    def open(self, packed: Packed, number: int) -> IO[bytes]:
        file = packed.manifest.files[number]
        folder, _, name = file.path.rpartition("/")
        try:
            with (
                hold(self._path) as top,
                top.enter(packed.entry) as inside,
                inside.enter_below(folder) as parent,
            ):
                fd = parent.open_file(name)
                size = os.fstat(fd).st_size
        except OSError as error:
            raise ArchiveRefused(
                f"{self._path}: {packed.entry}/{file.path} is no plain file that can be read ({error.strerror}): copy "
                "the directory again"
            ) from error
        if size != file.size:
            os.close(fd)
            raise ArchiveRefused(
                f"{self._path}: {packed.entry}/{file.path} has {size} bytes where its index names {file.size}: copy "
                "the directory again"
            )
        return os.fdopen(fd, "rb", buffering=0)


def read_index(data: bytes, path: Path) -> Index:
    """Checked whole. Raises ArchiveRefused."""
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw])["v"]
        if msgspec.json.decode(version, type=int) > FORMAT:
            raise ArchiveRefused(f"{path} has a newer llmgw's format: upgrade llmgw here")
        index = msgspec.json.decode(data, type=Index)
    except (msgspec.MsgspecError, KeyError) as error:
        raise ArchiveRefused(f"the index of {path} cannot be read ({error}): copy it again, or export again") from error
    names = [packed.entry for packed in index.entries]
    if len(set(names)) < len(names):
        raise ArchiveRefused(f"the index of {path} names an entry twice: export again")
    for packed in index.entries:
        if (why := _trouble(packed)) is not None:
            raise ArchiveRefused(f"the index of {path} {why}: it was not made by `llmgw weights export`")
    return index


def _trouble(packed: Packed) -> str | None:
    found = packed.manifest
    if not naming.is_entry(packed.entry):
        return f"names {packed.entry!r}, which is no entry of a cache"
    if found.v > VERSION:
        return f"has a newer manifest of {packed.entry}"
    if (why := found.trouble()) is not None:
        return f"has a manifest of {packed.entry} that {why}"
    if naming.is_local(found.source):
        return f"has {found.source} as an entry"
    if packed.entry not in {naming.entry_name(found.source, sum_) for sum_ in (None, found.files[0].sha256)}:
        return f"has {found.source} under another entry's name, {packed.entry}"
    return None
