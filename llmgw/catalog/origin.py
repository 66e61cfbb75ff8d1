"""Where a catalog comes from, as the operator says it: a directory, or a git repository somewhere. Pure."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from llmgw.catalog.hosts import is_loopback
from llmgw.catalog.spec import SecretRef
from llmgw.errors import UsageError

POLL: Final = 60.0  #: seconds between two looks at a repository elsewhere
DEPTH: Final = 50  #: commits of history that are fetched

_SCHEMES: Final = ("https", "ssh", "file", "http", "git")
_UNENCRYPTED: Final = ("http", "git")
_URL: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_SCP: Final = re.compile(r"^[A-Za-z0-9._-]+@(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):(?!//).+")
"""`git@github.com:org/catalog.git`, as git itself takes it."""

_COMMIT: Final = re.compile(r"^([0-9a-f]{40}|[0-9a-f]{64})$")
_NO_REF: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/.]|[/.]$|\.lock$")
"""What `git check-ref-format` refuses, in essence; and what would be taken for an option."""


class RefKind(StrEnum):
    DEFAULT = "default"  #: the repository's own HEAD, whatever branch that is
    BRANCH = "branch"
    TAG = "tag"
    COMMIT = "commit"
    NAMED = "ref"  #: a branch, else a tag of that name


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """What of a repository is followed. A branch or a tag that moves is followed to where it moved."""

    kind: RefKind = RefKind.DEFAULT
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else "the default branch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a repository elsewhere lets llmgw in. Values are read when they are needed, and never told.

    `user`: beside the token; most servers take any. `known_hosts`: a file of host keys; None: the user's own.
    """

    token: SecretRef | None = None
    user: str | None = None
    ssh_key: SecretRef | None = None
    known_hosts: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`where`: an absolute path, or with `remote` a git address. `inside`: a directory of the repository.

    `poll`: seconds between looks at a remote one, 0: only when asked to. `depth`: commits that are fetched, 0: all.
    `commits`: what is committed counts, not the files of a checkout.
    """

    where: str
    remote: bool = False
    ref: Ref = Ref()
    inside: str = ""
    commits: bool = False
    poll: float = POLL
    depth: int = DEPTH
    access: Access = Access()
    signers: str | None = None  #: a file of those who may sign commits; None: they need not be signed
    polling: bool = False  #: of a directory: without the file system's events

    @property
    def name(self) -> str:
        """As people are told: `URL#ref:directory`."""
        if not self.ref.name and not (self.remote and self.inside):
            return self.where
        return f"{self.where}#{self.ref.name}" + (f":{self.inside}" if self.inside else "")

    @property
    def scheme(self) -> str:
        """Of a remote one."""
        found = _URL.match(self.where)
        return found.group(1).lower() if found else "ssh"


def is_remote(text: str) -> bool:
    """Whether it is a git address rather than a path."""
    return bool(_URL.match(text) or _SCP.match(text))


def read_address(text: str, *, insecure: bool = False) -> tuple[str, Ref, str]:
    """A git address, what of it is followed, and the directory in it, from `URL`, `URL#ref`, `URL#ref:directory`.

    Raises UsageError. `insecure`: addresses that are not encrypted are meant.
    """
    address, _, rest = text.partition("#")
    name, _, inside = rest.partition(":")
    found = _URL.match(address)
    if found is not None:
        _check_url(address, found.group(1).lower(), insecure=insecure)
    elif "\n" in address or not _SCP.match(address):
        raise UsageError(f"{text} is no git address: write https://, ssh:// or file://, or user@host:path")
    return address, read_ref(RefKind.NAMED, name) if name else Ref(), read_inside(inside)


def _check_url(address: str, scheme: str, *, insecure: bool) -> None:
    if scheme not in _SCHEMES:
        raise UsageError(f"{hidden(address)}: llmgw follows https://, ssh:// and file:// repositories")
    try:
        parts = urlsplit(address)
        password, host = parts.password, parts.hostname
    except ValueError as error:
        raise UsageError(f"{hidden(address)} is no git address: {error}") from error
    if password is not None:
        raise UsageError(
            f"{hidden(address)}: a secret in an address is seen in process lists and logs; "
            "leave it out, and name it with --git-token-env or --git-token-file"
        )
    if scheme != "file" and not host:
        raise UsageError(f"{hidden(address)} names no host")
    if not address.isprintable() or " " in address or "?" in address:
        raise UsageError(f"{hidden(address)} is no git address: it has characters that none has")
    if scheme in _UNENCRYPTED and not insecure and not is_loopback(address):
        raise UsageError(
            f"{hidden(address)} is not encrypted, so anybody on the way may change the catalog: "
            "write https:// or ssh://, or add --insecure-git if that is meant"
        )


def read_ref(kind: RefKind, name: str) -> Ref:
    """Raises UsageError for what can be no ref."""
    if kind is RefKind.NAMED and _COMMIT.match(name.lower()):
        kind = RefKind.COMMIT
    if kind is RefKind.COMMIT:
        if not _COMMIT.match(name.lower()):
            raise UsageError(f"{name!r} is no commit: write all of its 40 (or 64) hex digits")
        return Ref(kind=kind, name=name.lower())
    if not name or len(name) > 250 or _NO_REF.search(name):
        raise UsageError(f"{name!r} can be no branch or tag")
    return Ref(kind=kind, name=name)


def read_inside(text: str) -> str:
    """A directory of a repository, without slashes at its ends. Raises UsageError."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.startswith("/") or ".." in parts or not text.isprintable():
        raise UsageError(f"{text!r}: name a directory of the repository, such as clusters/home")
    return "/".join(parts)


def hidden(text: str) -> str:
    """Without what may be a secret in an address."""
    return re.sub(r"(?<=://)[^/@\s]*:[^/@\s]*@", "***@", text)
