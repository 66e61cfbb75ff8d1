"""What all removals from a cache share: names, what is about to go, and how a file ends."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from llmgw.errors import TerminalError
from llmgw.units import Bytes
from llmgw.weights.inside import Held, Inside, mounted_at_or_below

ENTRY: Final = re.compile(r"v1-sha256-[0-9a-f]{64}")
CORRUPT: Final = re.compile(r"corrupt-(v1-sha256-[0-9a-f]{64})-[0-9a-f]{8}")
KEPT: Final = re.compile(r"kept-(v1-sha256-[0-9a-f]{64})")
"""An unfinished download that the next one of the same source goes on with."""


class Refusal(TerminalError):
    """It stays; the text says why. Nothing was unlinked, unless it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """What is about to go. `files`: relative paths, as its manifest names them."""

    entry: str
    source: str
    size: Bytes
    files: tuple[str, ...]


@contextmanager
def looking_into(top: Inside, name: str) -> Iterator[Inside]:
    """A directory of the cache that may have to go: itself no link, and with no mount at or below it. Raises OSError,
    Refusal."""
    try:
        inside = top.enter(name)
    except FileNotFoundError as error:
        raise Refusal("it is not there") from error
    except NotADirectoryError as error:
        raise Refusal("it is a link or a file, not a directory") from error
    with inside:
        if mounts := mounted_at_or_below(inside.path()):
            raise Refusal(f"{mounts[0]} is mounted there: unmount it first")
        yield inside


def check_folder(path: str, found: os.stat_result, inside: Inside) -> None:
    """Raises Refusal."""
    if found.st_dev != inside.device:
        raise Refusal(f"another file system is mounted at {path}")


def check_file(path: str, found: os.stat_result, inside: Inside) -> None:
    """Raises Refusal."""
    if not stat.S_ISREG(found.st_mode):
        raise Refusal(f"{path} is no plain file")
    if found.st_dev != inside.device:
        raise Refusal(f"{path} is on another file system")
    if found.st_nlink != 1:
        raise Refusal(f"{path} has {found.st_nlink} names (hard links): remove the others first")


def end_file(room: Inside, inside: Inside, own: str, path: str) -> None:
    """Moved first, to the name `own`: what is looked at in the private directory is what is unlinked there. Raises
    OSError, Refusal."""
    folder, _, name = path.rpartition("/")
    try:
        with inside.enter_below(folder) as parent:
            expected: Held | None = parent.identity_of(name)
            parent.rename(name, room, own)
    except FileNotFoundError:
        expected = None  # by a process that was killed, moved or unlinked already
    try:
        found = room.stat(own)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or expected not in (None, room.identity_of(own)):
        room.rename(own, room, f"not-ours-{own}")  # or whoever finishes after a crash would take it for ours
        raise Refusal(f"{path} was exchanged for another file, which is kept as {room.path()}/not-ours-{own}")
    room.unlink(own)


def end_folders(inside: Inside, folder: str) -> None:
    """That one and those above it, where they are empty. Raises OSError."""
    while folder:
        above, _, name = folder.rpartition("/")
        try:
            with inside.enter_below(above) as parent:
                parent.rmdir(name)
        except FileNotFoundError:
            pass
        except OSError:  # another file's, or something that came meanwhile: told by whoever looks next
            return
        folder = above
