"""Whether the catalog in force is surely what the operator wants now. Pure."""

from llmgw.store.values import Applied, CatalogStatus


def why_stale(applied: Applied | None, status: CatalogStatus | None) -> str | None:
    """Why it is not, or None when it is."""
    told = status or CatalogStatus(source="")
    if applied is None:
        return "no catalog is in force"
    if told.error is not None:
        return "the catalog's source cannot be read"
    if told.problems:
        return "the newest catalog is invalid"
    if told.attempted != applied.revision:
        return "the newest catalog is not applied"
    return None
