"""STATE: the directory that a daemon owns. Its version, its lock, its secrets; files replaced atomically."""

import errno
import fcntl
import os
import secrets
import shlex
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from llmgw.errors import StateDirError

LAYOUT: Final = 1


class LockOwner(msgspec.Struct, frozen=True):
    """Who holds the lock. `identity`: see agent.process; proves that `pid` is still that process."""

    pid: int
    host: str
    identity: str


class AdminAddress(msgspec.Struct, frozen=True):
    """`admin.json`: how the CLI reaches the daemon. 0600."""

    url: str
    token: str
    gateway: str


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths under one state directory. Creating the object touches nothing."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def replicas(self) -> Path:
        return self.root / "replicas"

    @property
    def logs(self) -> Path:
        """Logs of ended replicas, by model."""
        return self.root / "logs"

    @property
    def last_good(self) -> Path:
        return self.root / "last-good" / "catalog.json"

    @property
    def source(self) -> Path:
        """The copy of a repository elsewhere that the catalog is followed in."""
        return self.root / "source"

    @property
    def admin(self) -> Path:
        return self.root / "admin.json"

    @property
    def lock_file(self) -> Path:
        return self.root / "lock"

    @property
    def weights(self) -> Path:
        """The default cache root."""
        return self.root / "weights"

    @property
    def collected(self) -> Path:
        """What was removed from the cache: JSON lines."""
        return self.root / "collected.log"

    def prepare(self) -> None:
        """Create the directory, or check its version.

        Raises StateDirError when it is from a newer llmgw, not a directory, or cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            version = self.root / "VERSION"
            if not version.exists():
                write_atomic(version, f"{LAYOUT}\n".encode())
            found = version.read_text(errors="replace").strip()
            self.replicas.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateDirError(f"cannot use the state directory {self.root}: {fault(error)}") from error
        if not found.isdigit():
            raise StateDirError(f"{version} is damaged: write {LAYOUT} into it, or name another directory with --state")
        if int(found) > LAYOUT:
            raise StateDirError(
                f"{self.root} has layout {found}, this llmgw reads up to {LAYOUT}: "
                "upgrade llmgw, or name another directory with --state"
            )

    def cluster_id(self) -> str:
        """Names the cluster: caches are claimed for it. Made once. Raises StateDirError."""
        remedy = f"write into it the cluster that {self.weights}/.llmgw-cache names, or remove both"
        return self._made_once("cluster-id", lambda: secrets.token_hex(8), 0o644, remedy)

    def adopt_cluster(self, id: str) -> str:
        """Join the cluster of that id, where this directory belongs to none yet. Raises StateDirError."""
        return self._made_once("cluster-id", lambda: id, 0o644, "remove it")

    def secret(self) -> bytes:
        """The cluster's secret: engine keys are derived from it. Made once, 0600. Raises StateDirError."""
        remedy = "end the engines with `llmgw down`, and remove it to have a new one made"
        return self._made_once("secret", lambda: secrets.token_hex(32), 0o600, remedy).encode()

    def keep_secret(self, secret: bytes) -> None:
        """One that was given by another: `llmgw down` and `llmgw bench` need it too. Raises StateDirError."""
        path = self.root / "secret"
        try:
            if not path.exists() or path.read_bytes().strip() != secret:
                write_atomic(path, secret + b"\n", mode=0o600)
        except OSError as error:
            raise StateDirError(f"cannot use {path}: {fault(error)}") from error

    def _made_once(self, name: str, make: Callable[[], str], mode: int, remedy: str) -> str:
        path = self.root / name
        try:
            if not path.exists():
                write_atomic(path, f"{make()}\n".encode(), mode=mode)
            text = path.read_text(errors="replace").strip()
        except OSError as error:
            raise StateDirError(f"cannot use {path}: {fault(error)}") from error
        if not (text.isascii() and text.isprintable() and text):
            raise StateDirError(f"{path} is {'damaged' if text else 'empty'}: {remedy}")
        return text

    def read_admin(self) -> AdminAddress | None:
        """None when no daemon ever ran here. Raises StateDirError when it cannot be read."""
        try:
            return msgspec.json.decode(self.admin.read_bytes(), type=AdminAddress)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateDirError(f"cannot read {self.admin}: {fault(error)}") from error
        except msgspec.MsgspecError as error:
            raise StateDirError(f"cannot read {self.admin}: {error}") from error

    def lock_owner(self) -> LockOwner | None:
        """Who wrote the lock last, alive or not."""
        try:
            return msgspec.json.decode(self.lock_file.read_bytes(), type=LockOwner)
        except (OSError, msgspec.MsgspecError):
            return None


def fault(error: OSError) -> str:
    """Why something of a state directory cannot be used, and what to do."""
    why = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return f"{why}: run this as the user that runs llmgw there, or name another directory with --state"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{why}: free space on its disk, or name another directory with --state"
    return f"{why}: name another directory with --state"


class StateLock:
    """One daemon a state directory. Held until `release` or the process ends."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._fd: int | None = None

    def acquire(self, identity: str, *, patience: float = 1.0) -> None:
        """Raises StateDirError, naming the process that holds it still after `patience` seconds.

        A process that has just died may hold it a moment longer: its last threads, or a child between fork and exec,
        still have the descriptor.
        """
        try:
            fd = os.open(self._state.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateDirError(f"cannot use {self._state.lock_file}: {fault(error)}") from error
        try:
            _lock(fd, patience)
        except OSError as error:
            os.close(fd)
            owner = self._state.lock_owner()
            who = f"pid {owner.pid} on {owner.host}" if owner else "another process"
            down = f"llmgw down --state {shlex.quote(str(self._state.root))}"
            raise StateDirError(
                f"{self._state.root} is in use by {who}: end it with `{down}`, or name another directory with --state"
            ) from error
        owner = LockOwner(os.getpid(), socket.gethostname(), identity)
        self._fd = fd
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, msgspec.json.encode(owner), 0)
        except OSError as error:
            self.release()
            raise StateDirError(f"cannot write {self._state.lock_file}: {error.strerror}") from error

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lock(fd: int, patience: float) -> None:
    """Raises OSError when it is still held after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.02)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` whole: a reader sees the old bytes or the new, also after a power cut. Raises OSError."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
