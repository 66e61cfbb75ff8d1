"""`llmgw weights export` and `import`: weights for machines that share no network."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.options import Json, Output, OutputFormat, State, state_root, wants_json

if TYPE_CHECKING:
    from llmgw.admin.archives import ArchivedRow
    from llmgw.catalog.spec import ModelSpec
    from llmgw.weights.archive import Packed
    from llmgw.weights.cache import Cache
    from llmgw.weights.exporting import Told

TAR = ".tar"
OTHERS = frozenset({".7z", ".bz2", ".gz", ".lz4", ".rar", ".tar", ".tbz2", ".tgz", ".txz", ".xz", ".zip", ".zst"})
"""Of archives that llmgw does not write: nobody who writes one means a directory of that name."""

CacheDir = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", envvar="LLMGW_CACHE", readable=False, help="Default: STATE/weights."),
]


def export(
    to: Annotated[Path, typer.Option("--to", metavar="PATH", help="A file that ends in .tar, or a directory.")],
    what: Annotated[list[str] | None, typer.Argument(metavar="[WHAT...]", help="Models, sources or entries.")] = None,
    catalog: Annotated[
        Path | None, typer.Option("--catalog", metavar="DIR", readable=False, help="The catalog that has the models.")
    ] = None,
    cache: CacheDir = None,
    state: State = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Write weights of this machine's cache into an archive.

    For a machine without a network: `llmgw weights import` takes them there. Without WHAT: every entry. What is
    written is checked against what was fetched. A directory that has an export already gains what it lacks.

    \b
    Example:
      llmgw weights export qwen3-8b --to /media/stick/weights
      llmgw weights export --to weights.tar
    """
    from llmgw.cli import logs
    from llmgw.weights.archive import ArchiveRefused
    from llmgw.weights.exporting import to_directory, to_tar

    _check_suffix(to)
    logs.configure()
    opened = _open(state, cache)
    chosen = choose(opened, what or [], _models(state, catalog))
    there: set[str] = set()
    try:
        with _shown("exporting", sum(packed.manifest.size for packed in chosen)) as told:
            if to.suffix == TAR:
                to_tar(opened.root, chosen, to, told)
            else:
                there = to_directory(opened.root, chosen, to, told)
    except OSError as error:
        raise ArchiveRefused(f"cannot write {error.filename or to}: {error.strerror or error}") from error
    rows = tuple(_row(packed, "there" if packed.entry in there else "exported") for packed in chosen)
    _answer("export", to, opened, rows, wants_json(output, as_json))


def _check_suffix(to: Path) -> None:
    from llmgw.errors import UsageError

    if to.suffix != TAR and to.suffix.lower() in OTHERS and not to.is_dir():
        name = to.with_suffix("") if to.suffixes[-2:-1] == [TAR] else to.with_suffix(TAR)
        raise UsageError(f"an archive is a plain .tar, not {to.suffix} (weights hardly shrink): write --to {name}")


