"""The node's own word on what may be deleted, and the deleting. It believes nobody: not the controller that asks, not
the cache's idea of itself.

Everything is looked at through directory descriptors that never follow a link. An entry goes only when it has the right
name for its source, lies on the root's own file system with nothing mounted at or below it, is old enough, is pinned by
nobody, is open in no process, and holds exactly what its manifest names. Then it is moved, in one rename, into a
private directory; each file is moved once more, looked at where nobody else can exchange it, and only then unlinked.
The manifest goes last, so that what a killed process left can be finished by the next.
"""

import os
import re
import secrets
import stat
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec

from llmgw.units import Bytes, Seconds, Wall, format_seconds
from llmgw.weights import naming, unfinished
from llmgw.weights.doomed import (
    CORRUPT,
    ENTRY,
    KEPT,
    Doomed,
    Refusal,
    check_file,
    check_folder,
    end_file,
    end_folders,
    looking_into,
)
from llmgw.weights.inside import Inside, hold, is_open_elsewhere, named, read_small

DOOMED: Final = re.compile(r"removing-(kept-)?(v1-sha256-[0-9a-f]{64})-[0-9a-f]{8}")
"""The private directory in which one entry, or an unfinished download, ends: `entry`, its directory, and its files as
they go."""

IDLE: Final = Seconds(60.0)
MARKER: Final = ".llmgw-cache"
LAYOUT: Final = 1
MANIFEST: Final = "manifest.json"
STAMP: Final = "last_wanted"
PIN: Final = "pinned"
LEFTOVER: Final = re.compile(r"\.(manifest\.json|last_wanted|pinned)\.[0-9a-f]{8}")
"""What a process that was killed while it replaced one of its small files left."""


class _Marker(msgspec.Struct, frozen=True):
    cluster: str
    layout: int


class _File(msgspec.Struct, frozen=True):
    path: str
    size: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    v: int
    source: str
    files: tuple[_File, ...]
    fetched_at: float


def remove(
    root: Path,
    entry: str,
    *,
    cluster: str,
    now: Wall,
    min_age: Seconds,
    about_to: Callable[[Doomed], None] = lambda _: None,
) -> Doomed:
    """Delete one entry or unfinished download, whole. `about_to` is called once nothing speaks against it, before
    anything is touched; where it raises OSError (no audit log, no deletion) the entry stays. Raises Refusal."""
    try:
        with hold(root) as top:
            _check_root(top, cluster)
            check = unfinished.check if KEPT.fullmatch(entry) else _check
            doomed = check(top, entry, now, min_age)
            about_to(doomed)
            _move_and_end(top, entry, doomed)
            return doomed
    except OSError as error:
        raise Refusal(_told(error)) from error


def drop(root: Path, name: str) -> Doomed:
    """Delete an unfinished download in a root that is known for this process's own. Raises Refusal."""
    try:
        with hold(root) as top:
            doomed = unfinished.check(top, name, Wall(0.0), Seconds(0.0))
            _move_and_end(top, name, doomed)
            return doomed
    except OSError as error:
        raise Refusal(_told(error)) from error


def finish(root: Path, *, cluster: str, now: Wall, idle: Seconds = IDLE) -> tuple[Doomed, ...]:
    """End what a process that was killed while it deleted left, unless something moved there within `idle`: then it may
    live, in another process that shares the root. What cannot be finished stays. Raises OSError, Refusal for the root.
    """
    done: list[Doomed] = []
    with hold(root) as top:
        _check_root(top, cluster)
        for name in top.names():
            match = DOOMED.fullmatch(name)
            if match is None or now - top.stat(name).st_mtime < idle:
                continue
            try:
                with top.enter(name) as private:
                    if match[1]:
                        ended = unfinished.end(private, f"{match[1]}{match[2]}", match[2])
                    else:
                        ended = _end(private, match[2])
                top.rmdir(name)
            except (OSError, Refusal):
                continue
            if ended is not None:
                done.append(ended)
    return tuple(done)


# -- looking


def _check_root(top: Inside, cluster: str) -> None:
    place = top.path()
    if place in ("/", os.path.realpath(os.path.expanduser("~"))):
        raise Refusal(f"{place} is no place for a weights cache")
    try:
        marker = msgspec.json.decode(read_small(top, MARKER), type=_Marker)
    except FileNotFoundError as error:
        raise Refusal(f"{place} has no {MARKER}: it is no weights cache, or its disk is not mounted") from error
    except msgspec.MsgspecError as error:
        raise Refusal(f"{place}/{MARKER} cannot be read: {error}") from error
    if marker.layout != LAYOUT:
        raise Refusal(f"{place} has layout {marker.layout}: this llmgw deletes in layout {LAYOUT} only")
    if marker.cluster != cluster:
        raise Refusal(f"{place} is another cluster's ({marker.cluster})")


def _check(top: Inside, name: str, now: Wall, min_age: Seconds) -> Doomed:
    corrupt = CORRUPT.fullmatch(name)
    if corrupt is None and ENTRY.fullmatch(name) is None:
        raise Refusal("not the name of a cache entry")
    with looking_into(top, name) as inside:
        manifest = _manifest(inside, corrupt[1] if corrupt else name)
        if PIN in inside.names():
            raise Refusal(f"pinned; `llmgw weights unpin {name}` ends that")
        age = now - min(now, _last_wanted(inside, manifest))
        if age < min_age:
            raise Refusal(f"wanted {format_seconds(Seconds(age))} ago: younger than {format_seconds(min_age)}")
        _check_contents(inside, manifest, whole=corrupt is None)
        return _doomed(name, manifest)


