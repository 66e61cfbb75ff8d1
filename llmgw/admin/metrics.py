"""`/metrics`: families made from the store at scrape, besides those that other parts collect."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from llmgw import __version__
from llmgw.admin import views
from llmgw.admin.capacities import CapacityRow
from llmgw.admin.reading import Seen
from llmgw.admin.shapes import DeviceRow, NodeRow
from llmgw.facts import Level, Phase, Progress
from llmgw.plan import ModelState
from llmgw.store.values import Role

Collect = Callable[[], Iterable[Metric]]


def render(
    seen: Seen | None, collect: Sequence[Collect], accept: str, *, capacities: Iterable[CapacityRow] = ()
) -> tuple[bytes, str]:
    """The exposition and its content type, in the format that the `Accept` header asks for.

    `seen` None: what the store knows is told by another process.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(process))
    if seen is not None:
        registry.register(_Families(lambda: families(seen, capacities)))
    for source in collect:
        registry.register(_Families(source))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def families(seen: Seen, capacities: Iterable[CapacityRow] = ()) -> Iterator[Metric]:
    """What the store knows: the catalog, models, replicas, nodes and their devices."""
    yield from _catalog(seen)
    yield from _models(seen)
    yield from _replicas(seen)
    yield from _fetches(seen)
    nodes = views.nodes(seen).nodes
    yield from _nodes(nodes)
    yield from _devices(nodes)
    yield from _processes(seen)
    labels = ["model", "profile", "node"]
    measured = [([row.model, row.profile, row.node], row.requests) for row in capacities]
    yield _gauges("llmgw_measured_requests", "Requests at once that a replica was measured to hold.", labels, measured)


def process() -> Iterator[Metric]:
    """What each process tells of itself: its memory, processor time and open files, as others name them."""
    yield InfoMetricFamily("llmgw", "This llmgw.", {"version": __version__})
    yield from ProcessCollector(registry=None).collect()


def _catalog(seen: Seen) -> Iterator[Metric]:
    row = views.catalog(seen)
    revisions = {"attempted": row.attempted or "", "applied": row.applied or ""}
    yield InfoMetricFamily("llmgw_catalog", "The newest revision seen and the one in force.", revisions)
    yield _gauge("llmgw_catalog_problems", "Problems of the newest revision.", len(row.problems))
    yield _gauge("llmgw_catalog_unreadable", "1 while the catalog's source cannot be read.", row.error is not None)
    yield _gauge("llmgw_catalog_held", "1 while a valid revision is held.", row.held is not None)
    told = "1 between `llmgw suspend` or `rollback` and `llmgw resume`."
    yield _gauge("llmgw_catalog_suspended", told, row.suspended is not None or row.pinned is not None)
    if row.applied_at is not None:
        yield _gauge("llmgw_catalog_applied_timestamp_seconds", "When the catalog came into force.", row.applied_at)
    conditions = GaugeMetricFamily("llmgw_condition", "1 while the condition holds.", labels=["type"])
    for condition in row.conditions:
        conditions.add_metric([condition.type], condition.status)
    yield conditions
    yield _gauge("llmgw_stopped", "1 while the operator's switch is thrown.", seen.stopped is not None)


def _models(seen: Seen) -> Iterator[Metric]:
    told = [(name, seen.explained.get(name)) for name in sorted(seen.models)]
    found = [(name, ModelState.LOADING if status is None else status.state) for name, status in told]
    counted = Counter(state for _, state in found)
    states = GaugeMetricFamily("llmgw_models", "Models of the catalog by state.", labels=["state"])
    for state in ModelState:
        states.add_metric([state], counted[state])
    yield states
    each = GaugeMetricFamily("llmgw_model_state", "1 for the state that a model is in.", labels=["model", "state"])
    for name, its in found:
        for state in ModelState:
            each.add_metric([name, state], its == state)
    yield each
    wanted = [([name], status.wanted if status else 0) for name, status in told]
    yield _gauges("llmgw_model_wanted", "Replicas of a model that are wanted.", ["model"], wanted)
    ready = [([name], status.ready if status else 0) for name, status in told]
    yield _gauges("llmgw_model_ready", "Replicas of a model that are ready, of those wanted.", ["model"], ready)
    held = [([name], seen.models[name].suspend) for name, _ in told]
    yield _gauges("llmgw_model_suspended", "1 while a model is suspended.", ["model"], held)
    failed = [([name], status is not None and bool(status.rollout_failed)) for name, status in told]
    yield _gauges("llmgw_model_rollout_failed", "1 while a model is as before its newest spec.", ["model"], failed)
    fallback = [([name], status is not None and status.fallback is not None) for name, status in told]
    yield _gauges("llmgw_model_on_fallback", "1 while another model serves in its place.", ["model"], fallback)


