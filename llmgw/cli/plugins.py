"""`llmgw plugins list`, `llmgw plugins check` and `llmgw plugins new`"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.options import Json, Output, OutputFormat, wants_json
from llmgw.errors import TerminalError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from llmgw.admin.shapes import PluginCheckRow, PluginRow
    from llmgw.engine.manager import PluginFact

CHECKS_TIMEOUT = 600.0
"""Seconds that all checks of one plugin may take; each has its own bound besides."""


def make_app() -> typer.Typer:
    """The group."""
    app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    app.callback()(_group)
    app.command("list")(list_plugins)
    app.command("check")(check)
    app.command("new")(new)
    return app


def _group() -> None:
    """List, check and write engine plugins.

    \b
    Example:
      llmgw plugins list
      llmgw plugins new my-engine
    """


def list_plugins(
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="With the traceback of each failure.")] = False,
) -> int:
    """List the installed plugins, what they bring, and why one cannot be used. Needs no daemon.

    \b
    Example:
      llmgw plugins list -v
      LLMGW_DISABLE_PLUGINS=llmgw-acme llmgw plugins list
    """
    from llmgw.admin.shapes import PluginsOutput
    from llmgw.cli import logs
    from llmgw.cli.printing import note, print_json, print_line, print_table
    from llmgw.engine.manager import find_engines

    logs.configure()
    plugins = find_engines(afresh=True).plugins
    rows = tuple(_row(plugin) for plugin in plugins)
    if wants_json(output, as_json):
        print_json(PluginsOutput(plugins=rows))
        return ExitCode.FINE
    headers = ("PLUGIN", "PACKAGE", "VERSION", "API", "ENGINES", "SOURCES", "STATE", "REASON")
    print_table(headers, [_cells(row) for row in rows])
    failed = [plugin for plugin in plugins if plugin.failure]
    for plugin in failed if verbose else ():
        print_line("")
        print_line(f"{plugin.name}: {plugin.reason}")
        _print_indented(plugin.failure)
    if failed and not verbose:
        note("-v shows the tracebacks")
    return ExitCode.FINE


def check(
    package: Annotated[str, typer.Argument(metavar="PKG", help="A plugin, its distribution, or its module.")],
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="A model file for an engine that loads one.")
    ] = None,
    options: Annotated[
        str | None, typer.Option("--options", metavar="JSON", help="The profile's options to check it with.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="SOURCE", help="Weights to fetch with a source of the plugin.")
    ] = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> int:
    """Try a plugin in a child process and hold what it brings against the conformance suites. Exit 1 when it fails.

    An engine that needs a model file, or options, is only started when they are given, and a source is only fetched
    from when --source names something small that it has.

    \b
    Example:
      llmgw plugins check llmgw-acme
      llmgw plugins check acme --weights ./model.gguf --options '{"threads": 2}'
    """
    from llmgw.admin.shapes import PluginCheckOutput
    from llmgw.cli import logs
    from llmgw.cli.printing import print_json

    logs.configure()
    asked = {"weights": str(weights.absolute()) if weights else None, "options": _json(options), "source": source}
    if weights is not None and not weights.exists():
        raise UsageError(f"--weights {weights}: there is no such file")
    spoken = not wants_json(output, as_json)
    plugins, checks = [], []
    for point in _points(package):
        row, done = _check_one(point, asked, spoken=spoken)
        plugins.append(row)
        checks += done
    good = all(row.state == "ok" for row in plugins) and all(row.outcome != "failed" for row in checks)
    if not spoken:
        print_json(PluginCheckOutput(ok=good, plugins=tuple(plugins), checks=tuple(checks)))
    return ExitCode.FINE if good else ExitCode.ERROR


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The engine's name.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where to write it. Default: ./llmgw-NAME.")
    ] = None,
) -> int:
    """Write the package of a new plugin: a working engine to put your own in place of, and its tests.

    \b
    Example:
      llmgw plugins new my-engine
      llmgw plugins new my-engine --dir ~/src/my-engine
    """
    from llmgw.cli.plugin_kit import write_plugin
    from llmgw.cli.printing import note, print_line

    root = write_plugin(name, directory.expanduser() if directory else None)
    print_line(str(root))
    note(f"now: cd {root} && pip install -e '.[dev]' && pytest")
    return ExitCode.FINE


def _row(plugin: "PluginFact") -> "PluginRow":
    from llmgw.admin.shapes import PluginRow

    return PluginRow(
        name=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
        own=plugin.own,
        api_version=plugin.api_version,
        engines=tuple(plugin.engines),
        sources=tuple(plugin.sources),
        state=str(plugin.state),
        reason=plugin.reason,
        failure=plugin.failure,
    )


def _cells(row: "PluginRow") -> tuple[str, ...]:
    api = "" if row.api_version is None else str(row.api_version)
    brings = (", ".join(row.engines), ", ".join(row.sources))
    return (row.name, row.distribution, row.version, api, *brings, row.state, row.reason)


def _points(package: str) -> "list[EntryPoint]":
    """The entry points of a plugin, a distribution, or of a module that none names yet. Raises TerminalError."""
    import importlib.util
    import re
    from importlib.metadata import EntryPoint, entry_points

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    installed = sorted(entry_points(group="llmgw"), key=lambda point: point.name)
    wanted = plain(package)
    found = [point for point in installed if point.name == package]
    found = found or [point for point in installed if point.dist is not None and plain(point.dist.name) == wanted]
    found = found or [point for point in installed if point.value.partition(":")[0] == package]
    if found:
        return found
    if re.fullmatch(r"[A-Za-z_]\w*", package) and importlib.util.find_spec(package) is not None:
        return [EntryPoint(name=package, value=package, group="llmgw")]
    if Path(package).is_dir():
        raise TerminalError(f"{package} is a directory: install it (`pip install -e {package}`) and name the plugin")
    names = ", ".join(point.name for point in installed)
    raise TerminalError(f"no plugin, distribution or module {package!r} is installed here (plugins: {names})")


def _check_one(point: "EntryPoint", asked: dict[str, Any], *, spoken: bool) -> "tuple[PluginRow, list[PluginCheckRow]]":
    from llmgw.admin.shapes import PluginCheckRow
    from llmgw.cli.printing import print_line
    from llmgw.engine.child import run_child
    from llmgw.engine.manager import vetted_fact

    row = _row(vetted_fact(point))
    if spoken:
        print_line(" ".join(filter(None, (f"{row.name}:", row.state, row.reason))))
        if row.failure:
            _print_indented(row.failure)
    if row.state != "ok":
        return row, []
    checks: list[PluginCheckRow] = []

    def arrived(report: Any) -> None:
        if "outcome" in report:
            checks.append(PluginCheckRow(**{key: str(report[key]) for key in ("engine", "check", "outcome", "detail")}))
            if spoken:
                _print_check(checks[-1])

    request = {"name": point.name, "value": point.value, **asked}
    ended = run_child("llmgw.testing.plugin_check", request, timeout=CHECKS_TIMEOUT, on_report=arrived)
    if not any("finished" in report for report in ended.reports):
        how = "they did not return in time" if ended.exit is None else f"their process ended with {ended.exit}"
        begun = next((report["begins"] for report in reversed(ended.reports) if "begins" in report), "the checks")
        checks.append(PluginCheckRow(engine="", check=str(begun), outcome="failed", detail=f"{how}\n{ended.said}"))
        if spoken:
            _print_check(checks[-1])
    return row, checks


def _print_check(row: "PluginCheckRow") -> None:
    from llmgw.cli.printing import print_line

    lines = row.detail.strip().splitlines()
    brief = f" ({lines[0]})" if row.outcome == "skipped" and lines else ""
    print_line(f"  {row.outcome:8} {row.engine}: {row.check.removeprefix('check_').replace('_', ' ')}{brief}")
    if row.outcome == "failed" and lines:
        _print_indented(row.detail)


def _json(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--options: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError('--options: a JSON object, such as {"threads": 2}')
    return value


def _print_indented(text: str) -> None:
    from llmgw.cli.printing import print_line

    for line in text.strip().splitlines():
        print_line(f"      {line}")
