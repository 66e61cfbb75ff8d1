"""The last catalogs that were in force, on disk: to go back to one also where no git has it."""

import contextlib
import os
from pathlib import Path
from typing import Final

from llmgw.catalog.live import load_last_good
from llmgw.catalog.spec import Catalog
from llmgw.ids import Digest

MOST: Final = 10  #: catalogs kept beside the last good one


def _directory(last_good: Path) -> Path:
    return last_good.parent / "earlier"


def keep(last_good: Path, digest: Digest) -> None:
    """Keep what lies at `last_good`, the catalog of that digest, before it is replaced. Costs a name, no copy.

    Best effort: what cannot be kept can still be had from git.
    """
    directory = _directory(last_good)
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = directory / f"{digest}.json"
        kept.unlink(missing_ok=True)
        os.link(last_good, kept)
        os.utime(kept)
        aged = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in aged[:-MOST]:
            path.unlink(missing_ok=True)


def find(last_good: Path, digest: Digest) -> Catalog | None:
    """The catalog of that digest: the last good one, or one kept before."""
    for path in (last_good, _directory(last_good) / f"{digest}.json"):
        catalog, _ = load_last_good(path)
        if catalog is not None and catalog.digest == digest:
            return catalog
    return None
