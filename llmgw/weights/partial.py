"""Unfinished downloads: one unique directory each, whose name says which process fills it.

A cache can be shared, between daemons and between machines, and file locks do nothing on some network file systems:
so a directory is removed only when its owner is proven gone.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from llmgw.statedir import write_atomic
from llmgw.units import Bytes, Wall
from llmgw.weights import removal
from llmgw.weights.doomed import Refusal
from llmgw.weights.inside import hold, mounted_at_or_below
from llmgw.weights.manifest import FILES
from llmgw.weights.naming import is_entry
from llmgw.weights.unfinished import RESUME, Resume, read_resume

log = structlog.get_logger("llmgw.weights")

UNTOUCHED: Final = 86_400.0
"""Seconds after which a download of another machine (or boot) is dead: pip itself gives up within minutes."""

KEPT_FOR: Final = 7 * 86_400.0
"""Seconds that an unfinished download waits to be gone on with."""

_KEPT: Final = "kept-"
_NAME: Final = re.compile(r"partial-([0-9a-f]{8})-(\d+)-(\d+)-(\d+)-[0-9a-f]{8}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who fills a partial directory. Pids and start times mean something within one boot and pid namespace only."""

    boot: str
    namespace: int
    pid: int
    start: int  #: clock ticks since boot: field 22 of /proc/PID/stat


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An unfinished download that nobody is at. `size`: bytes here; `touched`: when something was last written."""

    name: str
    source: str
    size: Bytes
    touched: Wall


def create(root: Path) -> Path:
    """A new partial directory of this process. Raises OSError."""
    path = root / _fresh_name()
    path.mkdir(mode=0o755)
    return path


def adopt(root: Path, entry: str) -> Path | None:
    """The unfinished download of `entry` that somebody left, as this process's own; None: there is none.

    A rename decides between two that want it. Raises OSError.
    """
    kept = root / f"{_KEPT}{entry}"
    if kept.is_symlink() or not kept.is_dir():
        return None
    path = root / _fresh_name()
    try:
        kept.rename(path)
    except FileNotFoundError:
        return None
    return path


def mark(path: Path, entry: str, source: str) -> None:
    """From now on `path` is worth keeping. Raises OSError."""
    write_atomic(path / RESUME, msgspec.json.encode(Resume(entry=entry, source=source)))


def keep(path: Path) -> bool:
    """Put a marked download that holds something aside for the next try; another one is removed, and False returned."""
    entry = _marked(path)
    # Nothing is in one whose process was killed when it had published it, either.
    if entry is not None and any(each.st_size for each in files_below(path / "entry" / FILES)):
        try:
            path.rename(path.parent / f"{_KEPT}{entry}")
            return True
        except OSError as error:  # another process left one of the same entry
            log.info("partial_not_kept", path=str(path), error=str(error))
    remove(path)
    return False


def drop_kept(root: Path, *, but: str) -> bool:
    """Remove the unfinished download that was left longest ago, none of entry `but`. False: there is none."""
    found = [root / name for name in _names(root) if _is_kept(root / name) and name != f"{_KEPT}{but}"]
    ages = {path: age for path in found if (age := _age_of(path)) is not None}
    if not ages:
        return False
    return any(_end_kept(path, "its room is needed") for path in sorted(ages, key=lambda path: ages[path]))


def _end_kept(path: Path, why: str) -> bool:
    """As any removal from the cache: with anything in it that llmgw did not put there, it stays."""
    try:
        removal.drop(path.parent, path.name)
    except Refusal as refusal:
        log.warning("unfinished_download_not_removed", path=str(path), why=str(refusal))
        return False
    log.info("unfinished_download_removed", path=str(path), why=why)
    return True


def kept(root: Path) -> Iterator[Kept]:
    """Unfinished downloads that nobody is at. Raises OSError."""
    for path in (root / name for name in _names(root) if _is_kept(root / name)):
        try:
            with hold(path) as inside:
                resume = read_resume(inside)
        except OSError:  # adopted just now
            continue
        if resume is not None:
            files = tuple(files_below(path))
            size, touched = sum(each.st_size for each in files), max((each.st_mtime for each in files), default=0.0)
            yield Kept(name=path.name, source=resume.source, size=Bytes(size), touched=Wall(touched))


def files_below(path: Path) -> Iterator[os.stat_result]:
    """What each file in a tree is now: they come and go meanwhile, and one that is gone is passed over."""
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.stat(os.path.join(folder, name), follow_symlinks=False)


def boot() -> str:
    """Changes with every start of the machine."""
    return _self().boot


def _fresh_name() -> str:
    owner = _self()
    return f"partial-{owner.boot}-{owner.namespace}-{owner.pid}-{owner.start}-{secrets.token_hex(4)}"


def _is_kept(path: Path) -> bool:
    name = path.name.removeprefix(_KEPT)
    return path.name != name and is_entry(name) and not path.is_symlink() and path.is_dir()


def _marked(path: Path) -> str | None:
    try:
        with hold(path) as inside:
            resume = read_resume(inside)
    except OSError:
        return None
    return resume.entry if resume is not None and is_entry(resume.entry) else None


def _age_of(path: Path) -> float | None:
    try:
        return _last_touched(path)
    except FileNotFoundError:
        return None


def remove(path: Path) -> None:
    """Of this process, or of a dead one. Whatever cannot be removed is left for the next start, and said; what is
    mounted there is not gone into."""
    if not mounted_at_or_below(os.path.realpath(path)):
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        log.warning("partial_not_removed", path=str(path))


def remove_stale(root: Path, now: Wall) -> list[Path]:
    """Remove the partial directories whose owner is proven gone; which they were. Raises OSError for `root`.

    Those that can be gone on with are put aside instead, and removed when nobody did for a week.
    """
    names = _names(root)
    stale = [path for name in names if _NAME.match(name) and _is_stale(path := root / name, now)]
    stale = [path for path in stale if not keep(path)]
    for path in (root / name for name in _names(root) if name.startswith(_KEPT)):
        old = _is_kept(path) and (touched := _age_of(path)) is not None and now - touched > KEPT_FOR
        if old and _end_kept(path, "nobody went on with it"):
            stale.append(path)
    return stale


def _names(root: Path) -> list[str]:
    """Of what is no finished entry: there may be very many of those."""
    with os.scandir(root) as found:
        return sorted(each.name for each in found if each.name.startswith(("partial-", _KEPT)))


def _is_stale(path: Path, now: Wall) -> bool:
    match = _NAME.match(path.name)
    if match is None or path.is_symlink() or not path.is_dir():
        return False
    boot, namespace, pid, start = match.groups()
    here = _self()
    if here.start and (boot, int(namespace)) == (here.boot, here.namespace):
        return not _lives(int(pid), int(start))
    try:
        return now - _last_touched(path) > UNTOUCHED
    except FileNotFoundError:  # its owner finished just now
        return False


def _lives(pid: int, start: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody's, alive
    stat = _stat(pid)  # None: hidden from us (hidepid), so not proven gone
    return stat is None or (stat[0] not in "ZX" and stat[1] == start)


def _self() -> Owner:
    stat = _stat(os.getpid())
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:  # no procfs: only time will tell
        return Owner(boot="0" * 8, namespace=0, pid=os.getpid(), start=0)
    return Owner(boot=boot, namespace=namespace, pid=os.getpid(), start=stat[1] if stat else 0)


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start ticks. The command name may hold anything, spaces and parentheses included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


def _last_touched(path: Path) -> float:
    newest = path.stat().st_mtime
    for folder, _, files in os.walk(path):
        for name in (".", *files):
            try:
                newest = max(newest, os.stat(os.path.join(folder, name), follow_symlinks=False).st_mtime)
            except FileNotFoundError:
                continue
    return newest
