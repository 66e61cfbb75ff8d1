"""The catalog in force, what was tried since, and the last good one on disk. A bad revision changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

import msgspec

from llmgw.catalog.holds import Held
from llmgw.catalog.spec import Catalog, model_json
from llmgw.errors import Problem
from llmgw.ids import Digest, Revision
from llmgw.statedir import write_atomic
from llmgw.units import Instant, Wall

FORMAT: Final = 1
"""Of the last good catalog's file. One of another format is not read: the catalog itself is, as always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogState:
    """`attempted` != `applied`: the newest revision is not served, and `problems`, `error` or `held` says why."""

    source: str  #: the path, as the operator gave it
    attempted: Revision | None = None
    applied: Revision | None = None
    applied_at: Wall | None = None
    problems: tuple[Problem, ...] = ()
    error: str | None = None  #: the source cannot be read now
    watcher: str = "ok"  #: or "degraded: why" when only polling finds changes
    held: Held | None = None


class LiveCatalog:
    """Swapped whole or not at all. Owned by one task: nothing here waits or locks."""

    def __init__(self, source: str) -> None:
        self._state = CatalogState(source=source)
        self._current: Catalog | None = None

    @property
    def current(self) -> Catalog | None:
        """The catalog in force; None until there was a good one."""
        return self._current

    @property
    def watcher(self) -> str:
        return self._state.watcher

    @watcher.setter
    def watcher(self, text: str) -> None:
        self._state = replace(self._state, watcher=text)

    def accept(self, catalog: Catalog, now: Instant) -> bool:
        """Put `catalog` in force. False where it is in force already: then only earlier problems are cleared."""
        before = self._current
        same = before is not None and (before.digest, before.revision) == (catalog.digest, catalog.revision)
        self._state = replace(
            self._state,
            attempted=catalog.revision,
            applied=catalog.revision,
            applied_at=self._state.applied_at if same else now.wall,
            problems=(),
            error=None,
            held=None,
        )
        if not same:
            self._current = catalog
        return not same

    def complete(self, catalog: Catalog) -> None:
        """The catalog in force, of which more is known now: its digest and revision are the same."""
        self._current = catalog

    def reject(
        self,
        revision: Revision | None,
        *,
        now: Instant,
        problems: Sequence[Problem] = (),
        error: str | None = None,
    ) -> None:
        """Note what is wrong with `revision` (None: it is not known, since the source cannot be read)."""
        self._state = replace(
            self._state,
            attempted=self._state.attempted if revision is None else revision,
            problems=tuple(problems),
            error=error,
            held=None,
        )

    def hold(self, revision: Revision, held: Held) -> None:
        """Note that `revision` is valid, and why it is not in force."""
        self._state = replace(self._state, attempted=revision, problems=(), error=None, held=held)

    def state(self) -> CatalogState:
        return self._state


class _LastGood(msgspec.Struct, frozen=True):
    format: int
    catalog: Catalog
    at: Wall | None = None


class _Format(msgspec.Struct, frozen=True):
    format: int


class _Named(msgspec.Struct, frozen=True):
    revision: Revision
    digest: Digest


class _Since(msgspec.Struct, frozen=True):
    catalog: _Named
    at: Wall | None = None


def save_last_good(path: Path, catalog: Catalog, at: Wall | None = None) -> None:
    """Replace the file whole; `at`: since when it is in force. 0600, since a document may hold a literal secret. Raises
    OSError."""
    write_atomic(path, _encoded(catalog, at), mode=0o600)


def _encoded(catalog: Catalog, at: Wall | None) -> bytes:
    """What `_LastGood` is decoded from. Most models are those of the catalog before, and encoded already."""
    told = {field.name: getattr(catalog, field.name) for field in fields(catalog)}
    told["models"] = {name: msgspec.Raw(model_json(model)) for name, model in catalog.models.items()}
    return msgspec.json.encode({"format": FORMAT, "catalog": told, "at": at}, order="deterministic")


def in_force_since(path: Path, catalog: Catalog) -> Wall | None:
    """Since when this very revision was in force as llmgw ended; None: it was not, or that cannot be read."""
    try:
        known = msgspec.json.decode(path.read_bytes(), type=_Since)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    same = (known.catalog.revision, known.catalog.digest) == (catalog.revision, catalog.digest)
    return known.at if same else None


def load_last_good(path: Path) -> tuple[Catalog | None, str | None]:
    """The last good catalog, or None and why there is none to be had (no reason where none was ever saved)."""
    try:
        raw = path.read_bytes()
        found = msgspec.json.decode(raw, type=_Format).format
        if found != FORMAT:
            return None, f"{path} has format {found}, this llmgw reads {FORMAT}"
        return msgspec.json.decode(raw, type=_LastGood).catalog, None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"cannot read {path}: {error.strerror}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return None, f"{path} is damaged and was not used: {error}"
