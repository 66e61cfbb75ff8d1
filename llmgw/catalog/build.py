"""Documents that passed every rule to values of `spec`. What a document leaves out keeps the value's own default."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llmgw.catalog.files import source_text
from llmgw.catalog.levels import LEVELS
from llmgw.catalog.schemas import to_bytes, to_seconds
from llmgw.catalog.spec import (
    AffinitySpec,
    BudgetSpec,
    ClusterSpec,
    Common,
    Defaults,
    ExternalSpec,
    GatewaySettings,
    ModelSpec,
    NodeSpec,
    NotifyKind,
    NotifySpec,
    Occasion,
    PlacementSpec,
    ProfileSpec,
    RecoverySettings,
    ReserveSpec,
    ScalingSettings,
    ScalingSpec,
    SecretRef,
    SupervisionSettings,
    Sync,
    VariantSpec,
    WeightsSettings,
    WeightsSpec,
    Window,
)
from llmgw.catalog.windows import DAYS, minutes

Canonical = Callable[[str], str]

_PARAMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "strip_params": tuple, "set_params": dict, "default_params": dict,
}  # fmt: skip


def build_model(value: Mapping[str, Any], canonical: Canonical) -> ModelSpec:
    """Sources go through `canonical`. The document has its kind's shape; anything else is a bug here."""
    given = _given(
        value, name=str, description=str, aliases=tuple, labels=dict, priority=int, pinned=bool, suspend=bool,
        protect=bool, fallback=str, scaling=_scaling, placement=_placement, groups=tuple,
        affinity=_affinity, stream_comments=bool,
    )  # fmt: skip
    given |= _given(value, external=_external, variants=_variants, **_PARAMS)
    profiles = tuple(build_profile(profile, canonical) for profile in value.get("profiles", ()))
    return ModelSpec(**given, profiles=profiles)


def build_cluster(value: Mapping[str, Any]) -> ClusterSpec:
    return ClusterSpec(
        **_given(
            value,
            name=str,
            sync=Sync,
            protect=bool,
            time_zone=str,
            gateway=_gateway,
            defaults=_defaults,
            scaling=_scaling_settings,
            recovery=_recovery,
            supervision=_supervision,
            weights=_weights_settings,
            notify=_notify,
        ),
        nodes={name: _node(node) for name, node in sorted(value.get("nodes", {}).items())},
    )


def _given(value: Mapping[str, Any], **convert: Callable[[Any], Any]) -> dict[str, Any]:
    """The keys that are there, converted."""
    return {key: make(value[key]) for key, make in convert.items() if key in value}


def build_profile(value: Mapping[str, Any], canonical: Canonical) -> ProfileSpec:
    """One profile of a Model document, whose levels' blocks are whole (`levels.expand`)."""
    given = _given(
        value, name=str, engine=str, context=int, parallel=int, devices=int, exclusive=bool, weight=float, tier=int,
        max_requests=int,
        memory=to_bytes, host_memory=to_bytes, options=dict, args=tuple, wrapper=tuple, env=_env,
        start_timeout=to_seconds,
    )  # fmt: skip
    roles = {role: value[role] for role in ("weights", "draft") if role in value and "source" in value[role]}
    given |= {role: _weights(spec, canonical) for role, spec in roles.items()}
    if "model" in value.get("draft", {}):
        given["draft_model"] = value["draft"]["model"]
    if "files" in value:
        given["files"] = {role: _weights(spec, canonical) for role, spec in sorted(value["files"].items())}
    given |= {level: build_profile(value[level], canonical) for level in LEVELS if level in value}
    return ProfileSpec(**given)


def _external(value: Mapping[str, Any]) -> ExternalSpec:
    given = _given(value, url=_base_url, model=str, max_requests=int, api_key=lambda ref: SecretRef(**ref))
    return ExternalSpec(**given)


def _affinity(value: Mapping[str, Any]) -> AffinitySpec:
    return AffinitySpec(**_given(value, by=_commons, header=str, prefix=int, bound=float))


def _commons(value: Sequence[str]) -> tuple[Common, ...]:
    return tuple(map(Common, value))


def _base_url(text: str) -> str:
    url = text.rstrip("/")
    return url if "/" in url.partition("://")[2] else f"{url}/v1"


