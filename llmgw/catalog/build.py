"""Documents that passed every rule to values of `spec`. What a document leaves out keeps the value's own default."""

from collections.abc import Callable, Mapping
from typing import Any

from llmgw.catalog.schemas import to_bytes, to_seconds
from llmgw.catalog.spec import (
    BudgetSpec,
    ClusterSpec,
    Defaults,
    GatewaySettings,
    ModelSpec,
    NodeSpec,
    ProfileSpec,
    RecoverySettings,
    ReserveSpec,
    SecretRef,
    WeightsSettings,
    WeightsSpec,
)

Canonical = Callable[[str], str]


def build_model(value: Mapping[str, Any], canonical: Canonical) -> ModelSpec:
    """Sources go through `canonical`. The document has its kind's shape; anything else is a bug here."""
    given = _given(value, name=str, description=str, aliases=tuple, labels=dict, priority=int, pinned=bool)
    return ModelSpec(**given, profiles=tuple(build_profile(profile, canonical) for profile in value["profiles"]))


def build_cluster(value: Mapping[str, Any]) -> ClusterSpec:
    return ClusterSpec(
        **_given(value, name=str, gateway=_gateway, defaults=_defaults, recovery=_recovery, weights=_weights_settings),
        nodes={name: _node(node) for name, node in sorted(value.get("nodes", {}).items())},
    )


def _given(value: Mapping[str, Any], **convert: Callable[[Any], Any]) -> dict[str, Any]:
    """The keys that are there, converted."""
    return {key: make(value[key]) for key, make in convert.items() if key in value}


def build_profile(value: Mapping[str, Any], canonical: Canonical) -> ProfileSpec:
    """One profile of a Model document."""
    given = _given(
        value, name=str, engine=str, context=int, parallel=int, devices=int, memory=to_bytes, host_memory=to_bytes,
        options=dict, args=tuple, wrapper=tuple, env=_env, start_timeout=to_seconds,
    )  # fmt: skip
    given |= {role: _weights(value[role], canonical) for role in ("weights", "draft") if role in value}
    if "files" in value:
        given["files"] = {role: _weights(spec, canonical) for role, spec in sorted(value["files"].items())}
    return ProfileSpec(**given)


def _weights(value: Mapping[str, Any], canonical: Canonical) -> WeightsSpec:
    return WeightsSpec(source=canonical(value["source"]), **_given(value, sha256=str.lower, size=to_bytes))


def _env(value: Mapping[str, Any]) -> dict[str, str | SecretRef]:
    return {name: text if isinstance(text, str) else SecretRef(**text) for name, text in value.items()}


def _gateway(value: Mapping[str, Any]) -> GatewaySettings:
    return GatewaySettings(**_given(value, cold_start_timeout=to_seconds, max_body=to_bytes))


def _defaults(value: Mapping[str, Any]) -> Defaults:
    return Defaults(**_given(value, start_timeout=to_seconds, drain_timeout=to_seconds))


def _recovery(value: Mapping[str, Any]) -> RecoverySettings:
    return RecoverySettings(
        **_given(value, backoff=to_seconds, backoff_cap=to_seconds, stable=to_seconds, quarantine_retry=to_seconds)
    )


def _weights_settings(value: Mapping[str, Any]) -> WeightsSettings:
    return WeightsSettings(**_given(value, keep_revisions=int, min_age=to_seconds))


def _node(value: Mapping[str, Any]) -> NodeSpec:
    return NodeSpec(**_given(value, budget=_budget, reserve=_reserve))


def _budget(value: Mapping[str, Any]) -> BudgetSpec:
    return BudgetSpec(**_given(value, host=to_bytes))


def _reserve(value: Mapping[str, Any]) -> ReserveSpec:
    return ReserveSpec(**_given(value, host=to_bytes, disk=to_bytes))
