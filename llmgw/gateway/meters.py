"""What the gateway counts: plain integers on the request path, Prometheus families when somebody scrapes."""

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from llmgw.gateway.keys import Caller, Mean
from llmgw.gateway.openai import CLASSES

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds, of each histogram."""


@dataclass(slots=True)
class Histogram:
    """Counts by bucket; the last is of what is above all bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        found, running = [], 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            running += count
            found.append((bound, float(running)))
        return found


@dataclass(slots=True)
class ModelMeter:
    """One model's counts; the model "" stands for requests that named none that we know."""

    answers: dict[str, int] = field(default_factory=dict)  #: by class: `2xx`
    in_flight: int = 0
    held: int = 0
    queued: int = 0
    cancelled: int = 0
    engine_lost: int = 0
    retried: int = 0
    asks: int = 0
    fallback: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    turned_away: int = 0
    affinity_kept: int = 0
    affinity_moved: int = 0
    hold: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    first_byte: Histogram = field(default_factory=Histogram)
    first_token: Histogram = field(default_factory=Histogram)
    duration: Histogram = field(default_factory=Histogram)

    def answered(self, status: int) -> None:
        kind = CLASSES[status // 100]
        self.answers[kind] = self.answers.get(kind, 0) + 1


_COUNTERS: Final = {
    "cancelled": "Requests whose client left before the answer was complete.",
    "engine_lost": "Requests that an engine left unanswered or broke off.",
    "retried": "Requests sent again because an engine was lost before it answered.",
    "asks": "Times that an on-demand model was asked for because it was not ready, at most once a second.",
    "fallback": "Requests for the model that were sent to the model that stands in for it.",
    "turned_away": "Requests refused because too many waited, or because they waited for a slot for too long.",
    "affinity_kept": "Requests sent to the replica that they belong to.",
    "affinity_moved": "Requests sent to another than the replica that they belong to, which had too much to do.",
    "tokens_in": "Tokens of prompts, as engines count them.",
    "tokens_out": "Tokens of answers, as engines count them; events of streams that say nothing of it.",
}
_GAUGES: Final = {
    "in_flight": "Requests in an engine now.",
    "held": "Requests waiting for an endpoint of their model.",
    "queued": "Requests waiting for a free slot of their model.",
}
_HISTOGRAMS: Final = {
    "hold": ("hold", "Of requests that waited for an endpoint of their model: how long."),
    "queue": ("queue", "Of requests that waited for a free slot of their model: how long."),
    "first_byte": ("time_to_first_byte", "From the complete request to the first byte of the engine's answer."),
    "first_token": ("time_to_first_token", "Of streams: from the complete request to the first event of the answer."),
    "duration": ("request_duration", "From the complete request to the last byte of the engine's answer."),
}
_KEY_GAUGES: Final = {
    "in_flight": "Requests of the API key under way, those that wait included.",
    "held": "Requests of the API key that wait for an endpoint of their model.",
    "queued": "Requests of the API key that wait for a free slot of their model.",
}


class Meters:
    """One `ModelMeter` for each model ever routed. Clients cannot make new ones: names come from the catalog."""

    def __init__(self) -> None:
        self._by_model: dict[str, ModelMeter] = {}

    def of(self, model: str) -> ModelMeter:
        meter = self._by_model.get(model)
        if meter is None:
            meter = self._by_model[model] = ModelMeter()
        return meter

    def forget(self, keep: Container[str]) -> None:
        """Drop the counts of models that are not in `keep` and have nothing under way: labels stay bounded."""
        self._by_model = {
            model: meter
            for model, meter in self._by_model.items()
            if not model or model in keep or meter.in_flight or meter.held or meter.queued
        }

    def collect(
        self, connections: int, buffered: int, callers: Iterable[Caller] = (), unlogged: int = 0
    ) -> Iterator[Metric]:
        yield GaugeMetricFamily("llmgw_gateway_connections", "Client connections open now.", connections)
        yield GaugeMetricFamily("llmgw_gateway_body_bytes", "Bytes of request bodies in memory now.", buffered)
        yield CounterMetricFamily("llmgw_gateway_unlogged", "Lines that the access log did not take.", unlogged)
        requests = CounterMetricFamily(
            "llmgw_gateway_requests", "Requests answered, by model and class of status.", labels=["model", "status"]
        )
        for model, meter in self._by_model.items():
            for kind, count in sorted(meter.answers.items()):
                requests.add_metric([model, kind], count)
        yield requests
        for attribute, text in _COUNTERS.items():
            yield self._plain(CounterMetricFamily(f"llmgw_gateway_{attribute}", text, labels=["model"]), attribute)
        for attribute, text in _GAUGES.items():
            yield self._plain(GaugeMetricFamily(f"llmgw_gateway_{attribute}", text, labels=["model"]), attribute)
        yield from self._histograms()
        yield from _of_keys(callers)

    def _plain(self, family: CounterMetricFamily | GaugeMetricFamily, attribute: str) -> Metric:
        for model, meter in self._by_model.items():
            family.add_metric([model], getattr(meter, attribute))
        return family

    def _histograms(self) -> Iterable[Metric]:
        for attribute, (name, text) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"llmgw_gateway_{name}_seconds", text, labels=["model"])
            for model, meter in self._by_model.items():
                histogram: Histogram = getattr(meter, attribute)
                family.add_metric([model], histogram.cumulative(), histogram.total)
            yield family


def _of_keys(callers: Iterable[Caller]) -> tuple[Metric, ...]:
    """By the key's name, of which there are as many as the operator made: of times their means, not a line for each
    bucket."""
    requests = CounterMetricFamily(
        "llmgw_gateway_key_requests", "Requests answered, by API key and class of status.", labels=["key", "status"]
    )
    tokens = CounterMetricFamily("llmgw_gateway_key_tokens", "Tokens, by API key.", labels=["key", "direction"])
    limited = CounterMetricFamily(
        "llmgw_gateway_key_limited", "Requests beyond what the API key may ask.", labels=["key"]
    )
    gauges = {
        attribute: GaugeMetricFamily(f"llmgw_gateway_key_{attribute}", text, labels=["key"])
        for attribute, text in _KEY_GAUGES.items()
    }
    cancelled = CounterMetricFamily("llmgw_gateway_key_cancelled", _COUNTERS["cancelled"], labels=["key"])
    means = {
        attribute: SummaryMetricFamily(f"llmgw_gateway_key_{name}_seconds", text, labels=["key"])
        for attribute, (name, text) in _HISTOGRAMS.items()
    }
    for caller in callers:
        for kind, count in sorted(caller.answers.items()):
            requests.add_metric([caller.name, kind], count)
        tokens.add_metric([caller.name, "in"], caller.tokens_in)
        tokens.add_metric([caller.name, "out"], caller.tokens_out)
        limited.add_metric([caller.name], caller.limited)
        cancelled.add_metric([caller.name], caller.cancelled)
        for attribute, gauge in gauges.items():
            gauge.add_metric([caller.name], getattr(caller, attribute))
        for attribute, mean in means.items():
            found: Mean = getattr(caller, attribute)
            mean.add_metric([caller.name], found.count, found.total)
    return requests, tokens, limited, cancelled, *gauges.values(), *means.values()
