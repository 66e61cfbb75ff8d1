"""What of a cache other nodes may read: whole entries, each file by its number in the entry's manifest.

No path is ever taken from whoever asks, and no link is followed on the way to a file.
"""

import os
import stat
from dataclasses import dataclass
from typing import Final

from llmgw.weights import naming
from llmgw.weights.cache import Cache
from llmgw.weights.inside import hold
from llmgw.weights.manifest import Manifest, ManifestFile

CHUNK: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class OpenFile:
    """To be closed. What is open can be read to its end, whatever becomes of the entry."""

    fd: int
    file: ManifestFile

    def read(self, offset: int) -> bytes:
        """Blocks. Raises OSError."""
        return os.pread(self.fd, CHUNK, offset)

    def close(self) -> None:
        os.close(self.fd)


class Shelf:
    """Of one cache. Its methods block."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def manifest(self, entry: str) -> Manifest | None:
        """None: there is no such entry, or it is not whole."""
        return self._cache.held(entry) if naming.is_entry(entry) else None

    def open(self, entry: str, number: int) -> OpenFile | None:
        """None where `manifest` is, or has no such file, or what lies there is no file of that size."""
        found = self.manifest(entry)
        if found is None or not 0 <= number < len(found.files):
            return None
        file = found.files[number]
        folder, _, name = file.path.rpartition("/")
        try:
            with hold(self._cache.root) as top, top.enter(entry) as inside, inside.enter_below(folder) as parent:
                fd = parent.open_file(name)
        except OSError:
            return None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
            os.close(fd)
            return None
        return OpenFile(fd, file)
