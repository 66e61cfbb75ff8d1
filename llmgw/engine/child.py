"""Run a function of a module in a child process that may do anything: exit, crash, hang, print. Blocking.

The child reports in JSON lines on a descriptor of its own, so what it prints cannot be mistaken for a report.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from llmgw.facts import Exit

_BOOT: Final = (
    "import importlib, json, sys\n"
    "request = json.loads(sys.argv[1])\n"
    "sys.path[:] = request['path']\n"
    "importlib.import_module(sys.argv[2]).main(request, int(sys.argv[3]))\n"
)
_KEPT: Final = 8192  #: bytes of what it printed last
_LARGEST: Final = 4 * 1024 * 1024  #: bytes of its report that are read
_AFTER: Final = 0.2  #: seconds after its end for what is still in the pipes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """`exit` None: it did not end within its time, and was ended. `said`: the last of what it printed."""

    reports: tuple[Mapping[str, Any], ...]
    exit: Exit | None
    said: str


def run_child(
    module: str,
    request: Mapping[str, Any],
    *,
    timeout: float,
    on_report: Callable[[Mapping[str, Any]], None] = lambda report: None,
) -> Ended:
    """Call `module.main(request, fd)` in a child of this interpreter with this `sys.path`, for `timeout` seconds.

    The request gets two members more: `path` and `deadline`, when its time is up by the machine's monotonic clock.
    What the child started and left in its process group is ended with it.
    """
    report, report_end = os.pipe()
    said, said_end = os.pipe()
    try:
        sent = json.dumps({**request, "path": sys.path, "deadline": time.monotonic() + timeout})
        argv = [sys.executable, "-c", _BOOT, sent, module, str(report_end)]
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=said_end,
            stderr=said_end,
            pass_fds=(report_end,),
            start_new_session=True,
        )
    except BaseException:
        for fd in (report, said):
            os.close(fd)
        raise
    finally:
        for fd in (report_end, said_end):
            os.close(fd)
    reader = _Reader(report, said, on_report)
    try:
        ended = reader.until_it_ends(child, timeout)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        reader.drain()
        reader.close()
    exit = None if not ended else Exit(signal=-code) if code < 0 else Exit(code=code)
    return Ended(reports=tuple(reader.reports), exit=exit, said=reader.said)


class _Reader:
    """Takes in both pipes as they come: a child that floods one must neither block nor fill the memory."""

    def __init__(self, report: int, said: int, on_report: Callable[[Mapping[str, Any]], None]) -> None:
        self.reports: list[Mapping[str, Any]] = []
        self._on_report = on_report
        self._fds = {report: self._report, said: self._say}
        self._selector = selectors.DefaultSelector()
        self._line = b""
        self._read = 0
        self._said = b""
        for fd in self._fds:
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)

    @property
    def said(self) -> str:
        return self._said.decode(errors="replace")

    def until_it_ends(self, child: "subprocess.Popen[bytes]", timeout: float) -> bool:
        """Whether it ended by itself in time. Something it started may hold the pipes open: that is not waited for."""
        deadline = time.monotonic() + timeout
        while child.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not self._take_in(min(left, 0.05)) and not self._fds:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(left)
        return True

    def drain(self) -> None:
        deadline = time.monotonic() + _AFTER
        while self._fds and time.monotonic() < deadline and self._take_in(0.0):
            pass

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._selector.close()

    def _take_in(self, wait: float) -> bool:
        """Whether there was anything."""
        ready = self._selector.select(wait) if self._fds else []
        for key, _ in ready:
            fd = key.fd
            data = os.read(fd, 65536)
            if data:
                self._fds[fd](data)
            else:
                self._selector.unregister(fd)
                del self._fds[fd]
                os.close(fd)
        return bool(ready)

    def _say(self, data: bytes) -> None:
        self._said = (self._said + data)[-_KEPT:]

    def _report(self, data: bytes) -> None:
        self._read += len(data)
        if self._read > _LARGEST:
            return
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):  # not ours: a plugin wrote to a descriptor that it does not own
                report = json.loads(line)
                if isinstance(report, dict):
                    self.reports.append(report)
                    self._on_report(report)
