"""How much memory of a node engines may take: capacity is physics, a budget is policy. Pure."""

from llmgw.facts import MemoryFact
from llmgw.units import Bytes


def capacity(memory: MemoryFact, reserve: Bytes, held: int) -> Bytes:
    """Host memory for engines: what is left beside others' and the reserve. Never less than the residents' `held`:
    that is in use already, and others growing must not make us stop what still runs."""
    return Bytes(max(0, memory.total - reserve - memory.foreign, min(held, memory.total)))


def allowed(capacity: Bytes, budget: Bytes | None) -> Bytes:
    """Host memory for engines that are not pinned. `budget` None: as much as there is."""
    return capacity if budget is None else min(capacity, budget)