def _doomed(name: str, manifest: _Manifest) -> Doomed:
    size = Bytes(sum(file.size for file in manifest.files))
    return Doomed(entry=name, source=manifest.source, size=size, files=tuple(file.path for file in manifest.files))


def _manifest(inside: Inside, name: str) -> _Manifest:
    """Of the entry that is called `name`: equal to what that name says of it."""
    try:
        found = msgspec.json.decode(read_small(inside, MANIFEST), type=_Manifest)
    except FileNotFoundError as error:
        raise Refusal(f"it has no {MANIFEST}: nobody knows what in it llmgw fetched") from error
    except msgspec.MsgspecError as error:
        raise Refusal(f"its {MANIFEST} cannot be read: {error}") from error
    if found.v != 1 or not found.files:
        raise Refusal(f"its {MANIFEST} has format {found.v}: this llmgw deletes by format 1 only")
    sums = {file.sha256.lower() for file in found.files}
    if name not in {naming.entry_name(found.source, sha256) for sha256 in (None, *sums)}:
        raise Refusal(f"it is not called as what its {MANIFEST} names: {found.source}")
    for file in found.files:
        parts = file.path.split("/")
        if len(parts) < 2 or parts[0] != "files" or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise Refusal(f"its {MANIFEST} names {file.path!r}, which is no file below files/")
    return found


def _last_wanted(inside: Inside, manifest: _Manifest) -> float:
    """A stamp that cannot be read is taken for the newest."""
    try:
        stamp = float(read_small(inside, STAMP))
        if not isfinite(stamp):
            raise ValueError(stamp)
        return max(stamp, manifest.fetched_at)
    except FileNotFoundError:
        return manifest.fetched_at
    except ValueError as error:
        raise Refusal(f"its {STAMP} cannot be read: when it was wanted last is not known") from error


def _check_contents(inside: Inside, manifest: _Manifest, *, whole: bool, moved: frozenset[int] = frozenset()) -> None:
    """Exactly what the manifest names and llmgw's own small files. `whole`: each file as large as it was fetched;
    `moved`: files, by number, that are elsewhere already."""
    sizes = {file.path: file.size for number, file in enumerate(manifest.files) if number not in moved}
    folders = {path.rpartition("/")[0] for path in (file.path for file in manifest.files)}
    folders |= {"/".join(path.split("/")[:depth]) for path in folders for depth in range(1, path.count("/") + 1)}
    for path, found, parent in named(inside, folders):
        if stat.S_ISDIR(found.st_mode) and path in folders:
            check_folder(path, found, inside)
            continue
        small = "/" not in path and (path in (MANIFEST, STAMP) or LEFTOVER.fullmatch(path) is not None)
        if not small and path not in sizes:
            raise Refusal(f"it holds {path!r}, which llmgw did not fetch: move that away")
        check_file(path, found, inside)
        if path in sizes:
            if whole and found.st_size != sizes[path]:
                raise Refusal(f"{path} has {found.st_size} bytes, not the {sizes[path]} that were fetched")
            if is_open_elsewhere(parent, path.rpartition("/")[2]):
                raise Refusal(f"a process has {path} open")
            del sizes[path]
    if whole and sizes:
        raise Refusal(f"{min(sizes)}, which was fetched, is not there")


# -- deleting


def _move_and_end(top: Inside, name: str, doomed: Doomed) -> None:
    part, plain = KEPT.fullmatch(name), CORRUPT.fullmatch(name)
    entry = part[1] if part else plain[1] if plain else name
    with top.enter(name) as inside:
        was = inside.identity
        for folder in ("", *sorted({path.rpartition("/")[0] for path in doomed.files})):
            inside.check_writable(folder)
    private = f"removing-{'kept-' if part else ''}{entry}-{secrets.token_hex(4)}"
    top.mkdir(private)
    with top.enter(private) as room:
        try:
            top.rename(name, room, "entry")
        except OSError:  # somebody was faster
            top.rmdir(private)
            raise
        try:
            if room.identity_of("entry") != was:
                raise Refusal("it was exchanged for another while it was looked at")
            with room.enter("entry") as inside:
                if part:
                    unfinished.look(inside, entry)
                else:
                    _check_contents(inside, _manifest(inside, entry), whole=plain is None)
        except (OSError, Refusal):
            room.rename("entry", top, name)
            top.rmdir(private)
            raise
        top.sync()
        if part:
            unfinished.end(room, name, entry)
        else:
            _end(room, entry, checked=True)
    top.rmdir(private)
    top.sync()


def _end(room: Inside, entry: str, *, checked: bool = False) -> Doomed | None:
    """Unlink what lies in a private directory. None: nothing was left of it. Raises OSError, Refusal."""
    try:
        inside = room.enter("entry")
    except FileNotFoundError:
        return None
    with inside:
        if MANIFEST not in inside.names():  # only folders can be left
            room.rmdir("entry")
            return None
        manifest = _manifest(inside, entry)
        if not checked:
            moved = frozenset(int(name) for name in room.names() if name.isdecimal())
            _check_contents(inside, manifest, whole=False, moved=moved)
        for number, file in enumerate(manifest.files):
            end_file(room, inside, str(number), file.path)
        for folder in sorted({file.path.rpartition("/")[0] for file in manifest.files}, key=len, reverse=True):
            end_folders(inside, folder)
        for name in inside.names():
            if name == STAMP or LEFTOVER.fullmatch(name):
                inside.unlink(name)
        left = [name for name in inside.names() if name != MANIFEST]
        if left:
            raise Refusal(f"{left[0]!r} came into it meanwhile: {room.path()} keeps that; its own files are gone")
        inside.unlink(MANIFEST)
    room.rmdir("entry")
    return _doomed(entry, manifest)


def _told(error: OSError) -> str:
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
