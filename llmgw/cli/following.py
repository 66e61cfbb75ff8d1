"""What `llmgw up` and `llmgw controller` have in common: where the catalog comes from, and who may call for a look."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.options import duration
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from llmgw.catalog.origin import Access, Origin, Ref
    from llmgw.catalog.spec import SecretRef

Catalog = Annotated[
    str,
    typer.Argument(
        metavar="CATALOG", help="A directory, a git checkout, a bare repository, or a git URL[#REF[:DIRECTORY]]."
    ),
]
Branch = Annotated[str | None, typer.Option("--branch", metavar="NAME", help="Follow this branch's commits.")]
Tag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="Follow this tag, also when it moves.")]
Commit = Annotated[str | None, typer.Option("--commit", metavar="ID", help="Serve this commit.")]
Within = Annotated[
    str | None, typer.Option("--path", metavar="DIRECTORY", help="The catalog's directory in the repository.")
]
CommitsOnly = Annotated[
    bool, typer.Option("--commits-only", help="Of a checkout: what HEAD has, not the files as they stand.")
]
Poll = Annotated[
    str, typer.Option("--poll", metavar="TIME", help="How often a git URL is looked at. 0: only when asked to.")
]
Depth = Annotated[
    int, typer.Option("--git-depth", min=0, metavar="N", help="Commits of a git URL that are fetched. 0: all.")
]
TokenEnv = Annotated[
    str | None, typer.Option("--git-token-env", metavar="NAME", help="The variable with a token for a git https URL.")
]
TokenFile = Annotated[
    str | None, typer.Option("--git-token-file", metavar="FILE", help="The file with one: it is read anew each time.")
]
User = Annotated[
    str | None,
    typer.Option("--git-user", metavar="NAME", help="The user name beside the token. Most servers take any."),
]
KeyEnv = Annotated[
    str | None, typer.Option("--ssh-key-env", metavar="NAME", help="The variable with the key for a git ssh URL.")
]
KeyFile = Annotated[str | None, typer.Option("--ssh-key-file", metavar="FILE", help="The file with one.")]
KnownHosts = Annotated[
    str | None, typer.Option("--ssh-known-hosts", metavar="FILE", help="Host keys. Default: the user's own file.")
]
Insecure = Annotated[bool, typer.Option("--insecure-git", help="Permit http:// and git:// URLs to other machines.")]
HookEnv = Annotated[
    str | None,
    typer.Option("--webhook-secret-env", metavar="NAME", help="The variable with the secret that /webhook wants."),
]
Signers = Annotated[
    str | None,
    typer.Option(
        "--allowed-signers",
        envvar="LLMGW_ALLOWED_SIGNERS",
        metavar="FILE",
        help="Put only commits in force that one of these signed: ssh's ALLOWED SIGNERS, or OpenPGP public keys.",
    ),
]
HookFile = Annotated[str | None, typer.Option("--webhook-secret-file", metavar="FILE", help="The file with it.")]


SHORTEST_POLL: Final = 2.0
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """The options, as they were given."""

    catalog: str
    branch: str | None
    tag: str | None
    commit: str | None
    within: str | None
    commits_only: bool
    poll: str
    depth: int
    token_env: str | None
    token_file: str | None
    user: str | None
    key_env: str | None
    key_file: str | None
    known_hosts: str | None
    insecure: bool
    signers: str | None = None

    def origin(self) -> "Origin":
        """Raises UsageError."""
        from llmgw.catalog.hosts import is_loopback
        from llmgw.catalog.origin import Origin, Ref, is_remote, read_address, read_inside

        ref, inside = self._ref(), read_inside(self.within or "")
        if not is_remote(self.catalog):
            self._refuse_remote_options()
            where = Path(self.catalog).expanduser().absolute()
            commits = self.commits_only or self.signers is not None  # what nobody committed nobody signed
            return Origin(
                where=str(where), ref=ref or Ref(), inside=inside, commits=commits, signers=self._signers(),
                polling=_polling(),
            )  # fmt: skip
        address, named, below = read_address(self.catalog, insecure=self.insecure)
        if ref is not None and named.name:
            raise UsageError(f"{self.catalog}: name what to follow once, in the address or with an option")
        if inside and below:
            raise UsageError(f"{self.catalog}: name the directory once, in the address or with --path")
        if address.startswith("file://"):
            address = "file://" + str(Path(address.removeprefix("file://")))
        if self._has_token and address.startswith("http://") and not is_loopback(address):
            raise UsageError(f"{self.catalog}: a token would travel unencrypted; write https://, or use ssh://")
        return Origin(
            where=address,
            remote=True,
            ref=ref or named,
            inside=inside or below,
            commits=True,
            poll=self._pause(),
            depth=self.depth,
            access=self._access(),
            signers=self._signers(),
        )

    def _signers(self) -> str | None:
        if self.signers is None:
            return None
        path = Path(self.signers).expanduser().absolute()
        if not path.is_file():
            raise UsageError(f"--allowed-signers {self.signers}: no such file")
        return str(path)

    @property
    def _has_token(self) -> bool:
        return self.token_env is not None or self.token_file is not None

    def _pause(self) -> float:
        pause = duration(self.poll, "--poll")
        if 0 < pause < SHORTEST_POLL:
            raise UsageError(f"--poll {self.poll}: at least {SHORTEST_POLL:.0f}s, for the server's sake")
        return pause

    def _ref(self) -> "Ref | None":
        from llmgw.catalog.origin import RefKind, read_ref

        given = [
            (kind, name)
            for kind, name in (
                (RefKind.BRANCH, self.branch),
                (RefKind.TAG, self.tag),
                (RefKind.COMMIT, self.commit),
            )
            if name is not None
        ]
        if len(given) > 1:
            raise UsageError("--branch, --tag and --commit exclude each other")
        return read_ref(*given[0]) if given else None

    def _access(self) -> "Access":
        from llmgw.catalog.origin import Access

        return Access(
            token=secret_ref(self.token_env, self.token_file, "--git-token"),
            user=self.user,
            ssh_key=secret_ref(self.key_env, self.key_file, "--ssh-key"),
            known_hosts=None if self.known_hosts is None else str(Path(self.known_hosts).expanduser().absolute()),
        )

    def _refuse_remote_options(self) -> None:
        given = {
            "--git-token-env": self.token_env,
            "--git-token-file": self.token_file,
            "--git-user": self.user,
            "--ssh-key-env": self.key_env,
            "--ssh-key-file": self.key_file,
            "--ssh-known-hosts": self.known_hosts,
        }
        wrong = [option for option, value in given.items() if value is not None]
        if wrong:
            raise UsageError(f"{', '.join(wrong)}: {self.catalog} is on this machine; only a git URL takes that")


def _polling() -> bool:
    """What LLMGW_WATCH says: `auto` or `poll`. Raises UsageError."""
    said = os.environ.get("LLMGW_WATCH", "auto")
    if said not in ("auto", "poll"):
        raise UsageError(f"LLMGW_WATCH={said}: write auto, or poll to do without the file system's events")
    return said == "poll"


def secret_ref(env: str | None, file: str | None, option: str) -> "SecretRef | None":
    """Where a secret is read. Raises UsageError."""
    from llmgw.catalog.spec import SecretRef

    if env is not None and file is not None:
        raise UsageError(f"{option}-env and {option}-file exclude each other")
    if env is not None:
        return SecretRef(from_env=env)
    return None if file is None else SecretRef(from_file=str(Path(file).expanduser().absolute()))


def unread_secret(webhook: "SecretRef | None") -> str | None:
    """Why webhooks are refused as things stand. It is no error: the secret is read each time, and may come later."""
    from llmgw.secretref import SecretMissing, read_secret

    if webhook is None:
        return None
    try:
        read_secret(webhook, "the secret for webhooks")
    except SecretMissing as missing:
        return f"warning: {missing}; until it is there, the webhook refuses all calls"
    return None
