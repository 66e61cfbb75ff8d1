"""Who answers for a name: the routing table, and the refusals that it gives instead. Pure.

The order of decision: no catalog yet, stopped by the operator, unknown name, a ready endpoint; then what the
controller says of the model.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from llmgw.catalog.spec import ExternalSpec, ModelSpec
from llmgw.facts import Progress
from llmgw.gateway.affinity import Affinity
from llmgw.gateway.names import near_names
from llmgw.gateway.openai import ApiError, Code, shown
from llmgw.gateway.params import Params, params_of
from llmgw.gateway.surface import DECLARED
from llmgw.ids import EngineName, ModelName, ReplicaId
from llmgw.memo import Kept
from llmgw.plan import Endpoint, ModelState, ModelStatus, Stopped
from llmgw.store.values import Applied
from llmgw.units import Bytes, Seconds, Wall, format_bytes, format_seconds

LOADING_RETRY: Final = 5
"""Seconds that a client is told to wait when nothing better is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Not served, and waiting would not help. `model` None: no such model. `retry_at`: when it may be otherwise."""

    status: int
    code: Code
    message: str
    model: ModelName | None = None
    retry_at: Wall | None = None
    retry_after: int | None = None

    def answer(self, now: Wall) -> ApiError:
        message, after = self.message, self.retry_after
        if self.retry_at is not None:
            after = _seconds_until(self.retry_at, now)
            if self.retry_at > now:
                message = f"{message}; next attempt in {format_seconds(after)}"
        param = "model" if self.code == Code.MODEL_NOT_FOUND else None
        return ApiError(status=self.status, code=self.code, message=message, param=param, retry_after=after)


@dataclass(frozen=True, slots=True)
class Route:
    """Served now, by any of `endpoints` (never empty)."""

    model: ModelName
    endpoints: tuple[Endpoint, ...]
    instead_of: ModelName | None = None  #: the model that was asked for, where this one stands in for it
    wants: tuple[ModelName, ...] = ()  #: on-demand models that are not ready: a request asks for them

    @property
    def named(self) -> ModelName:
        """The model that was asked for."""
        return self.instead_of or self.model


@dataclass(frozen=True, slots=True)
class Hold:
    """Wanted, or to be had for the asking, and no endpoint is ready yet: worth waiting for."""

    model: ModelName
    status: ModelStatus | None  #: None: the controller has not spoken of it yet
    instead_of: ModelName | None = None
    wants: tuple[ModelName, ...] = ()
    verdict: Refusal | None = None
    """What the controller says against an on-demand model. It counts only if it knew that the model is asked for."""

    @property
    def named(self) -> ModelName:
        return self.instead_of or self.model

    def settled(self, asked: Wall | None) -> Refusal | None:
        """The verdict, where it came of a pass that knew of a request's own ask."""
        told = self.status.asked if self.status else None
        return self.verdict if asked is not None and told is not None and told >= asked else None


Resolution = Route | Hold | Refusal

NOT_READY: Final = Refusal(
    status=503,
    code=Code.NOT_READY,
    message="no catalog is in force yet; `llmgw status` tells why",
    retry_after=LOADING_RETRY,
)


