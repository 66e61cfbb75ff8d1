"""What a fault of YAML's syntax most likely comes from, and where that stands. Pure.

A parser notices a mistake where it cannot go on, which is often lines below: here it is looked for. Messages name
kinds of tokens, single characters and places, never the text around them: it may be a secret.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from ruamel.yaml.error import MarkedYAMLError

from llmgw.catalog.node import Place

PLACEHOLDER: Final = (
    "a placeholder of a templating tool ({{ or {%): files are read as they stand, so render them first; what several "
    "models share may stand in `macros` or a Template"
)

_OURS: Final = re.compile(r"^<{7} ", re.MULTILINE)
_THEIRS: Final = re.compile(r"^>{7}(?: |$)", re.MULTILINE)
"""Around what git could not merge. Nothing of a catalog can stand so at the start of a line."""
_CONFLICT: Final = re.compile(r"(?:<{7}|>{7}|\|{7}) |(?:>{7}|={7})$")
"""A line that git leaves in a file that it could not merge. Nothing of a catalog begins a line so."""
_UNSEEN_BREAKS: Final = "\u2028\u2029\x85"
_NO_SPACE: Final = re.compile("(?:^[ \t]*(?:- *)?|[:-] *)([\u00a0\u2000-\u200f\u202f\u205f\u2060\u3000\ufeff])")
"""Before a key, or where a space is to follow a colon or a dash."""
_NO_DASH: Final = re.compile("[ \t]*([-\u2013\u2014])[A-Za-z\"' ]")
TYPOGRAPHIC: Final = "\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb"
_RULE: Final = re.compile(r"\s*-{3,}\s*")

_INVALID: Final = "not valid YAML"
_UNCLOSED: Final = "while scanning a quoted scalar"
_NO_COLON: Final = "could not find expected ':'"
_FLOW: Final = re.compile(r"while parsing a flow (?:mapping|sequence)")
_CUT_SHORT: Final = re.compile(r"but got (?:':'|'?<(?:stream end|document|block)[^>]*>'?)$")

_HINTS: Final = (
    (re.compile(r"got '\{'$"), "put quotes around text that holds braces"),
    (re.compile(r"mapping values are not allowed"), "put quotes around text that holds `: `, and align the keys"),
    (re.compile(r"block (mapping|collection|sequence)"), "begin keys of one mapping in one column, and items too"),
    (re.compile(r"flow (mapping|sequence)"), "close the bracket, and put a comma between items"),
    (re.compile(r"cannot start any token"), "put quotes around it"),
    (re.compile(r"unknown escape character"), "between single quotes a backslash is one"),
)
"""What the parser's words mostly come from."""

Blamed = tuple[Place, str] | None


def blamed(
    error: MarkedYAMLError, lines: Sequence[str], last: Place, quoted: tuple[Place, int] | None = None
) -> tuple[Place, str]:
    """The place to show, and what to say of it.

    `last`: where reading was, for an error without a place. `quoted`: where the last quoted text of several lines
    begins, and the line that it ends on.
    """
    told = _place(error.problem_mark or error.context_mark, last)
    began = _place(error.context_mark, told)
    words = _words(error)
    return (
        _conflict(lines[: told[0]])
        or _unseen_break(lines, told)
        or _looks_like_space(lines, told)
        or _no_dash(words, lines, told)
        or _beside(words, lines, told)
        or _no_colon(words, lines, began, told)
        or _unclosed(error, words, began, told)
        or _closed_late(told, quoted)
        or (told, _with_hint(words))
    )


def unmerged(text: str) -> Blamed:
    """A whole merge conflict, told before anything is parsed: what is within it is not meant to be read."""
    ours = _OURS.search(text)
    if ours is None or not _THEIRS.search(text, ours.end()):
        return None
    line = text.count("\n", 0, ours.start()) + 1
    return (line, 1), "a merge conflict that was left here: resolve it (<<<<<<< to >>>>>>>)"


def _conflict(lines: Sequence[str]) -> Blamed:
    number = next((number for number, line in enumerate(lines, 1) if _CONFLICT.match(line)), None)
    if number is None:
        return None
    return (number, 1), "a merge conflict's marker that was left here: resolve the conflict"


