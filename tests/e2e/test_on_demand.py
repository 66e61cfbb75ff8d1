"""Demand on real engines: loaded by requests, unloaded when idle, room made for one another, scaling, fallbacks."""

import json
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from harness import MESSAGES, PLAIN_SERVER, WEB, Daemon, Repo, alive, cluster, command, eventually, model, serving

LAZY = "scaling: {on_demand: true}"
QUICK = {"min_residency": "0s", "up_after": "1s", "down_after": "2s"}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as found:
        yield found


def events(daemon: Daemon, reason: str) -> list[str]:
    """What was decided for that reason, of all models."""
    told = daemon.seen("events")["events"]
    return [f"{e['subject']}: {e['message']}" for e in told if (e["reason"], e["subject"][:6]) == (reason, "model/")]


def states(daemon: Daemon) -> dict[str, str]:
    return {m["name"]: m["state"] for m in daemon.seen("models")["models"]}


def ask(daemon: Daemon, name: str, *, max_tokens: int = 4, headers: dict[str, str] | None = None) -> httpx.Response:
    body = {"model": name, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "messages": MESSAGES}
    return httpx.post(f"{daemon.gateway}/v1/chat/completions", json=body, headers=headers, timeout=120, **WEB)


class Stream:
    """A long answer, read in a thread of its own."""

    def __init__(self, pool: ThreadPoolExecutor, daemon: Daemon, name: str, tokens: int) -> None:
        self.lines: list[str] = []
        self.done: Future[None] = pool.submit(self._read, daemon.gateway, name, tokens)

    def _read(self, gateway: str, name: str, tokens: int) -> None:
        body = {"model": name, "stream": True, "max_tokens": tokens, "ignore_eos": True, "messages": MESSAGES}
        with httpx.stream("POST", f"{gateway}/v1/chat/completions", json=body, timeout=120, **WEB) as answer:
            assert answer.status_code == 200
            self.lines.extend(line for line in answer.iter_lines() if line)

    def begun(self) -> "Stream":
        eventually(lambda: len(self.lines) > 3 or self.done.done(), what="the first tokens")
        return self


def settled(daemon: Daemon, name: str, state: str, *, within: float = 60) -> None:
    eventually(lambda: states(daemon).get(name) == state, within=within, what=f"{name} {state}")


def test_twenty_requests_for_a_cold_model_are_one_launch_and_twenty_answers(
    tmp_path: Path, smollm2: Path, pool: ThreadPoolExecutor
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("lazy", smollm2, aliases=["alias"], more=LAZY)})
    with serving(repo.path, tmp_path / "home") as daemon:
        settled(daemon, "lazy", "inactive")
        assert daemon.replicas() == {}
        asked = [pool.submit(ask, daemon, "lazy" if n % 2 else "alias") for n in range(20)]
        assert [future.result().status_code for future in asked] == [200] * 20
        assert len(events(daemon, "launched")) == 1


def test_an_idle_model_is_unloaded_and_the_next_request_loads_it_again(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("lazy", smollm2, more="scaling: {on_demand: true, idle_timeout: 2s}")})
    with serving(repo.path, tmp_path / "home") as daemon:
        settled(daemon, "lazy", "inactive")
        assert ask(daemon, "lazy").status_code == 200
        before = daemon.ready("lazy")["lazy"]
        settled(daemon, "lazy", "inactive")
        eventually(lambda: not daemon.seen("replicas")["replicas"], what="the engine's end")
        assert ask(daemon, "lazy").status_code == 200
        assert daemon.ready("lazy")["lazy"]["id"] != before["id"]
        assert any("idle" in text for text in events(daemon, "stopping"))


def test_a_model_is_not_loaded_for_what_it_does_not_serve(tmp_path: Path, smollm2: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("a", smollm2, more=LAZY)})
    with serving(repo.path, tmp_path / "home") as daemon:
        settled(daemon, "a", "inactive")
        answer = httpx.post(f"{daemon.gateway}/v1/embeddings", json={"model": "a", "input": "x"}, timeout=120, **WEB)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "surface_not_served")
        assert ask(daemon, "a").status_code == 200
        assert [event.partition(" ")[0] for event in events(daemon, "launched")] == ["model/a:"], "by the second alone"


