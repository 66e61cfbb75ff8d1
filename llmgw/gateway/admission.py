"""How much may be in hand at once: requests that wait for a model, bytes of bodies. Pure counting."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from llmgw.ids import ModelName
from llmgw.units import MIB, Bytes

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Admission:
    """Bounds what is held: `max_waiting` requests for one model, `max_bytes` of bodies over all models."""

    max_waiting: int = 1000
    max_bytes: Bytes = Bytes(256 * MIB)
    _waiting: Counter[ModelName] = field(default_factory=Counter)
    _by_key: dict[ModelName, Counter[Any]] = field(default_factory=dict)
    _bytes: int = 0

    def enter(self, model: ModelName, size: int, key: Hashable = None) -> bool:
        """Take a place for a request of `key` with a body of `size` bytes; False: the queue is full."""
        if self._waiting[model] >= self.max_waiting or self._bytes + size > self.max_bytes:
            return False
        self.take(model, size, key)
        return True

    def take(self, model: ModelName, size: int, key: Hashable = None) -> None:
        """Whether there is one or not: another gives way."""
        self._waiting[model] += 1
        self._by_key.setdefault(model, Counter())[key] += 1
        self._bytes += size

    def leave(self, model: ModelName, size: int, key: Hashable = None) -> None:
        """Give the place back: once for each that was taken."""
        self._bytes -= size
        keys = self._by_key[model]
        keys[key] -= 1
        if not keys[key]:
            del keys[key]
        self._waiting[model] -= 1
        if not self._waiting[model]:
            del self._waiting[model], self._by_key[model]

    def greediest(self, model: ModelName, size: int, key: K) -> K | None:
        """Who has the most waiting for a model, where no more may wait, and one fewer of his would make room for one of
        `key`, which would still have no more than he. None: nobody."""
        if self._waiting[model] != self.max_waiting or self._bytes + size > self.max_bytes:
            return None
        counts = self._by_key.get(model)
        if not counts:
            return None
        most: K = max(counts, key=counts.__getitem__)
        return most if counts[most] > counts[key] + 1 else None

    def waiting(self, model: ModelName) -> int:
        return self._waiting.get(model, 0)

    @property
    def queues(self) -> Mapping[ModelName, int]:
        """How many wait for each model that is waited for."""
        return self._waiting


class Yielding(Protocol):
    """A body that gives way."""

    def give_way(self, asker: object) -> None:
        """Give back what it takes, unless it is `asker`'s."""
        ...


@dataclass(slots=True)
class Buffers:
    """Bounds the request bodies in memory, over all clients. A body counts from its first byte until it is answered."""

    limit: Bytes
    used: int = 0
    slow: list[Yielding] = field(default_factory=list)  #: that give way where there is no room; the last first

    def take(self, size: int, asker: object = None) -> bool:
        """Count `size` bytes more; False, counting nothing, where they would be too many."""
        if self.used + size > self.limit and not self.has_room(size, asker):
            return False
        self.used += size
        return True

    def has_room(self, size: int, asker: object) -> bool:
        """Whether that many more would not be too many, once others gave way. `asker`: who wants them."""
        while self.used + size > self.limit and self.slow:
            self.slow.pop().give_way(asker)
        return self.used + size <= self.limit

    def give(self, size: int) -> None:
        self.used -= size
