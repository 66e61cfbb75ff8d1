"""What becomes of the parameters of a request, by the name that it asks for. Pure.

In this order: `strip_params` takes some away, `set_params` overrides what the client sent, `default_params` fills in
what it left out. A variant's are on top of its model's. Only top-level members of JSON bodies change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmgw.catalog.spec import ModelSpec, VariantSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Of one name."""

    strip: frozenset[str] = frozenset()
    set: Mapping[str, Any] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)


def params_of(model: ModelSpec) -> dict[str, Params]:
    """By name, alias and variant; those of which nothing is to become are left out."""
    if not (model.variants or model.strip_params or model.set_params or model.default_params):
        return {}  # as most; of ten thousand models this is asked while requests wait
    own = _over(None, model)
    found = dict.fromkeys((model.name, *model.aliases), own) if own is not None else {}
    for variant in model.variants:
        mine = _over(own, variant)
        if mine is not None:
            found[variant.name] = mine
    return found


def _over(base: Params | None, top: ModelSpec | VariantSpec) -> Params | None:
    base = base or Params()
    made = Params(
        strip=base.strip.union(top.strip_params),
        set={**base.set, **top.set_params},
        default={**base.default, **top.default_params},
    )
    return made if made.strip or made.set or made.default else None