def _variants(value: Sequence[Mapping[str, Any]]) -> tuple[VariantSpec, ...]:
    return tuple(VariantSpec(**_given(each, name=str, **_PARAMS)) for each in value)


def _scaling(value: Mapping[str, Any]) -> ScalingSpec:
    on_demand = value.get("on_demand", False)
    least = value.get("min", 0 if on_demand else 1)
    return ScalingSpec(
        min=least,
        max=value.get("max", max(least, 1)),
        on_demand=on_demand,
        idle_timeout=to_seconds(value.get("idle_timeout", 0)) or None,
        windows=tuple(_window(each, least) for each in value.get("schedule", ())),
    )


def _window(value: Mapping[str, Any], least: int) -> Window:
    """`least`: the model's own, for a window that gives none."""
    return Window(
        days=tuple(sorted(map(DAYS.index, value.get("days", DAYS)))),
        start=minutes(value["from"]),
        end=minutes(value["to"]),
        min=value.get("min", least),
        max=value.get("max", 0),
    )


def _placement(value: Mapping[str, Any]) -> PlacementSpec:
    return PlacementSpec(**_given(value, pools=tuple, nodes=tuple, labels=dict, spread=bool))


def _weights(value: Mapping[str, Any], canonical: Canonical) -> WeightsSpec:
    given = _given(value, sha256=str.lower, size=to_bytes, token=lambda ref: SecretRef(**ref), insecure=bool)
    return WeightsSpec(source=canonical(source_text(value)), **given)


def _env(value: Mapping[str, Any]) -> dict[str, str | SecretRef]:
    return {name: text if isinstance(text, str) else SecretRef(**text) for name, text in value.items()}


def _gateway(value: Mapping[str, Any]) -> GatewaySettings:
    times = _given(value, cold_start_timeout=to_seconds, queue_timeout=to_seconds, slow_start=to_seconds)
    return GatewaySettings(**times, **_given(value, max_body=to_bytes, max_waiting=int))


def _defaults(value: Mapping[str, Any]) -> Defaults:
    return Defaults(**_given(value, start_timeout=to_seconds, drain_timeout=to_seconds, idle_timeout=to_seconds))


def _scaling_settings(value: Mapping[str, Any]) -> ScalingSettings:
    return ScalingSettings(
        **_given(value, up_waiting=float, up_after=to_seconds, down_after=to_seconds, min_residency=to_seconds)
    )


def _recovery(value: Mapping[str, Any]) -> RecoverySettings:
    return RecoverySettings(
        **_given(value, backoff=to_seconds, backoff_cap=to_seconds, stable=to_seconds, quarantine_retry=to_seconds)
    )


def _supervision(value: Mapping[str, Any]) -> SupervisionSettings:
    return SupervisionSettings(**_given(value, hang_after=to_seconds, probe_every=to_seconds, node_grace=to_seconds))


def _weights_settings(value: Mapping[str, Any]) -> WeightsSettings:
    marks = _given(value, collect_above=int, collect_below=int)
    given = _given(value, keep_revisions=int, min_age=to_seconds, bandwidth=to_bytes, parallel=int)
    mirror = _given(value, mirror=bool, mirror_bandwidth=to_bytes, hub_endpoint=str)
    return WeightsSettings(**given, **marks, **mirror)


def _notify(value: Sequence[Mapping[str, Any]]) -> tuple[NotifySpec, ...]:
    return tuple(NotifySpec(**_given(each, **_OF_NOTIFY)) for each in value)


def _occasions(value: Sequence[str]) -> tuple[Occasion, ...]:
    return tuple(map(Occasion, value))


_OF_NOTIFY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "name": str, "kind": NotifyKind, "url": str, "repository": str, "token": lambda ref: SecretRef(**ref),
    "secret": lambda ref: SecretRef(**ref), "events": _occasions, "insecure": bool,
}  # fmt: skip


def _node(value: Mapping[str, Any]) -> NodeSpec:
    return NodeSpec(**_given(value, pool=str, labels=dict, budget=_budget, reserve=_reserve))


def _budget(value: Mapping[str, Any]) -> BudgetSpec:
    return BudgetSpec(**_given(value, host=to_bytes, device=to_bytes))


def _reserve(value: Mapping[str, Any]) -> ReserveSpec:
    return ReserveSpec(**_given(value, host=to_bytes, disk=to_bytes, device=to_bytes))
