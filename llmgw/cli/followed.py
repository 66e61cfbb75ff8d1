"""The catalog that a daemon follows, at a revision: read here where its repository is, else by the daemon."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmgw.catalog.source import Source
    from llmgw.catalog.spec import Catalog
    from llmgw.cli.client import AdminClient


def is_here(source: str | None) -> bool:
    """Whether this machine has what a daemon follows as a path."""
    return source is not None and Path(source).exists()


def read_here(path: Path) -> "Source":
    """A directory as it stands, its files as they are named from here; of a bare repository what its HEAD has.
    Raises CatalogUnreadable."""
    from llmgw.catalog.git import is_bare
    from llmgw.catalog.here import seen_from_here
    from llmgw.catalog.origin import Origin
    from llmgw.catalog.place import place_of

    source = place_of(Origin(where=str(path)), Path()).read()
    return source if is_bare(path) else seen_from_here(path, source)


def ask_for(client: "AdminClient", revision: str | None) -> "Catalog":
    """As the daemon reads it. Raises CatalogInvalid, and what asking raises."""
    from llmgw.admin.syncs import CatalogAnswer
    from llmgw.errors import CatalogInvalid, Problem

    params = {} if revision is None else {"revision": revision}
    answer = client.get("catalog", CatalogAnswer, params)
    if answer.catalog is None:
        raise CatalogInvalid([Problem(p.file, p.line, p.column, p.path, p.message) for p in answer.problems])
    return answer.catalog
