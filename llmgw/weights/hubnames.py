"""What an `hf://` source is called: `hf://ORG/REPO[/PATH][?allow=PATTERN&ignore=PATTERN][@REVISION]`. Pure.

PATH is a file, a folder or a pattern; without one the repository is meant as a whole. The revision stands at the end
and is a branch, a tag or a commit; only a commit says which bytes they are. Without one the branch `main` is meant.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qsl, quote

SCHEME: Final = "hf"
MAIN: Final = "main"

_PART: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?\Z")
_REVISION: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._/+-]{0,250}[A-Za-z0-9_+-])?\Z")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}\Z")
_FORM: Final = "write hf://ORG/REPO/FILE, with @REVISION at its end where another than main is meant"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """`path`: empty for the whole repository. `allow` and `ignore`: patterns over the paths of its files."""

    repo: str
    path: str = ""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    revision: str | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether it names a commit, so that its bytes are the same for ever."""
        return self.revision is not None and _COMMIT.match(self.revision) is not None

    def at(self, commit: str | None) -> "HubSource":
        return replace(self, revision=commit)

    def __str__(self) -> str:
        path = f"/{self.path}" if self.path else ""
        chosen = [*(f"allow={_quoted(p)}" for p in self.allow), *(f"ignore={_quoted(p)}" for p in self.ignore)]
        query = f"?{'&'.join(chosen)}" if chosen else ""
        revision = f"@{self.revision}" if self.revision is not None else ""
        return f"{SCHEME}://{self.repo}{path}{query}{revision}"


def parse(text: str) -> HubSource:
    """Raises ValueError with advice."""
    place, _, query = text.partition("://")[2].partition("?")
    if "@" in query:
        query, at, revision = query.rpartition("@")
    else:  # `allow` and `ignore` of a document follow whatever the source says
        place, at, revision = place.rpartition("@") if "@" in place else (place, "", "")
    parts = [part for part in place.split("/") if part not in ("", ".")]
    if len(parts) < 2 or not all(_is_part(part) for part in parts[:2]):
        early = "" if at and "/" in revision and len(parts) == 2 else f" names no repository: {_FORM}"
        raise ValueError(f"{text!r}{early or ': the revision stands at the end: ' + _FORM}")
    if ".." in parts or "\\" in place:
        raise ValueError(f"{text!r}: a path within a repository holds no '..' and no backslash")
    if at and len(parts) == 2 and "/" in revision and not revision.startswith("refs/"):
        raise ValueError(f"{text!r}: the revision stands at the end: {_FORM}")
    if at and not _is_revision(revision):
        raise ValueError(f"{text!r}: what follows the last '@' is no branch, tag or commit: {_FORM}")
    path = "/".join(parts[2:])
    found = revision.lower() if re.fullmatch("[0-9A-Fa-f]{40}", revision) else revision
    if found == MAIN and "@" not in path:
        found = ""
    allow, ignore = _patterns(text, query)
    return HubSource(repo="/".join(parts[:2]), path=path, allow=allow, ignore=ignore, revision=found or None)


def with_patterns(text: str, allow: Iterable[str], ignore: Iterable[str]) -> str:
    """A source's text with these patterns as well."""
    source = parse(text)
    return str(
        replace(
            source,
            allow=tuple(sorted({*source.allow, *allow})),
            ignore=tuple(sorted({*source.ignore, *ignore})),
        )
    )


def _is_part(text: str) -> bool:
    return _PART.match(text) is not None and ".." not in text and "--" not in text


def _is_revision(text: str) -> bool:
    return _REVISION.match(text) is not None and ".." not in text and "//" not in text


def _patterns(text: str, query: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found: dict[str, set[str]] = {"allow": set(), "ignore": set()}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict") if query else []
    except ValueError:
        pairs = [("", "")]
    for key, pattern in pairs:
        if key not in found or not pattern.strip() or not pattern.isprintable():
            raise ValueError(f"{text!r}: what follows the '?' is allow=PATTERN and ignore=PATTERN, with & between them")
        found[key].add(pattern)
    return tuple(sorted(found["allow"])), tuple(sorted(found["ignore"]))


def _quoted(pattern: str) -> str:
    return quote(pattern, safe="*/,!")
