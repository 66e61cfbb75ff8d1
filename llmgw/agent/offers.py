"""What a ready engine offers to gateways, by its plugin's word. Pure."""

from dataclasses import dataclass

from llmgw.catalog.spec import ProfileSpec
from llmgw.engine.api import Engine, declared_surfaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """`slots`: requests that it works on at once; None: it takes what comes. `surfaces`: paths under /v1/ that it
    serves; None: it does not say."""

    slots: int | None = None
    surfaces: tuple[str, ...] | None = None


NOTHING_SAID = Offer()


def offer_of(engine: Engine, profile: ProfileSpec) -> Offer:
    slots = engine.request_slots(profile)
    return Offer(slots=None if slots is None else max(1, slots), surfaces=declared_surfaces(engine, profile))
