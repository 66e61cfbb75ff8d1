"""The state directory in every bad shape: a sentence that helps, never a traceback."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.errors import StateDirError
from llmgw.statedir import StateDir, StateLock, fault


def prepared(root: Path) -> StateDir:
    state = StateDir(root)
    state.prepare()
    return state


@pytest.mark.parametrize("name", ["secret", "cluster-id"])
@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"\x00\x01", None], ids=repr)
def test_a_damaged_secret_or_id_says_what_to_do(tmp_path: Path, name: str, content: bytes | None) -> None:
    state = prepared(tmp_path)
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(content)
    read: Callable[[], object] = state.secret if name == "secret" else state.cluster_id
    with pytest.raises(StateDirError, match=name):
        read()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"2", b'{"v":9}'])
def test_a_layout_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "VERSION").write_bytes(content)
    with pytest.raises(StateDirError, match=r"VERSION is damaged|reads up to 1"):
        prepared(tmp_path)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied: run this as the user that runs llmgw"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device: free space on its disk, or name"),
        (FileExistsError(errno.EEXIST, "File exists"), "File exists: name another directory with --state"),
    ],
)
def test_what_keeps_a_state_directory_from_being_used_comes_with_what_to_do(error: OSError, told: str) -> None:
    assert fault(error).startswith(told)


def test_a_file_where_the_state_directory_is_to_be_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(StateDirError, match=r"state: File exists: name another directory with --state$"):
        prepared(tmp_path / "state")


def test_a_lock_that_is_no_file_is_named(tmp_path: Path) -> None:
    state = prepared(tmp_path)
    state.lock_file.mkdir()
    with pytest.raises(StateDirError, match="lock"):
        StateLock(state).acquire("me")


@pytest.mark.parametrize("content", [b"", b"\xff", b'{"pid": 1}'])
def test_a_lock_that_a_crash_left_hinders_nobody(tmp_path: Path, content: bytes) -> None:
    state = prepared(tmp_path)
    state.lock_file.write_bytes(content)
    lock = StateLock(state)
    lock.acquire("me")
    owner = state.lock_owner()
    assert owner is not None
    assert owner.identity == "me"
    lock.release()


def test_what_was_made_once_stays(tmp_path: Path) -> None:
    assert prepared(tmp_path).secret() == prepared(tmp_path).secret()
    assert prepared(tmp_path).cluster_id() == prepared(tmp_path).cluster_id()
