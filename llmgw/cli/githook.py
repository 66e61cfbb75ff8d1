"""What the hooks of a repository made by `llmgw init --bare` run: `python -m llmgw.cli.githook pre-receive`, say.

git shows the person who pushes all that is printed here. A push that would not be served is refused; whatever keeps
the daemon from being asked is no reason to refuse one.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmgw.cli.text import clean
from llmgw.errors import CatalogInvalid, LlmgwError, TerminalError

if TYPE_CHECKING:
    from llmgw.catalog.source import Source
    from llmgw.catalog.spec import Catalog

PATIENCE: Final = 10.0
"""Seconds that a daemon may take to plan a push."""

AT_ONCE: Final = 2.0
"""Seconds that it may take to hear of one."""


@dataclass(frozen=True, slots=True)
class Update:
    """One ref that is pushed."""

    old: str
    new: str
    ref: str

    @property
    def deletes(self) -> bool:
        return not self.new.strip("0")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: of pre-receive, other than 0 refuses the push."""
    parser = argparse.ArgumentParser(prog="llmgw.cli.githook")
    parser.add_argument("hook", choices=("pre-receive", "post-receive"))
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--below", default="")
    given = parser.parse_args(arguments)
    updates = read_updates(sys.stdin)
    try:
        served = served_ref(Path.cwd())
        if given.hook == "pre-receive":
            return pre_receive(updates, served, given.state, given.below)
        return post_receive(updates, served, given.state)
    except LlmgwError as error:
        say(f"llmgw: {error}")
        return 1


def read_updates(lines: Iterable[str]) -> list[Update]:
    """`OLD NEW REF` a line, as git tells a hook."""
    return [Update(*line.split(maxsplit=2)) for line in map(str.strip, lines) if line]


def served_ref(repository: Path) -> str:
    """The branch that HEAD names: what is served, there already or not. Raises TerminalError."""
    from llmgw.catalog import git, gitrun

    words = gitrun.command(repository, "symbolic-ref", "--quiet", "HEAD")
    done = gitrun.run(words, where=repository, timeout=git.TIMEOUT)
    if done.returncode != 0:
        raise TerminalError(
            f"HEAD of {repository} names no branch, so nothing says what is served: "
            "`git symbolic-ref HEAD refs/heads/main` there names one"
        )
    return done.stdout.decode().strip()


def pre_receive(updates: Sequence[Update], served: str, state: Path, below: str) -> int:
    for update in updates:
        if update.ref != served:
            say(f"llmgw: {_short(update.ref)} is not checked: {_short(served)} is what is served")
        elif update.deletes:
            say(f"llmgw: refused: {_short(served)} is served; `git symbolic-ref HEAD` on the server names another")
            return 1
        elif not _take(update, state, below):
            return 1
    return 0


def _take(update: Update, state: Path, below: str) -> bool:
    """Whether what is pushed would be served. Says why not, else what it would lead to."""
    from llmgw.catalog.here import seen_from
    from llmgw.catalog.load import load_catalog
    from llmgw.catalog.revisions import read_revision
    from llmgw.cli.reports import Report, text_lines
    from llmgw.engine.manager import find_engines

    source = seen_from(below, read_revision(Path.cwd(), update.new, below=below, env=quarantine()))
    if source.note:
        say(f"llmgw: {source.note}")
    engines = find_engines()
    try:
        loaded = load_catalog(source, engines.rules(), canonical=engines.canonical)
    except CatalogInvalid as error:
        report = Report(data=source.files, problems=error.problems)
        for line in text_lines(report):
            say(line)
        many = len(error.problems)
        say(f"llmgw: refused: {many} problem{'s' if many > 1 else ''} in {update.new[:12]}; nothing has changed")
        return False
    for line in text_lines(Report(data=source.files, warnings=loaded.warnings)):
        say(line)
    _plan(loaded.catalog, source, state)
    return True


def quarantine() -> Mapping[str, str]:
    """Where git keeps what is pushed until it is accepted: a checkout of it is not possible, reading it is."""
    from llmgw.catalog import git

    return {name: os.environ[name] for name in git.QUARANTINE if name in os.environ}


def _plan(catalog: "Catalog", source: "Source", state: Path) -> None:
    from llmgw.admin.plans import PlanOutput, PlanRequest
    from llmgw.admin.shapes import StatusOutput
    from llmgw.catalog.commits import raw_commit
    from llmgw.cli.client import connect
    from llmgw.cli.planned import told

    commit, began = source.commit or "", time.monotonic()
    try:
        client = replace(connect(state, None), timeout=PATIENCE)
        applied = client.get("status", StatusOutput).catalog.applied
        raw = raw_commit(Path.cwd(), commit, env=quarantine())
        request = PlanRequest(catalog=catalog, source=commit[:12], approved=_approved(commit, applied), commit=raw)
        left = max(1.0, PATIENCE - (time.monotonic() - began))
        answer = replace(client, timeout=left).post("plan", PlanOutput, request)
    except (LlmgwError, OSError) as error:
        say(f"llmgw: valid; warning: no plan can be shown: {error}")
        return
    for line in told(answer, time.time()):
        say(line)


def _approved(commit: str, applied: str | None) -> bool:
    """Whether the commits that are pushed say that what they remove is meant. The daemon cannot see them yet."""
    from llmgw.catalog.commits import REMOVAL, approves

    since = None if applied is None else applied.partition("+")[0]
    return REMOVAL in approves(Path.cwd(), commit, since, env=quarantine())


def post_receive(updates: Sequence[Update], served: str, state: Path) -> int:
    from llmgw.cli.client import connect

    if not any(update.ref == served and not update.deletes for update in updates):
        return 0
    try:
        client = replace(connect(state, None), timeout=AT_ONCE)
        client.post("sync", dict, {"patience": 0})
        say("llmgw: the daemon takes it in now: `llmgw status` shows how far it is")
    except (LlmgwError, OSError) as error:
        say(f"llmgw: warning: no daemon could be told; one that follows this repository finds it by itself: {error}")
    return 0


def _short(ref: str) -> str:
    return ref.removeprefix("refs/heads/")


def say(line: str) -> None:
    """For the person who pushes; gone already is no error."""
    try:
        sys.stdout.write(f"{clean(line)}\n")
        sys.stdout.flush()
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
