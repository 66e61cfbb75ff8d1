"""What files that lie in a partial directory are going to be, as another node's manifest says.

So the source itself can go on with what a peer began. A promise proves nothing; the checksum of the whole does.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from llmgw.statedir import write_atomic
from llmgw.weights.manifest import ManifestFile

NAME: Final = "promised.json"


def write(directory: Path, files: Iterable[ManifestFile]) -> None:
    """Raises OSError."""
    write_atomic(directory / NAME, msgspec.json.encode(tuple(files)))


def read(directory: Path) -> Mapping[str, ManifestFile]:
    """By path in the entry. Empty where nothing was promised."""
    try:
        found = msgspec.json.decode((directory / NAME).read_bytes(), type=tuple[ManifestFile, ...])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {file.path: file for file in found}
