"""A download's life in a real daemon: seen, shared, hurried, given up, gone on with, and its remains collected."""

import os
from pathlib import Path

from harness import Daemon, Repo, cluster, command, eventually, serving
from servers import Site, serve

CONTENT = os.urandom(10_000_000)
LARGE = 60_000_000
"""Bytes: a minute's worth where it is slow."""
SLOW, FAST = cluster(weights={"bandwidth": "1MB"}), cluster(weights={"bandwidth": "500MB"})


def document(name: str, site: Site, path: str) -> str:
    return command(name, weights=f"{site.url}{path}").replace(", size: 94MiB", "")


def progress(daemon: Daemon, name: str) -> dict[str, float]:
    return next((row["progress"] or {} for row in daemon.seen("models")["models"] if row["name"] == name), {})


def metric(daemon: Daemon, name: str, model: str) -> float | None:
    start = f'{name}{{model="{model}"'
    lines = [line for line in daemon.admin("/metrics").text.splitlines() if line.startswith(start)]
    return float(lines[0].rpartition(" ")[2]) if lines else None


def test_a_download_is_seen_shared_hurried_by_a_commit_and_told(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    with serve() as site:
        site.files["/big.bin"] = bytes(LARGE)
        repo.commit({"c.yaml": SLOW, "a.yaml": document("first", site, "/big.bin") + "scaling: {min: 2}\n"})
        with serving(repo.path, tmp_path / "home") as daemon:
            told = eventually(
                lambda: (found := progress(daemon, "first")).get("rate") and found, what="a rate", within=30
            )
            assert told["total"] == LARGE
            assert 500_000 < told["rate"] < 2_000_000
            assert told["left"] > 0
            assert (metric(daemon, "llmgw_fetch_bytes", "first") or 0) >= told["done"]
            assert metric(daemon, "llmgw_fetch_size_bytes", "first") == LARGE
            shown = daemon.cli("status").stdout + daemon.cli("explain", "first").stdout
            assert shown.count("/s, ") >= 2, "with its rate and the time left"

            repo.commit({"c.yaml": FAST})  # nothing is replaced: what is on its way comes faster
            eventually(lambda: len(daemon.ready("first")) == 1, what="ready", within=30)
            events = [event["message"] for event in daemon.seen("events")["events"] if event["reason"] == "fetched"]
            assert events
            assert "57.2 MiB in " in events[0]
            assert len(site.gets) == 1, "one download, however many replicas want it"


def test_what_nobody_wants_any_more_is_given_up_listed_and_collected_or_gone_on_with(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    with serve() as site:
        site.files["/a.bin"] = site.files["/b.bin"] = CONTENT
        both = {"a.yaml": document("first", site, "/a.bin"), "b.yaml": document("second", site, "/b.bin")}
        repo.commit({"c.yaml": SLOW, "z.yaml": command("third"), **both})
        with serving(repo.path, tmp_path / "home") as daemon:
            for name in ("first", "second"):
                eventually(
                    lambda name=name: progress(daemon, name).get("done", 0) > 500_000, what="some of it", within=30
                )
            repo.commit({"a.yaml": None, "b.yaml": None})

            def unfinished() -> dict[str, dict[str, str]]:
                rows = daemon.seen("weights")["entries"]
                return {row["source"][-5:]: row for row in rows if row["state"] == "unfinished"}

            eventually(lambda: len(unfinished()) == 2, what="two downloads that ended early", within=30)
            limits = ("--older-than", "0s", "--keep-revisions", "0")
            done = daemon.ask("collect", "--collect", "--model", "first", *limits)
            assert [(row["source"][-5:], row["outcome"]) for row in done["entries"]] == [("a.bin", "removed")]
            assert set(unfinished()) == {"b.bin"}
            kept = unfinished()["b.bin"]
            assert "unfinished" in daemon.cli("weights", "list").stdout

            repo.commit({"c.yaml": FAST, "b.yaml": both["b.yaml"]})
            daemon.ready("second", "third")
            assert f"bytes={kept['size']}-" >= site.gets[-1].headers["Range"] > "bytes=", "it goes on"
            assert unfinished() == {}
