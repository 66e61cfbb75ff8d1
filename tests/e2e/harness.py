"""A real llmgw over a real git repository, driven as its users drive it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

T = TypeVar("T")

MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
"""At temperature 0 the test model answers: The capital of France is Paris."""


WEB: Final[dict[str, Any]] = {"trust_env": False, "verify": False}
"""For requests to loopback. Without `verify`, httpx reads every certificate authority there is, at each request."""


def eventually(ask: Callable[[], T], *, within: float = 60.0, what: str = "the condition") -> T:
    """The first true answer. Asked often; a deadline bounds it."""
    deadline = time.monotonic() + within
    answer = ask()
    while not answer:
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {within:.0f} s; last answer: {answer!r}")
        time.sleep(0.05)
        answer = ask()
    return answer


class Repo:
    """A git repository with a catalog in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "operator")
        self.git("config", "user.email", "operator@example.org")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(self.path), *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, files: dict[str, str | None], message: str = "change") -> str:
        """Write (None: remove) the files and commit. Returns the commit."""
        for name, text in files.items():
            file = self.path / name
            if text is None:
                file.unlink()
            else:
                file.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")


def model(
    name: str,
    weights: Path | str,
    *,
    aliases: Iterable[str] = (),
    description: str = "",
    context: int = 512,
    parallel: int = 1,
    priority: int = 0,
    more: str = "",
    profile_more: str = "",
) -> str:
    """A Model document for the cpu engine."""
    source = weights if isinstance(weights, str) else f"file://{weights}"
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: {name}
description: {json.dumps(description)}
aliases: {json.dumps(list(aliases))}
priority: {priority}
{more}
profiles:
  - name: cpu
    engine: cpu
    weights: {{source: "{source}", size: 94MiB}}
    context: {context}
    parallel: {parallel}
    options: {{threads: 1}}
{profile_more}
"""


PLAIN_SERVER = [sys.executable, str(Path(__file__).parent.parent / "engines" / "plain_server.py"), "{host}", "{port}"]
"""An argv for `command`: ready at once, and without a model."""


def command(name: str, *argv: str, tag: str = "", weights: str = "") -> str:
    """A Model document for the engine `command`: the plain server, or the argv given. Another `tag`, another engine."""
    shown = json.dumps(list(argv) or PLAIN_SERVER)
    source = f"    weights: {{source: {json.dumps(weights)}, size: 94MiB}}\n" if weights else ""
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: {name}
profiles:
  - name: p
    engine: command
    memory: 1MiB
    env: {{TAG: "{tag}"}}
{source}    options: {{command: {shown}}}
"""


def cluster(**settings: Any) -> str:
    """A Cluster document: each setting in JSON, which is YAML."""
    return "apiVersion: llmgw/v1\nkind: Cluster\n" + "".join(f"{k}: {json.dumps(v)}\n" for k, v in settings.items())


def run_cli(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`llmgw ARGUMENTS`, as a user's shell would run it."""
    argv = [sys.executable, "-m", "llmgw", *arguments]
    return subprocess.run(argv, check=False, capture_output=True, text=True, env=env, timeout=60)


class Daemon:
    """One `llmgw up`. `kill` ends it as a crash does; `close` ends it and every engine it started."""

    def __init__(
        self, catalog: Path, home: Path, *, env: dict[str, str] | None = None, flags: Iterable[str] = ()
    ) -> None:
        self.catalog = catalog
        self.state = home / "state"
        self.env = {**os.environ, **(env or {})}
        self.flags = list(flags)
        self.output = home / "up.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._home = home

    def start(self) -> "Daemon":
        self._home.mkdir(parents=True, exist_ok=True)
        (self.state / "admin.json").unlink(missing_ok=True)
        argv = [
            *(sys.executable, "-m", "llmgw", "up", str(self.catalog), "--state", str(self.state), "--node", "box"),
            *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *self.flags),
        ]
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env, start_new_session=True
            )
        eventually(self._answers, within=30, what="the admin API")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"llmgw ended: {self.output.read_text()}"
        if not (self.state / "admin.json").exists():
            return False
        try:
            return httpx.get(f"{self._admin['url']}/healthz", **WEB).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def _admin(self) -> dict[str, str]:
        answer: dict[str, str] = json.loads((self.state / "admin.json").read_text())
        return answer

    @property
    def gateway(self) -> str:
        return self._admin["gateway"]

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = run_cli(*arguments, "--state", str(self.state), env=self.env)
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def ask(self, *arguments: str) -> Any:
        """A command's JSON."""
        return json.loads(self.cli(*arguments, "--json").stdout)

    def admin(self, path: str) -> httpx.Response:
        """GET from the admin API itself: for asking often, which a command is too slow for."""
        headers = {"authorization": f"Bearer {self._admin['token']}"}
        return httpx.get(f"{self._admin['url']}{path}", headers=headers, **WEB)

    def seen(self, what: str) -> Any:
        """What the command `what` would tell: as `ask`, without a process, for asking again and again."""
        return self.admin(f"/api/v1/{what}").raise_for_status().json()

    def replicas(self) -> dict[str, dict[str, Any]]:
        """Ready replicas by model."""
        return {r["model"]: r for r in self.seen("replicas")["replicas"] if r["state"] == "ready"}

    def ready(self, *models: str, within: float = 60) -> dict[str, dict[str, Any]]:
        """Wait until exactly these models are ready, and return their replicas."""
        wanted = set(models)

        def asked() -> dict[str, dict[str, Any]] | None:
            found = self.replicas()
            return found if set(found) == wanted and self.routed() >= wanted else None

        return eventually(asked, within=within, what=f"{sorted(wanted)} ready") or {}

    def routed(self) -> set[str]:
        answer = httpx.get(f"{self.gateway}/v1/models", **WEB)
        if answer.status_code == 503:  # just started: no catalog is in force yet
            return set()
        return {m["id"] for m in answer.json()["data"] if m.get("state", "ready") == "ready"}

    def post(self, path: str = "/v1/chat/completions", *, timeout: float = 60, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.gateway}{path}", json=body, timeout=timeout, **WEB)

    def chat(self, model: str, *, max_tokens: int = 8) -> str:
        answer = self.post(model=model, max_tokens=max_tokens, temperature=0, messages=MESSAGES)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    def signal(self, number: signal.Signals, *, within: float = 60) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(within)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """End what this state directory owns, and prove that nothing is left."""
        pids = self._pids()
        run_cli("down", "--state", str(self.state), env=self.env)
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait(30)
        for pid in pids:
            eventually(lambda pid=pid: not alive(pid), within=30, what=f"engine {pid} gone")

    def _pids(self) -> list[int]:
        found = []
        for file in self.state.glob("replicas/*/state.json"):
            found += pids_in(json.loads(file.read_text()))
        return found


def pids_in(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [v for k, v in value.items() if k == "pid" and isinstance(v, int)] + [
            pid for v in value.values() for pid in pids_in(v)
        ]
    return []


def alive(pid: int) -> bool:
    """Running, and not merely a zombie nobody has reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def serving(catalog: Path, home: Path, **more: Any) -> Iterator[Daemon]:
    daemon = Daemon(catalog, home, **more)
    try:
        yield daemon.start()
    except BaseException:
        print(daemon.output.read_text() if daemon.output.exists() else "no output", file=sys.stderr)
        raise
    finally:
        daemon.close()
