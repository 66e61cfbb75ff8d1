"""`llmgw doctor --store`: what is in the way of a fleet's store, each thing once, and what to do."""

import asyncio
import secrets
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from etcd_users import with_users
from etcds import Etcd
from harness import run_cli

from llmgw.admin.shapes import CheckRow
from llmgw.cli import checkup_store
from llmgw.errors import RetryableError
from llmgw.facts import DiskFact, MemoryFact, NodeReport
from llmgw.ids import NodeName
from llmgw.store import codec, keys
from llmgw.store.address import Address, Tls
from llmgw.store.election import Leader
from llmgw.store.etcd import EtcdStore
from llmgw.store.values import ClusterIdentity, Member, Role
from llmgw.units import GIB, Bytes, Wall


def address(*targets: str, **fields: object) -> Address:
    return Address(targets=targets, **{"prefix": f"/test/{secrets.token_hex(8)}/", **fields})  # type: ignore[arg-type]


def wrong(where: Address) -> list[CheckRow]:
    return [row for row in checkup_store.examine(where) if row.verdict != "ok"]


def test_an_etcd_that_nobody_uses_yet_is_well(shared_etcd: Etcd) -> None:
    rows = list(checkup_store.examine(address(shared_etcd.target)))
    assert {row.verdict for row in rows} == {"ok"}
    assert any(row.name == f"etcd {shared_etcd.target}" and row.message.startswith("etcd 3.") for row in rows)
    assert any(row.name == "cluster" and "none was founded" in row.message for row in rows)


def test_what_cannot_be_reached_fails_alone_and_is_worth_a_warning_beside_others(shared_etcd: Etcd) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listening
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        (row,) = wrong(address(nobody))
        assert (row.verdict, row.name) == ("fail", f"etcd {nobody}")
        assert "Connection refused" in row.message
        (row,) = wrong(address(nobody, shared_etcd.target))
        assert row.verdict == "warn"
        assert [row.verdict for row in wrong(address(nobody, nobody))][-1] == "fail"
    (row,) = wrong(address("no-such-host.invalid:2379"))
    assert "is no name that is known here" in row.message


def test_tls_that_does_not_fit_is_told_from_a_store_that_is_away(
    tls_etcd: Etcd, shared_etcd: Etcd, certificates: Path
) -> None:
    ca, cert, key = ((certificates / name).read_bytes() for name in ("ca.pem", "client.pem", "client.key"))
    assert wrong(address(tls_etcd.target, tls=Tls(ca=ca, cert=cert, key=key))) == []
    cases = [
        (tls_etcd, None, "it speaks TLS", "etcds://"),
        (shared_etcd, Tls(ca=ca), "it speaks no TLS", "etcd://"),
        (tls_etcd, Tls(cert=cert, key=key), "is not trusted", "LLMGW_ETCD_CA"),
        (tls_etcd, Tls(ca=ca), "does not take our certificate", "LLMGW_ETCD_CERT"),
    ]
    for etcd, tls, said, advice in cases:
        (row,) = wrong(address(etcd.target, tls=tls))
        assert (row.verdict, said in row.message, advice in row.advice) == ("fail", True, True), row


def test_a_user_that_is_missing_or_not_let_in_is_told_without_the_password(etcd: Etcd) -> None:
    asyncio.run(with_users(etcd))
    for fields, said in (
        ({}, "set LLMGW_ETCD_USER"),
        ({"user": "llmgw", "password": "a wrong secret"}, "does not take the password of user llmgw"),
        ({"user": "llmgw", "password": "secret of llmgw", "prefix": "/elsewhere/"}, "may not read and write keys"),
    ):
        rows = wrong(address(etcd.target, **{"prefix": "/llmgw/a/", **fields}))
        assert any(row.verdict == "fail" and said in row.message for row in rows), rows
        assert not any("secret" in f"{row.message}{row.advice}" for row in rows)
    login = {"user": "llmgw", "password": "secret of llmgw", "prefix": "/llmgw/a/"}
    assert [row for row in wrong(address(etcd.target, **login)) if row.verdict == "fail"] == []


def test_a_full_etcd_is_told_with_the_way_out(etcd_binary: str, tmp_path: Path) -> None:
    etcd = Etcd(etcd_binary, tmp_path, arguments=("--quota-backend-bytes", "4000000")).start()

    async def fill() -> None:
        store = EtcdStore(address(etcd.target))
        try:
            for number in range(100):
                await store.put("k", bytes([number]) * 700_000)
        finally:
            await store.close()

    try:
        with pytest.raises(RetryableError, match="full"):
            asyncio.run(fill())
        (row,) = wrong(address(etcd.target))
        assert row.verdict == "fail"
        assert "NOSPACE" in row.message
        assert "alarm disarm" in row.advice
    finally:
        etcd.kill()


REPORT = NodeReport(
    node=NodeName("n1"),
    at=Wall(0),
    memory=MemoryFact(total=Bytes(GIB), available=Bytes(GIB), foreign=Bytes(0)),
    disk=DiskFact(total=Bytes(GIB), free=Bytes(GIB)),
)


def member(node: str) -> Member:
    return Member(
        role=Role.AGENT, name=node, instance="i", since=Wall(1), version="1", host="h", pid=1, place="p", url="http://x"
    )


async def a_fleet(store: EtcdStore, ahead: dict[str, float]) -> None:
    """Nodes whose clocks are so much ahead, reporting."""
    await store.put(keys.CLUSTER, codec.encode(ClusterIdentity(id="c0ffee", proof="p", at=Wall(1))))
    for node in ahead:
        await store.put(keys.member(Role.AGENT, node), codec.encode(member(node)))
    while True:
        for node, by in ahead.items():
            report = replace(REPORT, node=NodeName(node), at=Wall(time.time() + by))
            await store.put(keys.report(report.node), codec.encode(report))
        await asyncio.sleep(0.2)


async def test_a_fleet_without_a_leader_and_a_clock_that_is_wrong(shared_etcd: Etcd) -> None:
    where = address(shared_etcd.target)
    store = EtcdStore(where)
    fleet = asyncio.create_task(a_fleet(store, {"n1": 0.0, "n2": 30.0}))
    try:
        rows = await asyncio.to_thread(lambda: list(checkup_store.examine(where)))
        assert ("cluster", "c0ffee: 2 agents") in {(row.name, row.message) for row in rows}
        assert [row.message for row in rows if row.name == "leader"] == ["nobody leads"]
        assert [row.message for row in rows if row.name == "clocks"] == ["that of n2 is 30 s ahead of this machine's"]
        await store.put(keys.LEADER, codec.encode(Leader(name="c1", at=Wall(time.time() - 60))))
        rows = await asyncio.to_thread(lambda: list(checkup_store.examine(where)))
        assert any(row.name == "leader" and row.message.startswith("controller c1, for 1m") for row in rows), rows
    finally:
        fleet.cancel()
        await asyncio.wait([fleet])
        await store.close()


def test_the_command_looks_at_the_store_that_it_is_given(shared_etcd: Etcd, tmp_path: Path) -> None:
    where = ("--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    done = run_cli("doctor", *where, "--store", f"etcd://{shared_etcd.target}/doctor")
    assert f"etcd {shared_etcd.target}" in done.stdout
    assert "none was founded" in done.stdout
    assert run_cli("doctor", *where, "--store", "redis://x").returncode == 64
