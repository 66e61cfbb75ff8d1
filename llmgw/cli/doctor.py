"""`llmgw doctor`"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.options import Json, Output, OutputFormat, State, address, port_range, state_root, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import CheckRow, StatusOutput

_REPORT_LATE = 30.0  #: seconds; a healthy agent reports every five
_PASS_LATE = 60.0  #: seconds; there is one every fifteen at least
_DRIVER_TIMEOUT = 20.0  #: seconds; GPUs that nobody holds open take long to wake

Cache = Annotated[
    Path | None,
    typer.Option("--cache", envvar="LLMGW_CACHE", metavar="DIR", help="Where fetched weights lie, as given to `up`."),
]


def doctor(
    state: State = None,
    cache: Cache = None,
    listen: Annotated[str, typer.Option("--listen", metavar="ADDR:PORT", help="As given to `up`.")] = "127.0.0.1:8080",
    admin: Annotated[str, typer.Option("--admin", metavar="ADDR:PORT", help="As given to `up`.")] = "127.0.0.1:8081",
    engine_ports: Annotated[
        str | None, typer.Option("--engine-ports", metavar="LO-HI", help="As given to `up`.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="LLMGW_STORE", metavar="URL", help="A fleet's: etcd and who meets there, too."),
    ] = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> int:
    """Say what keeps this machine from serving, and what to do.

    Works without a daemon, and asks one that runs. Exit status 1 when something has to be put right.

    \b
    Example:
      llmgw doctor
      llmgw doctor --store etcd://etcd-1,etcd-2,etcd-3
      llmgw doctor --json | jq -r '.checks[] | select(.verdict != "ok") | [.name, .advice] | @tsv'
    """
    from llmgw.admin.shapes import DoctorOutput
    from llmgw.agent.ports import DEFAULT_PORTS
    from llmgw.cli import checkup, logs
    from llmgw.cli.printing import print_json
    from llmgw.statedir import StateDir

    logs.configure()
    root = state_root(state)
    addresses = (address(listen, "--listen"), address(admin, "--admin"))
    rows = list(_daemon(root))
    machine = checkup.Machine(
        state=StateDir(root),
        cache=cache.expanduser().absolute() if cache else root / "weights",
        addresses=addresses,
        ports=port_range(engine_ports) if engine_ports is not None else DEFAULT_PORTS,
        daemon=any(row.verdict != checkup.FAIL and row.name == "daemon" and "answers" in row.message for row in rows),
    )
    rows = [*checkup.examine(machine), *_gpus(), *_engines(), *rows, *_store(store)]
    failed = any(row.verdict == checkup.FAIL for row in rows)
    if wants_json(output, as_json):
        print_json(DoctorOutput(well=not failed, checks=tuple(rows)))
    else:
        _print(rows)
    return ExitCode.ERROR if failed else ExitCode.FINE


def _print(rows: "list[CheckRow]") -> None:
    from llmgw.cli.printing import print_line

    widest = max(len(row.name) for row in rows)
    for row in rows:
        print_line(f"{row.verdict:<4}  {row.name:<{widest}}  {row.message}")
        if row.advice:
            print_line(f"{'':<4}  {'':<{widest}}  -> {row.advice}")
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("fail", "warn")}
    print_line(f"{counts['fail']} to put right, {counts['warn']} to know of, {len(rows)} looked at")


def _gpus() -> "Iterator[CheckRow]":
    import asyncio

    from llmgw.agent.bounded import Bounded
    from llmgw.agent.nvml import Nvml, Reading
    from llmgw.cli import checkup
    from llmgw.units import Mono

    asking: Bounded[Reading] = Bounded("gpus")
    try:
        reading = asyncio.run(asking.call(lambda: Nvml().read(Mono(time.monotonic())), _DRIVER_TIMEOUT))
    except TimeoutError:
        reading = Reading(why=f"the driver did not answer within {_DRIVER_TIMEOUT:.0f} s", expected=False)
    yield from checkup.gpus(reading)


def _engines() -> "Iterator[CheckRow]":
    import asyncio

    from llmgw.agent.fingerprints import Fingerprints
    from llmgw.cli import checkup
    from llmgw.engine.manager import find_engines

    found = find_engines()
    yield from checkup.engines(found, asyncio.run(Fingerprints(found).look()))


def _store(url: str | None) -> "Iterator[CheckRow]":
    from llmgw.cli import checkup_store
    from llmgw.store.address import read_address

    if url is not None:
        yield from checkup_store.examine(read_address(url, os.environ))


def _daemon(root: Path) -> "Iterator[CheckRow]":
    """Of the daemon whose state directory it is: whether it answers, and how its parts fare."""
    from llmgw.admin.shapes import StatusOutput
    from llmgw.cli import checkup
    from llmgw.cli.client import DaemonRefused, DaemonUnreachable, connect
    from llmgw.errors import StateDirError
    from llmgw.statedir import StateDir

    try:
        if StateDir(root).read_admin() is None:
            yield checkup.row("daemon", f"none runs on {root}")
            return
        client = connect(root, None)
        answer = client.get("status", StatusOutput)
    except StateDirError:
        return  # told of with the state directory
    except DaemonUnreachable as error:
        advice = "engines that still serve are taken over when it starts; `llmgw down` ends them"
        yield checkup.row("daemon", str(error), verdict=checkup.FAIL, advice=advice)
        return
    except DaemonRefused as error:
        yield checkup.row("daemon", str(error), verdict=checkup.FAIL, advice="restart it with this version of llmgw")
        return
    yield checkup.row("daemon", f"llmgw {answer.llmgw} answers at {client.url}")
    yield from _parts(answer)


def _parts(answer: "StatusOutput") -> "Iterator[CheckRow]":
    from llmgw.cli import checkup

    now = time.time()
    for node in answer.nodes:
        said = f"{node.name} reported {checkup.age(now - node.reported_at)}"
        late = now - node.reported_at > _REPORT_LATE
        advice = "its agent hangs: a disk or driver that does not answer? `llmgw events` may tell" if late else ""
        yield checkup.row("report", said, verdict=checkup.WARN if late else checkup.OK, advice=advice)
    catalog = answer.catalog
    if catalog.error or catalog.problems:
        said = catalog.error or f"{len(catalog.problems)} problems in {catalog.attempted}"
        yield checkup.row("catalog", said, verdict=checkup.WARN, advice="`llmgw status` lists them")
    elif catalog.applied is None:
        yield checkup.row("catalog", "none is in force yet", verdict=checkup.WARN, advice="`llmgw status` tells more")
    else:
        yield checkup.row("catalog", f"{catalog.applied} is in force")
    if catalog.passed_at is not None:
        late = now - catalog.passed_at > _PASS_LATE
        advice = "the controller hangs: restart llmgw; engines keep serving meanwhile" if late else ""
        said = f"the last one {checkup.age(now - catalog.passed_at)}"
        yield checkup.row("pass", said, verdict=checkup.WARN if late else checkup.OK, advice=advice)
    watcher = catalog.watcher or "ok"
    if watcher != "ok":
        advice = "changes are found by polling; see inotify above"
        yield checkup.row("watcher", watcher, verdict=checkup.WARN, advice=advice)
    else:
        yield checkup.row("watcher", "ok")
    for condition in catalog.conditions:
        if condition.type == "Stalled" and condition.status:
            advice = "`llmgw status` lists the models"
            yield checkup.row("models", condition.message or condition.reason, verdict=checkup.WARN, advice=advice)