def test_of_two_that_do_not_fit_together_the_second_takes_the_place_of_the_idle_first(
    tmp_path: Path, smollm2: Path
) -> None:
    repo = Repo(tmp_path / "catalog")
    big = "    memory: 300MiB\n"
    repo.commit({
        "a.yaml": model("first", smollm2, more=LAZY, profile_more=big),
        "b.yaml": model("second", smollm2, more=LAZY, profile_more=big),
        "cluster.yaml": cluster(scaling=QUICK, nodes={"box": {"budget": {"host": "400MiB"}}}),
    })  # fmt: skip
    with serving(repo.path, tmp_path / "home") as daemon:
        settled(daemon, "second", "inactive")
        for name in ("first", "second", "first"):
            assert ask(daemon, name).status_code == 200
            assert set(daemon.replicas()) == {name}
        evicted = events(daemon, "evicted")
        assert [text.partition(":")[0] for text in evicted] == ["model/first", "model/second"]


def test_what_is_decoding_is_never_evicted(tmp_path: Path, smollm2: Path, pool: ThreadPoolExecutor) -> None:
    repo = Repo(tmp_path / "catalog")
    big = "    memory: 300MiB\n"
    repo.commit({
        "a.yaml": model("first", smollm2, more=LAZY, profile_more=big),
        "b.yaml": model("second", smollm2, more=LAZY, profile_more=big),
        "cluster.yaml": cluster(scaling=QUICK, nodes={"box": {"budget": {"host": "400MiB"}}}),
    })  # fmt: skip
    with serving(repo.path, tmp_path / "home") as daemon:
        settled(daemon, "first", "inactive")
        stream = Stream(pool, daemon, "first", 250).begun()
        second = pool.submit(ask, daemon, "second")
        stream.done.result(120)
        assert stream.lines[-1] == "data: [DONE]"
        assert second.result().status_code == 200, second.result().text
        assert [text.partition(":")[0] for text in events(daemon, "evicted")] == ["model/first"]


