"""`llmgw events`: every decision is told, with its reason and its figures."""

import json
import sys
from pathlib import Path

from harness import PLAIN_SERVER, Daemon, Repo, cluster, eventually, serving

KIB = 1024


def model(
    name: str, *, argv: list[str] | None = None, memory: str = "1MiB", more: str = "", profile: str = "", load: str = ""
) -> str:
    """A Model document for the plain server."""
    command = json.dumps(argv or PLAIN_SERVER)
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: {name}
{more}
profiles:
  - name: p
    engine: command
    memory: {memory}
    options: {{command: {command}{load}}}
{profile}
"""


def told(daemon: Daemon, subject: str) -> list[tuple[str, str]]:
    return [(e["reason"], e["message"]) for e in daemon.seen("events")["events"] if e["subject"] == subject]


def happened(daemon: Daemon, name: str, reason: str, *parts: str) -> str:
    """The message of the event, once there is one with all of `parts`."""

    def found() -> str | None:
        messages = [message for each, message in told(daemon, f"model/{name}") if each == reason]
        return next((message for message in messages if all(part in message for part in parts)), None)

    return eventually(found, within=30, what=f"{name}: {reason} with {parts}") or ""


def test_launches_evictions_refusals_and_stops_are_told_with_their_figures(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    budget = cluster(nodes={"box": {"budget": {"host": f"{1536 * KIB}B"}}})
    repo.commit({"cluster.yaml": budget, "low.yaml": model("low")})
    with serving(repo.path, tmp_path / "home") as daemon:
        low = daemon.ready("low")["low"]["id"]
        launched = happened(daemon, "low", "launched")
        assert launched.startswith(f"{low} on box: profile p, 1.0 MiB host memory (declared)")

        repo.commit({"high.yaml": model("high", more="priority: 5")})
        assert happened(daemon, "low", "evicted", low, "memory pressure", "high")
        assert "need 1.0 MiB, have 512.0 KiB on box" in happened(daemon, "low", "unschedulable")
        high = daemon.ready("high")["high"]["id"]
        assert [event for event in told(daemon, "model/high") if event[0] == "launched"]

        repo.commit({"high.yaml": None})
        assert happened(daemon, "high", "stopping", high, "model removed")
        daemon.ready("low")


def test_a_step_down_to_a_smaller_level_is_told_with_what_failed(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    dies = [sys.executable, "-c", "raise MemoryError", "{host}", "{port}"]
    smaller = f"    degraded: {{memory: 512KiB, options: {{command: {json.dumps(PLAIN_SERVER)}}}}}"
    repo.commit(
        {"cluster.yaml": cluster(recovery={"backoff": "100ms"}), "m.yaml": model("m", argv=dies, profile=smaller)}
    )
    with serving(repo.path, tmp_path / "home") as daemon:
        assert daemon.ready("m")["m"]["level"] == "degraded"
        failed = happened(daemon, "m", "failed")
        assert failed.startswith("oom: out of memory")
        assert failed.endswith("; tried next at level degraded")
        assert "512.0 KiB" in happened(daemon, "m", "launched", "degraded")
        story = daemon.cli("explain", "m").stdout
        assert "level degraded" in story
        assert "shrunk to level degraded, and tried again since: forgotten when it stays up" in story


def test_a_step_of_scaling_is_told_with_the_load_that_led_to_it(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    busy = model(
        "m", argv=[*PLAIN_SERVER, "--load"], load=', load: {running: "own:running", waiting: "own:waiting"}',
        more="scaling: {min: 1, max: 2}",
    )  # fmt: skip
    repo.commit({"cluster.yaml": cluster(scaling={"up_after": "500ms"}), "m.yaml": busy})
    with serving(repo.path, tmp_path / "home") as daemon:
        message = happened(daemon, "m", "scaled up")
        assert message.startswith("1 to 2 replicas")
        assert "3 run on 1" in message
        eventually(lambda: len(daemon.seen("replicas")["replicas"]) == 2, what="two replicas")
