"""What a commit says besides its files: trailers of its message, and who signed it.

As everywhere, git runs nothing that the repository's own configuration names: the programs that check signatures are
given here, and so are the keys.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.catalog import gitrun
from llmgw.errors import CatalogUnreadable, Problem, TerminalError
from llmgw.ids import Revision

TRAILER: Final = "Llmgw-Approve"
"""`Llmgw-Approve: removal` in a commit's message: what it removes is meant."""

TIMEOUT: Final = 10.0  #: seconds for one question

REMOVAL: Final = "removal"
"""What such a trailer may approve."""

_MOST: Final = 1000  #: commits looked at between two revisions
_PGP: Final = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"
_SSH_GOOD: Final = re.compile(r'Good "git" signature for (\S+)')
_PGP_GOOD: Final = re.compile(r"\[GNUPG:\] GOODSIG \S+ (.+)")


class Unsigned(TerminalError):
    """No signature that counts; the text says what is there instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What git knows of a commit. `earlier`: what is newest came of it; `problems`: of its catalog, then."""

    commit: Revision
    earlier: bool
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What is told of commits that are not here yet. `approved`: they say that what they remove is meant; `raw`: the
    newest of them, as git keeps it, for its signature."""

    approved: bool = False
    raw: bytes | None = None


def approves(
    repository: Path, commit: str, since: str | None, *, env: Mapping[str, str] | None = None
) -> frozenset[str]:
    """What the trailers of a commit approve, in lower case; and those of the commits that came since the commit
    `since`, where it is an ancestor: what is pushed at once, or merged, is judged at once. Blocks.

    Nothing where git cannot tell. `env`: see `git.QUARANTINE`.
    """
    try:
        ranged = since is not None and since != commit and is_ancestor(repository, since, commit, env=env)
        which = [f"--max-count={_MOST}", f"{since}..{commit}"] if ranged else ["--max-count=1", commit]
        shown = f"--format=%(trailers:key={TRAILER},valueonly)"
        told = _ask(repository, "log", "--no-show-signature", shown, *which, config=_PLAIN, env=env)
    except (CatalogUnreadable, FileNotFoundError):
        return frozenset()
    if told.returncode != 0:
        return frozenset()
    lines = told.stdout.decode("utf-8", "replace").splitlines()
    return frozenset(line.strip().lower() for line in lines if line.strip())


_PLAIN: Final = ("log.showSignature=false", "log.mailmap=false")


def is_ancestor(repository: Path, before: str, after: str, *, env: Mapping[str, str] | None = None) -> bool:
    """Whether `after` came of the commit `before`, or is it; not where git cannot tell. Blocks. Raises
    FileNotFoundError, CatalogUnreadable."""
    return _ask(repository, "merge-base", "--is-ancestor", before, after, env=env).returncode == 0


def _ask(
    repository: Path, *arguments: str, config: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    words = gitrun.command(repository, *arguments, config=config)
    return gitrun.run(words, where=repository, timeout=TIMEOUT, env=env)


def signed_by(repository: Path, commit: str, signers: Path) -> str:
    """Who signed the commit, of those that `signers` allows: a file of ssh's ALLOWED SIGNERS format (ssh-keygen(1)), or
    of OpenPGP public keys in ASCII. Blocks.

    Raises Unsigned, and CatalogUnreadable where git or the file cannot be asked.
    """
    try:
        keys = signers.read_bytes()
    except OSError as error:
        raise CatalogUnreadable(f"cannot read the allowed signers {signers}: {error.strerror}") from error
    with tempfile.TemporaryDirectory(prefix="llmgw-keys-") as home:
        if _PGP in keys:
            _import(keys, home)
        settings = (
            f"gpg.ssh.allowedSignersFile={os.devnull if _PGP in keys else signers.absolute()}",
            "gpg.ssh.revocationFile=",
            f"gpg.ssh.program={_program('ssh-keygen')}",
            f"gpg.program={_program('gpg')}",
            f"gpg.openpgp.program={_program('gpg')}",
            "gpg.x509.program=false",
            "gpg.minTrustLevel=undefined",
        )
        try:
            told = _ask(repository, "verify-commit", "--raw", commit, config=settings, env={"GNUPGHOME": home})
        except FileNotFoundError as error:
            raise CatalogUnreadable("checking signatures takes git, which is not installed") from error
    said = told.stderr.decode("utf-8", "replace")
    good = _SSH_GOOD.search(said) or _PGP_GOOD.search(said)
    if told.returncode == 0 and good is not None:
        return good.group(1)
    raise Unsigned(_why_not(said))


def raw_commit(repository: Path, commit: str, *, env: Mapping[str, str] | None = None) -> bytes | None:
    """As git keeps it; None where there is none. Blocks. Raises FileNotFoundError, CatalogUnreadable."""
    told = _ask(repository, "cat-file", "commit", commit, env=env)
    return told.stdout if told.returncode == 0 else None


def signed_apart(raw: bytes, signers: Path) -> str:
    """As `signed_by`, of a commit that no repository here has."""
    with tempfile.TemporaryDirectory(prefix="llmgw-commit-") as apart:
        repository = Path(apart)
        words = gitrun.command(repository, "hash-object", "-t", "commit", "-w", "--stdin")
        try:
            _ask(repository, "init", "--quiet", "--bare", f"--template={os.devnull}")
            told = gitrun.run(words, where=repository, timeout=TIMEOUT, said=raw)
        except FileNotFoundError as error:
            raise CatalogUnreadable("checking signatures takes git, which is not installed") from error
        if told.returncode != 0:
            raise Unsigned("is no commit that git can read")
        return signed_by(repository, told.stdout.decode().strip(), signers)


def _import(keys: bytes, home: str) -> None:
    program = _program("gpg")
    command = [program, "--homedir", home, "--batch", "--quiet", "--no-autostart", "--import"]
    done = subprocess.run(command, input=keys, capture_output=True, timeout=TIMEOUT, process_group=0)
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise CatalogUnreadable(f"gpg cannot read the allowed signers: {''.join(last) or 'it gave no reason'}")


def _program(name: str) -> str:
    """`false` where it is not installed: nothing is then signed well."""
    return shutil.which(name) or "false"


def _why_not(said: str) -> str:
    if not said.strip():
        return "is not signed"
    if "No principal matched" in said or "NO_PUBKEY" in said:
        return "is signed by a key that is not among the allowed signers"
    if "BADSIG" in said or "incorrect signature" in said.lower():
        return "has a signature that does not match its content"
    if "EXPKEYSIG" in said or "EXPSIG" in said or "expired" in said.lower():
        return "is signed by a key that has expired"
    if "REVKEYSIG" in said or "revoked" in said.lower():
        return "is signed by a key that was revoked"
    return f"has no good signature: {said.strip().splitlines()[-1][:200]}"