def test_a_replica_more_while_requests_wait_and_one_less_when_they_do_not(
    tmp_path: Path, smollm2: Path, pool: ThreadPoolExecutor
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({
        "a.yaml": model("only", smollm2, more="scaling: {min: 1, max: 2}"),
        "cluster.yaml": cluster(scaling=QUICK),
    })  # fmt: skip
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("only")
        asked = [pool.submit(ask, daemon, "only", max_tokens=100) for _ in range(6)]

        def ready() -> int:
            return len([r for r in daemon.seen("replicas")["replicas"] if r["state"] == "ready"])

        eventually(lambda: ready() == 2, what="a second replica")
        assert [future.result().status_code for future in asked] == [200] * 6
        eventually(lambda: ready() == 1, what="one replica again")
        (up,) = events(daemon, "scaled up")
        assert "1 to 2 replicas" in up
        (down,) = events(daemon, "scaled down")
        assert "2 to 1 replica:" in down


def flagged(flag: Path) -> list[str]:
    """An argv that fails until `flag` is there."""
    script = f"test -f {flag} || exit 1; exec {shlex.join(PLAIN_SERVER)}"
    return ["sh", "-c", script]


def test_a_fallback_serves_while_its_model_is_in_quarantine_and_no_longer(tmp_path: Path) -> None:
    flag, repo = tmp_path / "flag", Repo(tmp_path / "catalog")
    repo.commit({
        "a.yaml": command("main", *flagged(flag)) + "fallback: spare\n",
        "b.yaml": command("spare") + "scaling: {on_demand: true}\n",
        "cluster.yaml": cluster(recovery={"backoff": "100ms", "backoff_cap": "200ms", "quarantine_retry": "1s"}),
    })  # fmt: skip

    def post(**headers: str) -> httpx.Response:
        body: dict[str, Any] = {"model": "main"}
        return httpx.post(f"{daemon.gateway}/v1/embeddings", json=body, headers=headers, timeout=60, **WEB)

    with serving(repo.path, tmp_path / "home") as daemon:
        eventually(lambda: httpx.get(f"{daemon.gateway}/v1/models", **WEB).status_code == 200, what="the catalog")
        answer = post()  # waits for its model first, then for what stands in for it
        assert answer.headers["x-llmgw-fallback"] == "spare", answer.text
        refused = post(**{"X-LLMGW-No-Fallback": "1"})
        assert refused.status_code in (503, 404), refused.text
        assert "x-llmgw-fallback" not in refused.headers
        flag.touch()
        settled(daemon, "main", "ready")
        eventually(lambda: "x-llmgw-fallback" not in post().headers, what="un-routed")
        first, *_ = events(daemon, "fallback")
        assert first == "model/main: spare serves in its place"


def get_once(daemon: Daemon, name: str, timeout: float = 60) -> httpx.Response:
    """A request that any engine answers, were it only with 501."""
    return httpx.post(f"{daemon.gateway}/v1/embeddings", json={"model": name}, timeout=timeout, **WEB)


def sized(name: str, memory: str, *, more: str = LAZY) -> str:
    return command(name).replace("memory: 1MiB", f"memory: {memory}") + f"{more}\n"


def test_a_model_that_cannot_be_placed_is_refused_at_once_and_tried_anew_when_asked_for_again(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": sized("huge", "900TiB")})
    with serving(repo.path, tmp_path / "home") as daemon:
        settled(daemon, "huge", "inactive")
        refused = get_once(daemon, "huge", timeout=10)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unschedulable")
        assert "900.0 TiB" in refused.json()["error"]["message"]
        repo.commit({"a.yaml": sized("huge", "1MiB")})
        daemon.ready("huge")  # it is still asked for
        assert get_once(daemon, "huge").status_code == 501


def test_a_pinned_resident_in_the_way_is_a_refusal_and_no_silent_wait(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({
        "a.yaml": sized("rock", "300MiB", more="pinned: true"),
        "b.yaml": sized("late", "300MiB"),
        "cluster.yaml": cluster(scaling=QUICK, nodes={"box": {"budget": {"host": "400MiB"}}}),
    })  # fmt: skip
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("rock")
        refused = get_once(daemon, "late", timeout=10)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unschedulable")
        assert set(daemon.replicas()) == {"rock"}


def test_who_was_just_loaded_stays_for_a_while_and_the_next_one_waits_visibly(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({
        "a.yaml": sized("first", "300MiB"),
        "b.yaml": sized("second", "300MiB"),
        "cluster.yaml": cluster(scaling={"min_residency": "4s"}, nodes={"box": {"budget": {"host": "400MiB"}}}),
    })  # fmt: skip
    with serving(repo.path, tmp_path / "home") as daemon:
        settled(daemon, "second", "inactive")
        used = time.monotonic()
        assert get_once(daemon, "first").status_code == 501
        second = pool.submit(get_once, daemon, "second")
        settled(daemon, "second", "loading")
        (told,) = [m for m in daemon.seen("models")["models"] if m["name"] == "second"]
        assert "first" in told["reason"], told
        assert second.result().status_code == 501
        assert time.monotonic() - used > 3.5  # by the gateway, it was used a little later


def test_what_was_asked_for_outlives_the_daemon_and_is_unloaded_by_the_next_one(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": sized("lazy", "1MiB", more="scaling: {on_demand: true, idle_timeout: 15s}")})
    with serving(repo.path, tmp_path / "home") as daemon:
        settled(daemon, "lazy", "inactive")
        assert get_once(daemon, "lazy").status_code == 501
        before = daemon.ready("lazy")["lazy"]
        daemon.kill()
        daemon.start()
        assert daemon.ready("lazy")["lazy"]["pid"] == before["pid"]
        settled(daemon, "lazy", "inactive")
        eventually(lambda: not alive(before["pid"]), what="the engine's end")


@pytest.mark.slow
def test_a_window_ends_by_the_clock_of_the_clusters_zone(tmp_path: Path) -> None:
    zone = ZoneInfo("Asia/Kathmandu")  # 5:45 ahead: no clock of a machine shows it by chance
    end = datetime.now(zone) + timedelta(seconds=75)  # so that it is over 15 s from now, or later
    window = {
        "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "min": 1, "max": 1,
        "from": f"{end - timedelta(hours=1):%H:%M}", "to": f"{end:%H:%M}",
    }  # fmt: skip
    repo = Repo(tmp_path / "catalog")
    scaling = json.dumps({"min": 0, "max": 1, "schedule": [window]})
    repo.commit({
        "a.yaml": sized("shift", "1MiB", more=f"scaling: {scaling}"),
        "cluster.yaml": cluster(time_zone=str(zone)),
    })  # fmt: skip
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("shift", within=30)
        settled(daemon, "shift", "inactive", within=80)
        assert datetime.now(zone) >= end.replace(second=0, microsecond=0)
        assert datetime.now(zone) - end.replace(second=0, microsecond=0) < timedelta(seconds=5)
        eventually(lambda: not daemon.seen("replicas")["replicas"], what="the engine's end")
        assert "wanted at 0" in " ".join(events(daemon, "stopping"))
        refused = get_once(daemon, "shift")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_inactive")
