"""Caches of very many entries: read a part at a time, told as far as a report holds."""

from collections.abc import Mapping

from llmgw.facts import DiskFact, MemoryFact, NodeReport, WeightsFact
from llmgw.ids import NodeName
from llmgw.store.api import LARGEST
from llmgw.store.codec import encode
from llmgw.units import Bytes, Wall
from llmgw.weights.survey import LOOK, Survey, bounded


def fact(number: int, *, metadata: Mapping[str, str | int | float] | None = None) -> WeightsFact:
    return WeightsFact(
        source=f"https://models.example.org/family/model-{number}.gguf",
        entry=f"v1-sha256-{number:064x}",
        size=Bytes(1),
        last_wanted=Wall(float(number)),
        sha256="0" * 64,
        metadata=metadata or {},
    )


NAMES = [f"v1-sha256-{number:064x}" for number in range(5 * LOOK)]


def nobody(source: str) -> bool:
    return False


class Disk:
    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, name: str) -> WeightsFact:
        self.read.append(name)
        return fact(int(name.rpartition("-")[2], 16), metadata={"general.name": "x"})


def test_a_small_cache_is_read_whole_at_each_look() -> None:
    disk = Disk()
    survey = Survey(disk)
    for _ in range(2):
        assert [one.entry for one in survey.look(NAMES[:LOOK], (), nobody)] == NAMES[:LOOK]
        assert all(one.metadata for one in survey.look(NAMES[:10], (), nobody))
    assert disk.read.count(NAMES[20]) == 2


def test_of_a_large_cache_each_look_reads_a_part_and_all_that_is_wanted() -> None:
    disk = Disk()
    survey = Survey(disk)
    wanted = fact(4 * LOOK)
    assert wanted.entry is not None
    for look in range(1, 7):
        found = survey.look(NAMES, {wanted.entry}, lambda source: source == wanted.source)
        assert len(found) == min(5 * LOOK, look * LOOK + (1 if look < 5 else 0))
        assert survey.unread == 5 * LOOK - len(found)
        assert [bool(one.metadata) for one in found if one.source == wanted.source] == [True]
    assert disk.read.count(wanted.entry) >= 6
    assert max(disk.read.count(name) for name in NAMES[:100]) == 2


def test_what_changed_is_read_at_the_next_look_and_what_is_gone_is_forgotten() -> None:
    disk = Disk()
    survey = Survey(disk)
    for _ in range(5):
        survey.look(NAMES, (), nobody)
    disk.read.clear()
    survey.look_again(NAMES[-1])
    assert len(survey.look(NAMES[2:], (), nobody)) == len(NAMES) - 2
    assert NAMES[-1] in disk.read


def test_a_report_holds_all_that_is_wanted_then_the_longest_unwanted() -> None:
    rich = {f"general.key.{number}": "some text" for number in range(10)}
    facts = [fact(number, metadata=rich) for number in range(20_000)]
    told, left_out = bounded(facts, lambda source: source == facts[19_999].source)
    assert told[0] is facts[19_999]
    assert [one.last_wanted for one in told[1:]] == [float(number) for number in range(len(told) - 1)]
    assert left_out == 20_000 - len(told)
    assert len(told) > 1_000
    report = NodeReport(
        node=NodeName("n1"),
        at=Wall(1.0),
        memory=MemoryFact(total=Bytes(1), available=Bytes(1), foreign=Bytes(0)),
        disk=DiskFact(total=Bytes(1), free=Bytes(1)),
        weights=tuple(told),
    )
    assert len(encode(report)) < LARGEST * 0.8


def test_a_report_of_few_entries_has_all_they_tell() -> None:
    facts = [fact(number, metadata={"general.name": "x"}) for number in range(100)]
    told, left_out = bounded(facts, nobody)
    assert (sorted(told, key=lambda one: one.last_wanted), left_out) == (facts, 0)
