"""The embedded store's durable keys on disk: one file each, replaced atomically; several at once, all or none."""

import secrets
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec
import structlog

from llmgw.errors import RetryableError
from llmgw.statedir import sync_directory, write_atomic
from llmgw.store.api import Delete, Put

log = structlog.get_logger("llmgw.store")

_JOURNAL: Final = ".txn"
"""The renames of a transaction that is committed but perhaps not carried out: [staged name or null, file name]."""

_LONGEST_NAME: Final = 200
"""File systems take 255 bytes. A longer key's file is named by its hash and begins with the key on a line."""


class DurableKeys:
    """Files of one directory. Nothing is cached."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> dict[str, bytes]:
        """All keys, in order of their files' names. A file that cannot be read is reported and left where it is.

        Raises OSError when the directory cannot be used.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._finish_interrupted()
        found: dict[str, bytes] = {}
        for path in sorted(self._directory.iterdir()):
            try:
                if path.name.startswith("."):  # an unfinished write
                    path.unlink(missing_ok=True)
                    continue
                key, value = _read(path)
            except OSError as error:
                log.error("durable_key_unreadable", file=str(path), error=str(error))
                continue
            found[key] = value
        return found

    def write(self, writes: Sequence[Put | Delete]) -> None:
        """Carry out all writes, or none, also through a power cut. Raises RetryableError (disk full, say)."""
        staged: list[tuple[str | None, str]] = []
        try:
            for write in writes:
                staged.append((self._stage(write), _name(write.key)))
            if len(staged) > 1:
                write_atomic(self._directory / _JOURNAL, msgspec.json.encode(staged))
            self._carry_out(staged)
            if len(staged) > 1:
                (self._directory / _JOURNAL).unlink()
                sync_directory(self._directory)
        except OSError as error:
            if not (self._directory / _JOURNAL).exists():
                for name, _ in staged:
                    if name is not None:
                        (self._directory / name).unlink(missing_ok=True)
            raise RetryableError(
                f"cannot keep {', '.join(write.key for write in writes)} in {self._directory}: {error.strerror}"
            ) from error

    def _stage(self, write: Put | Delete) -> str | None:
        if isinstance(write, Delete):
            return None
        name, staged = _name(write.key), f".staged.{secrets.token_hex(8)}"
        head = f"{quote(write.key)}\n".encode() if name.startswith("~") else b""
        write_atomic(self._directory / staged, head + write.value)
        return staged

    def _carry_out(self, staged: Sequence[tuple[str | None, str]]) -> None:
        for source, target in staged:
            if source is None:
                (self._directory / target).unlink(missing_ok=True)
            elif (self._directory / source).exists():  # else this part was done before the interruption
                (self._directory / source).replace(self._directory / target)
        sync_directory(self._directory)

    def _finish_interrupted(self) -> None:
        journal = self._directory / _JOURNAL
        try:
            staged = msgspec.json.decode(journal.read_bytes(), type=list[tuple[str | None, str]])
        except FileNotFoundError:
            return
        except msgspec.MsgspecError as error:
            log.error("journal_unreadable", file=str(journal), error=str(error))
            return
        self._carry_out(staged)
        journal.unlink()
        sync_directory(self._directory)


def _name(key: str) -> str:
    name = quote(key, safe="")
    return name if len(name) <= _LONGEST_NAME else f"~{sha256(key.encode()).hexdigest()}"


def _read(path: Path) -> tuple[str, bytes]:
    data = path.read_bytes()
    if not path.name.startswith("~"):
        return unquote(path.name), data
    head, _, value = data.partition(b"\n")
    return unquote(head.decode(errors="replace")), value
