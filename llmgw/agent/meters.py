"""What an agent in a process of its own tells on /metrics."""

from collections import Counter
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from llmgw.facts import Phase


def collect(phases: Iterable[Phase]) -> Iterable[Metric]:
    """`phases`: of each of its replicas."""
    counted = Counter(phases)
    family = GaugeMetricFamily("llmgw_agent_replicas", "Replicas of this agent by phase.", labels=["phase"])
    for phase in Phase:
        family.add_metric([phase], counted[phase])
    return [family]
