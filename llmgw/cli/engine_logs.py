"""`llmgw logs`: what engines said."""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json
from llmgw.errors import TerminalError, UsageError

if TYPE_CHECKING:
    from llmgw.admin.stories import LogLine, LogsOutput
    from llmgw.cli.client import AdminClient
    from llmgw.enginelogs import LogFile
    from llmgw.ids import ModelName, ReplicaId

POLL: Final = 0.25  #: seconds between looks while a log is followed without a daemon


class NoLog(TerminalError):
    """There is no such log; the text says why, or what may have been meant."""


def logs(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Its name or an alias.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as it is written, also with its next engine, until Ctrl-C.")
    ] = False,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the last engine that ended.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=10_000, help="So many of the last lines.")] = 100,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Show the log of a model's engine.

    Without a running daemon the state directory is read.

    \b
    Example:
      llmgw logs qwen3-8b -n 20
      llmgw logs -f qwen3-8b
      llmgw logs --previous qwen3-8b    what it said before it died
    """
    if follow and previous:
        raise UsageError("--follow and --previous do not go together: the log of an engine that ended does not grow")
    root, json = state_root(state), wants_json(output, as_json)
    source = _Local(root) if (client := _daemon(root, admin)) is None else _Asked(client)
    if not follow:
        _print(source.last(model, lines, previous=previous), json=json)
        return
    for row in source.follow(model, lines):
        _print_row(row, json=json)


def _daemon(root: Path, admin: str | None) -> "AdminClient | None":
    """None: nobody answers, and the directory is there to be read."""
    from llmgw.admin.shapes import ModelsOutput
    from llmgw.cli.client import DaemonUnreachable, connect
    from llmgw.cli.printing import note

    try:
        client = connect(root, admin)
        client.get("models", ModelsOutput)
    except DaemonUnreachable:
        if admin is not None or not root.is_dir():
            raise
        note(f"llmgw: no daemon answers for {root}: its files are read")
        return None
    return client


class _Asked:
    """From a daemon."""

    def __init__(self, client: "AdminClient") -> None:
        self._client = client

    def last(self, model: str, lines: int, *, previous: bool) -> "LogsOutput":
        from llmgw.admin.stories import LogsOutput

        return self._client.get("logs", LogsOutput, {"model": model, "lines": lines, "previous": previous})

    def follow(self, model: str, lines: int) -> "Iterator[LogLine]":
        from llmgw.admin.stories import LogLine

        return self._client.stream("logs", LogLine, {"model": model, "lines": lines, "follow": True})


class _Local:
    """From a state directory that no daemon uses."""

    def __init__(self, root: Path) -> None:
        from llmgw.statedir import StateDir

        self._state: StateDir = StateDir(root)

    def last(self, model: str, lines: int, *, previous: bool) -> "LogsOutput":
        """Raises NoLog."""
        from llmgw import enginelogs
        from llmgw.admin import logs

        name = self._name(model)
        log = next(iter(enginelogs.ended(self._state, name)), None) if previous else self._current(name)
        if log is None:
            raise NoLog(f"no engine of {name} {'has ended' if previous else 'was started'} here yet")
        try:
            return logs.output(log, lines)
        except OSError as error:
            raise NoLog(f"{log.path}: {error.strerror}") from error

    def follow(self, model: str, lines: int) -> "Iterator[LogLine]":
        from llmgw.admin import logs
        from llmgw.enginelogs import Following

        name, following = self._name(model), Following(lines)
        try:
            while True:
                new = following.step(self._current(name))
                yield from logs.rows(name, new)
                if not new:
                    time.sleep(POLL)
        finally:
            following.close()

    def _current(self, model: "ModelName") -> "LogFile | None":
        from llmgw import enginelogs

        return enginelogs.current(self._state, model, [replica for replica, of in self._replicas() if of == model])

    def _replicas(self) -> "Iterable[tuple[ReplicaId, ModelName]]":
        """Those that left a record, the one whose log was written last first."""
        from llmgw.agent import records
        from llmgw.errors import LlmgwError

        found = []
        for home in self._state.replicas.glob("[!.]*"):
            try:
                record, at = records.read(home), (home / "log").stat().st_mtime
            except (OSError, LlmgwError):
                continue
            found.append((at, record.assignment.replica, record.assignment.model))
        return [(replica, model) for _, replica, model in sorted(found, reverse=True)]

    def _name(self, asked: str) -> "ModelName":
        """Raises NoLog. Aliases are those of the last catalog that was in force."""
        from llmgw import enginelogs
        from llmgw.catalog.live import load_last_good
        from llmgw.catalog.schemas import did_you_mean
        from llmgw.ids import ModelName

        catalog, _ = load_last_good(self._state.last_good)
        names = {name: spec.name for spec in catalog.models.values() for name in spec.names} if catalog else {}
        known = {model for _, model in self._replicas()} | enginelogs.models_with_logs(self._state)
        names |= {str(model): model for model in known if model not in names}
        if asked not in names:
            raise NoLog(f"no model {asked!r} is known here{did_you_mean(asked, names)}")
        return ModelName(names[asked])


def _print(answer: "LogsOutput", *, json: bool) -> None:
    from llmgw.cli.printing import note, print_json, print_line
    from llmgw.cli.text import log_line

    if json:
        print_json(answer)
        return
    if not answer.running:
        note(f"llmgw: replica {answer.replica} of {answer.model} has ended; this is what it said last")
    for line in answer.lines:
        print_line(log_line(line))


def _print_row(row: "LogLine", *, json: bool) -> None:
    from llmgw.cli.printing import note, print_json_line, print_line
    from llmgw.cli.text import log_line

    if json:
        print_json_line(row)
    elif row.note is not None:
        note(f"llmgw: {row.note}")
    else:
        print_line(log_line(row.text))
    sys.stdout.flush()
