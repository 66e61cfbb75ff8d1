"""`file://` and plain paths: what is here already, read where it lies. Never copied, cached or collected."""

import asyncio
import os
from pathlib import Path

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused
from llmgw.weights import naming, split
from llmgw.weights.api import Description, Fetched, RemoteFile, WeightSource, Work
from llmgw.weights.folder import Folders


class InPlace(WeightSource):
    schemes = frozenset({"file"})
    in_place = True

    def canonical(self, text: str) -> str:
        return naming.canonical(text)

    async def describe(self, spec: WeightsSpec) -> Description:
        return await asyncio.to_thread(_describe, Path(naming.local_path(naming.canonical(spec.source))))

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        raise WeightsRefused(f"{spec.source} is used where it lies: it is not fetched")


def problem(path: Path, folders: Folders) -> str | None:
    """What keeps it from being used; None: nothing."""
    try:
        return _problem(path, folders)
    except OSError as error:  # a directory above it may be closed to this user
        return f"{path} cannot be read by this user: {error.strerror}"


def _problem(path: Path, folders: Folders) -> str | None:
    if not path.exists():
        return f"{path} does not exist"
    if path.is_dir():
        return folders.look(path).problem
    if not path.is_file():
        return f"{path} is neither a file nor a directory"
    return split.problem(path)


def _describe(path: Path) -> Description:
    """Raises WeightsRefused."""
    if (why := problem(path, Folders())) is not None:
        raise WeightsRefused(f"{why}: correct the source, or put the file there")
    if not path.is_dir():
        files = tuple(RemoteFile(path=part.name, size=part.stat().st_size) for part in split.parts(path))
        return Description(files=files)
    found = sorted(Path(top, name) for top, _, names in os.walk(path) for name in names)
    return Description(
        files=tuple(RemoteFile(path=str(each.relative_to(path)), size=each.stat().st_size) for each in found),
        folder="",
    )
