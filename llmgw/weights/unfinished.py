"""Unfinished downloads that were put aside: what they hold, and their end.

They have no manifest. What may lie in one follows from the small files with which llmgw goes on with it: anything else
keeps it, as it keeps an entry.
"""

import hashlib
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from llmgw.units import Bytes, Seconds, Wall, format_seconds
from llmgw.weights.doomed import KEPT, Doomed, Refusal, check_file, check_folder, end_file, end_folders, looking_into
from llmgw.weights.inside import Inside, is_open_elsewhere, named, read_small

RESUME: Final = "resume"
"""The file that says what a download is going to be, once it is worth keeping."""

_RECORD: Final = re.compile(r"resume-[0-9a-f]{16}\.json")
_PROMISE: Final = "promised.json"
_FILES: Final = "entry/files/"
_OWN: Final = re.compile(r"resume|resume-[0-9a-f]{16}\.json|promised\.json|entry/manifest\.json")
_LEFTOVER: Final = re.compile(
    r"(?:\.resume|\.resume-[0-9a-f]{16}\.json|\.promised\.json|entry/\.manifest\.json)\.[0-9a-f]{8}"
)
"""What a process that was killed while it replaced one of its small files left."""
_MOVED: Final = re.compile(r"[0-9a-f]{16}")


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """What RESUME holds. `source`: canonical."""

    v: int = 1
    entry: str
    source: str


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    path: str  #: below the entry's files


class _Promised(msgspec.Struct, frozen=True, kw_only=True):
    path: str  #: in the entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """`touched`: when something was last written there. `files`: paths in it, the deep ones first, RESUME last."""

    source: str
    size: Bytes
    touched: Wall
    files: tuple[str, ...]


def check(top: Inside, name: str, now: Wall, min_age: Seconds) -> Doomed:
    """Of the download that is called `name`: nothing speaks against its end. Raises OSError, Refusal."""
    match = KEPT.fullmatch(name)
    if match is None:
        raise Refusal("not the name of an unfinished download")
    with looking_into(top, name) as inside:
        found = look(inside, match[1])
        age = max(0.0, now - found.touched)
        if age < min_age:
            raise Refusal(f"it was under way {format_seconds(age)} ago: younger than {format_seconds(min_age)}")
        return Doomed(entry=name, source=found.source, size=found.size, files=found.files)


def look(inside: Inside, entry: str) -> Unfinished:
    """All that is in it, each looked at. Raises OSError, Refusal."""
    resume = _resume(inside, entry)
    known = set(_named_files(inside))
    folders = {"entry", "entry/files"}
    folders |= {"/".join(path.split("/")[:depth]) for path in known for depth in range(1, path.count("/") + 1)}
    size, touched, files = 0, 0.0, []
    for path, found, parent in named(inside, folders):
        if stat.S_ISDIR(found.st_mode) and path in folders:
            check_folder(path, found, inside)
            continue
        if path not in known and not _OWN.fullmatch(path) and not _LEFTOVER.fullmatch(path):
            raise Refusal(f"it holds {path!r}, which llmgw did not fetch: move that away")
        check_file(path, found, inside)
        if path in known and is_open_elsewhere(parent, path.rpartition("/")[2]):
            raise Refusal(f"a process has {path} open")
        size, touched = size + found.st_size, max(touched, found.st_mtime)
        files.append(path)
    files.sort(key=lambda path: (path == RESUME, "/" not in path, path))
    return Unfinished(source=resume.source, size=Bytes(size), touched=Wall(touched), files=tuple(files))


def end(room: Inside, name: str, entry: str) -> Doomed | None:
    """Unlink what lies in a private directory as `entry`. None: nothing was left of it. Raises OSError, Refusal."""
    try:
        inside = room.enter("entry")
    except FileNotFoundError:
        return None
    for left in room.names():  # moved by a process that was killed before it could unlink it
        if _MOVED.fullmatch(left) and stat.S_ISREG(room.stat(left).st_mode) and room.stat(left).st_nlink == 1:
            room.unlink(left)
    with inside:
        if RESUME not in inside.names():  # it goes last: only folders can be left
            room.rmdir("entry")
            return None
        found = look(inside, entry)
        inner = [path for path in found.files if "/" in path]
        for path in inner:
            end_file(room, inside, _own(path), path)
        # Before the records by which a next process knows them: also those whose files an earlier one has unlinked.
        folders = {path.rpartition("/")[0] for path in (*_named_files(inside), f"{_FILES}x")}
        for folder in sorted(folders, key=len, reverse=True):
            end_folders(inside, folder)
        for path in found.files[len(inner) : -1]:
            end_file(room, inside, _own(path), path)
        left_over = [each for each in inside.names() if each != RESUME]
        if left_over:
            raise Refusal(f"{left_over[0]!r} came into it meanwhile: {room.path()} keeps that; its own files are gone")
        end_file(room, inside, _own(RESUME), RESUME)
    room.rmdir("entry")
    return Doomed(entry=name, source=found.source, size=found.size, files=found.files)


def _own(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def read_resume(inside: Inside) -> Resume | None:
    """None: it has none that can be read. Raises OSError."""
    try:
        return msgspec.json.decode(read_small(inside, RESUME), type=Resume)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _resume(inside: Inside, entry: str) -> Resume:
    found = read_resume(inside)
    if found is None or found.entry != entry or found.v != 1:
        raise Refusal(f"its {RESUME!r} does not say that it is {entry}: nobody knows what in it llmgw fetched")
    return found


def _named_files(inside: Inside) -> Iterator[str]:
    """Paths of the files that are on their way."""
    for name in inside.scan():
        try:
            if _RECORD.fullmatch(name):
                yield _FILES + _plain(msgspec.json.decode(read_small(inside, name), type=_Record).path)
            elif name == _PROMISE:
                for each in msgspec.json.decode(read_small(inside, name), type=tuple[_Promised, ...]):
                    yield f"entry/{_plain(each.path)}"
        except msgspec.MsgspecError as error:
            raise Refusal(f"its {name} cannot be read: {error}") from error


def _plain(path: str) -> str:
    if any(part in ("", ".", "..") or "\0" in part for part in path.split("/")):
        raise Refusal(f"it names {path!r}, which is no file below it")
    return path
