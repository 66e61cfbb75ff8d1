"""Whatever is done to both, etcd and the embedded store hold the same, refuse the same and tell the same."""

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from etcds import Etcd

from llmgw.errors import LeaseLost, StaleRevision
from llmgw.store.address import Address
from llmgw.store.api import Delete, Expect, Lease, Put, Store
from llmgw.store.etcd import EtcdStore
from llmgw.store.memory import MemoryStore
from llmgw.testing.store_checks import Watch
from llmgw.units import Seconds

KEYS = ("a", "a/x", "b", "b/y", "c")
VALUES = (b"", b"1", b"2", b"\x00\xff", b"v" * 5000)
LARGE = b"l" * 800_000


@dataclass
class Side:
    """One store, and what is needed to tell its numbers from the other's: revisions since `base`, leases by place."""

    store: Store
    base: int
    leases: list[Lease] = field(default_factory=list)

    def revision(self, of: int) -> int:
        return of - self.base if of > 0 else of

    async def act(self, step: "Step") -> object:
        """What came of it, comparable with the other side's."""
        lease = self.leases[step.lease] if step.lease is not None and step.lease < len(self.leases) else None
        expect = [Expect(key, revision + self.base if revision > 0 else revision) for key, revision in step.expect]
        try:
            match step.kind:
                case "put":
                    return self.revision(await self.store.put(*step.puts[0], lease=lease, expect=expect))
                case "txn":
                    writes: list[Put | Delete] = [Put(key, value, lease) for key, value in step.puts]
                    return self.revision(await self.store.txn([*writes, *map(Delete, step.deletes)], expect=expect))
                case "delete":
                    return await self.store.delete(step.deletes[0])
                case "grant":
                    self.leases.append(await self.store.lease(Seconds(600)))
                case "revoke" if lease is not None:
                    await lease.revoke()
            return None
        except (StaleRevision, LeaseLost) as error:
            return type(error)

    async def holds(self) -> object:
        snapshot = await self.store.list("")
        return self.revision(snapshot.revision), [(e.key, e.value, self.revision(e.revision)) for e in snapshot.entries]

    async def told(self) -> object:
        """The last change of each key, as a watcher hears it who comes late."""
        last = await self.store.put("end", b"")
        watch = Watch(self.store, "", self.base)
        try:
            while not watch.seen or watch.seen[-1].revision < last:
                await watch.until(len(watch.seen) + 1)
            latest = {change.key: change for change in watch.seen}
            return sorted((key, one.value, self.revision(one.revision)) for key, one in latest.items())
        finally:
            await watch.aclose()


@dataclass
class Step:
    kind: str
    puts: Sequence[tuple[str, bytes]] = ()
    deletes: Sequence[str] = ()
    expect: Sequence[tuple[str, int]] = ()
    lease: int | None = None


def a_step(chance: random.Random, revisions: dict[str, int]) -> Step:
    """Conditions mostly hold: what is refused every time tests little."""
    kind = chance.choices(("put", "txn", "delete", "grant", "revoke"), (6, 6, 2, 1, 1))[0]
    keys = chance.sample(KEYS, chance.randint(1, 3))
    values = chance.choices((*VALUES, LARGE), (3, 6, 6, 2, 2, 1 if kind == "put" else 0), k=len(keys))
    cut = chance.randint(0, len(keys)) if kind == "txn" else len(keys)
    expect = []
    for key in chance.sample(KEYS, chance.choice((0, 0, 1, 2))):
        expect.append((key, revisions.get(key, 0) + chance.choice((0, 0, 0, 0, 1))))
    return Step(
        kind,
        puts=list(zip(keys, values, strict=True))[:cut],
        deletes=keys[cut:] if kind == "txn" else keys[:1],
        expect=expect,
        lease=chance.choice((None, None, 0, 1, 2)) if kind != "revoke" else chance.randint(0, 2),
    )


@pytest.mark.parametrize("seed", range(30))
async def test_both_stores_do_the_same(seed: int, shared_etcd: Etcd) -> None:
    chance = random.Random(seed)
    etcd = EtcdStore(Address(targets=(shared_etcd.target,), prefix=f"/test/{secrets.token_hex(8)}/"))
    memory = MemoryStore()
    sides = [Side(store, await store.put("begin", b"")) for store in (memory, etcd)]
    revisions: dict[str, int] = {}
    story: list[object] = []
    for _ in range(25):
        step = a_step(chance, revisions)
        results = [await side.act(step) for side in sides]
        story.append((step, results))
        assert results[0] == results[1], story
        states = [await side.holds() for side in sides]
        assert states[0] == states[1], story
        revisions = {entry.key: entry.revision - sides[0].base for entry in (await memory.list("")).entries}
    told = [await side.told() for side in sides]
    assert told[0] == told[1], story
    await etcd.close()
    await memory.close()
