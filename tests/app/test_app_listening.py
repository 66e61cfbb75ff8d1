"""Addresses, and a listening socket that outlives the program."""

import os
import socket
from collections.abc import Iterator

import pytest

from llmgw.app.fleet import own_address
from llmgw.app.listening import INHERITED, inherited, keep_listening, url


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_a_socket_is_taken_over_once_where_the_same_address_is_asked_for(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = listener.getsockname()[1]
    kept = keep_listening([listener.fileno()])
    monkeypatch.setenv(INHERITED, str(kept))
    listener.close()
    found = inherited(("127.0.0.1", port))
    assert found is not None
    with found, socket.create_connection(("127.0.0.1", port), 5):
        assert not found.get_inheritable(), "engines get none of it"
        assert INHERITED not in os.environ
        assert inherited(("127.0.0.1", port)) is None


@pytest.mark.parametrize("wanted", [("127.0.0.1", 1), ("127.0.0.2", 0)])
def test_a_socket_of_another_address_is_closed(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, wanted: tuple[str, int]
) -> None:
    kept = keep_listening([listener.fileno()])
    assert kept is not None
    monkeypatch.setenv(INHERITED, str(kept))
    assert inherited(wanted) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(kept)


@pytest.mark.parametrize("told", ["", "x", "999999"])
def test_nonsense_is_no_socket(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(INHERITED, told)
    assert inherited(("127.0.0.1", 0)) is None


def test_a_machine_that_has_its_store_on_loopback_is_reached_there() -> None:
    assert own_address("127.0.0.1:2379") == "127.0.0.1"
    assert own_address("localhost:2379") in ("127.0.0.1", "::1")


def test_an_ipv6_address_is_in_brackets() -> None:
    assert url("::1", 80) == "http://[::1]:80"
