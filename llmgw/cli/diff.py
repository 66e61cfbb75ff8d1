"""`llmgw diff`"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.followed import ask_for, is_here, read_here
from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json
from llmgw.errors import CatalogUnreadable, UsageError

if TYPE_CHECKING:
    from llmgw.admin.diffs import DiffOutput
    from llmgw.catalog.spec import Catalog
    from llmgw.cli.client import AdminClient

APPLIED: Final = "applied"
"""What the command line calls the catalog in force."""

_SIDE: Final = "a directory, a revision of the daemon's catalog, or `applied`: the one in force."


def diff(
    old: Annotated[str | None, typer.Argument(metavar="OLD", help=f"Default: {APPLIED}. It is {_SIDE}")] = None,
    new: Annotated[
        str | None, typer.Argument(metavar="NEW", help="Likewise. Default: the daemon's catalog, as it stands on disk.")
    ] = None,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> int:
    """Tell what differs between two catalogs, and what that does.

    Revisions are those of the repository that the daemon's catalog is in; without a daemon, of the one that you are in.
    Exit 2 when something differs, 3 when a catalog is invalid. `llmgw plan` tells what would start and stop.

    \b
    Example:
      llmgw diff
      llmgw diff HEAD~1
      llmgw diff v1.2 ./catalog
    """
    from llmgw.cli import logs
    from llmgw.cli.printing import print_json

    logs.configure()
    answer = _Sides(state_root(state), admin).compare(old or APPLIED, new)
    if wants_json(output, as_json):
        print_json(answer)
    else:
        _print(answer)
    if not answer.valid:
        return ExitCode.INVALID_CATALOG
    return ExitCode.CHANGES if answer.differs else ExitCode.FINE


class _Invalid(Exception):
    """One side cannot be compared; `answer` says why."""

    def __init__(self, answer: "DiffOutput") -> None:
        super().__init__()
        self.answer = answer


class _Sides:
    """Where the two catalogs come from: this machine, or the daemon."""

    def __init__(self, root: Path, admin: str | None) -> None:
        self._root = root
        self._admin = admin

    def compare(self, old: str, new: str | None) -> "DiffOutput":
        """Raises CatalogUnreadable, UsageError, and what asking the daemon raises."""
        from llmgw.admin.diffs import DiffRequest, diff_output

        if old == new == APPLIED:
            raise UsageError("the catalog in force against itself: name another one")
        try:
            if old == APPLIED:
                return self._ask(DiffRequest(catalog=None if new is None else self._load(new)))
            if new == APPLIED:
                return self._ask(DiffRequest(catalog=self._load(old), reverse=True))
            return diff_output(self._load(old), self._load(new))
        except _Invalid as error:
            return error.answer

    def _ask(self, request: object) -> "DiffOutput":
        from llmgw.admin.diffs import DiffOutput
        from llmgw.cli.client import DaemonUnreachable, connect

        try:
            return connect(self._root, self._admin).post("diff", DiffOutput, request)
        except DaemonUnreachable as error:
            raise DaemonUnreachable(
                f"{error}; without a daemon, name what to compare: `llmgw diff HEAD ./catalog`"
            ) from error

    def _load(self, text: str | None) -> "Catalog":
        """None: the followed catalog, as it stands on disk."""
        from llmgw.admin.diffs import invalid_output
        from llmgw.catalog.load import load_catalog
        from llmgw.catalog.revisions import read_revision
        from llmgw.cli.printing import note
        from llmgw.engine.manager import find_engines
        from llmgw.errors import CatalogInvalid

        if text is not None and not Path(text).exists() and text.startswith((".", "/", "~")):
            raise CatalogUnreadable(f"cannot read {text}: name the directory that holds the catalog, or a revision")
        client, followed = (None, ".") if text is not None and Path(text).exists() else self._followed()
        try:
            if client is not None and (text is None or not is_here(followed)):
                return ask_for(client, text)
            if text is None or Path(text).exists():
                source = read_here(Path(text or followed))
            else:
                source = read_revision(Path(followed), text)
            if source.note:
                note(source.note)
            engines = find_engines()
            return load_catalog(source, engines.rules(), canonical=engines.canonical).catalog
        except CatalogInvalid as error:
            raise _Invalid(invalid_output(text or followed, error)) from error

    def _followed(self) -> "tuple[AdminClient | None, str]":
        """The daemon and the catalog that it follows, else where we are."""
        from llmgw.admin.shapes import StatusOutput
        from llmgw.cli.client import DaemonUnreachable, connect

        try:
            client = connect(self._root, self._admin)
            return client, client.get("status", StatusOutput).catalog.source or "."
        except DaemonUnreachable:
            return None, "."


def _print(answer: "DiffOutput") -> None:
    from llmgw.admin.views import count
    from llmgw.cli.differences import told
    from llmgw.cli.printing import note, print_line
    from llmgw.cli.rows import problem_line

    for line in told(answer):
        print_line(line)
    for problem in answer.problems:
        print_line(problem_line(problem))
    if not answer.valid:
        note(f"{answer.invalid}: {count(len(answer.problems), 'problem')}; nothing was compared")
