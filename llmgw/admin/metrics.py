"""`/metrics`: families made from the store at scrape, besides those that other parts collect."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from llmgw import __version__
from llmgw.admin import views
from llmgw.admin.reading import Seen
from llmgw.facts import Phase
from llmgw.plan import ModelState

Collect = Callable[[], Iterable[Metric]]


def render(seen: Seen, collect: Sequence[Collect], accept: str) -> tuple[bytes, str]:
    """The exposition and its content type, in the format that the `Accept` header asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(lambda: families(seen)))
    for source in collect:
        registry.register(_Families(source))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def families(seen: Seen) -> Iterator[Metric]:
    """What the store knows: the catalog, models, replicas and nodes."""
    yield InfoMetricFamily("llmgw", "This llmgw.", {"version": __version__})
    yield from _catalog(seen)
    yield from _models(seen)
    yield from _replicas(seen)
    yield from _nodes(seen)


def _catalog(seen: Seen) -> Iterator[Metric]:
    row = views.catalog(seen)
    revisions = {"attempted": row.attempted or "", "applied": row.applied or ""}
    yield InfoMetricFamily("llmgw_catalog", "The newest revision seen and the one in force.", revisions)
    yield _gauge("llmgw_catalog_problems", "Problems of the newest revision.", len(row.problems))
    yield _gauge("llmgw_catalog_unreadable", "1 while the catalog's source cannot be read.", row.error is not None)
    if row.applied_at is not None:
        yield _gauge("llmgw_catalog_applied_timestamp_seconds", "When the catalog came into force.", row.applied_at)
    conditions = GaugeMetricFamily("llmgw_condition", "1 while the condition holds.", labels=["type"])
    for condition in row.conditions:
        conditions.add_metric([condition.type], condition.status)
    yield conditions
    yield _gauge("llmgw_stopped", "1 while the operator's switch is thrown.", seen.stopped is not None)


def _models(seen: Seen) -> Iterator[Metric]:
    rows = views.models(seen).models
    counted = Counter(row.state for row in rows)
    states = GaugeMetricFamily("llmgw_models", "Models of the catalog by state.", labels=["state"])
    for state in ModelState:
        states.add_metric([state], counted[state])
    yield states
    each = GaugeMetricFamily("llmgw_model_state", "1 for the state that a model is in.", labels=["model", "state"])
    for row in rows:
        for state in ModelState:
            each.add_metric([row.name, state], row.state == state)
    yield each


def _replicas(seen: Seen) -> Iterator[Metric]:
    rows = views.replicas(seen).replicas
    counted = Counter(row.state for row in rows)
    phases = GaugeMetricFamily("llmgw_replicas", "Replicas by phase.", labels=["phase"])
    for phase in Phase:
        phases.add_metric([phase], counted[phase])
    yield phases
    resident: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.resident is not None:
            resident[row.model, row.node] += row.resident
    memory = GaugeMetricFamily(
        "llmgw_model_resident_memory_bytes", "Memory of a model's engines, measured.", labels=["model", "node"]
    )
    for labels, size in sorted(resident.items()):
        memory.add_metric(labels, size)
    yield memory


def _nodes(seen: Seen) -> Iterator[Metric]:
    rows = views.nodes(seen).nodes
    figures: dict[str, tuple[str, list[tuple[str, float]]]] = {
        "memory_total_bytes": ("Memory of the node.", [(row.name, row.memory_total) for row in rows]),
        "memory_available_bytes": ("Memory not in use.", [(row.name, row.memory_available) for row in rows]),
        "memory_foreign_bytes": (
            "Memory used by programs that are not its engines.",
            [(row.name, row.memory_foreign) for row in rows],
        ),
        "disk_total_bytes": ("Disk that holds the weights.", [(row.name, row.disk_total) for row in rows]),
        "disk_free_bytes": ("Disk that is free.", [(row.name, row.disk_free) for row in rows]),
        "report_timestamp_seconds": ("When the node last reported.", [(row.name, row.reported_at) for row in rows]),
    }
    for name, (text, values) in figures.items():
        family = GaugeMetricFamily(f"llmgw_node_{name}", text, labels=["node"])
        for node, value in values:
            family.add_metric([node], value)
        yield family
    usable = GaugeMetricFamily("llmgw_node_engine_usable", "1 where the engine can be used.", labels=["node", "engine"])
    for row in rows:
        for engine in row.engines:
            usable.add_metric([row.name, engine.name], engine.why is None)
    yield usable


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


class _Families(Collector):
    """Anything that returns families, as the registry wants it."""

    def __init__(self, source: Collect) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return self._source()
