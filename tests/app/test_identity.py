"""Which cluster a process belongs to, and that it holds its secret."""

from pathlib import Path

import pytest

from llmgw.app.identity import admin_token, given_secret, join, read_secret
from llmgw.clock import SystemClock
from llmgw.errors import StateDirError
from llmgw.statedir import StateDir
from llmgw.store import keys
from llmgw.store.memory import MemoryStore

SECRET = b"0123456789abcdef0123456789abcdef"


def state(directory: Path) -> StateDir:
    made = StateDir(directory)
    made.prepare()
    return made


async def joined(store: MemoryStore, where: StateDir, secret: bytes = SECRET, *, found: bool = False) -> str:
    return await join(store, where, secret, SystemClock(), found=found, say=lambda _: None)


def secret_file(directory: Path, text: bytes, mode: int = 0o600) -> Path:
    file = directory / "secret-file"
    file.write_bytes(text)
    file.chmod(mode)
    return file


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(StateDirError, match="chmod 600"):
        read_secret(secret_file(tmp_path, SECRET, mode))


@pytest.mark.parametrize("text", [b"", b"short", b"0" * 31, b"\xff" * 40, b"two words that are long enough, yes"])
def test_what_is_no_secret_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(StateDirError, match="no cluster secret"):
        read_secret(secret_file(tmp_path, text))


def test_a_secret_file_is_read_without_its_line_end(tmp_path: Path) -> None:
    assert read_secret(secret_file(tmp_path, SECRET + b"\n")) == SECRET


def test_only_a_controller_makes_a_secret(tmp_path: Path) -> None:
    with pytest.raises(StateDirError, match="--secret-file"):
        given_secret(state(tmp_path / "agent"), None, make=False)
    made = given_secret(state(tmp_path / "controller"), None, make=True)
    assert given_secret(state(tmp_path / "controller"), None, make=False) == made


async def test_the_first_controller_founds_the_cluster_and_others_join_it(tmp_path: Path) -> None:
    store = MemoryStore()
    id = await joined(store, state(tmp_path / "first"), found=True)
    assert await joined(store, state(tmp_path / "second"), found=True) == id
    assert await joined(store, state(tmp_path / "agent")) == id
    assert state(tmp_path / "agent").cluster_id() == id


async def test_a_state_directory_that_has_an_id_gives_it_to_the_cluster(tmp_path: Path) -> None:
    own = state(tmp_path / "state").cluster_id()
    assert await joined(MemoryStore(), state(tmp_path / "state"), found=True) == own


async def test_a_directory_of_another_cluster_is_refused_naming_both(tmp_path: Path) -> None:
    store = MemoryStore()
    id = await joined(store, state(tmp_path / "first"), found=True)
    other = state(tmp_path / "other")
    own = other.cluster_id()
    with pytest.raises(StateDirError, match=f"belongs to the cluster {own}, the store to {id}"):
        await joined(store, other)


async def test_another_secret_is_refused_and_not_kept(tmp_path: Path) -> None:
    store = MemoryStore()
    await joined(store, state(tmp_path / "first"), found=True)
    for found in (True, False):
        with pytest.raises(StateDirError, match="not the secret of the cluster"):
            await joined(store, state(tmp_path / "other"), b"x" * 40, found=found)
    assert not (tmp_path / "other" / "secret").exists()


async def test_the_store_never_has_the_secret_nor_the_token(tmp_path: Path) -> None:
    store = MemoryStore()
    await joined(store, state(tmp_path / "first"), found=True)
    entry = await store.get(keys.CLUSTER)
    assert entry is not None
    assert SECRET not in entry.value
    assert admin_token(SECRET).encode() not in entry.value


async def test_the_secret_is_kept_for_nobody_else_to_read(tmp_path: Path) -> None:
    store = MemoryStore()
    await joined(store, state(tmp_path / "first"), found=True)
    await joined(store, state(tmp_path / "agent"))
    kept = tmp_path / "agent" / "secret"
    assert kept.read_bytes().strip() == SECRET
    assert kept.stat().st_mode & 0o777 == 0o600
