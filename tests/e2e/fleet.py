"""A real fleet on one machine: controllers, agents and gateways in processes of their own, over a real etcd."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from etcds import Etcd
from harness import MESSAGES, WEB, Repo, alive, eventually, pids_in, run_cli
from harness import command as any_command

ENGINE: Final = str(Path(__file__).parent.parent / "engines" / "answering_server.py")
"""Answers chats without a model."""

MARK: Final = "SOAK_HOME"
"""In the environment of every process of a fleet, engines too, where a test gives it its `home` for that."""


class Process:
    """One `llmgw controller`, `agent` or `gateway`."""

    def __init__(
        self,
        role: str,
        name: str,
        home: Path,
        arguments: Iterable[str],
        env: dict[str, str],
        wrapper: Sequence[str] = (),
    ) -> None:
        """`wrapper`: a command that becomes the one that it is given."""
        self.role, self.name = role, name
        self.state = home / f"{role}-{name}"
        self.output = home / f"{role}-{name}.log"
        flag = "--node" if role == "agent" else "--name"
        self._argv = [
            *wrapper,
            *(sys.executable, "-m", "llmgw", role, *arguments, flag, name, "--state", str(self.state)),
            *("--admin", "0", "-v"),
        ]
        self.env = env
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> "Process":
        (self.state / "admin.json").unlink(missing_ok=True)
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                self._argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env, start_new_session=True
            )
        return self

    def start(self) -> "Process":
        self.spawn()
        eventually(self.answers, within=40, what=f"{self.role} {self.name}")
        return self

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.role} {self.name} ended: {self.output.read_text()}"
        try:
            return httpx.get(f"{self.address['url']}/healthz", **WEB).status_code == 200
        except (httpx.TransportError, FileNotFoundError):
            return False

    @property
    def address(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.state / "admin.json").read_text())
        return found

    def get(self, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.address['token']}"}
        return httpx.get(f"{self.address['url']}{path}", headers=headers, timeout=20, **WEB)

    def seen(self, what: str) -> Any:
        return self.get(f"/api/v1/{what}").raise_for_status().json()

    def cli(self, *arguments: str) -> str:
        done = run_cli(*arguments, "--state", str(self.state), env=self.env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(40)

    def engines(self) -> list[int]:
        return [
            pid for file in self.state.glob("replicas/*/state.json") for pid in pids_in(json.loads(file.read_text()))
        ]


class Fleet:
    """`close` ends every process and every engine, and proves it."""

    def __init__(
        self,
        home: Path,
        catalog: Path,
        etcd: Etcd,
        *,
        env: dict[str, str] | None = None,
        wrappers: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`wrappers`: by name, what the command of a process is given to."""
        self.wrappers = wrappers or {}
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.catalog = home, catalog
        self.store = f"etcd://{etcd.target}/fleet"
        self.env = {**os.environ, **(env or {})}
        self.processes: list[Process] = []

    def _add(self, role: str, name: str, *arguments: str) -> Process:
        process = Process(role, name, self.home, arguments, self.env, self.wrappers.get(name, ()))
        self.processes.append(process)
        return process

    def controller(self, name: str, *more: str) -> Process:
        secret = self._secret() if (self.home / "secret").exists() else ()
        process = self._add("controller", name, str(self.catalog), "--store", self.store, *secret, *more).start()
        if not secret:
            text = (process.state / "secret").read_text()
            (self.home / "secret").touch(0o600)
            (self.home / "secret").write_text(text)
        return process

    def agent(self, name: str, *more: str) -> Process:
        return self._add("agent", name, "--store", self.store, *self._secret(), *more).start()

    def gateway(self, name: str, *more: str) -> Process:
        where = ("--listen", "127.0.0.1:0")
        return self._add("gateway", name, "--store", self.store, *self._secret(), *where, *more).start()

    def _secret(self) -> tuple[str, str]:
        return ("--secret-file", str(self.home / "secret"))

    def close(self) -> None:
        pids = [pid for process in self.processes for pid in process.engines()]
        for process in self.processes:
            if process.process is not None and process.process.poll() is None:
                process.kill()
        for process in self.processes:
            if process.role == "agent":
                run_cli("down", "--state", str(process.state), env=self.env)
        for pid in pids:
            eventually(lambda pid=pid: not alive(pid), within=30, what=f"engine {pid} gone")


