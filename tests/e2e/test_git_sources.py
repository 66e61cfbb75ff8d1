"""A daemon that follows a repository on a real git server: pushes, calls of a forge, and a server that goes away."""

import hashlib
import hmac
import json
import subprocess
from pathlib import Path

import httpx
import pytest
from git_server import git_server
from harness import WEB, Daemon, Repo, command, eventually, serving

TOKEN, SECRET = "hunter2-token", "hunter2-secret"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A checkout with a bare repository, as `origin`, on the server."""
    bare = tmp_path / "served" / "catalog.git"
    bare.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(bare)], check=True)
    repo = Repo(tmp_path / "work")
    (repo.path / "home").mkdir()
    repo.git("remote", "add", "origin", str(bare))
    return repo


def push(repo: Repo, files: dict[str, str | None]) -> str:
    commit = repo.commit(files)
    repo.git("push", "-q", "--force", "origin", "main")
    return commit


def call(daemon: Daemon, secret: str = SECRET) -> int:
    """As a forge does, by whatever name the daemon is reached."""
    address = json.loads((daemon.state / "admin.json").read_text())["url"]
    body = json.dumps({"ref": "refs/heads/main"}).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Hub-Signature-256": f"sha256={signature}", "Host": "hooks.example.org"}
    return httpx.post(f"{address}/webhook", content=body, headers=headers, **WEB).status_code


def test_a_daemon_follows_a_git_server_and_outlives_it(repo: Repo, tmp_path: Path) -> None:
    first = push(repo, {"home/a.yaml": command("a")})
    with git_server(tmp_path / "served", {"robot": TOKEN}) as server:
        url = f"{server.url}/catalog.git"
        flags = [
            *("--branch", "main", "--path", "home", "--poll", "0", "--git-user", "robot"),
            *("--git-token-env", "CATALOG_TOKEN", "--webhook-secret-env", "HOOK_SECRET"),
        ]
        env = {"CATALOG_TOKEN": TOKEN, "HOOK_SECRET": SECRET}
        with serving(url, tmp_path / "daemon", flags=flags, env=env) as daemon:  # type: ignore[arg-type]
            daemon.ready("a")
            catalog = daemon.seen("status")["catalog"]
            assert (catalog["source"], catalog["applied"]) == (f"{url}#main:home", first)

            second = push(repo, {"home/b.yaml": command("b")})
            assert call(daemon, "wrong") == 401
            assert call(daemon) == 202
            engines = {name: row["pid"] for name, row in daemon.ready("a", "b").items()}

            push(repo, {"home/b.yaml": command("b").replace("engine: command", "engine: comand")})
            done = daemon.cli("sync", check=False)
            assert done.returncode == 3
            assert "b.yaml:6:13: $.profiles[0].engine: " in done.stdout
            assert f"1 problem: {second[:12]} stays in force" in done.stderr
            assert daemon.cli("plan", "HEAD~1").returncode == 0, "what is in force"
            assert "b" in daemon.cli("diff", "HEAD~2", "applied", check=False).stdout

            server.stop()
            done = daemon.cli("sync", check=False)
            assert done.returncode == 1
            assert done.stdout.startswith("source unreachable since 20")
            assert daemon.ask("collect")["stale"] == "the catalog's source cannot be read"
            daemon.kill()
            daemon.start()
            assert {name: row["pid"] for name, row in daemon.ready("a", "b").items()} == engines
            status = daemon.ask("status")
            assert status["catalog"]["applied"] == second
            assert "source unreachable since" in status["catalog"]["error"]
            assert [c["reason"] for c in status["catalog"]["conditions"] if c["type"] == "Stalled"] == [
                "SourceUnavailable"
            ]

            server.start()
            repo.git("reset", "-q", "--hard", first)
            third = push(repo, {"home/c.yaml": command("c")})
            eventually(lambda: call(daemon) == 202 and daemon.seen("status")["catalog"]["applied"] == third)
            daemon.ready("a", "c")
            told = daemon.output.read_text() + json.dumps(daemon.seen("status")) + json.dumps(daemon.seen("events"))
            assert "hunter2" not in told
