"""A process of a fleet says that it lives, and begins anew when it is told to."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from llmgw.app.membership import Membership
from llmgw.clock import SystemClock
from llmgw.errors import TerminalError
from llmgw.statedir import AdminAddress, StateDir
from llmgw.store import keys
from llmgw.store.codec import decode, encode
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Member, RestartOrder, Role
from llmgw.units import Instant, Mono, Wall

ADDRESS = AdminAddress(url="http://127.0.0.1:1", token="t", gateway="http://127.0.0.1:2")


class Quick(SystemClock):
    """A clock on which waiting takes no time."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> Instant:
        return Instant(Mono(self.at), Wall(self.at))

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        await asyncio.sleep(0)


def member(store: MemoryStore, home: Path, *, role: Role = Role.AGENT) -> tuple[Membership, list[str]]:
    anew: list[str] = []
    made = Membership(
        store, store, role=role, name="n1", state=StateDir(home), clock=Quick(), anew=lambda: anew.append("anew")
    )
    return made, anew


async def told(store: MemoryStore, role: Role = Role.AGENT) -> Member:
    entry = await store.get(keys.member(role, "n1"))
    assert entry is not None
    return decode(entry.value, Member)


async def test_another_process_of_the_name_is_waited_for_and_refused_where_it_lives(tmp_path: Path) -> None:
    store, said = MemoryStore(), list[str]()
    first, _ = member(store, tmp_path / "one")
    await first.tell(ADDRESS)
    second, _ = member(store, tmp_path / "two")
    with pytest.raises(TerminalError, match=r"another agent named n1 runs on .*another name"):
        await second.claim(said.append)
    assert len(said) == 1
    await store.delete(keys.member(Role.AGENT, "n1"))
    await second.claim(said.append)


async def test_the_same_state_directorys_earlier_process_is_not_waited_for(tmp_path: Path) -> None:
    store, said = MemoryStore(), list[str]()
    first, _ = member(store, tmp_path / "one")
    await first.tell(ADDRESS)
    again, _ = member(store, tmp_path / "one")
    await again.claim(said.append)
    assert said == []


@pytest.mark.parametrize(("role", "serves"), [(Role.GATEWAY, ADDRESS.gateway), (Role.AGENT, "")])
async def test_a_gateway_tells_where_clients_find_it(tmp_path: Path, role: Role, serves: str) -> None:
    store = MemoryStore()
    made, _ = member(store, tmp_path, role=role)
    await made.tell(ADDRESS)
    assert (await told(store, role)).serves == serves


async def test_only_the_order_for_this_very_instance_has_it_begin_anew(tmp_path: Path) -> None:
    store = MemoryStore()
    made, anew = member(store, tmp_path)
    await made.tell(ADDRESS)
    obeying = asyncio.create_task(made.obey())

    async def order(name: str, instance: str) -> None:
        await store.put(
            keys.restart(Role.AGENT, name), encode(RestartOrder(instance=instance, at=Wall(0), by="somebody"))
        )
        await asyncio.sleep(0.05)

    try:
        instance = (await told(store)).instance
        await order("n1", "an earlier one")
        await order("n10", instance)
        assert anew == []
        await order("n1", instance)
        assert anew == ["anew"]
    finally:
        obeying.cancel()
        with suppress(asyncio.CancelledError):
            await obeying
    later, obeyed = member(store, tmp_path)
    task = asyncio.create_task(later.obey())
    await asyncio.sleep(0.05)
    task.cancel()
    assert obeyed == [], "an order is for one life"
