"""Differences between two catalogs, as lines for people. Pure."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from llmgw.admin.diffs import ChangeRow, DiffOutput
from llmgw.admin.views import count
from llmgw.cli.text import short_revision

EFFECTS: Final = {
    "restart": "its engines are replaced",
    "stop": "its engines are ended",
    "level": "replaces engines at that level",
    "placement": "decided again",
    "routing": "requests only",
    "later": "from the next start or failure on",
    "nothing": "nothing that runs",
}
"""What a difference does, in words."""

_MARKS: Final = {"added": "+", "removed": "-", "changed": "~"}
_ONE_LINE: Final = 60  #: characters that both values may take to stand on one line


def told(answer: DiffOutput) -> Iterator[str]:
    """Nothing where a side is invalid."""
    if not answer.valid:
        return
    sides = f"{short_revision(answer.old)} -> {short_revision(answer.new)}"
    if not answer.changes:
        yield f"no difference: {sides}"
        return
    for model, rows in groupby(answer.changes, key=lambda row: row.model):
        yield from _model(model, list(rows))
    yield f"{sides}: {_total(answer)}"


def _model(model: str | None, rows: Sequence[ChangeRow]) -> Iterator[str]:
    whole = next((row for row in rows if row.model is not None and not row.path), None)
    if whole is not None:
        told = f"added: {whole.new}" if whole.change == "added" else f"removed: {EFFECTS[whole.effect]}"
        yield f"{_MARKS[whole.change]} {model}  {told}"
        return
    yield f"~ {model if model is not None else 'Cluster document'}"
    width = max(len(row.path) for row in rows)
    values = [_values(row) for row in rows]
    wide = max((len(value) for value in values if len(value) <= _ONE_LINE), default=0)
    for row, value in zip(rows, values, strict=True):
        start, effect = f"  {_MARKS[row.change]} {row.path.ljust(width)}  ", EFFECTS.get(row.effect, row.effect)
        if len(value) <= _ONE_LINE:
            yield f"{start}{value.ljust(wide)}  {effect}"
            continue
        yield f"{start}{effect}"
        yield f"      {row.old if row.old is not None else 'none'}"
        yield f"   -> {row.new if row.new is not None else 'none'}"


def _values(row: ChangeRow) -> str:
    return f"{row.old if row.old is not None else 'none'} -> {row.new if row.new is not None else 'none'}"


def _total(answer: DiffOutput) -> str:
    """`5 differences; engines of 2 models are replaced or ended`"""
    text = count(len(answer.changes), "difference")
    if not answer.restarts:
        return f"{text}; none replaces an engine"
    names = ", ".join(answer.restarts)
    return f"{text}; engines are replaced or ended of {count(len(answer.restarts), 'model')}: {names}"
