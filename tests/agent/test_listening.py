"""Whose socket it is that listens on a port."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llmgw.agent.ending import Target
from llmgw.agent.listening import Stranger, holds, listeners, stranger
from llmgw.agent.process import MARK_VARIABLE, current

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")

LISTEN = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"


@contextmanager
def listening(mark: str) -> Iterator[tuple[Target, int]]:
    """A process that carries a mark, and the port on which it listens."""
    env = {**os.environ, MARK_VARIABLE: mark}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-S", "-c", LISTEN], env=env, stdin=pipe, stdout=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            yield Target(mark=mark, leader=current(child.pid)), port
        finally:
            child.kill()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


BOUND = [
    (socket.AF_INET, "127.0.0.1", {"127.0.0.1"}),
    (socket.AF_INET, "0.0.0.0", {"127.0.0.1", "127.0.0.2"}),
    (socket.AF_INET6, "::1", {"::1"}),
    (socket.AF_INET6, "::", {"::1", "127.0.0.1", "127.0.0.2"}),
]


@pytest.mark.parametrize(("family", "bound", "there"), BOUND if has_ipv6() else BOUND[:2])
def test_a_listener_is_found_by_every_address_that_reaches_it(
    family: socket.AddressFamily, bound: str, there: set[str]
) -> None:
    with socket.socket(family) as sock:
        sock.bind((bound, 0))
        sock.listen()
        port = sock.getsockname()[1]
        found = {host: listeners(host, port) for host in ("127.0.0.1", "127.0.0.2", "::1")}
        assert {host for host, sockets in found.items() if sockets} == there
        assert all(holds(os.getpid(), found[host]) for host in there)
        assert not holds(os.getppid(), found[next(iter(there))])
        client = socket.create_connection((next(iter(sorted(there, reverse=True))), port))
        assert listeners(bound if bound not in ("0.0.0.0", "::") else "127.0.0.1", port), "connections are none"
        client.close()


def test_its_own_listener_is_no_stranger_and_that_of_another_replica_certainly_is() -> None:
    with listening("one") as (one, port), listening("other") as (other, its_port):
        assert stranger("127.0.0.1", port, one) is None
        assert other.leader is not None
        assert stranger("127.0.0.1", its_port, one) == Stranger(pid=other.leader.pid, certain=True)
        assert stranger("127.0.0.1", port, other) is not None


def test_what_listened_before_is_doubted_and_what_came_later_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        with listening("one") as (one, _):
            assert stranger("127.0.0.1", port, one) == Stranger(pid=os.getpid(), certain=False)
        assert one.leader is not None
        older = Target(mark="one", leader=current(1))  # whatever began first of all
        assert stranger("127.0.0.1", port, older) is None


def test_where_nobody_listens_or_the_host_is_a_name_nothing_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours, listening("one") as (one, port):
        free = ours.getsockname()[1]
        ours.close()
        assert stranger("127.0.0.1", free, one) is None
        assert stranger("localhost", port, Target(mark="x", leader=current(os.getpid()))) is None
