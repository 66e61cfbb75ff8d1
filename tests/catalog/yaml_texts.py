"""Texts that YAML parsers are likely to read differently."""

import random
from typing import Final

from catalog_texts import model

FRAGMENTS: Final = [
    "a: b\n", "a:\n", "- x\n", "- ", "-", "? ", ": ", ":", "{", "}", "[", "]", ",", "#", " #x", "\n", "\n  ", "  ",
    " ", "'",
    '"', "''", "&a", "*a", "!", "!!str ", "|", "|\n  x\n", ">-\n x\n", "%", "%YAML 1.2\n", "%FOO\n", "---\n", "---",
    "...\n",
    "...", "~", "null", "Null", "true", "True", "yes", "No", "0", "01", "-0", "1.5", "1e3", "0x1f", "0o7", "0b1",
    "1_000",
    "12:30", "2001-01-01", "2001-12-14t21:59:43.10-05:00", "<<", "<<: {a: 1}\n", "=", "@", "`", "\\", "\t", "\r",
    "ä", "漢",
    "\u00ad", "\u2028", "\x85", "\ufeff", "http://x/y", "a:1", "x#y", "-5", "+5", ".5", "5.", ".inf", ".nan",
    "-.inf", "1.10",
    "10m", "4.7GiB", "08:00", "a b", "a  b", "k: v, w: z", "{a: 1, b: [c, d]}", "[a, b]", "{a: }", "[a,]", "{,}",
    "b179c9523d0e6a0f", "1e12abc", "--flag", "-- x", "---x", "a:b:c", "a::b", "::", "a,b", "a]b", "'x'y", '"x"y',
    "'x':y",
    '"x":y', '"x": y', "x: 'y' #z", '"x"#z', "a: - b", "- - a", "- a: b\n  c: d\n", "key with space: 1\n", "$x",
    "${A}", "(x)",
    "x?y", "x!", "&x!", "*x!", "x*", "x&y", "\0", "\x7f", "[a: 1]", "{a}", "{a, b}", "? a\n: b\n", "- ? a\n",
]  # fmt: skip
WORDS: Final = ["a", "b", "name", "x y", "k-1", "v.2", "1", "2.5", "true"]


def odd_text(rng: random.Random) -> str:
    """A spoilt piece of a model, a heap of fragments, or a small document of them."""
    match rng.randrange(10):
        case 0 | 1 | 2:
            lines = model(extra="scaling: {min: 1}\nlabels: {team: search}\n").split("\n")
            start = rng.randrange(len(lines))
            return _spoilt(rng, "\n".join(lines[start : start + rng.randint(1, 8)]), rng.randint(1, 4))
        case 3 | 4:
            return "".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(1, 8)))
        case kind:
            text = _block(rng, 3, 0).lstrip("\n")
            text = _spoilt(rng, text, rng.randint(1, 2)) if kind > 7 else text
            more = "\n---\n" + _block(rng, 1, 0).lstrip("\n")
            return rng.choice(["", "", "---\n", "# c\n"]) + text + rng.choice(["", "\n", more])


def _spoilt(rng: random.Random, text: str, times: int) -> str:
    for _ in range(times):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(FRAGMENTS) + text[at + rng.choice([0, 0, 1, 2, 5]) :]
    return text


def _block(rng: random.Random, depth: int, indent: int) -> str:
    kind = rng.random()
    if depth <= 0 or kind < 0.35:
        return rng.choice(WORDS + FRAGMENTS)
    several, ends = range(rng.randint(1, 3)), ["\n", "\n", "\n", " # c\n", "\n\n", "\n# c\n"]
    if kind < 0.6:
        parts = [
            f"{' ' * indent}{rng.choice(WORDS)}{number}: {_block(rng, depth - 1, indent + rng.choice([0, 1, 2, 2, 4]))}"
            for number in several
        ]
        return "\n" + "".join(part + rng.choice(ends) for part in parts)
    if kind < 0.75:
        return "\n" + "".join(f"{' ' * indent}- {_block(rng, depth - 1, indent + 2).lstrip()}\n" for _ in several)
    inner = [_block(rng, 0, 0) for _ in range(rng.randint(0, 3))]
    if kind < 0.87:
        keyed = [rng.choice(WORDS) + rng.choice([": ", ":", " : "]) + each for each in inner]
        return "{" + ", ".join(keyed) + "}"
    return "[" + rng.choice([", ", ",", ",\n   "]).join(inner) + "]"
