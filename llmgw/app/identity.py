"""Which cluster a process belongs to, and that it holds its secret. The store knows the first, never the second."""

import hashlib
import hmac
import os
import secrets
import shlex
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from llmgw.app.ending import Say
from llmgw.clock import Clock
from llmgw.errors import RetryableError, StaleRevision, StateDirError, TerminalError
from llmgw.statedir import StateDir
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode, encode
from llmgw.store.values import ClusterIdentity

T = TypeVar("T")

SHORTEST: Final = 32
"""Characters of a secret. What is derived from it lies in the store and in engines' keys: it must not be guessed."""

RETRY: Final = 1.0
"""Seconds between two looks for what is not there yet."""


def read_secret(file: Path) -> bytes:
    """Raises StateDirError where it cannot be read, others may read it, or it is none."""
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            secret = opened.read(4096).strip()
    except OSError as error:
        raise StateDirError(f"cannot read the secret file {file}: {error.strerror}") from error
    if mode & 0o077:
        raise StateDirError(f"others may read the secret file {file}: `chmod 600 {shlex.quote(str(file))}`")
    if len(secret) < SHORTEST or not secret.isascii() or any(byte < 33 for byte in secret):
        raise StateDirError(
            f"{file} holds no cluster secret ({SHORTEST} printable characters or more): copy `secret` from the state "
            "directory of the first controller"
        )
    return secret


def given_secret(state: StateDir, file: Path | None, *, make: bool) -> bytes:
    """From `file`, else from the state directory, where one is made if `make`. Raises StateDirError."""
    if file is not None:
        return read_secret(file)
    if make or (state.root / "secret").exists():
        return state.secret()
    raise StateDirError(
        "the cluster's secret is needed: copy `secret` from the first controller's state directory to this machine "
        "(mode 0600), and name it with --secret-file or LLMGW_SECRET_FILE"
    )


def admin_token(secret: bytes) -> str:
    """What lets into the admin API of each of the fleet's processes."""
    return _derived(secret, "admin")


def _derived(secret: bytes, what: str) -> str:
    return hmac.new(secret, f"llmgw {what}".encode(), hashlib.sha256).hexdigest()[:32]


async def join(store: Store, state: StateDir, secret: bytes, clock: Clock, *, found: bool, say: Say) -> str:
    """The cluster's id, from the store; who may `found` it makes it where there is none, others wait.

    Raises StateDirError where the state directory is of another cluster, or the secret is not this one's.
    """
    if found:
        await until_there(lambda: _found(store, state, secret, clock), clock, say)
    identity = await until_there(lambda: _read(store), clock, say, "waiting for a controller to found the cluster")
    if not hmac.compare_digest(identity.proof, _derived(secret, f"proof of {identity.id}")):
        raise StateDirError(
            "this is not the secret of the cluster in that store: copy `secret` from the state directory of its first "
            "controller, and name the copy with --secret-file"
        )
    state.keep_secret(secret)
    known = state.cluster_id() if _cached(state).exists() else state.adopt_cluster(identity.id)
    if known != identity.id:
        raise StateDirError(
            f"{state.root} belongs to the cluster {known}, the store to {identity.id}: name another directory with "
            "--state, or the store of that cluster with --store"
        )
    return identity.id


async def _found(store: Store, state: StateDir, secret: bytes, clock: Clock) -> bool:
    """A directory's own id is the cluster's where it has one: its weights and engines stay its own."""
    if await store.get(keys.CLUSTER) is None:
        id = state.cluster_id() if _cached(state).exists() else secrets.token_hex(8)
        identity = ClusterIdentity(id=id, proof=_derived(secret, f"proof of {id}"), at=clock.now().wall)
        try:
            await store.put(keys.CLUSTER, encode(identity), if_revision=0)
        except StaleRevision:  # another controller was quicker
            pass
    return True


def _cached(state: StateDir) -> Path:
    return state.root / "cluster-id"


async def _read(store: Store) -> ClusterIdentity | None:
    entry = await store.get(keys.CLUSTER)
    return None if entry is None else decode(entry.value, ClusterIdentity, where=entry.key)


async def until_there(ask: Callable[[], Awaitable[T | None]], clock: Clock, say: Say, absent: str = "") -> T:
    """The first answer that is something. While the store is away, or has none, that is said once."""
    said = ""
    while True:
        try:
            answer = await ask()
            if answer is not None:
                return answer
            why = absent
        except TerminalError:
            raise
        except RetryableError as error:
            why = f"waiting for the store: {error}"
        if why and why != said:
            say(why)
            said = why
        await clock.sleep(RETRY)