@contextmanager
def running(home: Path, catalog: Path, etcd: Etcd, **more: Any) -> Iterator[Fleet]:
    fleet = Fleet(home, catalog, etcd, **more)
    try:
        yield fleet
    except BaseException:
        for process in fleet.processes:
            if process.output.exists():
                print(f"== {process.role} {process.name}\n{process.output.read_text()[-6000:]}", file=sys.stderr)
        raise
    finally:
        fleet.close()


def marked(fleet: Fleet) -> dict[int, list[str]]:
    """The command lines of all processes of the fleet that live."""
    mark, found = f"{MARK}={fleet.home}".encode(), dict[int, list[str]]()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (directory / "environ").read_bytes().split(b"\0") and alive(int(directory.name)):
                found[int(directory.name)] = (directory / "cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def ready(controller: Process, *models: str, within: float = 60) -> dict[str, list[dict[str, Any]]]:
    """Wait until each of the models is ready; their ready replicas."""

    def asked() -> dict[str, list[dict[str, Any]]] | None:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in controller.seen("replicas")["replicas"]:
            if row["state"] == "ready":
                found.setdefault(row["model"], []).append(row)
        return found if found.keys() >= set(models) else None

    return eventually(asked, within=within, what=f"{models} ready") or {}


def post(gateway: Process, model: str, *, timeout: float = 60, max_tokens: int = 8) -> httpx.Response:
    body = {"model": model, "max_tokens": max_tokens, "temperature": 0, "messages": MESSAGES}
    return httpx.post(f"{gateway.address['gateway']}/v1/chat/completions", json=body, timeout=timeout, **WEB)


class Load:
    """Requests through gateways, one after another from each of some threads, until told to stop."""

    def __init__(self, gateways: Iterable[Process], model: str, threads: int = 2, *, kept: bool = True) -> None:
        """`kept`: over connections that are kept; else over a new one each."""
        self._kept = kept
        self.answers: Counter[object] = Counter()
        self.longest = 0.0  #: seconds
        self._done = threading.Event()
        urls = [gateway.address["gateway"] for gateway in gateways]
        self._threads = [
            threading.Thread(target=self._ask, args=(url, model), daemon=True) for url in urls for _ in range(threads)
        ]

    def _ask(self, url: str, model: str) -> None:
        with httpx.Client(base_url=url, timeout=60, **WEB) as client:
            while not self._done.is_set():
                began = time.monotonic()
                try:
                    body = {"model": model, "max_tokens": 4, "messages": MESSAGES}
                    headers = {} if self._kept else {"connection": "close"}
                    answer = client.post("/v1/chat/completions", json=body, headers=headers)
                    self.answers[answer.status_code if answer.status_code == 200 else answer.text] += 1
                except httpx.HTTPError as error:
                    self.answers[repr(error)] += 1
                self.longest = max(self.longest, time.monotonic() - began)
                time.sleep(0.02)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(70)


def command(name: str, *argv: str, tag: str = "") -> str:
    """As the harness's, of an engine that answers chats."""
    return any_command(name, *(argv or (sys.executable, ENGINE, "{host}", "{port}")), tag=tag)


def catalog(tmp_path: Path, **documents: str) -> Repo:
    repo = Repo(tmp_path / "catalog")
    repo.commit({f"{name}.yaml": text for name, text in documents.items()})
    return repo


def leader(*controllers: Process) -> str | None:
    for controller in controllers:
        if controller.process is not None and controller.process.poll() is None:
            rows = controller.seen("members")["members"]
            return next((row["name"] for row in rows if row["state"] == "leads"), None)
    return None


def pids(controller: Process) -> dict[str, int]:
    """Of each running replica."""
    return {row["id"]: row["pid"] for row in controller.seen("replicas")["replicas"] if row["pid"] is not None}