def _unseen_break(lines: Sequence[str], told: Place) -> Blamed:
    """What came in with text that was pasted, ends the line for a parser and for no editor."""
    found = next((each for each in _UNSEEN_BREAKS if each in _line(lines, told[0])), None)
    if found is None:
        return None
    hidden = f"the line holds U+{ord(found):04X}, which ends a line though it does not look so: remove it"
    return told, f"{_INVALID}: {hidden}"


def _looks_like_space(lines: Sequence[str], told: Place) -> Blamed:
    for number in (_above(lines, told), told[0]):
        if (found := _NO_SPACE.search(_line(lines, number))) is not None:
            said = f"U+{ord(found[1]):04X} looks like a space, or like nothing, and is none to YAML: write a space"
            return (number, found.start(1) + 1), f"{_INVALID}: {said}"
    return None


def _no_dash(words: str, lines: Sequence[str], told: Place) -> Blamed:
    """Without a dash and a space a list's item is text, and goes on in the next line."""
    number = _above(lines, told)
    found = _NO_DASH.match(_line(lines, number)) if "mapping values are not allowed" in words else None
    if found is None or (found[1] == "-" and found[0].endswith(" ")):
        return None
    no_dash = f"U+{ord(found[1]):04X} is no dash to YAML: write `- `"
    said = "an item of a list begins with a dash and a space: write `- `" if found[1] == "-" else no_dash
    return (number, found.start(1) + 1), f"{_INVALID}: {said}"


def _beside(words: str, lines: Sequence[str], told: Place) -> Blamed:
    """By the character right before."""
    before = _line(lines, told[0])[max(told[1] - 2, 0) : told[1] - 1]
    if before and before in TYPOGRAPHIC:
        return (told[0], told[1] - 1), f"{_INVALID}: U+{ord(before):04X} is no quote to YAML: write \" or '"
    if before == "{" and "character '%'" in words:
        return (told[0], told[1] - 1), PLACEHOLDER
    if before and before in "'\"" and "found '<scalar>'" in words:
        return told, f"{_INVALID}: text goes on after its closing quote: put one pair of quotes around all of it"
    return None


def _no_colon(words: str, lines: Sequence[str], began: Place, told: Place) -> Blamed:
    """A line that is no key with a value is noticed in the next one."""
    at = began if _NO_COLON in words else told
    line = _line(lines, at[0])
    if _RULE.fullmatch(line):
        return at, f"{_INVALID}: documents are separated by three dashes at the beginning of a line, `---`"
    if _NO_COLON not in words:
        return None
    if "{{" in line:
        return at, PLACEHOLDER
    return at, f"{_INVALID}: neither a key with its value nor an item of a list: a key ends with a colon and a space"


def _unclosed(error: MarkedYAMLError, words: str, began: Place, told: Place) -> Blamed:
    """Told where it opens: the parser goes on until something cannot be within it, or to the end."""
    if error.context == _UNCLOSED:
        return began, f"{_INVALID}: a quote that is never closed" if "end of stream" in words else _with_hint(words)
    if _FLOW.match(words) and _CUT_SHORT.search(words) and began[0] < told[0]:
        return began, f"{_INVALID}: a bracket that is never closed"
    return None


def _closed_late(told: Place, quoted: tuple[Place, int] | None) -> Blamed:
    """A quote that is left open ends at the next one, lines below, and what follows that cannot be read."""
    if quoted is None or quoted[1] != told[0]:
        return None
    return quoted[0], f"{_INVALID}: a quote that is closed only on line {told[0]}: close it where its text ends"


def _above(lines: Sequence[str], told: Place) -> int:
    """The nearest line before that holds something."""
    return next((number for number in range(told[0] - 1, 0, -1) if _line(lines, number).strip()), 0)


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _place(mark: Any, otherwise: Place) -> Place:
    return otherwise if mark is None else (mark.line + 1, mark.column + 1)


def _words(error: MarkedYAMLError) -> str:
    """The parser's own."""
    parts = [part for part in (error.context, error.problem) if isinstance(part, str) and part]
    return " ".join(", ".join(parts).replace("('<", "<").replace(">',)", ">").split())[:200]


def _with_hint(words: str) -> str:
    if r"'\t' that cannot start" in words:
        return f"{_INVALID}: a tab where YAML wants spaces: indent with spaces"
    hint = next((hint for pattern, hint in _HINTS if pattern.search(words)), None)
    return f"{_INVALID}: {words}: {hint}" if hint else f"{_INVALID}: {words or 'cannot be parsed'}"