Lacking = Mapping[str, frozenset[ReplicaId]]
"""By path, the endpoints of a model that are known not to serve it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTable:
    """Immutable: a change of catalog, endpoints, statuses or the operator's switch makes a new one."""

    applied: Applied | None = None
    stopped: Stopped | None = None
    models: Mapping[ModelName, ModelSpec] = field(default_factory=dict)
    statuses: Mapping[ModelName, ModelStatus] = field(default_factory=dict)
    endpoints: Mapping[ModelName, tuple[Endpoint, ...]] = field(default_factory=dict)
    names: Mapping[str, Resolution] = field(default_factory=dict)  #: what each name and alias comes to
    strict: Mapping[str, Resolution] = field(default_factory=dict)
    """The same of those that a fallback serves now, for clients who do not want that."""
    params: Mapping[str, Params] = field(default_factory=dict)  #: by name, of those whose requests are changed
    lacking: Mapping[ModelName, Lacking] = field(default_factory=dict)
    affinity: Mapping[ModelName, Affinity] = field(default_factory=dict)  #: of models that have any

    @classmethod
    def build(
        cls,
        *,
        applied: Applied | None,
        models: Iterable[ModelSpec],
        endpoints: Iterable[Endpoint],
        statuses: Iterable[ModelStatus],
        stopped: Stopped | None,
    ) -> "RoutingTable":
        """Endpoints of models that the catalog does not have are left out: traffic stops before the engine does."""
        fixed = _fixed.of(None, tuple(models) if applied else ())
        catalog, by_model = fixed.models, dict(fixed.external)
        for endpoint in endpoints:
            if endpoint.model in catalog:
                by_model[endpoint.model] = (*by_model.get(endpoint.model, ()), endpoint)
        told = {status.model: status for status in statuses}
        own = {
            name: _resolution.of(name, model, by_model.get(name, ()), told.get(name))
            for name, model in catalog.items()
        }  # fmt: skip
        helped = [status.model for status in told.values() if status.fallback is not None and status.model in own]
        stand_ins = {name: found for name in helped if (found := _stand_in(name, own, told, fixed.lazy)) is not None}
        names: dict[str, Resolution] = {}
        strict: dict[str, Resolution] = {}
        for name, model in fixed.names.items():
            stand_in = stand_ins.get(model)
            names[name] = stand_in or own[model]
            if stand_in is not None:
                strict[name] = own[model]
        return cls(
            applied=applied, stopped=stopped, models=catalog, statuses=told, endpoints=by_model, names=names,
            strict=strict, params=fixed.params, affinity=fixed.affinity,
            lacking={name: lacks for name, some in by_model.items() if (lacks := _lacking(some))},
        )  # fmt: skip

    def resolve(self, name: str, *, fallback: bool = True, path: str = "") -> Resolution:
        """What becomes of a request for `name`. Without `fallback`: no other model's answer will do; nor will that of
        one whose engines do not serve `path`."""
        if self.applied is None:
            return NOT_READY
        if self.stopped is not None:
            return self.stop_refusal(self.stopped)
        found = self.names.get(name)
        if self.strict and (own := self.strict.get(name)) is not None and not (fallback and self._suits(found, path)):
            return own
        return found or self._unknown(name)

    def find(self, name: str) -> ModelSpec | Refusal:
        """The model of that name or alias, whatever its state."""
        found = self.strict.get(name) or self.names.get(name)
        return self._unknown(name) if found is None or found.model is None else self.models[found.model]

    def serves(self, model: ModelName, path: str) -> bool:
        """Whether it will when it runs; False: its engines say that they do not."""
        surface, status = DECLARED.get(path), self.statuses.get(model)
        declared = None if status is None else status.surfaces
        return surface is None or declared is None or surface in declared

    def may_serve(self, name: str, path: str) -> bool:
        """Of a path that is like a known one. False: all who could answer say what they serve, and it is not that."""
        found = self.resolve(name)
        if isinstance(found, Route):
            told = [endpoint.surfaces for endpoint in found.endpoints]
        else:
            status = self.statuses.get(found.model) if found.model is not None else None
            told = [None if status is None else status.surfaces]
        return any(each is None or path.removeprefix("/v1/") in each for each in told)

    def _suits(self, stand_in: Resolution | None, path: str) -> bool:
        """Whether who stands in for a model serves what it is asked for."""
        if isinstance(stand_in, Route):
            lacking = self.lacking.get(stand_in.model, {}).get(path, ())
            return len(lacking) < len(stand_in.endpoints)
        return not isinstance(stand_in, Hold) or self.serves(stand_in.model, path)

    def stop_refusal(self, stopped: Stopped) -> Refusal:
        return Refusal(
            status=503,
            code=Code.SYSTEM_STOPPED,
            message=f"serving was stopped by {stopped.by}; `llmgw start` resumes it",
        )

    def state(self, name: ModelName) -> ModelState:
        """A model in one word, as clients see it."""
        if self.stopped is not None:
            return ModelState.STOPPED
        if name in self.endpoints:
            return ModelState.READY
        status = self.statuses.get(name)
        # Ready by the controller's word, but with no endpoint: on its way in or out.
        return ModelState.LOADING if status is None or status.state == ModelState.READY else status.state

    def fallback(self, name: ModelName) -> ModelName | None:
        """The model that answers in its place now."""
        found = self.names.get(name)
        return found.model if isinstance(found, Route) and found.instead_of is not None else None

    def _unknown(self, name: str) -> Refusal:
        message = f"no model {shown(name)} in the catalog"
        if near := near_names(name, self.names):
            message += f"; did you mean {' or '.join(map(repr, near))}?"
        else:
            message += "; GET /v1/models lists what there is"
        return Refusal(status=404, code=Code.MODEL_NOT_FOUND, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """What a table has of its models' specs alone."""

    models: Mapping[ModelName, ModelSpec]
    names: Mapping[str, ModelName]  #: each name and alias, and whose it is
    lazy: frozenset[ModelName]
    params: Mapping[str, Params]
    affinity: Mapping[ModelName, Affinity]
    external: Mapping[ModelName, tuple[Endpoint, ...]]

    @classmethod
    def of(cls, models: Iterable[ModelSpec]) -> "_Fixed":
        catalog = {model.name: model for model in models}
        names: dict[str, ModelName] = {}
        for model in catalog.values():
            for name in model.names:
                names.setdefault(name, model.name)
        return cls(
            models=catalog,
            names=names,
            lazy=frozenset(name for name, model in catalog.items() if _on_demand(model)),
            params={name: each for model in catalog.values() for name, each in params_of(model).items()},
            affinity={name: Affinity.of(model.affinity) for name, model in catalog.items() if model.affinity},
            external={name: (_external(one, one.external),) for name, one in catalog.items() if one.external},
        )


_fixed: Final[Kept[None, _Fixed]] = Kept(_Fixed.of)


def _lacking(endpoints: Iterable[Endpoint]) -> Lacking:
    found: dict[str, frozenset[ReplicaId]] = {}
    for endpoint in endpoints:
        for path, surface in DECLARED.items() if endpoint.surfaces is not None else ():
            if surface not in (endpoint.surfaces or ()):
                found[path] = found.get(path, frozenset()) | {endpoint.id}
    return found


def _external(model: ModelSpec, external: ExternalSpec) -> Endpoint:
    """It is ready as long as the catalog has it: how it is shows in its answers."""
    return Endpoint(
        id=ReplicaId(f"external:{model.name}"), model=model.name, url=external.url, names=model.names,
        engine=EngineName("external"), external=external, slots=external.max_requests or None,
    )  # fmt: skip


def _resolve(model: ModelSpec, endpoints: tuple[Endpoint, ...], status: ModelStatus | None) -> Resolution:
    """What becomes of a request for the model, by itself alone."""
    if endpoints:
        return Route(model.name, endpoints)
    refusal = _refusal(model.name, status)
    if not _on_demand(model):
        return refusal or Hold(model.name, status)
    if refusal is not None and refusal.code not in _ANSWERED_BY_ASKING:
        return refusal
    return Hold(model.name, status, wants=(model.name,), verdict=refusal)


_resolution: Final[Kept[ModelName, Resolution]] = Kept(_resolve)
"""Of each model, while neither its spec nor its endpoints nor what the controller says of it change: one replica more,
of one of ten thousand models, must not keep requests waiting while the others' are worked out again."""

_ANSWERED_BY_ASKING: Final = frozenset((Code.MODEL_INACTIVE, Code.MODEL_UNSCHEDULABLE))


def _refusal(model: ModelName, status: ModelStatus | None) -> Refusal | None:
    """What the controller's word on it comes to; None: that it is on its way."""
    reason = f": {status.explanation}" if status and status.explanation else ""
    match status.state if status else None:
        case ModelState.FAILED:
            message, code = f"model {model!r} failed and is in quarantine{reason}", Code.MODEL_FAILED
        case ModelState.INACTIVE:
            message, code = f"model {model!r} is not wanted now{reason}", Code.MODEL_INACTIVE
        case ModelState.UNSCHEDULABLE:
            message, code = f"model {model!r} cannot be placed{reason}", Code.MODEL_UNSCHEDULABLE
        case ModelState.STOPPED:
            message, code = f"model {model!r} is stopped{reason}; `llmgw start` resumes serving", Code.SYSTEM_STOPPED
        case _:
            return None
    retry_at = status.retry_at if status else None
    return Refusal(status=503, code=code, message=message, model=model, retry_at=retry_at)


def _stand_in(
    model: ModelName,
    own: Mapping[ModelName, Resolution],
    told: Mapping[ModelName, ModelStatus],
    lazy: Collection[ModelName],
) -> Resolution | None:
    """What becomes of a request where another model stands in: as the controller says, and only while it has no
    endpoint of its own. None: nobody does, or who would cannot serve either."""
    found, seen = own[model], {model}
    while not isinstance(found, Route) and found.model is not None:
        status = told.get(found.model)
        if status is None or status.fallback is None or status.fallback in seen or status.fallback not in own:
            break
        seen.add(status.fallback)
        found = own[status.fallback]
    if found.model == model or isinstance(found, Refusal):
        return None
    wants = tuple(name for name in sorted(seen) if name != found.model and name in lazy)
    return replace(found, instead_of=model, wants=(*wants, *found.wants))


def _on_demand(model: ModelSpec) -> bool:
    return model.scaling.on_demand and not model.suspend


def still_loading(hold: Hold, waited: Seconds, now: Wall) -> ApiError:
    """The answer to a request that was held for as long as the cluster allows: `waited`."""
    whose = f"model {hold.model!r}" + (f", the fallback of {hold.instead_of!r}," if hold.instead_of else "")
    status = hold.status
    message = f"{whose} is still loading after {format_seconds(waited)}{_how_far(status)}"
    after = LOADING_RETRY
    if status is not None and status.retry_at is not None:
        after = _seconds_until(status.retry_at, now)
    return ApiError(status=503, code=Code.MODEL_LOADING, message=message, retry_after=after)


def _seconds_until(retry_at: Wall, now: Wall) -> int:
    """A try that is due already waits for something else, and nobody knows how long."""
    return math.ceil(retry_at - now) if retry_at > now else LOADING_RETRY


def _how_far(status: ModelStatus | None) -> str:
    """`: fetching weights (12.0 MiB of 93.8 MiB fetched, 12 %)`"""
    reason = f": {status.reason}" if status is not None and status.reason else ""
    return f"{reason} ({progress_text(status.progress)})" if status is not None and status.progress else reason


def waiting_text(status: ModelStatus | None, *, slot: bool) -> str:
    """What a client is told meanwhile. `slot`: it is a slot that it waits for."""
    return "waiting for a free slot" if slot else f"loading{_how_far(status)}"


def progress_text(progress: Progress) -> str:
    """`12.0 MiB of 93.8 MiB fetched, 12 %`, as far as it is known."""
    if not progress.total:
        return f"{format_bytes(progress.done)} fetched"
    share = 100 * min(progress.done, progress.total) // progress.total
    return f"{format_bytes(Bytes(progress.done))} of {format_bytes(progress.total)} fetched, {share} %"


def queue_full(model: ModelName, waiting: int, *, after: int | None = None) -> ApiError:
    """`after`: seconds until a slot may be free; None: they wait for the model itself."""
    why = "which is not ready yet" if after is None else "whose every slot is taken"
    message = f"{waiting} requests already wait for model {model!r}, {why}"
    return ApiError(status=429, code=Code.QUEUE_FULL, message=message, retry_after=after or LOADING_RETRY)


def still_busy(model: ModelName, waited: Seconds, waiting: int, after: int) -> ApiError:
    """The answer to a request that waited for a slot for as long as the cluster allows."""
    message = f"no slot of model {model!r} became free in {format_seconds(waited)}; {waiting} requests wait for one"
    return ApiError(status=429, code=Code.QUEUE_FULL, message=message, retry_after=after)
