"""What a cache entry holds: `manifest.json` beside its files, and when it was last wanted."""

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from llmgw.statedir import write_atomic
from llmgw.units import Wall
from llmgw.weights import split
from llmgw.weights.gguf import Scalar

MANIFEST: Final = "manifest.json"
LAST_WANTED: Final = "last_wanted"
PINNED: Final = "pinned"
FILES: Final = "files"
VERSION: Final = 1

MOST_FILES: Final = 4096
_LONGEST_PATH: Final = 1000
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_LONGEST_TEXT: Final = 200
"""Longer metadata, chat templates above all, says nothing of memory and would travel in every node report."""


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str  #: relative to the entry
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`v` is the format's version. `metadata`: the short scalars of a GGUF header, or what a folder's headers tell."""

    v: int = VERSION
    source: str
    files: tuple[ManifestFile, ...]
    licence: str | None = None
    fetched_at: float
    metadata: dict[str, str | int | float] = {}
    folder: str | None = None  #: what an engine is given is this directory below FILES; None: the first file

    @property
    def main(self) -> str:
        """What an engine is given, relative to the entry."""
        if self.folder is None:
            return self.files[0].path
        return f"{FILES}/{self.folder}" if self.folder else FILES

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def trouble(self) -> str | None:
        """Why it cannot be the manifest of anything: asked of one that came from elsewhere. None: it can."""
        paths = {file.path for file in self.files}
        if not 0 < len(paths) <= MOST_FILES or len(paths) < len(self.files):
            return f"names {len(self.files)} files, or one twice"
        for file in self.files:
            if not is_safe(file.path) or file.size < 0 or _SHA256.fullmatch(file.sha256) is None:
                return f"names {file.path!r}, which is no file of an entry"
        folders = {path[:at] for path in paths for at, char in enumerate(path) if char == "/"}
        if both := paths & folders:
            return f"has {min(both)!r} as a file and as a directory"
        if self.folder is not None and self.main not in folders:
            return f"has the model in {self.folder!r}, where none of its files is"
        return None


def is_safe(path: str) -> bool:
    """Whether it names a file below an entry's files, and nothing else, on any system."""
    parts = path.split("/")
    return (
        len(parts) >= 2
        and parts[0] == FILES
        and path.isprintable()
        and len(path) <= _LONGEST_PATH
        and all(part not in ("", ".", "..") and len(part.encode(errors="replace")) <= 255 for part in parts)
    )


def write(entry: Path, manifest: Manifest) -> None:
    """Raises OSError."""
    write_atomic(entry / MANIFEST, msgspec.json.encode(manifest, order="deterministic") + b"\n")


def read(entry: Path) -> Manifest | None:
    """None: there is none that this version can read, so the entry is nothing to rely on."""
    try:
        manifest = msgspec.json.decode((entry / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None
    paths = [*(file.path for file in manifest.files), manifest.folder or "."]
    inside = all(not path.startswith("/") and ".." not in path.split("/") for path in paths)
    return manifest if manifest.v <= VERSION and manifest.files and inside else None


def is_complete(entry: Path, manifest: Manifest) -> bool:
    """Every file is there at its size. Contents were checked before the entry came to be."""
    for file in manifest.files:
        try:
            stat = os.stat(entry / file.path, follow_symlinks=False)
        except OSError:
            return False
        if stat.st_size != file.size:
            return False
    return True


def stamp_wanted(entry: Path, now: Wall) -> None:
    """Raises OSError."""
    write_atomic(entry / LAST_WANTED, f"{now:.0f}\n".encode())


def read_wanted(entry: Path) -> Wall | None:
    """None: never stamped."""
    try:
        return Wall(float((entry / LAST_WANTED).read_text()))
    except (OSError, ValueError):
        return None


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    by: str
    at: float


def pin(entry: Path, by: str, now: Wall) -> None:
    """Raises OSError."""
    write_atomic(entry / PINNED, msgspec.json.encode(Pin(by=by, at=now)) + b"\n")


def unpin(entry: Path) -> None:
    """Idempotent. Raises OSError."""
    (entry / PINNED).unlink(missing_ok=True)


def pinned_by(entry: Path) -> str | None:
    """None: nobody pinned it. A pin that cannot be read is one."""
    try:
        return msgspec.json.decode((entry / PINNED).read_bytes(), type=Pin).by
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        return "someone"


def metadata_of(path: Path) -> dict[str, Scalar]:
    """The short scalars of a GGUF header and what its tensors take, over all parts; empty for any other file.

    Raises OSError.
    """
    try:
        found = split.metadata(split.parts(path))
    except ValueError:
        return {}
    return {key: value for key, value in found.items() if not isinstance(value, str) or len(value) <= _LONGEST_TEXT}
