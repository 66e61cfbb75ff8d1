"""`llmgw pull`"""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.options import State, state_root

if TYPE_CHECKING:
    from llmgw.catalog.spec import WeightsSpec
    from llmgw.cli.pulling import Shown
    from llmgw.engine.manager import Engines
    from llmgw.weights.cache import Cache


def pull(
    what: Annotated[list[str], typer.Argument(metavar="WHAT", help="Sources, or models of --catalog.")],
    catalog: Annotated[
        Path | None, typer.Option("--catalog", metavar="DIR", readable=False, help="The catalog that has the models.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option("--checksum", metavar="HEX", help="What the one source given must have.")
    ] = None,
    token_env: Annotated[
        str | None, typer.Option("--token-env", metavar="NAME", help="The variable that holds the sources' token.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="DIR", envvar="LLMGW_CACHE", readable=False, help="Default: STATE/weights."),
    ] = None,
    state: State = None,
) -> int:
    """Download weights into this machine's cache, ahead of need.

    \b
    Example:
      llmgw pull https://models.example.org/qwen3-8b-q4_k_m.gguf
      llmgw pull qwen3-8b --catalog ./catalog
    """
    from llmgw.cli import logs
    from llmgw.clock import SystemClock
    from llmgw.engine.manager import find_engines
    from llmgw.statedir import StateDir
    from llmgw.weights.cache import Cache

    logs.configure()
    engines = find_engines()
    specs = _wanted(what, catalog, sha256, token_env, engines)
    found = StateDir(state_root(state))
    found.prepare()
    opened = Cache(cache or found.weights, cluster_id=found.cluster_id(), clock=SystemClock(), sources=engines.sources)
    opened.open()
    failures = asyncio.run(_pull_all(opened, specs))
    for failure in failures:
        sys.stderr.write(f"llmgw: {failure}\n")
    return ExitCode.ERROR if failures else ExitCode.FINE


def _wanted(
    what: list[str], catalog: Path | None, sha256: str | None, token: str | None, engines: "Engines"
) -> "list[WeightsSpec]":
    """Raises UsageError, CatalogInvalid, CatalogUnreadable."""
    import re

    from llmgw.catalog.spec import SecretRef, WeightsSpec
    from llmgw.errors import UsageError

    if sha256 is not None and (len(what) != 1 or re.fullmatch("[0-9A-Fa-f]{64}", sha256) is None):
        raise UsageError("--checksum takes the 64 hex digits of the one source that is given")
    digest = sha256.lower() if sha256 is not None else None
    secret = SecretRef(from_env=token) if token is not None else None
    specs: dict[WeightsSpec, None] = {}
    for text in what:
        if "://" in text or text.startswith("/"):
            try:
                specs[WeightsSpec(source=engines.canonical(text), sha256=digest, token=secret)] = None
            except ValueError as error:
                raise UsageError(str(error)) from error
        elif catalog is None or sha256 is not None:
            raise UsageError(f"{text} is no source: to pull a model's weights, name its catalog with --catalog")
        else:
            specs.update(dict.fromkeys(_of_model(text, catalog, engines)))
    return list(specs)


def _of_model(name: str, directory: Path, engines: "Engines") -> "list[WeightsSpec]":
    from llmgw.catalog.load import load_catalog
    from llmgw.cli.followed import read_here
    from llmgw.errors import UsageError

    loaded = load_catalog(read_here(directory), engines.rules(), canonical=engines.canonical)
    models = loaded.catalog.models.values()
    found = next((model for model in models if name == model.name or name in model.aliases), None)
    if found is None:
        raise UsageError(f"no model {name} in {directory}; it has {', '.join(model.name for model in models)}")
    return [spec for profile in found.profiles for spec in profile.every_file]


async def _pull_all(cache: "Cache", specs: "list[WeightsSpec]") -> list[str]:
    """What went wrong, one text a source. One that fails does not end the others."""
    from llmgw.cli.pulling import Shown
    from llmgw.errors import WeightsError

    with Shown.on_stderr() as shown:
        pulls = [asyncio.create_task(_pull(cache, spec, shown)) for spec in specs]
        results = await asyncio.gather(*pulls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, WeightsError):
            raise result
    for result in results:
        if isinstance(result, Path):
            sys.stdout.write(f"{result}\n")
    return [str(result) for result in results if isinstance(result, WeightsError)]


async def _pull(cache: "Cache", spec: "WeightsSpec", shown: "Shown") -> Path:
    from llmgw.catalog.spec import NodeSpec

    spec = await cache.resolved(spec)  # what a branch is now, whatever is here of it
    with shown.one(spec.source) as tell:
        return await cache.fetch(spec, reserve=NodeSpec().reserve.disk, progress=tell)
