"""The line of a catalog file that a problem points at, with what may be a secret hidden. Pure.

Whether a value is secret is judged by the text alone, since a file with a fault may have no structure: by the key
before it, by the keys that its line is indented under, and by shapes that tokens are known to have.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from llmgw.catalog.document import is_utf16, lines_of
from llmgw.catalog.leaves import is_secret

WIDTH: Final = 100  #: characters shown of a longer line
HIDDEN: Final = "***"

_KEY: Final = re.compile(r"""(?P<lead>^|[\s{,-])(?P<quote>["']?)(?P<key>[A-Za-z0-9_.-]+)(?P=quote)\s*:(?=\s|$)""")
_FLAG: Final = re.compile(r"""(?P<flag>--?[A-Za-z][\w-]*)(?P<between>=|["']?\s*,?\s+["']?)(?P<value>[^\s,"'\]]+)""")
_IN_URL: Final = re.compile(r"(://)[^/\s@\"']+@")
_TOKEN: Final = re.compile(r"\b(?:hf_|sk-|pk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_.\-]{8,}")
_REFERENCE: Final = re.compile(r"""\s*\{?\s*["']?from_(?:env|file)["']?\s*:\s*[\w./"'-]+\s*\}?\s*(?:#.*)?""")
_REFERENCE_KEYS: Final = frozenset({"from_env", "from_file"})


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A line, cut to what fits, and before which of its characters the caret stands (from 0)."""

    text: str
    caret: int

    def lines(self, number: int) -> tuple[str, str]:
        """As a compiler shows it: the line with its number, and the caret below."""
        margin = f"{number:>6} | "
        before = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in self.text[: self.caret])
        return margin + self.text, " " * (len(margin) - 2) + "| " + " " * before + "^"


def excerpt(data: bytes, line: int, column: int) -> Excerpt | None:
    """Of a file's bytes, by line and column from 1. None: there is no such line, or nothing on it that can be read."""
    if is_utf16(data):
        return None
    lines = lines_of(data.decode("utf-8-sig", "replace"))
    if not 0 < line <= len(lines) or not lines[line - 1].strip():
        return None
    text = redacted(lines, line - 1).replace("\t", " ").rstrip()
    caret = min(max(column - 1, 0), len(text))
    start = max(0, min(caret - WIDTH // 2, len(text) - WIDTH))
    shown = text[start : start + WIDTH]
    if start:
        shown = "…" + shown[1:]
    if start + WIDTH < len(text):
        shown = shown[:-1] + "…"
    return Excerpt(shown, caret - start)


def redacted(lines: Sequence[str], index: int) -> str:
    """The line without what may be a secret. What stands before it keeps its column."""
    text = lines[index]
    if any(map(_holds_secrets, _above(lines, index))):
        text = _without_value(text)
    for found in _KEY.finditer(text):
        if _holds_secrets(found["key"]) and text[found.end() :].strip() and not _is_reference(text, found):
            text = f"{text[: found.end()]} {HIDDEN}"
            break
    text = _FLAG.sub(
        lambda flag: f"{flag['flag']}{flag['between']}{HIDDEN}" if is_secret(flag["flag"]) else flag[0], text
    )
    return _TOKEN.sub(HIDDEN, _IN_URL.sub(rf"\1{HIDDEN}@", text))


def _holds_secrets(key: str) -> bool:
    return key == "env" or is_secret(key)


def _is_reference(text: str, found: "re.Match[str]") -> bool:
    return found["key"] in _REFERENCE_KEYS or _REFERENCE.fullmatch(text, found.end()) is not None


def _above(lines: Sequence[str], index: int) -> list[str]:
    """The keys under which a line is indented, the nearest first."""
    keys: list[str] = []
    indent = _indent(lines[index])
    for text in reversed(lines[:index]):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        if _indent(text) < indent:
            indent = _indent(text)
            keys += [found["key"] for found in _KEY.finditer(text)]
        if indent == 0:
            break
    return keys


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _without_value(text: str) -> str:
    """A line of what is secret as a whole: its key stays, where it has one."""
    found = _KEY.search(text)
    if found is None:
        return text[: _indent(text)] + HIDDEN
    rest = text[found.end() :]
    if not rest.strip() or _is_reference(text, found):
        return text
    return f"{text[: found.end()]} {HIDDEN}"
