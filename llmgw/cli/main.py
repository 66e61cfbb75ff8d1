"""The entry point: routes to the commands and turns what they raise into a line and an exit code."""

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from typer.main import get_command

from llmgw import __version__
from llmgw.cli import (
    approve,
    bench,
    collect,
    cordon,
    diff,
    doctor,
    down,
    engine_logs,
    events,
    explain,
    fleet,
    init,
    keys,
    migrate,
    models,
    nodes,
    plan,
    plugins,
    pull,
    replicas,
    reset,
    restart,
    rollback,
    run,
    schema,
    service,
    simulate,
    status,
    suspend,
    switch,
    sync,
    up,
    validate,
    weights,
)
from llmgw.cli.exits import ExitCode
from llmgw.cli.text import clean
from llmgw.errors import CatalogInvalid, LlmgwError, UsageError

_CLICK_USAGE: Final = 2  #: what Typer's own usage errors ask for


def make_app() -> typer.Typer:
    """Every command. Help is plain text: it starts faster and pipes well."""
    app = typer.Typer(
        name="llmgw",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command("up")(up.up)
    app.command("controller")(fleet.controller)
    app.command("agent")(fleet.agent)
    app.command("gateway")(fleet.gateway)
    app.command("down")(down.down)
    app.command("validate")(validate.validate)
    app.command("schema")(schema.schema)
    app.command("migrate")(migrate.migrate)
    app.command("plan")(plan.plan)
    app.command("diff")(diff.diff)
    app.command("sync")(sync.sync)
    app.command("init")(init.init)
    app.command("status")(status.status)
    app.command("models")(models.models)
    app.command("replicas")(replicas.replicas)
    app.command("nodes")(nodes.nodes)
    app.command("cordon")(cordon.cordon)
    app.command("drain")(cordon.drain)
    app.command("uncordon")(cordon.uncordon)
    app.command("events")(events.events)
    app.command("explain")(explain.explain)
    app.command("logs")(engine_logs.logs)
    app.command("run")(run.run)
    app.command("stop")(switch.stop)
    app.command("start")(switch.start)
    app.command("restart")(restart.restart)
    app.command("reset")(reset.reset)
    app.command("approve")(approve.approve)
    app.command("apply")(approve.apply)
    app.command("suspend")(suspend.suspend)
    app.command("resume")(suspend.resume)
    app.command("rollback")(rollback.rollback)
    app.command("history")(rollback.history)
    app.command("simulate")(simulate.simulate)
    app.command("pull")(pull.pull)
    app.command("collect")(collect.collect)
    app.command("bench")(bench.bench)
    app.command("doctor")(doctor.doctor)
    app.add_typer(keys.make_app(), name="keys")
    app.add_typer(weights.make_app(), name="weights")
    app.add_typer(service.make_app(), name="service")
    app.add_typer(plugins.make_app(), name="plugins")
    return app


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    _settle_streams()
    code = _run(sys.argv[1:] if args is None else args)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader left: what it wanted, it has
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _settle_streams() -> None:
    """Streams that take everything: one that was closed goes nowhere, and a character that the terminal's encoding
    lacks is escaped."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(args: Sequence[str]) -> int:
    try:
        command = get_command(make_app())
        result = command.main(args=list(args) or ["--help"], prog_name="llmgw", standalone_mode=False)
        return result if isinstance(result, int) else ExitCode.FINE
    except typer.TyperException as error:
        return _wrong_usage(error)
    except UsageError as error:
        _complain(str(error))
        return ExitCode.USAGE
    except CatalogInvalid as error:
        _complain(str(error), prefix="")
        return ExitCode.INVALID_CATALOG
    except LlmgwError as error:
        _complain(str(error))
        return ExitCode.ERROR
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.ERROR
    except OSError as error:  # disk full, no permission: the system's words say more than a traceback
        _complain(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
        return ExitCode.ERROR
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return ExitCode.INTERRUPTED


def _wrong_usage(error: typer.TyperException) -> int:
    show = getattr(error, "show", None)
    if show is not None:
        show()
    else:
        _complain(error.format_message())
    return ExitCode.USAGE if error.exit_code == _CLICK_USAGE else ExitCode.ERROR


def _complain(text: str, prefix: str = "llmgw: ") -> None:
    try:
        sys.stderr.write(prefix + "\n".join(map(clean, text.splitlines())) + "\n")
    except BrokenPipeError:
        pass


def _show_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"llmgw {__version__}\n")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Serve LLMs on machines you own from a git catalog: push a commit, the machines follow.

    \b
    Example:
      llmgw up ./catalog        serve what the catalog says, until Ctrl-C
      llmgw status              what is served, and why something is not
    """
