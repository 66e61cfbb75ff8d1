"""With `--allowed-signers` a daemon puts nothing in force that nobody of them signed. Real keys, real pushes."""

import subprocess
from pathlib import Path

import pytest
from harness import Daemon, Repo, eventually, serving

from llmgw.cli.init import begin_bare

EXTERNAL = 'apiVersion: llmgw/v1\nkind: Model\nname: {}\nexternal: {{url: "https://api.example.org/v1"}}\n'


def key(home: Path, name: str) -> Path:
    file = home / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(file)], check=True)
    return file


def signed(repo: Repo, by: Path | None, name: str) -> str:
    repo.git("config", "commit.gpgSign", "false" if by is None else "true")
    if by is not None:
        repo.git("config", "gpg.format", "ssh")
        repo.git("config", "user.signingKey", str(by))
    return repo.commit({f"{name}.yaml": EXTERNAL.format(name)})


def held(daemon: Daemon, revision: str) -> str:
    def asked() -> str | None:
        row = daemon.seen("status")["catalog"]
        told = row["held"] if row["attempted"] == revision else None
        return f"{told['reason']}: {told['message']}" if told else None

    return eventually(asked, what=f"{revision[:12]} held") or ""


@pytest.mark.slow
def test_only_what_an_allowed_signer_signed_comes_into_force_and_nobody_can_approve_more(tmp_path: Path) -> None:
    ann, eve = key(tmp_path, "ann"), key(tmp_path, "eve")
    signers = tmp_path / "signers"
    signers.write_text(f"ann@example.org {ann.with_suffix('.pub').read_text()}")
    repo = Repo(tmp_path / "catalog")
    first = signed(repo, ann, "first")
    with serving(repo.path, tmp_path / "home", flags=["--allowed-signers", str(signers)]) as daemon:
        eventually(lambda: daemon.seen("status")["catalog"]["applied"] == first, what="the signed one in force")
        (repo.path / "edited.yaml").write_text(EXTERNAL.format("edited"))
        assert "is not signed" in held(daemon, signed(repo, None, "plain"))
        forged = signed(repo, eve, "forged")
        assert held(daemon, forged).startswith("Unsigned: ")
        assert "not among the allowed signers" in held(daemon, forged)
        refused = daemon.cli("approve", forged, check=False)
        assert (refused.returncode, "nobody can approve it instead" in refused.stderr) == (1, True)

        daemon.kill()
        daemon.start()
        held(daemon, forged)
        assert daemon.seen("status")["catalog"]["applied"] == first, "the last good one, also across a restart"

        good = signed(repo, ann, "good")
        (repo.path / "edited.yaml").write_text(EXTERNAL.format("edited-more"))
        eventually(lambda: daemon.seen("status")["catalog"]["applied"] == good, what="the signed one in force")
        names = {row["name"] for row in daemon.seen("models")["models"]}
        assert names == {"first", "plain", "forged", "good", "edited"}, "what is committed, not what is being edited"


@pytest.mark.slow
def test_who_pushes_what_is_not_signed_is_told_that_it_will_be_held(tmp_path: Path) -> None:
    ann = key(tmp_path, "ann")
    signers = tmp_path / "signers"
    signers.write_text(f"ann@example.org {ann.with_suffix('.pub').read_text()}")
    bare, repo = tmp_path / "catalog.git", Repo(tmp_path / "work")
    begin_bare(bare, None, "", tmp_path / "home" / "state")

    def push() -> str:
        words = ["git", "-C", str(repo.path), "push", str(bare), "main"]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stderr

    with serving(bare, tmp_path / "home", flags=["--allowed-signers", str(signers)]) as daemon:
        first = signed(repo, ann, "first")
        assert "held" not in push()
        eventually(lambda: daemon.seen("status")["catalog"]["applied"] == first, what="the signed one in force")
        plain = signed(repo, None, "plain")
        assert f"It would be held: {plain[:12]} is not signed" in push()
        held(daemon, plain)
        assert f"It would be held: {plain[:12]} is not signed" in daemon.cli("plan", check=False).stdout
