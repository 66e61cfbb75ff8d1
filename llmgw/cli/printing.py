"""What commands print on stdout: a table for people, one JSON object for programs."""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from llmgw.cli.text import clean

STYLES: Final = {
    "ready": "green",
    "loading": "cyan",
    "fetching": "cyan",
    "starting": "cyan",
    "placing": "cyan",
    "failed": "red",
    "unschedulable": "yellow",
    "stopped": "yellow",
    "draining": "yellow",
    "stopping": "yellow",
}
"""Colours of the words that states are told in, on a terminal."""

_LAST_COLUMN: Final = 24  #: characters: narrower than this, folding reads badly


def print_json(shape: Any) -> None:
    """One object, on one line when piped."""
    import msgspec

    data = msgspec.json.encode(shape)
    if sys.stdout.isatty():
        data = msgspec.json.format(data, indent=2)
    sys.stdout.write(_escaped(data.decode()) + "\n")


def print_json_line(shape: Any) -> None:
    """One object of many, each on a line of its own, also on a terminal."""
    import msgspec

    sys.stdout.write(_escaped(msgspec.json.encode(shape).decode()) + "\n")


def _escaped(text: str) -> str:
    """JSON that stdout can hold: where that is not UTF-8, other characters as JSON's own escapes."""
    if text.isascii() or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8":
        return text
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns, coloured and folded to the width on a terminal; whole lines for a pipe."""
    cleaned = [[clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(headers, cleaned)
        return
    widths = [max(map(len, column)) for column in zip(headers, *cleaned, strict=True)]
    for line in [headers, *cleaned]:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def print_line(text: str) -> None:
    sys.stdout.write(clean(text) + "\n")


def print_styled(text: str, style: str) -> None:
    """A line, coloured on a terminal."""
    if not style or not sys.stdout.isatty():
        print_line(text)
        return
    from rich.console import Console
    from rich.text import Text

    Console().print(Text(clean(text), style=style), soft_wrap=True)


def note(text: str) -> None:
    """A remark, on stderr: stdout holds the answer alone."""
    sys.stdout.flush()
    sys.stderr.write(clean(text) + "\n")
    sys.stderr.flush()


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        # The last column takes the folding: the others are names that people copy.
        table.add_column(header, overflow="fold", no_wrap=header is not headers[-1])
    for row in rows:
        table.add_row(*[Text(cell, style=STYLES.get(cell, "")) for cell in row])
    console = Console()
    # Names are copied, so they are never cut: where they alone are too wide, the terminal wraps the lines.
    console.width = max(console.width, _least_width(headers, rows))
    console.print(table)


def _least_width(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return sum(width + 1 for width in widths[:-1]) + min(widths[-1], _LAST_COLUMN)
