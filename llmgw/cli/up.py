"""`llmgw up`"""

import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli import following
from llmgw.cli.options import State, address, port_range, refuse_windows, state_root
from llmgw.errors import UsageError
from llmgw.ids import is_name, node_name


class OnExit(StrEnum):
    STOP = "stop"
    KEEP = "keep"


Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache", envvar="LLMGW_CACHE", metavar="DIR", help="Where fetched weights lie. Default: STATE/weights."
    ),
]
Listen = Annotated[str, typer.Option("--listen", metavar="ADDR:PORT", help="Where clients reach the gateway.")]
AccessLog = Annotated[
    str | None,
    typer.Option("--access-log", metavar="FILE", help="Write a line of JSON for each request; `-`: to stdout."),
]
AdminAddress = Annotated[str, typer.Option("--admin", metavar="ADDR:PORT", help="Where the admin API listens.")]
Node = Annotated[str | None, typer.Option("--node", metavar="NAME", help="This node's name. Default: the host's.")]
Exit = Annotated[
    OnExit | None,
    typer.Option("--on-exit", help="What becomes of engines. Default: Ctrl-C stops them, SIGTERM keeps them serving."),
]
Ports = Annotated[
    str | None, typer.Option("--engine-ports", metavar="LO-HI", help="Ports that engines may listen on, both included.")
]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Log what happens; -vv: more.")]


def up(
    catalog: following.Catalog = ".",
    branch: following.Branch = None,
    tag: following.Tag = None,
    commit: following.Commit = None,
    path: following.Within = None,
    commits_only: following.CommitsOnly = False,
    poll: following.Poll = "60s",
    state: State = None,
    cache: Cache = None,
    listen: Listen = "127.0.0.1:8080",
    access_log: AccessLog = None,
    admin: AdminAddress = "127.0.0.1:8081",
    node: Node = None,
    on_exit: Exit = None,
    engine_ports: Ports = None,
    git_depth: following.Depth = 50,
    git_token_env: following.TokenEnv = None,
    git_token_file: following.TokenFile = None,
    git_user: following.User = None,
    ssh_key_env: following.KeyEnv = None,
    ssh_key_file: following.KeyFile = None,
    ssh_known_hosts: following.KnownHosts = None,
    insecure_git: following.Insecure = False,
    allowed_signers: following.Signers = None,
    webhook_secret_env: following.HookEnv = None,
    webhook_secret_file: following.HookFile = None,
    verbose: Verbose = 0,
) -> int:
    """Serve a catalog on this machine and follow its changes.

    Runs until Ctrl-C. Engines of an earlier run that still serve are taken over, not started again.

    \b
    Example:
      llmgw up ./catalog
      llmgw up /srv/catalog --listen 0.0.0.0:8080 --on-exit keep
      llmgw up https://git.example.org/team/catalog.git --branch main --git-token-file /etc/llmgw/token
    """
    refuse_windows()
    gateway, api = address(listen, "--listen"), address(admin, "--admin")
    ports = port_range(engine_ports) if engine_ports is not None else None
    if node is not None and not is_name(node.lower()):
        what = "1-63 letters, digits, '.', '_' or '-', a letter or digit first and last"
        raise UsageError(f"--node {node}: a name has {what}")

    origin = following.Following(
        catalog=catalog, branch=branch, tag=tag, commit=commit, within=path, commits_only=commits_only, poll=poll,
        depth=git_depth, token_env=git_token_env, token_file=git_token_file, user=git_user, key_env=ssh_key_env,
        key_file=ssh_key_file, known_hosts=ssh_known_hosts, insecure=insecure_git, signers=allowed_signers,
    ).origin()  # fmt: skip
    webhook = following.secret_ref(webhook_secret_env, webhook_secret_file, "--webhook-secret")

    from llmgw.app.up import UpOptions, run_up
    from llmgw.cli import logs
    from llmgw.cli.printing import note
    from llmgw.cli.progress import Reporter

    logs.configure(verbose)
    root = state_root(state)
    options = UpOptions(
        catalog=origin,
        webhook=webhook,
        state=root,
        cache=cache.expanduser().absolute() if cache else None,
        listen=gateway,
        access_log=log_file(access_log),
        admin=api,
        node=node_name(node or socket.gethostname()),
        on_exit=on_exit.value if on_exit else None,
        engine_ports=ports,
    )
    note(f"serving {origin.name} (state in {root})")
    if not is_loopback(gateway[0]):
        note(f"warning: {listen} can be reached from other machines, and until `llmgw keys create` no key is asked for")
    if (warning := following.unread_secret(webhook)) is not None:
        note(warning)
    return run_up(options, report=Reporter(), say=note)


def log_file(given: str | None) -> str | None:
    """From wherever it is written, the same file."""
    return given if given in (None, "-") else str(Path(given or "").expanduser().absolute())


def is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
