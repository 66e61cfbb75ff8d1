"""The child process that a plugin is first imported in: what it does here, it does to nobody else."""

import faulthandler
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, Final

from llmgw.engine.loading import BadPlugin, call_hooks, check_brought, summary

_SPARE: Final = 0.5  #: seconds before its time is up, at which a hanging one tells where it hangs


def main(request: Mapping[str, Any], fd: int) -> None:
    """Import the plugin and report: each stage as it begins, then the verdict."""
    left = float(request["deadline"]) - time.monotonic()
    os.dup2(2, 1)  # whatever it prints is an utterance, no output
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(int(left) + 5)  # should our parent die meanwhile
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(0.1, left - _SPARE))
    try:
        report = _judge(EntryPoint(name=request["name"], value=request["value"], group="llmgw"), fd)
    except BaseException as error:  # noqa: BLE001 - the child exists to find out what a plugin raises
        engines, sources = (error.engines, error.sources) if isinstance(error, BadPlugin) else ((), ())
        trace = "".join(traceback.format_exception(error, limit=-6))
        report = {"ok": False, "reason": summary(error), "failure": trace, "engines": engines, "sources": sources}
    tell(fd, report)
    os._exit(0)  # its threads and exit handlers get no say


def _judge(point: EntryPoint, fd: int) -> dict[str, Any]:
    tell(fd, {"stage": "being imported"})
    plugin = point.load()
    tell(fd, {"stage": "in its hooks"})
    brought = call_hooks(plugin, point.name)
    check_brought(brought)
    _check_threads()
    return {
        "ok": True,
        "engines": brought.names,
        "sources": brought.schemes,
        "api_version": brought.api_version,
    }


def _check_threads() -> None:
    started = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    if started:
        raise BadPlugin(f"it leaves the thread {started[0].name!r} running, which would keep llmgw from ending")


def tell(fd: int, report: Mapping[str, Any]) -> None:
    """One line of the report."""
    sys.stderr.flush()
    data = json.dumps(report).encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]
