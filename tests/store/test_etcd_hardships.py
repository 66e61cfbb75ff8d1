"""What etcd does not do every day: it dies, comes back, forgets its history, is slow, or asks for a password."""

import asyncio
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from aetcd import rpc
from etcd_users import admin, with_users
from etcds import Etcd, free_ports

from llmgw.clock import SystemClock
from llmgw.errors import LeaseLost, Resync, RetryableError, StaleRevision, TerminalError
from llmgw.store.address import Address, Tls
from llmgw.store.api import Change, Delete, Expect
from llmgw.store.election import TTL, Fenced, current_leader, elected
from llmgw.store.etcd import EtcdStore
from llmgw.store.etcd_calls import NoAnswer
from llmgw.store.follow import follow
from llmgw.testing.store_checks import Watch
from llmgw.units import Seconds

HOLDER = Path(__file__).with_name("etcd_holder.py")


def address(*servers: Etcd, **fields) -> Address:
    targets = tuple(server.target for server in servers)
    return Address(targets=targets, **{"prefix": f"/test/{secrets.token_hex(8)}/", **fields})


@asynccontextmanager
async def store_at(where: Address) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(where)
    try:
        yield store
    finally:
        await store.close()


async def compact(server: Etcd, revision: int) -> None:
    async with admin(server) as channel:
        await rpc.KVStub(channel).Compact(rpc.CompactionRequest(revision=revision, physical=True))


async def collect(store: EtcdStore, prefix: str, into: dict[str, bytes | None], wake: asyncio.Event) -> None:
    """What a level-triggered reader holds: the keys under a prefix, kept up to date."""
    seen = await store.list(prefix)
    into.update({entry.key: entry.value for entry in seen.entries})
    wake.set()
    async for changes in follow(store, prefix, seen):
        for change in changes:
            if change.value is None:
                into.pop(change.key, None)
            else:
                into[change.key] = change.value
        wake.set()


