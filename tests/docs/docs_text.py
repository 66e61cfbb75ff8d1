"""Reads the documentation: its tables and its fenced blocks."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text("utf-8")


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or above. A # in a fenced block is none."""
    level, found, fenced = len(heading.partition(" ")[0]), None, False
    for line in text_of(page).splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if found is not None and not fenced and re.match(rf"#{{1,{level}}} ", line):
            return "".join(found)
        if found is not None:
            found.append(line)
        elif line.rstrip() == heading:
            found = []
    assert found is not None, f"docs/{page}.md has no heading {heading!r}"
    return "".join(found)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def named_blocks(text: str) -> dict[str, str]:
    """Fenced blocks under a line that is a file's name: `name`:"""
    return dict(re.findall(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def rows(text: str, first_header: str) -> list[list[str]]:
    """The cells of every table whose first column has that header."""
    return [row for header, body in _tables(text) if header[0] == first_header for row in body]


def words(cell: str) -> list[str]:
    """What a cell has in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def _tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        header, _, *body = [_cells(line) for line in table.splitlines()]
        yield header, body


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]


def links(page: Path) -> list[tuple[str, str]]:
    """(file, anchor) of every link of a page to a file or heading."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    return [(file, anchor) for file, _, anchor in (t.partition("#") for t in targets if "://" not in t)]


def anchors(page: Path) -> set[str]:
    """What links may name on a page, as GitHub makes it from the headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
