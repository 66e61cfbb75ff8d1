"""Another node that holds an entry, asked for it: what it says that is in it, and its files, believed by hash alone.

On connections of its own, past any proxy: nodes of a cluster are near.
"""

import http.client
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from llmgw.catalog.spec import WeightsSpec
from llmgw.statedir import sync_directory
from llmgw.weights.api import Work
from llmgw.weights.http import Cut, Reply
from llmgw.weights.manifest import FILES, VERSION, Manifest, ManifestFile
from llmgw.weights.sources import Stopped, hash_prefix
from llmgw.weights.writing import Writing

MIRROR: Final = "/mirror"
"""Below it an agent serves entries: `/mirror/ENTRY` its manifest, `/mirror/ENTRY/N` the N-th file that it names. A POST
to `/mirror/ENTRY` says that it is damaged."""

CONNECT_TIMEOUT: Final = 3.0
STALL_TIMEOUT: Final = 20.0
"""Seconds without a byte after which a node counts as gone."""

_LARGEST_MANIFEST: Final = 16 * 1024 * 1024  #: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """`url`: of its agent; `entry`: what it calls what it holds."""

    node: str
    url: str
    entry: str


class NotServed(Exception):
    """It is away, does not have it any more, or broke off: another may serve."""


class Busy(NotServed):
    """It serves as many as it can at once: later, perhaps."""


class Away(NotServed):
    """Nobody answers there."""


class Lied(Exception):
    """What it sent is not what it ought to be: it is not asked again."""


class Asking:
    """The requests to one peer. Blocks; `stop` ends what is under way, from another thread."""

    def __init__(self, peer: Peer, token: str, *, stall: float = STALL_TIMEOUT) -> None:
        self._peer = peer
        self._token = token
        self._stall = stall
        self._sock: socket.socket | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()
        if (sock := self._sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def manifest(self) -> Manifest:
        """Raises NotServed, Lied."""
        reply = self._ask(f"{MIRROR}/{self._peer.entry}", {})
        try:
            if reply.status != 200:
                raise _refused(reply)
            content = _whole(reply)
        finally:
            reply.close()
        try:
            return msgspec.json.decode(content, type=Manifest)
        except msgspec.MsgspecError as error:
            raise Lied(f"its manifest cannot be read: {error}") from error

    def take(self, number: int, file: ManifestFile, work: Work, progress: "Progress", stop: threading.Event) -> None:
        """Bring one file, going on from what lies there, whoever brought that. Durable when it returns.

        Raises NotServed (what came stays there), Lied (nothing does), Stopped, OSError.
        """
        target = work.files.parent / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "ab", buffering=0) as opened, _going_on(opened.fileno(), target, file, stop) as out:
            inherited = out.at
            self._copy(number, file, out, work, progress)
            if inherited and out.digest.hexdigest() != file.sha256:  # what lay there was of another file
                out.restart()
                self._copy(number, file, out, work, progress)
            found = out.digest.hexdigest()
            if found != file.sha256:
                out.restart()
                raise Lied(f"{file.path} has sha256 {found}, not {file.sha256}")
            out.finish()
        sync_directory(target.parent)

    def _copy(self, number: int, file: ManifestFile, out: Writing, work: Work, progress: "Progress") -> None:
        if out.at == file.size:
            return
        headers = {"Range": f"bytes={out.at}-", "If-Match": f'"{file.sha256}"'}
        reply = self._ask(f"{MIRROR}/{self._peer.entry}/{number}", headers)
        try:
            if reply.status != 206:
                raise _refused(reply)
            if reply.header("Content-Range") != f"bytes {out.at}-{file.size - 1}/{file.size}":
                raise Lied(f"it sends another part of {file.path} than was asked for")
            while out.at < file.size:
                room = out.room()
                count = self._fill(reply, room[: file.size - out.at])
                out.put(room, count)
                if count == 0:
                    raise NotServed("it broke off")
                work.tell(progress.before + out.at, progress.total)
        finally:
            reply.close()
            out.settle()

    def _fill(self, reply: Reply, room: memoryview) -> int:
        if self._stopped.is_set():
            raise Stopped
        try:
            return reply.fill(room)
        except Cut as error:
            if self._stopped.is_set():
                raise Stopped from error
            raise NotServed(f"it broke off: {error}") from error

    def doubt(self) -> None:
        """Tell it that what it sent of its entry is damaged: it looks for itself. Raises NotServed."""
        self._ask(f"{MIRROR}/{self._peer.entry}", {}, method="POST").close()

    def _ask(self, target: str, headers: Mapping[str, str], *, method: str = "GET") -> Reply:
        parts = urlsplit(self._peer.url)
        if parts.scheme != "http" or not parts.hostname:
            raise NotServed(f"{self._peer.url!r} is no address that weights can be had from")
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=CONNECT_TIMEOUT)
        given = {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "identity", **headers}
        try:
            connection.connect()
            self._sock = connection.sock
            if self._stopped.is_set():
                raise Stopped
            self._sock.settimeout(self._stall)
            connection.request(method, target, headers=given)
            return Reply(connection, self._sock, connection.getresponse(), self._peer.url)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if self._stopped.is_set():
                raise Stopped from error
            raise Away(f"it does not answer: {' '.join(str(error).split()) or type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class Progress:
    """Of the entry: bytes of the files before this one, and of all."""

    before: int
    total: int


def _going_on(fd: int, target: Path, file: ManifestFile, stop: threading.Event) -> Writing:
    if os.fstat(fd).st_size > file.size:
        os.ftruncate(fd, 0)
    return Writing(fd, at=os.fstat(fd).st_size, digest=hash_prefix(target, stop=stop))


def check(manifest: Manifest, spec: WeightsSpec, known: Mapping[str, str]) -> None:
    """Whether that can be what `spec` names. `known`: checksums by path below the entry's files, as the source itself
    has them. Raises Lied, NotServed."""
    if manifest.v > VERSION:
        raise NotServed("it has a newer llmgw's manifest")
    if manifest.source != spec.source:
        raise Lied(f"its manifest is of {manifest.source}")
    if (why := manifest.trouble()) is not None:
        raise Lied(f"its manifest {why}")
    if spec.sha256 is not None and manifest.files[0].sha256 != spec.sha256.lower():
        raise Lied(f"its file has sha256 {manifest.files[0].sha256}, {spec.sha256} is declared")
    theirs = {file.path.removeprefix(f"{FILES}/"): file.sha256 for file in manifest.files}
    for path, sha256 in known.items():
        if theirs.get(path) != sha256.lower():
            raise Lied(f"its {path} has sha256 {theirs.get(path)}, its source says {sha256}")


def _whole(reply: Reply) -> bytes:
    room = bytearray(1024 * 1024)
    found = bytearray()
    try:
        while (count := reply.fill(memoryview(room))) and len(found) <= _LARGEST_MANIFEST:
            found += room[:count]
    except Cut as error:
        raise NotServed(f"it broke off: {error}") from error
    if len(found) > _LARGEST_MANIFEST:
        raise Lied("its manifest is larger than any")
    return bytes(found)


def _refused(reply: Reply) -> NotServed:
    if reply.status == 503:
        return Busy("it serves others")
    said = {401: "it is of another cluster", 404: "it does not have it", 412: "it has another content now"}
    return NotServed(said.get(reply.status, f"it answers {reply.status}"))
