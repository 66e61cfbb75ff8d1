"""What `llmgw doctor --store` looks at: each member of etcd, what it lets us do, and the fleet that meets there.

Changes nothing: it reads, and asks etcd how it is. Blocking.
"""

import asyncio
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from llmgw.admin.shapes import CheckRow
from llmgw.cli.checkup import FAIL, WARN, row
from llmgw.errors import LlmgwError, RetryableError
from llmgw.facts import NodeReport
from llmgw.ids import NodeName
from llmgw.store import codec, keys
from llmgw.store.address import CA, CERT, Address, Tls
from llmgw.store.election import Leader
from llmgw.store.values import ClusterIdentity, Member, Role
from llmgw.units import GIB, Bytes, format_bytes, format_seconds

TIMEOUT: Final = 2.0  #: seconds, for a connection
HEARTBEATS: Final = 6.0  #: seconds in which every living agent reports
SLOW: Final = 0.1  #: seconds; every write waits for as long and longer
SKEW: Final = 2.0  #: seconds between two clocks that are worth telling
QUOTA: Final = 2 * GIB  #: of etcd as it is delivered
LARGE: Final = 3 * QUOTA // 4

_NO_SPACE: Final = 1  #: etcd's AlarmType


def examine(address: Address) -> Iterator[CheckRow]:
    """In turn; what needs what does not hold is left out."""
    reached = []
    for target in address.targets:
        wrong = _unreachable(target, address.tls)
        if wrong is None:
            reached.append(target)
        else:
            yield row(f"etcd {target}", wrong[0], verdict=WARN if len(address.targets) > 1 else FAIL, advice=wrong[1])
    if reached:
        yield from asyncio.run(_asked(address, reached))
    elif len(address.targets) > 1:
        yield row("etcd", "no member can be reached", verdict=FAIL, advice="nothing is decided until one can")


# -- can it be reached


def _unreachable(target: str, tls: Tls | None) -> tuple[str, str] | None:
    """What is in the way, and what to do."""
    host, _, port = target.rpartition(":")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT)
    except socket.gaierror as error:
        return f"{host} is no name that is known here ({error.strerror})", "check the address and the name service"
    except OSError as error:
        why = error.strerror or "no answer"
        return f"cannot be reached: {why}", "start etcd there, or check address, port and firewall"
    with connection:
        connection.settimeout(TIMEOUT)
        if tls is None:
            return _unencrypted(connection, host)
        wrong = _handshake(connection, host, tls)
    if wrong is not None and _speaks_plainly(host, int(port)):
        return "it speaks no TLS", "write etcd:// instead of etcds://, or give etcd a certificate"
    return wrong


def _unencrypted(connection: socket.socket, host: str) -> tuple[str, str] | None:
    """Whether it wants TLS: a client that greets it so is answered in kind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(connection, server_hostname=host.strip("[]")):
            return "it speaks TLS", "write etcds:// instead of etcd://"
    except (ssl.SSLError, OSError):
        return None


def _speaks_plainly(host: str, port: int) -> bool:
    """Whether it answers HTTP without TLS."""
    try:
        with socket.create_connection((host.strip("[]"), port), TIMEOUT) as connection:
            connection.settimeout(TIMEOUT)
            connection.sendall(f"GET /version HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            # A Go server that wants TLS says that it does in plain HTTP.
            return (answer := connection.recv(200)).startswith(b"HTTP/1.1 ") and b" 400 " not in answer
    except OSError:
        return False


def _handshake(connection: socket.socket, host: str, tls: Tls) -> tuple[str, str] | None:
    try:
        context = ssl.create_default_context(cadata=None if tls.ca is None else tls.ca.decode())
        context.set_alpn_protocols(["h2"])
        if tls.cert is not None and tls.key is not None:
            _load(context, tls.cert, tls.key)
        with context.wrap_socket(connection, server_hostname=host.strip("[]")) as wrapped:
            wrapped.recv(1)  # a certificate of ours that it does not like is told only now
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not trusted: {error.verify_message}", f"name the authority that signed it in {CA}"
    except ssl.SSLError as error:
        return _refused(error)
    except (OSError, UnicodeError, ValueError) as error:
        return f"no TLS connection: {error}", "see etcd's log"
    return None


def _refused(error: ssl.SSLError) -> tuple[str, str]:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "certificate required" in reason or "bad certificate" in reason or "unknown ca" in reason:
        return (
            f"it does not take our certificate ({reason})",
            f"name one that its authority signed in {CERT} and its key",
        )
    return f"no TLS connection: {reason}", "see etcd's log"


def _load(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    """The ssl module reads files only."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(cert + b"\n" + key)
        file.flush()
        context.load_cert_chain(Path(file.name))


# -- how is it


async def _asked(address: Address, reached: list[str]) -> list[CheckRow]:
    try:
        from llmgw.store.etcd import EtcdStore
    except ImportError as error:
        return [row("etcd", f"no client for it ({error})", verdict=FAIL, advice="pip install 'llmgw[etcd]'")]
    found = [await _member(replace(address, targets=(target,))) for target in reached]
    store = EtcdStore(replace(address, targets=tuple(reached)))
    try:
        begun = time.monotonic()
        await store.get(keys.CLUSTER)
        took = time.monotonic() - begun
        found += [_pace(took), *await _alarms(address, reached), *await _fleet(store), *await _clocks(store)]
    except LlmgwError as error:
        retry = isinstance(error, RetryableError)
        advice = "a majority of its members must live: see their logs" if retry else ""
        found.append(row("etcd", str(error), verdict=FAIL, advice=advice))
    finally:
        await store.close()
    return found


