"""What a commit says besides its files: real repositories, and real signatures by ssh-keygen and gpg."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from catalog_texts import git

from llmgw.catalog.commits import Unsigned, approves, raw_commit, signed_apart, signed_by
from llmgw.errors import CatalogUnreadable


def run(*words: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, **(env or {})})
    return done.stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    directory = tmp_path / "repo"
    directory.mkdir()
    git(directory, "init", "-q", "-b", "main")
    return directory


def commit(repo: Path, message: str, *options: str) -> str:
    (repo / "a.yaml").write_text(f"{message}\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", message, *options)
    return git(repo, "rev-parse", "HEAD")


def ssh_key(home: Path, name: str) -> Path:
    key = home / name
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key))
    return key


def ssh_signed(repo: Path, key: Path, message: str = "signed") -> str:
    git(repo, "config", "gpg.format", "ssh")
    git(repo, "config", "user.signingKey", str(key))
    return commit(repo, message, "-S")


def allowed(home: Path, key: Path, options: str = "") -> Path:
    file = home / "allowed"
    public = key.with_suffix(".pub").read_text()
    file.write_text(f"ann@example.org {options}{public}")
    return file


def test_a_trailer_counts_in_the_commit_and_in_those_since_the_one_in_force(repo: Path) -> None:
    first = commit(repo, "first")
    asked = commit(repo, "remove\n\nSigned-off-by: Ann <a@b>\nllmgw-approve: Removal")
    last = commit(repo, "more")
    assert approves(repo, asked, None) == {"removal"}
    assert approves(repo, last, first) == {"removal"}
    assert approves(repo, last, asked) == frozenset(), "the one in force is not judged again"
    assert approves(repo, last, None) == frozenset()
    assert approves(repo, last, last) == frozenset()


def test_words_that_are_no_trailer_approve_nothing(repo: Path) -> None:
    first = commit(repo, "first")
    for message in ("Llmgw-Approve: removal is what we write\n\nin the end", "x\n\nLlmgw-Approved: removal"):
        assert approves(repo, commit(repo, message), first) == frozenset()


def test_after_history_was_rewritten_only_the_newest_commit_counts(repo: Path) -> None:
    commit(repo, "first")
    gone = commit(repo, "second")
    git(repo, "reset", "-q", "--hard", "HEAD~1")
    commit(repo, "other\n\nLlmgw-Approve: removal")
    assert approves(repo, commit(repo, "newest"), gone) == frozenset()
    assert approves(repo, commit(repo, "again\n\nLlmgw-Approve: removal"), "d" * 64) == {"removal"}


def test_a_signature_by_an_allowed_ssh_key_is_good(repo: Path, tmp_path: Path) -> None:
    key = ssh_key(tmp_path, "ann")
    assert signed_by(repo, ssh_signed(repo, key), allowed(tmp_path, key)) == "ann@example.org"


def test_a_commit_that_no_repository_here_has_is_judged_by_its_bytes(repo: Path, tmp_path: Path) -> None:
    ann, eve = ssh_key(tmp_path, "ann"), ssh_key(tmp_path, "eve")
    signers = allowed(tmp_path, ann)
    raw = raw_commit(repo, ssh_signed(repo, ann))
    assert raw is not None
    assert signed_apart(raw, signers) == "ann@example.org"
    for other, why in (
        (raw_commit(repo, ssh_signed(repo, eve, "other")), "not among the allowed signers"),
        (raw_commit(repo, commit(repo, "plain", "--no-gpg-sign")), "is not signed"),
        (raw.replace(b"\nsigned\n", b"\nforged\n"), "signature"),
        (b"nonsense", "is no commit"),
    ):
        assert other is not None
        assert other != raw
        with pytest.raises(Unsigned, match=why):
            signed_apart(other, signers)
    assert raw_commit(repo, "f" * 40) is None


def test_everything_else_is_refused_and_says_why(repo: Path, tmp_path: Path) -> None:
    ann, eve = ssh_key(tmp_path, "ann"), ssh_key(tmp_path, "eve")
    signers = allowed(tmp_path, ann)
    with pytest.raises(Unsigned, match="is not signed"):
        signed_by(repo, commit(repo, "plain", "--no-gpg-sign"), signers)
    with pytest.raises(Unsigned, match="not among the allowed signers"):
        signed_by(repo, ssh_signed(repo, eve), signers)
    good = ssh_signed(repo, ann, "good")
    with pytest.raises(Unsigned):
        signed_by(repo, good, allowed(tmp_path, ann, 'valid-before="20200101" '))
    with pytest.raises(Unsigned):
        signed_by(repo, good, allowed(tmp_path, ann, 'namespaces="file" '))
    with pytest.raises(CatalogUnreadable, match="cannot read the allowed signers"):
        signed_by(repo, good, tmp_path / "missing")


def test_a_signature_of_other_content_is_refused(repo: Path, tmp_path: Path) -> None:
    key = ssh_key(tmp_path, "ann")
    good = ssh_signed(repo, key, "good")
    raw = subprocess.run(["git", "-C", str(repo), "cat-file", "commit", good], check=True, capture_output=True).stdout
    forged = subprocess.run(
        ["git", "-C", str(repo), "hash-object", "-t", "commit", "-w", "--stdin"],
        input=raw.replace(b"good", b"evil"), check=True, capture_output=True,
    ).stdout.decode().strip()  # fmt: skip
    with pytest.raises(Unsigned):
        signed_by(repo, forged, allowed(tmp_path, key))


def test_the_repository_cannot_name_the_program_that_checks(repo: Path, tmp_path: Path) -> None:
    key, eve = ssh_key(tmp_path, "ann"), ssh_key(tmp_path, "eve")
    newest = ssh_signed(repo, eve)
    yes, mark = tmp_path / "yes", tmp_path / "ran"
    yes.write_text(f'#!/bin/sh\ntouch {mark}\necho "Good \\"git\\" signature for ann@example.org"\n')
    yes.chmod(0o755)
    for name in ("gpg.program", "gpg.ssh.program", "gpg.openpgp.program", "gpg.x509.program"):
        git(repo, "config", name, str(yes))
    git(repo, "config", "gpg.ssh.allowedSignersFile", str(allowed(tmp_path, eve)))
    git(repo, "config", "log.showSignature", "true")
    with pytest.raises(Unsigned):
        signed_by(repo, newest, allowed(tmp_path, key))
    approves(repo, newest, None)
    assert not mark.exists()


@pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not installed")
def test_a_signature_by_an_allowed_openpgp_key_is_good(repo: Path, tmp_path: Path) -> None:
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    env = {"GNUPGHOME": str(home)}
    batch = ["gpg", "--batch", "--quiet", "--passphrase", "", "--pinentry-mode", "loopback"]
    try:
        for name in ("ann", "eve"):
            run(*batch, "--quick-generate-key", f"{name} <{name}@example.org>", "ed25519", "sign", "0", env=env)
        keys = tmp_path / "keys.asc"
        keys.write_text(run("gpg", "--export", "--armor", "ann@example.org", env=env))
        git(repo, "config", "gpg.format", "openpgp")
        commits = {}
        for name in ("ann", "eve"):
            (repo / "a.yaml").write_text(name)
            git(repo, "add", "-A")
            who = ["-c", f"user.signingKey={name}@example.org", "-c", "user.name=n", "-c", "user.email=n@example.org"]
            run("git", "-C", str(repo), *who, "commit", "-q", "-S", "-m", name, env=env)
            commits[name] = git(repo, "rev-parse", "HEAD")
        assert "ann@example.org" in signed_by(repo, commits["ann"], keys)
        with pytest.raises(Unsigned, match="not among the allowed signers"):
            signed_by(repo, commits["eve"], keys)
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, **env}, check=False, capture_output=True)
