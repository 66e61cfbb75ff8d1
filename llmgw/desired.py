"""How many replicas of each model should run now, and why. Pure."""

from llmgw.catalog.spec import Catalog
from llmgw.plan import Wish


def desired(catalog: Catalog, *, stopped: bool) -> tuple[Wish, ...]:
    """A wish for every model, in name order: none while the operator's switch is thrown, else one each."""
    if stopped:
        return tuple(Wish(model=name, count=0, why="stopped by the operator") for name in sorted(catalog.models))
    return tuple(Wish(model=name, count=1, why="in the catalog") for name in sorted(catalog.models))