async def _member(address: Address) -> CheckRow:
    from llmgw.store.etcd_rpc import rpc

    name = f"etcd {address.targets[0]}"
    try:
        status = await _call(address, "Status", rpc.StatusRequest())
    except LlmgwError as error:
        return row(name, str(error), verdict=WARN, advice="see its log")
    size = Bytes(status.dbSize)
    said = f"etcd {status.version}, {format_bytes(size)}"
    if status.leader == 0:
        return row(name, f"{said}; it has no leader", verdict=WARN, advice="a majority of the members must live")
    if tuple(map(int, status.version.split(".")[:2])) < (3, 4):
        return row(name, said, verdict=FAIL, advice="etcd 3.4 or newer is needed")
    if size > LARGE:
        advice = "--auto-compaction-retention=5m keeps its history short; `etcdctl defrag` gives the room back"
        said += f", of {format_bytes(Bytes(QUOTA))} unless --quota-backend-bytes says otherwise"
        return row(name, said, verdict=WARN, advice=advice)
    return row(name, said)


async def _call(address: Address, method: str, request: Any) -> Any:
    from llmgw.store.etcd_calls import Calls

    calls = Calls(address)
    try:
        return await calls.call("maintenance", method, request, again=True)
    finally:
        await calls.close()


def _pace(took: float) -> CheckRow:
    said = f"a read took {1000 * took:.0f} ms"
    if took <= SLOW:
        return row("etcd", said)
    return row(
        "etcd", said, verdict=WARN, advice="a disk or network that is too slow for it: all decisions wait for it"
    )


async def _alarms(address: Address, reached: list[str]) -> Iterator[CheckRow]:
    from llmgw.store.etcd_rpc import rpc

    try:
        answer = await _call(replace(address, targets=tuple(reached)), "Alarm", rpc.AlarmRequest())
    except LlmgwError:  # where users are on, only root may ask
        return iter(())
    found = {alarm.alarm for alarm in answer.alarms}
    rows = []
    if _NO_SPACE in found:
        advice = "`etcdctl compact`, `etcdctl defrag`, raise --quota-backend-bytes, `etcdctl alarm disarm`"
        rows.append(row("etcd", "NOSPACE: it takes no writes: nothing can be decided", verdict=FAIL, advice=advice))
    if found - {0, _NO_SPACE}:
        advice = "replace the member that `etcdctl alarm list` names"
        rows.append(row("etcd", "CORRUPT: its members do not hold the same", verdict=FAIL, advice=advice))
    return iter(rows)


# -- who meets there


async def _fleet(store: Any) -> Iterator[CheckRow]:
    cluster = await store.get(keys.CLUSTER)
    if cluster is None:
        return iter([row("cluster", "none was founded here yet", advice="`llmgw controller` does, at its first start")])
    members = [codec.decode(one.value, Member, where=one.key) for one in (await store.list(keys.MEMBERS)).entries]
    counted = ", ".join(
        f"{len(names)} {role}{'' if len(names) == 1 else 's'}"
        for role in Role
        if (names := [one.name for one in members if one.role is role])
    )
    said = f"{codec.decode(cluster.value, ClusterIdentity, where=cluster.key).id}: {counted or 'no process lives'}"
    rows = [row("cluster", said)]
    entry = await store.get(keys.LEADER)
    if entry is None:
        rows.append(
            row("leader", "nobody leads", verdict=WARN, advice="start an `llmgw controller`: nothing is decided")
        )
    else:
        leader = codec.decode(entry.value, Leader, where=entry.key)
        rows.append(row("leader", f"controller {leader.name}, for {format_seconds(max(0.0, time.time() - leader.at))}"))
    return iter(rows)


async def _clocks(store: Any) -> Iterator[CheckRow]:
    """Of the nodes that report while we look, against this machine's."""
    living = {keys.last(one.key) for one in (await store.list(keys.member(Role.AGENT, ""))).entries}
    if not living:
        return iter(())
    ahead: dict[NodeName, float] = {}
    revision = (await store.list(keys.LEADER)).revision
    try:
        async with asyncio.timeout(HEARTBEATS), aclosing(store.watch(keys.NODES, from_revision=revision)) as batches:
            async for changes in batches:
                for change in changes:
                    if change.value is not None and keys.is_report(change.key):
                        report = codec.decode(change.value, NodeReport, where=change.key)
                        ahead[report.node] = report.at - time.time()
                if ahead.keys() >= living:
                    break
    except TimeoutError:
        pass
    rows = [_silent(node) for node in sorted(living - ahead.keys())]
    wrong = {node: by for node, by in sorted(ahead.items()) if abs(by) > SKEW}
    for node, by in wrong.items():
        said = f"that of {node} is {abs(by):.0f} s {'ahead of' if by > 0 else 'behind'} this machine's"
        rows.append(row("clocks", said, verdict=WARN, advice="have all clocks kept by NTP: stamps are compared"))
    if ahead and not wrong:
        rows.append(row("clocks", f"those of {len(ahead)} node{'s' if len(ahead) > 1 else ''} and this one agree"))
    return iter(rows)


def _silent(node: str) -> CheckRow:
    said = f"the agent of {node} lives, and did not report within {HEARTBEATS:.0f} s"
    return row("report", said, verdict=WARN, advice="its agent hangs: a disk or driver that does not answer?")
