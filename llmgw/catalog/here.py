"""A catalog's files as whoever runs a command names them: editors and code hosts find them by that."""

import os
from dataclasses import replace
from pathlib import Path

from llmgw.catalog.looking import shown
from llmgw.catalog.source import Source
from llmgw.errors import Problem


def named_from_here(path: Path) -> str:
    """From the working directory what lies in it; else as it was given."""
    try:
        relative = os.path.relpath(path)
    except FileNotFoundError:  # the working directory was removed
        return str(path)
    outside = relative == os.pardir or relative.startswith(os.pardir + os.sep)
    return str(path) if outside else relative


def seen_from(root: Path | str, source: Source) -> Source:
    """The same, with the directory that its files are relative to before each name, and so in what messages say of
    other places. Of what an invalid catalog's revision is made its own names are: ask for that before."""
    within = shown(str(root))

    def named(name: str) -> str:
        return os.path.normpath(os.path.join(within, name))

    def moved(problem: Problem) -> Problem:
        return replace(problem, file=named(problem.file))

    return replace(
        source,
        files={named(name): data for name, data in source.files.items()},
        problems=tuple(map(moved, source.problems)),
        place=named(source.place),
    )


def seen_from_here(root: Path, source: Source) -> Source:
    return seen_from(named_from_here(root), source)