async def until(held: dict[str, bytes | None], wanted: dict[str, bytes], wake: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        while held != wanted:
            wake.clear()
            await wake.wait()


async def test_a_watch_goes_on_through_a_restart_of_etcd_and_misses_nothing(etcd: Etcd) -> None:
    async with store_at(address(etcd)) as store, store_at(store._address) as other:
        first = await store.put("w/a", b"1")
        watch = Watch(store, "w/", first)
        await store.put("w/b", b"1")
        await watch.until(1)
        etcd.kill()
        await asyncio.to_thread(etcd.start)
        await other.put("w/c", b"1")  # before the watch is back, most likely
        await other.delete("w/a")
        changes = await watch.until(3)
        assert [(change.key, change.value) for change in changes] == [("w/b", b"1"), ("w/c", b"1"), ("w/a", None)]
        await watch.aclose()


async def test_while_etcd_is_away_calls_fail_in_time_and_work_again_when_it_is_back(etcd: Etcd) -> None:
    async with store_at(address(etcd)) as store:
        revision = await store.put("k", b"1")
        etcd.kill()
        attempts = [store.get("k"), store.list(""), store.put("k", b"2"), store.put("k", b"2", if_revision=revision)]
        async with asyncio.timeout(30):
            results = await asyncio.gather(*attempts, store.lease(Seconds(5)), return_exceptions=True)
        assert all(isinstance(result, RetryableError) for result in results), results
        await asyncio.to_thread(etcd.start)
        async with asyncio.timeout(30):
            while True:
                try:
                    entry = await store.get("k")
                    break
                except RetryableError:
                    pass
        assert entry is not None
        assert entry.value == b"1"
        assert await store.put("k", b"3", if_revision=revision) > revision


async def test_a_write_that_finds_etcd_held_up_is_done_when_it_goes_on(etcd: Etcd) -> None:
    async with store_at(address(etcd)) as store:
        await store.put("k", b"1")
        etcd.pause()
        writing = asyncio.ensure_future(store.put("k", b"2"))
        await asyncio.sleep(0.3)
        assert not writing.done()
        etcd.resume()
        await writing
        entry = await store.get("k")
        assert entry is not None
        assert entry.value == b"2"


async def test_a_conditional_write_without_an_answer_is_not_tried_twice(etcd: Etcd) -> None:
    """It may have been carried out: the second attempt would be refused for the first one's sake."""
    async with store_at(address(etcd)) as store:
        first = await store.put("k", b"1")
        etcd.pause()
        with pytest.raises(RetryableError) as caught:
            await store.put("k", b"2", if_revision=first)
        assert not isinstance(caught.value, StaleRevision)
        etcd.resume()
        async with asyncio.timeout(30):
            while True:
                try:
                    entry = await store.get("k")
                    break
                except RetryableError:
                    pass
        assert entry is not None
        assert entry.value in (b"1", b"2")


async def test_a_watch_from_a_compacted_revision_is_told_to_list_again(etcd: Etcd) -> None:
    async with store_at(address(etcd)) as store:
        first = await store.put("w/gone", b"1")
        await store.delete("w/gone")
        last = await store.put("w/b", b"1")
        await compact(etcd, last)
        with pytest.raises(Resync):
            await anext(store.watch("w/", from_revision=first))
        watch = Watch(store, "w/", last)
        await store.put("w/c", b"1")
        assert [change.key for change in await watch.until(1)] == ["w/c"]
        await watch.aclose()


async def test_following_sees_deletions_that_were_compacted_while_etcd_was_away(etcd: Etcd) -> None:
    async with store_at(address(etcd)) as store, store_at(store._address) as other:
        for key in ("w/gone", "w/kept", "w/changed"):
            await store.put(key, b"1")
        held: dict[str, bytes | None] = {}
        wake = asyncio.Event()
        following = asyncio.ensure_future(collect(store, "w/", held, wake))
        await until(held, {"w/gone": b"1", "w/kept": b"1", "w/changed": b"1"}, wake)
        etcd.kill()
        await asyncio.sleep(0.1)
        # Nobody lets the watch in again until what it missed is compacted: the port is another one's meanwhile.
        moved = Etcd(etcd._argv[0], etcd.directory, ports=free_ports(2))
        await asyncio.to_thread(moved.start)
        async with store_at(address(moved, prefix=store._address.prefix)) as mover:
            await mover.delete("w/gone")
            await mover.put("w/changed", b"2")
            last = await mover.put("w/new", b"1")
        await compact(moved, last)
        moved.kill(signal.SIGTERM)
        await asyncio.to_thread(etcd.start)
        await until(held, {"w/kept": b"1", "w/changed": b"2", "w/new": b"1"}, wake)
        await other.put("w/after", b"1")
        await until(held, {"w/kept": b"1", "w/changed": b"2", "w/new": b"1", "w/after": b"1"}, wake)
        following.cancel()
        await asyncio.wait([following])


async def test_etcd_restored_from_an_older_copy_is_listed_again(etcd: Etcd, tmp_path: Path) -> None:
    async with store_at(address(etcd)) as store:
        await store.put("w/old", b"1")
        etcd.kill(signal.SIGTERM)
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-r", etcd.directory / "m0", copy], check=True)
        await asyncio.to_thread(etcd.start)
        for number in range(20):
            await store.put("w/new", str(number).encode())
        held: dict[str, bytes | None] = {}
        wake = asyncio.Event()
        following = asyncio.ensure_future(collect(store, "w/", held, wake))
        await until(held, {"w/old": b"1", "w/new": b"19"}, wake)
        etcd.kill()
        subprocess.run(["rm", "-r", etcd.directory / "m0"], check=True)
        subprocess.run(["cp", "-r", copy, etcd.directory / "m0"], check=True)
        await asyncio.to_thread(etcd.start)
        await until(held, {"w/old": b"1"}, wake)
        following.cancel()
        await asyncio.wait([following])


async def test_a_slow_watcher_holds_up_nobody_and_ends_with_the_latest(etcd: Etcd) -> None:
    async with store_at(address(etcd)) as store:
        watch = Watch(store, "s/", 0)
        await store.put("s/begin", b"")
        await watch.until(1)
        value = secrets.token_bytes(20_000)
        for number in range(40):  # 16 MB that the watcher does not come for
            batch = [store.put(f"s/{key}", b"%d %d " % (number, key) + value) for key in range(20)]
            await asyncio.gather(*batch)
        latest = (await store.list("s/")).entries
        seen: dict[str, Change] = {}
        async with asyncio.timeout(30):
            while {key: change.value for key, change in seen.items()} != {e.key: e.value for e in latest[:-1]}:
                await watch.until(len(watch.seen) + 1)
                seen |= {change.key: change for change in watch.seen[1:]}
        revisions = [change.revision for change in watch.seen]
        assert revisions == sorted(revisions)
        await watch.aclose()


async def test_a_lease_outlives_a_restart_of_etcd_while_its_owner_keeps_it(etcd: Etcd) -> None:
    async with store_at(address(etcd)) as store:
        lease = await store.lease(Seconds(2))
        await store.put("l", b"1", lease=lease)
        keeping = asyncio.ensure_future(lease.keep())
        etcd.kill()
        await asyncio.sleep(2.5)  # longer than the lease
        await asyncio.to_thread(etcd.start)
        await asyncio.sleep(3)
        assert await store.get("l") is not None
        assert not lease.lost.is_set()
        keeping.cancel()
        await asyncio.wait([keeping])


async def test_an_owner_that_comes_too_late_hears_that_its_lease_ended(etcd: Etcd) -> None:
    async with store_at(address(etcd)) as store:
        lease = await store.lease(Seconds(1))
        await store.put("l", b"1", lease=lease)
        async with asyncio.timeout(30):
            while await store.get("l") is not None:
                await asyncio.sleep(0.05)
        with pytest.raises(LeaseLost):
            await store.put("l", b"1", lease=lease)
        assert lease.lost.is_set()
        await lease.keep()
        await lease.revoke()


@contextmanager
def holder(where: Address, name: str, ttl: float) -> Iterator[subprocess.Popen[str]]:
    """A process that leads, from when it said so."""
    argv = [sys.executable, str(HOLDER), ",".join(where.targets), where.prefix, name, str(ttl)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "leads\n"
            yield process
        finally:
            process.kill()


async def leading(store: EtcdStore) -> str | None:
    leader = await current_leader(store)
    return leader.name if leader else None


async def test_a_leader_that_is_killed_is_followed_by_another_when_its_lease_ends(etcd: Etcd) -> None:
    where = address(etcd)
    async with store_at(where) as store:
        with holder(where, "first", TTL) as process:
            waiting = asyncio.ensure_future(elected(store, "second", SystemClock(), ttl=TTL))
            await asyncio.sleep(0.5)
            assert await leading(store) == "first"
            process.kill()
            async with asyncio.timeout(30):
                second = await waiting
        assert await leading(store) == "second"
        await Fenced(store, second).put("by", b"second")
        await second.resign()


async def test_a_leader_that_was_paused_cannot_write_when_it_goes_on(etcd: Etcd) -> None:
    where = address(etcd)
    async with store_at(where) as store:
        with holder(where, "first", 1.0) as process:
            process.send_signal(signal.SIGSTOP)
            second = await elected(store, "second", SystemClock(), ttl=Seconds(4))
            await Fenced(store, second).put("by", b"second")
            process.send_signal(signal.SIGCONT)
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "refused\n"
            assert await asyncio.to_thread(process.wait, 20) == 0
        entry = await store.get("by")
        assert entry is not None
        assert entry.value == b"second"
        assert not second.lost.is_set()
        await second.resign()


async def test_closing_ends_watches_and_keepers_at_once_also_while_etcd_comes_back(etcd: Etcd) -> None:
    for away in (True, False):
        async with store_at(address(etcd)) as store:
            lease = await store.lease(Seconds(5))
            watches = [Watch(store, "", 0) for _ in range(5)]
            waiting = [asyncio.ensure_future(watch.until(1)) for watch in watches]
            keeping = asyncio.ensure_future(lease.keep())
            await asyncio.sleep(0.2)
            etcd.kill()
            await asyncio.sleep(0.5)
            if not away:
                await asyncio.to_thread(etcd.start)
            await store.close()
            async with asyncio.timeout(30):
                results = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(result) for result in results} == {StopAsyncIteration}
            keeping.cancel()
            await asyncio.wait([keeping])
            with pytest.raises(RetryableError, match="closed"):
                await store.get("k")
        if away:
            await asyncio.to_thread(etcd.start)


async def fill(store: EtcdStore) -> None:
    for number in range(100):
        await store.put("k", bytes([number]) * 700_000)


async def test_a_full_etcd_says_what_to_do(etcd_binary: str, tmp_path: Path) -> None:
    etcd = Etcd(etcd_binary, tmp_path, arguments=("--quota-backend-bytes", "4000000")).start()
    try:
        async with store_at(address(etcd)) as store:
            with pytest.raises(RetryableError, match="--quota-backend-bytes"):
                await fill(store)
            assert await store.get("k") is not None
    finally:
        etcd.kill()


SPAWNING = """
import asyncio, subprocess, sys
import uvloop
from llmgw.store.address import Address
from llmgw.store.etcd import EtcdStore
from llmgw.store.etcd_calls import NoAnswer

async def main():
    store = EtcdStore(Address(targets=(sys.argv[1],), prefix="/spawning/"))
    revision = await store.put("k", b"0")
    watch = store.watch("k", from_revision=revision)
    for number in range(1, 10):
        subprocess.run(["true"], check=True, start_new_session=True)
        child = await asyncio.create_subprocess_exec("true")
        assert await child.wait() == 0
        await store.put("k", b"%d" % number)
        assert (await anext(watch))[-1].value == b"%d" % number
    await store.close()

uvloop.run(main())
"""


async def test_programs_are_started_beside_it_quietly_on_uvloop_too(etcd: Etcd) -> None:
    """gRPC has threads, which a fork does not copy, and tells so unless it is asked not to."""
    argv = [sys.executable, "-W", "error", "-c", SPAWNING, etcd.target]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_endpoints_are_tried_in_turn(etcd: Etcd) -> None:
    (nobody,) = free_ports(1)
    targets = (f"127.0.0.1:{nobody}", etcd.target)
    async with store_at(Address(targets=targets, prefix="/turn/")) as store:
        await store.put("k", b"1")
        watch = Watch(store, "k", 0)
        assert len(await watch.until(1)) == 1
        await watch.aclose()


async def test_an_endpoint_that_accepts_and_says_nothing_is_passed_over(etcd: Etcd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        targets = (f"127.0.0.1:{silent.getsockname()[1]}", etcd.target)
        async with store_at(Address(targets=targets, prefix="/turn/")) as store:
            await store.put("k", b"1")
            assert await store.get("k") is not None


@asynccontextmanager
async def leaderless() -> AsyncIterator[str]:
    """What etcd says where it has no leader within the time that a request has."""

    async def refuse(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.UNKNOWN, "context deadline exceeded")
        raise AssertionError

    methods = {name: grpc.unary_unary_rpc_method_handler(refuse) for name in ("Range", "Txn")}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("etcdserverpb.KV", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_member_without_a_leader_is_passed_over(etcd: Etcd) -> None:
    async with leaderless() as target, store_at(Address(targets=(target, etcd.target), prefix="/turn/")) as store:
        assert await store.get("k") is None
    async with leaderless() as target, store_at(Address(targets=(target, etcd.target), prefix="/turn/")) as store:
        await store.put("k", b"1")
        assert await store.get("k") is not None
    async with leaderless() as target, store_at(Address(targets=(target, etcd.target), prefix="/turn/")) as store:
        with pytest.raises(NoAnswer, match="look again"):  # nobody knows whether it was carried out
            await store.txn([Delete("k")], expect=[Expect("k", 1)])


async def test_a_user_with_a_password_and_a_login_that_a_restart_of_etcd_ends(etcd: Etcd) -> None:
    await with_users(etcd)
    login = {"user": "llmgw", "password": "secret of llmgw"}
    async with store_at(address(etcd, prefix="/llmgw/a/", **login)) as store:
        first = await store.put("k", b"1")
        assert await store.put("k", b"1") == first
        lease = await store.lease(Seconds(2))
        await store.put("l", b"1", lease=lease)
        keeping = asyncio.ensure_future(lease.keep())
        watch = Watch(store, "k", first)
        await store.put("k", b"2", if_revision=first)
        await watch.until(1)
        etcd.kill()
        await asyncio.to_thread(etcd.start)
        await store.put("k", b"3")
        assert [change.value for change in await watch.until(2)] == [b"2", b"3"]
        await asyncio.sleep(3)
        assert await store.get("l") is not None
        keeping.cancel()
        await asyncio.wait([keeping])
        await watch.aclose()


async def test_what_etcd_does_not_allow_is_told_without_the_password(etcd: Etcd) -> None:
    await with_users(etcd)
    cases = [
        ({}, "set LLMGW_ETCD_USER"),
        ({"user": "llmgw", "password": "a wrong secret"}, "password of user llmgw"),
        ({"user": "llmgw", "password": "secret of llmgw", "prefix": "/elsewhere/"}, "may not read and write keys"),
    ]
    for fields, told in cases:
        async with store_at(address(etcd, **{"prefix": "/llmgw/a/", **fields})) as store:
            for attempt in (
                store.get("k"),
                store.put("k", b"1"),
                store.put("k", b"1", if_revision=0),
                store.delete("k"),
                anext(store.watch("k", from_revision=0)),
            ):
                with pytest.raises(TerminalError) as caught:
                    await attempt
                assert told in str(caught.value)
                assert "secret" not in str(caught.value)
            assert "secret" not in repr(store._address)


async def test_tls_both_ways(tls_etcd: Etcd, certificates: Path) -> None:
    ca, cert, key = ((certificates / name).read_bytes() for name in ("ca.pem", "client.pem", "client.key"))
    async with store_at(address(tls_etcd, tls=Tls(ca=ca, cert=cert, key=key))) as store:
        await store.put("k", b"1")
        watch = Watch(store, "k", 0)
        await watch.until(1)
        await watch.aclose()
    refused: Sequence[Tls | None] = (None, Tls(ca=ca), Tls(cert=cert, key=key))
    for tls in refused:
        async with store_at(address(tls_etcd, tls=tls)) as store:
            with pytest.raises(RetryableError):
                await store.get("k")


@pytest.mark.slow
async def test_of_three_members_one_may_be_killed(etcd_binary: str, tmp_path: Path) -> None:
    ports = [free_ports(6)[at : at + 2] for at in (0, 2, 4)]
    cluster = ",".join(f"m{number}=http://127.0.0.1:{peer}" for number, (_, peer) in enumerate(ports))
    members = [
        Etcd(etcd_binary, tmp_path, name=f"m{number}", ports=pair, arguments=("--initial-cluster", cluster))
        for number, pair in enumerate(ports)
    ]
    try:
        for member in members:
            member.spawn()
        for member in members:
            await asyncio.to_thread(member.wait)
        where = address(*members)
        async with store_at(where) as store, store_at(where) as other:
            held: dict[str, bytes | None] = {}
            wake = asyncio.Event()
            following = asyncio.ensure_future(collect(store, "n/", held, wake))
            lease = await store.lease(Seconds(4))
            await store.put("leased", b"1", lease=lease)
            keeping = asyncio.ensure_future(lease.keep())
            wanted: dict[str, bytes] = {}
            for round, member in enumerate((*members, members[0])):
                member.kill()  # each in turn: one of them leads
                for number in range(30):
                    key, value = f"n/{number}", f"{round}".encode()
                    async with asyncio.timeout(30):
                        while True:
                            try:
                                await other.put(key, value)
                                break
                            except RetryableError:
                                pass
                    wanted[key] = value
                await until(held, wanted, wake)
                await asyncio.to_thread(member.start)
            assert await store.get("leased") is not None
            assert not lease.lost.is_set()
            for task in (following, keeping):
                task.cancel()
            await asyncio.wait([following, keeping])
    finally:
        for member in members:
            member.kill()


async def count_up(store: EtcdStore, key: str, ends: float) -> tuple[int, int]:
    """Add one to a number for as long as there is time; the last that is known to be written, and what went wrong.

    A write that etcd did not answer in time may yet be made, even after the next read: `late` until the next answer.
    """
    known, unsure, failed, late = 0, False, 0, False
    while time.monotonic() < ends or unsure:
        try:
            entry = await store.get(key)
            found = int(entry.value) if entry else 0
            assert found == known or (unsure and found == known + 1), f"{key}: {found} after {known} was written"
            known, unsure = found, True
            await store.put(key, str(found + 1).encode(), if_revision=entry.revision if entry else 0)
            known, unsure, late = found + 1, False, False
        except StaleRevision:
            assert late, f"nobody else writes {key}"
            late = False  # it wrote the very number that this one was to
        except RetryableError:
            failed, late = failed + 1, late or unsure
    return known, failed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happens_to_etcd_nothing_that_was_written_is_lost_and_watchers_end_up_right(
    seed: int, etcd: Etcd
) -> None:
    chance, ends = random.Random(seed), time.monotonic() + 40
    where = address(etcd)
    async with store_at(where) as store, store_at(where) as watching:
        held: dict[str, bytes | None] = {}
        wake = asyncio.Event()
        following = asyncio.ensure_future(collect(watching, "n/", held, wake))
        counting = [asyncio.ensure_future(count_up(store, f"n/{number}", ends)) for number in range(5)]
        while time.monotonic() < ends - 10:
            await asyncio.sleep(chance.uniform(0.5, 2))
            match chance.choice(("kill", "end", "pause", "compact")):
                case "kill":
                    etcd.kill()
                    await asyncio.sleep(chance.uniform(0, 3))
                    await asyncio.to_thread(etcd.start)
                case "end":
                    etcd.kill(signal.SIGTERM)
                    await asyncio.to_thread(etcd.start)
                case "pause":
                    etcd.pause()
                    await asyncio.sleep(chance.uniform(0, 4))
                    etcd.resume()
                case "compact":
                    with suppress(grpc.aio.AioRpcError, RetryableError):
                        await compact(etcd, (await store.list("n/")).revision)
        results = await asyncio.gather(*counting)
        assert sum(known for known, _ in results) > 1000
        assert sum(failed for _, failed in results) > 0, "etcd was never away"
        wanted = {f"n/{number}": str(known).encode() for number, (known, _) in enumerate(results)}
        await until(held, wanted, wake)
        following.cancel()
        await asyncio.wait([following])
