"""`llmgw validate` before each commit: as git's own hook, and through pre-commit, which installs llmgw for itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VALID = 'apiVersion: llmgw/v1\nkind: Model\nname: one\nexternal: {url: "https://api.example.org/v1"}\n'
INVALID = VALID.replace("external:", "externl:")
INSTALLED = (".pre-commit-hooks.yaml", "pyproject.toml", "README.md", "LICENSE", "llmgw", "plugins", "schemas")


class Committing:
    """A repository with a catalog in `catalog`."""

    def __init__(self, path: Path, **env: str) -> None:
        self.path = path
        self.file = path / "catalog" / "a.yaml"
        self.file.parent.mkdir(parents=True)
        self._env = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(path), **env}
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "tester")
        self.git("config", "user.email", "tester@example.org")

    def git(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = ["git", *arguments]
        return subprocess.run(words, cwd=self.path, env=self._env, capture_output=True, text=True, check=False)

    def commit(self, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.file.write_text(text)
        return self.git("commit", "-m", "change", *arguments)


def test_a_hook_of_git_does_not_wait_for_the_commit_that_it_is_of(tmp_path: Path) -> None:
    """`git commit -a` and `git commit FILE` hold the index while their hook runs. Whoever waits for that says so."""
    repo = Committing(tmp_path / "a repo")
    repo.file.write_text(VALID)
    repo.git("add", ".")
    repo.git("commit", "-m", "first")
    hook = repo.path / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\nls .git/index.lock\nexec '{sys.executable}' -m llmgw validate catalog\n")
    hook.chmod(0o755)
    done = repo.commit(f"{VALID}# more\n", "-a")
    assert done.returncode == 0, done.stderr
    assert ".git/index.lock\nok: 1 model" in done.stderr + done.stdout
    refused = repo.commit(INVALID, "catalog/a.yaml")
    told = refused.stdout + refused.stderr
    assert refused.returncode == 1
    assert "catalog/a.yaml:4:1: $.externl: unknown key 'externl'; did you mean 'external'?" in told
    assert told.count("index.lock") == 1, "ls found it"


@pytest.mark.slow
def test_pre_commit_installs_the_hook_and_refuses_what_would_not_be_served(tmp_path: Path) -> None:
    """Its environment is made by pip, of what a clone has."""
    pre_commit = shutil.which("pre-commit", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if pre_commit is None:
        pytest.skip("pre-commit is not installed")
    tool = Committing(tmp_path / "llmgw")
    for name in INSTALLED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tool.path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tool.path)
    tool.git("add", ".")
    tool.commit(VALID)

    repo = Committing(tmp_path / "repo", PRE_COMMIT_HOME=str(tmp_path / "cache"))
    (repo.path / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {tool.path}\n    rev: {tool.git('rev-parse', 'HEAD').stdout.strip()}\n"
        "    hooks:\n      - {id: llmgw-validate, args: [catalog]}\n"
    )
    repo.file.write_text(INVALID)
    repo.git("add", ".")
    words = [pre_commit, "install", "--install-hooks"]
    env = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache")}
    installed = subprocess.run(words, cwd=repo.path, env=env, capture_output=True, text=True, check=False)
    if "No matching distribution found" in installed.stdout + installed.stderr:
        pytest.skip("no package index, from which pre-commit installs")
    assert installed.returncode == 0, installed.stdout + installed.stderr

    refused = repo.git("commit", "-m", "first")
    assert refused.returncode == 1, refused.stderr
    assert "catalog/a.yaml:4:1: $.externl: unknown key 'externl'; did you mean 'external'?" in refused.stderr
    assert repo.git("rev-parse", "-q", "--verify", "HEAD").returncode != 0, "nothing was committed"
    done = repo.commit(VALID, "-a")
    assert done.returncode == 0, done.stderr
    assert "llmgw validate" in done.stderr
    assert "Passed" in done.stderr

    (repo.path / "catalog" / "base.yaml").write_text("apiVersion: llmgw/v1\nkind: Template\nname: base\n")
    repo.git("add", ".")
    assert repo.commit(VALID.replace("external", "extends: base\nexternal"), "-a").returncode == 0
    repo.git("rm", "-q", "catalog/base.yaml")
    refused = repo.git("commit", "-m", "nothing but a removal")
    assert "catalog/a.yaml:4:10: $.extends: no template 'base'" in refused.stderr
