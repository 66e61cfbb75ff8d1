"""`llmgw migrate`"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.exits import ExitCode

if TYPE_CHECKING:
    from llmgw.catalog.migration import Migrated


def migrate(
    path: Annotated[Path, typer.Argument(metavar="CATALOG", readable=False, help="The catalog's directory.")] = Path(),
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 2 when something would change.")] = False,
) -> int:
    """Rewrite documents of an earlier apiVersion as the newest one. Comments stay. Needs no daemon.

    \b
    Example:
      llmgw migrate --check ./catalog
    """
    from llmgw.catalog import migration
    from llmgw.catalog.here import seen_from_here
    from llmgw.catalog.kinds import API_VERSION
    from llmgw.catalog.source import read_source
    from llmgw.cli.printing import print_line

    source = seen_from_here(path, read_source(path))
    found = {name: migration.migrate(name, data) for name, data in sorted(source.files.items())}
    for each in found.values():
        for document in each.documents:
            print_line(document)
    refused = _tell_refused(found)
    changed = {name: each.text for name, each in found.items() if each.text is not None}
    if not changed and not refused:
        print_line(f"nothing to migrate: every document is of {API_VERSION}, or none of an earlier version")
        return ExitCode.FINE
    if check:
        return ExitCode.CHANGES
    for name, text in changed.items():
        _replace(Path(name), text)
    return ExitCode.ERROR if refused else ExitCode.FINE


def _tell_refused(found: "dict[str, Migrated]") -> bool:
    from llmgw.cli.printing import note

    refused = {name: each.refused for name, each in found.items() if each.refused}
    for name, why in refused.items():
        note(f"{name}: {why}")
    return bool(refused)


def _replace(file: Path, text: str) -> None:
    """Whole or not at all; through a link, the file that it leads to. Raises OSError."""
    from llmgw.statedir import write_atomic

    real = file.resolve()
    write_atomic(real, text.encode(), mode=real.stat().st_mode & 0o777)