def import_weights(
    path: Annotated[Path, typer.Argument(metavar="PATH", readable=False, help="What `weights export` wrote.")],
    cache: CacheDir = None,
    state: State = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Take weights out of an archive into this machine's cache.

    Every file is hashed and must be what was fetched where it comes from; an entry is there whole or not at all. A
    daemon may run meanwhile, and finds them. On a machine of a fleet, start its agent once before.

    \b
    Example:
      llmgw weights import /media/stick/weights
    """
    from llmgw.catalog.spec import NodeSpec
    from llmgw.cli import logs
    from llmgw.clock import SystemClock
    from llmgw.weights.archive import ArchiveRefused, opened
    from llmgw.weights.importing import check_room, take

    logs.configure()
    into = _open(state, cache)
    rows = []
    try:
        with opened(path) as archive:
            entries = archive.index.entries
            held = {packed.entry for packed in entries if into.held(packed.entry) is not None}
            check_room(into.root, archive, held, NodeSpec().reserve.disk)
            lacking = [packed for packed in entries if packed.entry not in held]
            with _shown("importing", sum(packed.manifest.size for packed in lacking)) as told:
                for packed in lacking:
                    take(into.root, archive, packed, SystemClock().now().wall, told)
            rows = [_row(packed, "there" if packed.entry in held else "imported") for packed in entries]
    except OSError as error:
        raise ArchiveRefused(f"cannot write {error.filename or into.root}: {error.strerror or error}") from error
    _answer("import", path, into, tuple(rows), wants_json(output, as_json))


def choose(cache: "Cache", what: list[str], models: "dict[str, ModelSpec]") -> "list[Packed]":
    """The entries that are meant; of a model, all that its profiles read. Raises UsageError."""
    from llmgw.errors import UsageError
    from llmgw.weights.archive import Packed

    held = {fact.entry: found for fact in cache.facts(()) if fact.entry and (found := cache.held(fact.entry))}
    chosen: dict[str, None] = dict.fromkeys(held) if not what else {}
    for text in what:
        chosen.update(dict.fromkeys(_meant(text, cache, models)))
    if not chosen:
        raise UsageError(f"no weights lie in {cache.root}: `llmgw pull` fetches some")
    return [Packed(entry=name, manifest=held[name]) for name in chosen]


def _meant(text: str, cache: "Cache", models: "dict[str, ModelSpec]") -> Iterator[str]:
    from llmgw.catalog.spec import WeightsSpec
    from llmgw.errors import UsageError
    from llmgw.weights.naming import canonical, is_local

    if (model := models.get(text)) is not None:
        for spec in {spec: None for profile in model.profiles for spec in profile.every_file}:
            if is_local(spec.source):
                sys.stderr.write(f"llmgw: {spec.source} of {text} is used where it lies: copy it yourself\n")
            elif (found := cache.find(spec)) is None:
                raise UsageError(f"{spec.source} of {text} is not in {cache.root}: `llmgw pull` fetches it")
            else:
                yield found
        return
    entries = [str(fact.entry) for fact in cache.facts(()) if fact.entry is not None]
    named = [entry for entry in entries if entry == text or (len(text) >= 16 and entry.startswith(text))]
    if not named and "://" in text:
        try:
            found = cache.find(WeightsSpec(source=canonical(text)))
        except ValueError as error:
            raise UsageError(str(error)) from error
        named = [] if found is None else [found]
    if not named:
        known = f"; the models known here are {', '.join(sorted(models))}" if models else ""
        raise UsageError(
            f"no weights in {cache.root} are {text}: name a source or an entry (`llmgw weights list`), or a model and "
            f"its --catalog{known}"
        )
    yield from named


def _models(state: Path | None, catalog: Path | None) -> "dict[str, ModelSpec]":
    """Of the catalog that is given, else of the one that was in force here last; by name and alias."""
    from llmgw.catalog.live import load_last_good
    from llmgw.catalog.load import load_catalog
    from llmgw.cli.followed import read_here
    from llmgw.engine.manager import find_engines
    from llmgw.statedir import StateDir
    from llmgw.weights.naming import canonical

    if catalog is None:
        found = load_last_good(StateDir(state_root(state)).last_good)[0]
    else:
        found = load_catalog(read_here(catalog), find_engines().rules(), canonical=canonical).catalog
    models = () if found is None else found.models.values()
    return {name: model for model in models for name in model.names}


def _open(state: Path | None, cache: Path | None) -> "Cache":
    from llmgw.clock import SystemClock
    from llmgw.statedir import StateDir
    from llmgw.weights.cache import Cache

    found = StateDir(state_root(state))
    found.prepare()
    opened = Cache(cache or found.weights, cluster_id=found.cluster_id(), clock=SystemClock())
    opened.open()
    return opened


def _row(packed: "Packed", state: str) -> "ArchivedRow":
    from llmgw.admin.archives import ArchivedRow
    from llmgw.units import Bytes

    found = packed.manifest
    size = Bytes(found.size)
    return ArchivedRow(entry=packed.entry, source=found.source, size=size, files=len(found.files), state=state)


def _answer(action: str, path: Path, cache: "Cache", rows: "tuple[ArchivedRow, ...]", as_json: bool) -> None:
    from llmgw.admin.archives import ArchiveOutput
    from llmgw.cli.printing import print_json, print_line, print_table
    from llmgw.cli.rows import short_entry
    from llmgw.cli.text import size
    from llmgw.units import Bytes

    written = Bytes(sum(row.size for row in rows if row.state != "there"))
    if as_json:
        print_json(ArchiveOutput(action=action, path=str(path), cache=str(cache.root), size=written, entries=rows))
        return
    said = {"there": "there already"}
    print_table(
        ("ENTRY", "SIZE", "SOURCE", "RESULT"),
        [(short_entry(row.entry), size(row.size), row.source, said.get(row.state, row.state)) for row in rows],
    )
    print_line(f"{action}ed {size(written)} {'to' if action == 'export' else 'from'} {path}")


@contextmanager
def _shown(what: str, total: int) -> "Iterator[Told]":
    """A bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=False,
    ) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.advance(task, count)
