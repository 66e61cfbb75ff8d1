"""What lies in a cache, however much that is: a part of it is read at each look, and so much told as a report can hold.

Pure but for the reading, which the cache does.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from llmgw.facts import WeightsFact

LOOK: Final = 1000
"""Entries read at one look, beside those that are wanted: a cache of so many is read whole each time."""

ROOM: Final = 800_000
"""Bytes of a report that entries which nobody wants may take: a store takes 1.5 MB at once."""

_BASE: Final = 300
"""Bytes of a fact in a report without its texts, about."""


class Survey:
    """`read`: one entry, None where it is none. What was read stays known until its turn comes again."""

    def __init__(self, read: Callable[[str], WeightsFact | None]) -> None:
        self._read = read
        self._known: dict[str, WeightsFact | None] = {}  #: None: it was no entry that can be read
        self._due: set[str] = set()
        self._next = 0
        self.unread = 0  #: names that no look came to yet

    def look_again(self, name: str) -> None:
        """At the next look, for something about it is different."""
        self._due.add(name)

    def look(self, names: Sequence[str], must: Collection[str], wanted: Callable[[str], bool]) -> list[WeightsFact]:
        """All that is known of `names`, sorted as they are. `must`: read at any rate; `wanted`: of a source."""
        begin = self._next if self._next < len(names) else 0
        turn = {*names[begin : begin + LOOK], *self._due}
        self._next, self._due = begin + LOOK, set()
        large, known = len(names) > LOOK, dict[str, WeightsFact | None]()
        for name in names:
            fact = self._known.get(name)
            if name in turn or name in must or (fact is not None and wanted(fact.source)):
                fact = known[name] = self._read(name)
                if fact is not None and large and not wanted(fact.source):
                    known[name] = replace(fact, metadata={})
            elif name in self._known:
                known[name] = fact
        self._known, self.unread = known, len(names) - len(known)
        return [fact for fact in known.values() if fact is not None]


def bounded(facts: Iterable[WeightsFact], wanted: Callable[[str], bool]) -> tuple[list[WeightsFact], int]:
    """Those that a report has room for, and how many are left out. All that is wanted; of the others those that nobody
    wanted for longest, for these are the ones to go; their metadata only while that costs little."""
    told: list[WeightsFact] = []
    others: list[WeightsFact] = []
    room, left_out = ROOM, 0
    for fact in facts:
        (told if wanted(fact.source) and not fact.corrupt and not fact.unfinished else others).append(fact)
    for fact in sorted(others, key=lambda fact: (fact.last_wanted, fact.entry or "")):
        size = _BASE + len(fact.source)
        rich = size + sum(len(key) + len(str(value)) + 6 for key, value in fact.metadata.items())
        if room >= rich + ROOM // 2:
            room -= rich
        elif room >= size:
            room -= size
            fact = replace(fact, metadata={})
        else:
            left_out += 1
            continue
        told.append(fact)
    return told, left_out
