"""How much may be in hand at once: requests that wait for a model, bytes of bodies. Pure counting."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.ids import ModelName
from llmgw.units import MIB, Bytes


@dataclass(slots=True)
class Admission:
    """Bounds what is held: `max_waiting` requests for one model, `max_bytes` of bodies over all models."""

    max_waiting: int = 1000
    max_bytes: Bytes = Bytes(256 * MIB)
    _waiting: Counter[ModelName] = field(default_factory=Counter)
    _bytes: int = 0

    def enter(self, model: ModelName, size: int) -> bool:
        """Take a place for a request with a body of `size` bytes; False: the queue is full."""
        if self._waiting[model] >= self.max_waiting or self._bytes + size > self.max_bytes:
            return False
        self._waiting[model] += 1
        self._bytes += size
        return True

    def leave(self, model: ModelName, size: int) -> None:
        """Give the place back: once for each `enter` that returned True."""
        self._waiting[model] -= 1
        self._bytes -= size
        if not self._waiting[model]:
            del self._waiting[model]

    def waiting(self, model: ModelName) -> int:
        return self._waiting.get(model, 0)

    @property
    def queues(self) -> Mapping[ModelName, int]:
        """How many wait for each model that is waited for."""
        return self._waiting


@dataclass(slots=True)
class Buffers:
    """Bounds the request bodies in memory, over all clients. A body counts from its first byte until it is answered."""

    limit: Bytes
    used: int = 0

    def take(self, size: int) -> bool:
        """Count `size` bytes more; False, counting nothing, where they would be too many."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        self.used -= size
