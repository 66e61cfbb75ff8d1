"""Try third parties' plugins in child processes, and remember the verdicts. Blocking."""

import hashlib
import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

import msgspec

from llmgw import __version__
from llmgw.engine.api import API_VERSION
from llmgw.engine.child import Ended, run_child
from llmgw.ids import EngineName, is_name
from llmgw.statedir import write_atomic

VET_TIMEOUT: Final = 10.0  #: seconds that a plugin has to be imported and to answer its hook
HANG_KEPT: Final = 600.0
"""Seconds that the verdict "hangs" holds though no file changed: finding out again costs VET_TIMEOUT."""

_AT_ONCE: Final = min(8, max(2, os.cpu_count() or 2))
"""Children: more than can run would make one another late, and late is what a hang looks like."""

_ENTRIES: Final = 200  #: kept in the file, the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetting:
    """What came of trying a plugin. `engines`, `sources`: what it brings, or brought when it last worked."""

    ok: bool
    engines: tuple[EngineName, ...] = ()
    sources: tuple[str, ...] = ()  #: schemes
    api_version: int | None = None
    reason: str = ""  #: one line
    failure: str = ""  #: the traceback, or what else there is to tell
    hangs: bool = False
    stamp: str = ""
    at: float = 0.0  #: seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    v: int = 1
    plugins: Mapping[str, Vetting] = field(default_factory=dict)


def default_cache() -> Path | None:
    """`$XDG_CACHE_HOME/llmgw/plugins.json`, else under `~/.cache`; None where there is no home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "llmgw" / "plugins.json"
    try:
        return Path.home() / ".cache" / "llmgw" / "plugins.json"
    except RuntimeError:
        return None


def vet_all(
    points: Iterable[EntryPoint], *, cache: Path | None, timeout: float = VET_TIMEOUT, afresh: bool = False
) -> list[Vetting]:
    """A verdict on each plugin, in their order.

    One in the cache holds while the plugin's files are the same: a good one always, "hangs" for HANG_KEPT. Any other
    failure is looked at again: its cause may lie outside the plugin's files.

    `afresh`: only good verdicts are taken from the cache.
    """
    before = _read(cache)
    jobs = [_Job(point=point, stamp=_stamp(point), known=before.get(_key(point))) for point in points]
    found = [job.known if job.known is not None and job.holds(afresh) else None for job in jobs]
    left = [job for job, verdict in zip(jobs, found, strict=True) if verdict is None]
    if left:
        with ThreadPoolExecutor(min(_AT_ONCE, len(left)), thread_name_prefix="vet") as pool:
            tried = list(pool.map(lambda job: job.vet(timeout), left))
        _write(cache, {_key(job.point): verdict for job, verdict in zip(left, tried, strict=True)})
        fresh = iter(tried)
        return [next(fresh) if verdict is None else verdict for verdict in found]
    return [verdict for verdict in found if verdict is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    point: EntryPoint
    stamp: str
    known: Vetting | None

    def holds(self, afresh: bool) -> bool:
        known = self.known
        if known is None or not self.stamp or known.stamp != self.stamp:
            return False
        return known.ok or (not afresh and known.hangs and 0 <= time.time() - known.at < HANG_KEPT)

    def vet(self, timeout: float) -> Vetting:
        found = vet(self.point, timeout=timeout)
        if self.known is not None and not found.ok and not (found.engines or found.sources):
            found = replace(found, engines=self.known.engines, sources=self.known.sources)
        return replace(found, stamp=self.stamp, at=time.time())


def remembered(point: EntryPoint, cache: Path | None) -> Vetting:
    """What came of a plugin when it was last looked at."""
    return _read(cache).get(_key(point), Vetting(ok=False))


def vet(point: EntryPoint, *, timeout: float = VET_TIMEOUT) -> Vetting:
    """Try one plugin in a child process, now."""
    request = {"name": point.name, "value": point.value}
    try:
        ended = run_child("llmgw.engine.vet_child", request, timeout=timeout)
    except OSError as error:
        reason = f"no child process could be started to try it: {error}"
        return Vetting(ok=False, reason=reason, failure=reason)
    verdict = next((report for report in ended.reports if "ok" in report), None)
    if verdict is None:
        return _no_verdict(ended, timeout)
    engines = tuple(EngineName(name) for name in verdict.get("engines", ()) if is_name(str(name)))
    sources = tuple(str(scheme) for scheme in verdict.get("sources", ()))
    if verdict["ok"] is True:
        return Vetting(ok=True, engines=engines, sources=sources, api_version=verdict.get("api_version"))
    reason, failure = str(verdict["reason"]), str(verdict["failure"])
    return Vetting(ok=False, engines=engines, sources=sources, reason=reason, failure=failure)


def _no_verdict(ended: Ended, timeout: float) -> Vetting:
    stages = [str(report["stage"]) for report in ended.reports if "stage" in report]
    stage = stages[-1] if stages else "being started"
    if ended.exit is None:
        reason = f"it did not return within {timeout:.0f} s while {stage}"
    else:
        reason = f"it ended its process ({ended.exit}) while {stage}"
    said = ended.said.strip()
    failure = f"{said}\n{reason}" if said else reason
    return Vetting(ok=False, reason=reason, failure=failure, hangs=ended.exit is None)


def _key(point: EntryPoint) -> str:
    """Of one plugin in one environment."""
    distribution = point.dist.name if point.dist is not None else ""
    return " ".join((sys.prefix, distribution, point.name, point.value))


def _stamp(point: EntryPoint) -> str:
    """Changes whenever the plugin, or what is installed beside it, may have changed. Empty: cannot be told."""
    dist = point.dist
    if dist is None:
        return ""
    whole = hashlib.sha256()

    def add(*parts: object) -> None:
        whole.update("\0".join(map(str, parts)).encode("utf-8", "surrogateescape") + b"\n")

    add(sys.version, sys.executable, __version__, API_VERSION)
    add(dist.name, dist.version, point.value, dist.read_text("RECORD"))
    try:
        # A directory of packages changes with each that is installed or removed: its dependencies among them.
        add(os.stat(str(dist.locate_file(""))).st_mtime_ns)
        for file in _files(point):
            about = file.stat()
            add(file, about.st_size, about.st_mtime_ns)
    except (OSError, ImportError, ValueError):
        return ""
    return whole.hexdigest()


def _files(point: EntryPoint) -> list[Path]:
    """The files of its top-level package, wherever an editable installation has it. Imports nothing."""
    top = re.split(r"[.:]", point.value, maxsplit=1)[0].strip()
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise ImportError(top)
    roots = list(spec.submodule_search_locations or ())
    if not roots:
        return [Path(spec.origin)] if spec.origin else []
    found = [path for root in roots for path in Path(root).rglob("*") if path.is_file()]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def _read(cache: Path | None) -> Mapping[str, Vetting]:
    """Nothing where it cannot be read: it only saves time."""
    if cache is None:
        return {}
    try:
        stored = msgspec.json.decode(cache.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return stored.plugins if stored.v == 1 else {}


def _write(cache: Path | None, found: Mapping[str, Vetting]) -> None:
    """Beside what others wrote meanwhile. Two at once: one may be lost, and is found out again next time."""
    if cache is None:
        return
    entries = {**_read(cache), **{key: verdict for key, verdict in found.items() if verdict.stamp}}
    newest = sorted(entries.items(), key=lambda entry: entry[1].at)[-_ENTRIES:]
    with suppress(OSError):  # a read-only home, a full disk: not remembered, then
        write_atomic(cache, msgspec.json.encode(_File(plugins=dict(newest))), mode=0o600)
