"""Unfinished downloads: one unique directory each, whose name says which process fills it.

A cache can be shared, between daemons and between machines, and file locks do nothing on some network file systems:
so a directory is removed only when its owner is proven gone.
"""

import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from llmgw.units import Wall

log = structlog.get_logger("llmgw.weights")

UNTOUCHED: Final = 86_400.0
"""Seconds after which a download of another machine (or boot) is dead: pip itself gives up within minutes."""

_NAME: Final = re.compile(r"partial-([0-9a-f]{8})-(\d+)-(\d+)-(\d+)-[0-9a-f]{8}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who fills a partial directory. Pids and start times mean something within one boot and pid namespace only."""

    boot: str
    namespace: int
    pid: int
    start: int  #: clock ticks since boot: field 22 of /proc/PID/stat


def create(root: Path) -> Path:
    """A new partial directory of this process. Raises OSError."""
    owner = _self()
    name = f"partial-{owner.boot}-{owner.namespace}-{owner.pid}-{owner.start}-{secrets.token_hex(4)}"
    path = root / name
    path.mkdir(mode=0o755)
    return path


def remove(path: Path) -> None:
    """Whatever cannot be removed is left for the next start, and said."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        log.warning("partial_not_removed", path=str(path))


def remove_stale(root: Path, now: Wall) -> list[Path]:
    """Remove the partial directories whose owner is proven gone; which they were. Raises OSError for `root`."""
    stale = [path for path in root.iterdir() if not path.is_symlink() and path.is_dir() and _is_stale(path, now)]
    for path in stale:
        remove(path)
    return stale


def _is_stale(path: Path, now: Wall) -> bool:
    match = _NAME.match(path.name)
    if match is None:
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
