"""Takes entries out of an archive into a cache: hashed on the way, and published whole or not at all."""

import hashlib
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from llmgw.statedir import sync_directory
from llmgw.units import Bytes, Wall, format_bytes
from llmgw.weights import manifest, partial
from llmgw.weights.archive import Archive, ArchiveRefused, Packed
from llmgw.weights.fetch import publish
from llmgw.weights.writing import Writing

Told = Callable[[int], None]
"""Bytes that were taken since it was called last."""


def check_room(root: Path, archive: Archive, held: Collection[str], reserve: Bytes) -> None:
    """Before the first byte. `held`: entries that are here already. Raises ArchiveRefused."""
    need = sum(packed.manifest.size for packed in archive.index.entries if packed.entry not in held)
    free = max(0, shutil.disk_usage(root).free - reserve)
    if need > free:
        raise ArchiveRefused(
            f"no room in {root}: the archive takes {format_bytes(need)}, {format_bytes(free)} is free beyond the "
            f"reserve of {format_bytes(reserve)}; free some space, or import into another --cache"
        )


def take(root: Path, archive: Archive, packed: Packed, now: Wall, told: Told) -> None:
    """One entry. Where another process publishes the same one meanwhile, that is as well. Blocks.

    Raises ArchiveRefused where its content is not what the archive's index says, WeightsRefused, OSError.
    """
    directory = partial.create(root)
    try:
        entry = directory / "entry"
        for number, file in enumerate(packed.manifest.files):
            _take_file(archive, packed, number, entry / file.path, told)
        for folder in {(entry / file.path).parent for file in packed.manifest.files}:
            sync_directory(folder)
        manifest.write(entry, packed.manifest)
        manifest.stamp_wanted(entry, now)  # nothing that was brought here by hand is collected at once
        publish(directory, root / packed.entry)
    finally:
        partial.remove(directory)


def _take_file(archive: Archive, packed: Packed, number: int, target: Path, told: Told) -> None:
    file = packed.manifest.files[number]
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        archive.open(packed, number) as source,
        target.open("xb", buffering=0) as opened,
        Writing(opened.fileno(), at=0, digest=hashlib.sha256()) as out,
    ):
        while out.at <= file.size:
            room = out.room()
            count = source.readinto(room)  # type: ignore[attr-defined]
            out.put(room, count)
            told(count)
            if not count:
                break
        out.finish()
        if out.at != file.size or out.digest.hexdigest() != file.sha256:
            raise ArchiveRefused(
                f"{packed.entry}/{file.path} ({packed.manifest.source}) is damaged in the archive: it was changed or "
                "cut short on the way; copy it again, or export it again"
            )