def _replicas(seen: Seen) -> Iterator[Metric]:
    rows = views.replicas(seen).replicas
    counted = Counter((row.state, row.level, row.node) for row in rows)
    # Zeros where somebody may wait for one to appear; other levels only where there are some.
    counted.update({(phase, Level.FULL, node): 0 for phase in Phase for node in seen.reports})
    phases = [(list(labels), count) for labels, count in sorted(counted.items())]
    yield _gauges("llmgw_replicas", "Replicas by phase, level and node.", ["phase", "level", "node"], phases)
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


def _fetches(seen: Seen) -> Iterator[Metric]:
    """Replicas of a model on a node share their downloads: the furthest tells."""
    found: dict[tuple[str, str], Progress] = {}
    for report in seen.reports.values():
        for fact in report.replicas:
            if fact.phase is Phase.FETCHING and (progress := fact.progress) is not None:
                known = found.get((fact.model, fact.node))
                if known is None or progress.done > known.done:
                    found[fact.model, fact.node] = progress
    rows = [(list(key), progress) for key, progress in sorted(found.items())]
    labels = ["model", "node"]
    done = [(key, progress.done) for key, progress in rows]
    yield _gauges("llmgw_fetch_bytes", "Bytes so far of a model's files that are on their way.", labels, done)
    sizes = [(key, progress.total) for key, progress in rows if progress.total is not None]
    yield _gauges("llmgw_fetch_size_bytes", "The size of those files, where it is known.", labels, sizes)
    rates = [(key, progress.rate or 0.0) for key, progress in rows]
    yield _gauges("llmgw_fetch_bytes_per_second", "How fast they come, over the last ten seconds.", labels, rates)


def _nodes(rows: Iterable[NodeRow]) -> Iterator[Metric]:
    figures: dict[str, tuple[str, list[tuple[str, float]]]] = {
        "memory_total_bytes": ("Memory of the node.", [(row.name, row.memory_total) for row in rows]),
        "memory_available_bytes": ("Memory not in use.", [(row.name, row.memory_available) for row in rows]),
        "memory_foreign_bytes": (
            "Memory used by programs that are not its engines.",
            [(row.name, row.memory_foreign) for row in rows],
        ),
        "memory_capacity_bytes": (
            "Memory that engines could have.",
            [(row.name, row.memory_capacity) for row in rows],
        ),
        "memory_counted_bytes": ("Memory that engines count for.", [(row.name, row.memory_counted) for row in rows]),
        "cordoned": ("1 while nothing new goes there.", [(row.name, row.cordon is not None) for row in rows]),
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


def _processes(seen: Seen) -> Iterator[Metric]:
    """Of a fleet; there are none of `llmgw up`."""
    counted = Counter(member.role for member in seen.members)
    roles = [([role], counted[role]) for role in Role] if counted else []
    yield _gauges("llmgw_processes", "Processes of the fleet that live, by role.", ["role"], roles)
    leader = seen.leader.name if seen.leader is not None else None
    leads = sorted(([one.name], one.name == leader) for one in seen.members if one.role is Role.CONTROLLER)
    yield _gauges("llmgw_leads", "1 for the controller that leads, 0 for those that stand by.", ["controller"], leads)


def _state(device: DeviceRow) -> str:
    if device.why is not None:
        return "unusable"
    return "used" if device.counted else "free"


def _devices(nodes: Iterable[NodeRow]) -> Iterator[Metric]:
    """By UUID: indexes change across boots. What the driver does not tell is left out."""
    rows = [(node.name, device) for node in nodes for device in node.devices]
    whole = Counter((node, _state(device)) for node, device in rows if not device.divided)
    whole.update({(node.name, state): 0 for node in nodes if node.devices for state in ("free", "used", "unusable")})
    counts = [(list(key), count) for key, count in sorted(whole.items())]
    yield _gauges("llmgw_devices", "Devices: free (of engines), used by some, unusable.", ["node", "state"], counts)
    named = GaugeMetricFamily("llmgw_device_usable", "1 where it can be used.", labels=["node", "device", "name"])
    for node, device in rows:
        named.add_metric([node, device.uuid, device.name], device.why is None and not device.divided)
    yield named
    figures: dict[str, tuple[str, Callable[[DeviceRow], int | None]]] = {
        "total": ("Memory of the device.", lambda device: device.total),
        "used": ("Memory in use, by anyone.", lambda device: device.used),
        "foreign": ("Memory used by programs that are not the node's engines.", lambda device: device.foreign),
        "capacity": ("Memory that engines could have.", lambda device: device.capacity),
        "counted": ("Memory that engines count for.", lambda device: device.counted),
    }
    for name, (text, figure) in figures.items():
        told = [([node, device.uuid], value) for node, device in rows if (value := figure(device)) is not None]
        yield _gauges(f"llmgw_device_memory_{name}_bytes", text, ["node", "device"], told)


def _gauges(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for words, value in values:
        family.add_metric(words, value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


class _Families(Collector):
    """Anything that returns families, as the registry wants it."""

    def __init__(self, source: Collect) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return self._source()
