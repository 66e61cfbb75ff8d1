"""`llmgw controller`, `llmgw agent`, `llmgw gateway`: the parts of `llmgw up` in processes of their own, over etcd."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli import following
from llmgw.cli.options import address, duration, port_range, refuse_windows, state_root
from llmgw.cli.up import AccessLog, Cache, Exit, Listen, Ports, Verbose, is_loopback, log_file
from llmgw.errors import UsageError
from llmgw.ids import NodeName, is_name, node_name

if TYPE_CHECKING:
    from collections.abc import Callable

Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="LLMGW_STORE",
        metavar="URL",
        help="etcd://HOST[:PORT][,HOST...][/PREFIX], or etcds://... for TLS.",
    ),
]
FleetState = Annotated[
    Path | None,
    typer.Option(
        "--state",
        readable=False,
        envvar="LLMGW_STATE",
        metavar="DIR",
        help="This process's own state directory. Default: $XDG_STATE_HOME/llmgw, -agent and -gateway added for those.",
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        readable=False,
        envvar="LLMGW_SECRET_FILE",
        metavar="FILE",
        help="The cluster's secret, mode 0600: a copy of `secret` in the first controller's state directory.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="ADDR", help="By which others reach this machine. Default: that which reaches the store."
    ),
]
AdminPort = Annotated[
    str | None, typer.Option("--admin", metavar="[ADDR:]PORT", help="Where its own API and metrics are.")
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Its name. Default: the host's.")]
Node = Annotated[str | None, typer.Option("--node", metavar="NAME", help="This node's name. Default: the host's.")]


def controller(
    store: Store,
    catalog: following.Catalog = ".",
    branch: following.Branch = None,
    tag: following.Tag = None,
    commit: following.Commit = None,
    path: following.Within = None,
    commits_only: following.CommitsOnly = False,
    poll: following.Poll = "60s",
    state: FleetState = None,
    secret_file: SecretFile = None,
    name: Name = None,
    address: Address = None,
    admin: AdminPort = None,
    node_grace: Annotated[
        str | None,
        typer.Option(
            "--node-grace",
            metavar="TIME",
            help="What a silent node ran is placed elsewhere after this. Default: supervision.node_grace.",
        ),
    ] = None,
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
    """Decide for a fleet what runs where, over etcd.

    Of several one leads: it follows its catalog. The others stand by, and answer the same commands.

    \b
    Example:
      llmgw controller /srv/catalog --store etcd://etcd-1,etcd-2,etcd-3
      llmgw controller git@git.example.org:team/catalog.git --ssh-key-file /etc/llmgw/key --store etcd://etcd-1
    """
    origin = following.Following(
        catalog=catalog, branch=branch, tag=tag, commit=commit, within=path, commits_only=commits_only, poll=poll,
        depth=git_depth, token_env=git_token_env, token_file=git_token_file, user=git_user, key_env=ssh_key_env,
        key_file=ssh_key_file, known_hosts=ssh_known_hosts, insecure=insecure_git, signers=allowed_signers,
    ).origin()  # fmt: skip
    from llmgw.app.fleet import ControllerOptions, run_controller

    say = _begin(verbose)
    options = ControllerOptions(
        store=store,
        state=_root(state, ""),
        name=_name(name, "--name"),
        secret_file=_file(secret_file),
        address=address,
        admin=_admin(admin, 8081),
        catalog=origin,
        webhook=following.secret_ref(webhook_secret_env, webhook_secret_file, "--webhook-secret"),
        patience=None if node_grace is None else duration(node_grace, "--node-grace"),
    )
    say(f"controller {options.name} of {origin.name} (state in {options.state})")
    if (warning := following.unread_secret(options.webhook)) is not None:
        say(warning)
    return run_controller(options, say=say)


def agent(
    store: Store,
    state: FleetState = None,
    secret_file: SecretFile = None,
    node: Node = None,
    address: Address = None,
    admin: AdminPort = None,
    cache: Cache = None,
    engine_ports: Ports = None,
    on_exit: Exit = None,
    verbose: Verbose = 0,
) -> int:
    """Run the engines of this machine for a fleet, over etcd.

    Engines listen on its address. They keep serving while it restarts.

    \b
    Example:
      llmgw agent --store etcd://etcd-1 --node gpu-1 --secret-file /etc/llmgw/secret
    """
    from llmgw.app.fleet import AgentOptions, run_agent

    ports = port_range(engine_ports) if engine_ports is not None else None
    say = _begin(verbose)
    options = AgentOptions(
        store=store,
        state=_root(state, "-agent"),
        name=_name(node, "--node"),
        secret_file=_file(secret_file),
        address=address,
        admin=_admin(admin, 8082),
        cache=_file(cache),
        on_exit=on_exit.value if on_exit else None,
        engine_ports=ports,
    )
    say(f"agent of {options.name} (state in {options.state})")
    return run_agent(options, say=say)


def gateway(
    store: Store,
    state: FleetState = None,
    secret_file: SecretFile = None,
    name: Name = None,
    address: Address = None,
    admin: AdminPort = None,
    listen: Listen = "127.0.0.1:8080",
    access_log: AccessLog = None,
    verbose: Verbose = 0,
) -> int:
    """Answer a fleet's clients, over etcd.

    Any number of them; each knows all endpoints. They serve on while etcd or the controllers are away.

    \b
    Example:
      llmgw gateway --store etcd://etcd-1 --listen 0.0.0.0:8080 --secret-file /etc/llmgw/secret
    """
    from llmgw.app.fleet import GatewayOptions, run_gateway

    where = _address(listen, "--listen")
    say = _begin(verbose)
    options = GatewayOptions(
        store=store,
        state=_root(state, "-gateway"),
        name=_name(name, "--name"),
        secret_file=_file(secret_file),
        address=address,
        admin=_admin(admin, 8083),
        listen=where,
        access_log=log_file(access_log),
    )
    say(f"gateway {options.name} at {listen} (state in {options.state})")
    if not is_loopback(where[0]):
        say(f"warning: {listen} can be reached from other machines, and until `llmgw keys create` no key is asked for")
    return run_gateway(options, say=say)


_address = address


def _begin(verbose: int) -> "Callable[[str], None]":
    from llmgw.cli import logs
    from llmgw.cli.printing import note

    refuse_windows()
    logs.configure(verbose)
    return note


def _root(given: Path | None, role: str) -> Path:
    if given is not None:
        return state_root(given)
    root = state_root(None)
    return root.with_name(root.name + role)


def _file(given: Path | None) -> Path | None:
    return given.expanduser().absolute() if given is not None else None


def _name(given: str | None, option: str) -> NodeName:
    if given is not None and not is_name(given.lower()):
        what = "1-63 letters, digits, '.', '_' or '-', a letter or digit first and last"
        raise UsageError(f"{option} {given}: a name has {what}")
    return node_name(given or socket.gethostname())


def _admin(given: str | None, default: int) -> tuple[str, int] | int:
    """A port alone: of the address by which others reach this machine."""
    if given is None:
        return default
    if given.isdecimal() and int(given) <= 65535:
        return int(given)
    return _address(given, "--admin")
