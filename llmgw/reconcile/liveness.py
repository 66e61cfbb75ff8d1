"""Which nodes still report, by our own clock: what theirs say proves nothing.

A node that is silent for GRACE seconds gets nothing new, one whose agent is known to be gone gets nothing at once;
after LOST seconds what it runs counts for nothing and is placed elsewhere: until then its last report stands, as its
engines outlive their agent. When more than half of all nodes fall silent it is rather us who are cut off: the brake
holds everything as it is.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from llmgw.facts import NodeReport
from llmgw.ids import NodeName, ReplicaId
from llmgw.units import Instant, Mono, Wall

GRACE: Final = 20.0  #: four heartbeats
LOST: Final = 60.0
BLIND: Final = 20.0
"""Seconds between two looks after which the time between them is held against nobody: the store was away, or we were
stopped, and nobody knows who would have reported meanwhile."""
NEWBORN: Final = 5.0  #: seconds from a node's first report within which its agent says that it lives
SETTLE: Final = 15.0
"""Seconds after the start for which nodes that the catalog names are waited for."""


@dataclass(frozen=True, slots=True)
class Reach:
    """`braked`: so many are silent at once that nothing of theirs is given up."""

    unreachable: frozenset[NodeName]
    lost: frozenset[NodeName]
    braked: bool = False
    replaced: frozenset[ReplicaId] = frozenset()  #: replicas of nodes that were lost, and are back


@dataclass(slots=True)
class Liveness:
    """Fed with every pass's reports. `patience`: seconds after which a silent node is lost. `presence`: agents say that
    they live, and which do not is known."""

    patience: float = LOST
    presence: bool = False
    follows: bool = False  #: the catalog says how long
    _heard: dict[NodeName, tuple[Wall, Mono]] = field(default_factory=dict)
    _first: dict[NodeName, Mono] = field(default_factory=dict)
    _lived: set[NodeName] = field(default_factory=set)
    _started: Mono | None = None
    _looked: Mono | None = None
    _given_up: dict[NodeName, frozenset[ReplicaId]] = field(default_factory=dict)

    def look(self, reports: Iterable[NodeReport], now: Instant, *, alive: Collection[NodeName] | None = None) -> Reach:
        """`alive`: nodes whose agent lives, where that is known."""
        reports = tuple(reports)
        if self._started is None:
            self._started = now.mono
            self._lived = {report.node for report in reports}  # they lived before we did
        present = {report.node: report.at for report in reports}
        blind = self._blind(now)
        self._heard = {node: (at, Mono(since + blind)) for node, (at, since) in self._heard.items() if node in present}
        for node, at in present.items():
            heard = self._heard.get(node)
            if heard is None or heard[0] != at:
                self._heard[node] = (at, now.mono)
        silent = {node: now.mono - since for node, (_, since) in self._heard.items()}
        self._first = {node: self._first.get(node, now.mono) for node in present}
        gone = frozenset() if alive is None else self._gone(alive, now)
        unreachable = frozenset(node for node, age in silent.items() if age > GRACE or node in gone)
        braked = 2 * len(unreachable) > len(silent)
        lost = frozenset() if braked else frozenset(node for node in unreachable if silent[node] > self.patience)
        return Reach(unreachable, lost, braked, self._replaced(reports, lost))

    def _blind(self, now: Instant) -> float:
        """Seconds since the last look that nobody is to be blamed for."""
        last, self._looked = self._looked, now.mono
        return 0.0 if last is None or now.mono - last <= BLIND else now.mono - last

    def _gone(self, alive: Collection[NodeName], now: Instant) -> frozenset[NodeName]:
        """An agent says that it lives just after it has reported first: until then nobody has gone."""
        self._lived |= self._first.keys() & set(alive)
        return frozenset(
            node
            for node, first in self._first.items()
            if node not in alive and (node in self._lived or now.mono - first > NEWBORN)
        )

    def _replaced(self, reports: Iterable[NodeReport], lost: Collection[NodeName]) -> frozenset[ReplicaId]:
        """Remembered for as long as they are there."""
        known = self._given_up
        ids = {one.node: frozenset(fact.id for fact in one.replicas) for one in reports if one.node in {*lost, *known}}
        self._given_up = {node: here if node in lost else here & known[node] for node, here in ids.items()}
        return frozenset(id for node, gone in self._given_up.items() if node not in lost for id in gone)

    def settled(self, expected: Collection[NodeName], now: Instant) -> bool:
        """Whether every expected node has reported, or was waited for long enough. After `look`."""
        waited = 0.0 if self._started is None else now.mono - self._started
        return waited >= SETTLE or all(node in self._heard for node in expected)
