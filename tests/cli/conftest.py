"""A daemon's admin API on a real port, and the command line run against it."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import msgspec
import pytest
import uvicorn

from llmgw.admin.app import create_app
from llmgw.cli.main import main
from llmgw.facts import Event
from llmgw.statedir import AdminAddress, StateDir, write_atomic
from llmgw.store.events import EventLog


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs the command line in this process, with none of the operator's environment."""
    for name in ("LLMGW_STATE", "LLMGW_CACHE", "LLMGW_TOKEN", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: object) -> Ran:
        capsys.readouterr()  # what fixtures logged
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ran(int(ended.value.code), captured.out, captured.err)

    return run


class Daemon:
    """The admin API over a seeded store, served by uvicorn from a thread."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.token = "token-of-the-test"
        self.url = ""
        self.events = EventLog()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    async def _serve(self) -> None:
        self.seeds = await seed.full()
        self.events.record(Event(at=seed.NOW, subject="model/qwen", reason="ready", message="in 3.2s"))
        app = create_app(
            store=self.seeds.store,
            events=self.events,
            token=self.token,
            node=seed.NODE,
            state=StateDir(self.state),
        )
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._ready.set()
        await self._server.serve(sockets=[listening])
        listening.close()
        for connection in tuple(self._server.server_state.connections):
            connection.transport.abort()  # what the end of a process does
        await asyncio.sleep(0)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)
        self.write_admin(self.url, self.token)

    def write_admin(self, url: str, token: str, *, gateway: str = "http://127.0.0.1:8080") -> None:
        address = AdminAddress(url=url, token=token, gateway=gateway)
        write_atomic(StateDir(self.state).admin, msgspec.json.encode(address), mode=0o600)

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Change the store, on the loop that owns it."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def stop_now(self) -> None:
        """Answers under way are cut off after a second, as `llmgw up` does it."""
        self._server.should_exit = True
        self._thread.join(10)

    def stop(self) -> None:
        self.stop_now()
        self._loop.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "state")
    daemon.start()
    yield daemon
    daemon.stop()
