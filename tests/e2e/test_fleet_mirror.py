"""A fleet whose nodes give one another weights: two real agents, etcd between them, a web server outside."""

import os
import signal
from pathlib import Path

import pytest
from etcds import Etcd
from fleet import Process, ready, running
from harness import Repo, cluster, command, eventually
from servers import Site, serve

MIB = 1024 * 1024


def wanting(site: Site, name: str, *nodes: str) -> str:
    """A model that wants a file of its own, with a replica on each of the nodes."""
    document = command(name, weights=f"{site.url}/{name}").replace(
        "size: 94MiB", f"size: {len(site.files['/' + name])}B"
    )
    placement = f"placement: {{nodes: {list(nodes)}, spread: true}}\n".replace("'", "")
    return f"{document}scaling: {{min: {len(nodes)}}}\n{placement}"


def serves_on(controller: Process, model: str, *nodes: str) -> None:
    eventually(
        lambda: {row["node"] for row in ready(controller, model)[model]} >= set(nodes), what=f"{model} on {nodes}"
    )


def files(agent: Process, content: bytes) -> list[Path]:
    """Whole files of that content in the agent's cache."""
    found = agent.state.glob("weights/v1-sha256-*/files/*")
    return [path for path in found if path.stat().st_size == len(content) and path.read_bytes() == content]


def told(controller: Process) -> set[str]:
    return {event["reason"] for event in controller.seen("events")["events"]}


def downloads(site: Site, name: str) -> int:
    return sum(asked.path == f"/{name}" for asked in site.gets)


@pytest.mark.slow
def test_each_file_is_downloaded_once_and_no_peer_is_trusted(tmp_path: Path, etcd: Etcd) -> None:
    repo = Repo(tmp_path / "catalog")
    with serve() as site, running(tmp_path / "fleet", repo.path, etcd) as fleet:
        site.files = {f"/{name}": os.urandom(size * MIB) for name, size in (("a", 4), ("b", 2), ("c", 6), ("d", 3))}
        limits = cluster(weights={"mirror_bandwidth": "2MiB"}, recovery={"backoff": "200ms"})
        repo.commit({"b.yaml": wanting(site, "b", "n1")})
        controller = fleet.controller("c1")
        first, second = fleet.agent("n1"), fleet.agent("n2")
        eventually(lambda: len(controller.seen("nodes")["nodes"]) == 2, what="two nodes")

        repo.commit({"a.yaml": wanting(site, "a", "n1", "n2")})
        serves_on(controller, "a", "n1", "n2")
        assert downloads(site, "a") == 1
        assert [len(files(agent, site.files["/a"])) for agent in (first, second)] == [1, 1]
        eventually(lambda: "weights from peer" in told(controller), what="the event")

        serves_on(controller, "b", "n1")
        (theirs,) = files(first, site.files["/b"])
        with theirs.open("r+b") as file:
            file.write(bytes([site.files["/b"][0] ^ 1]))
        repo.commit({"b.yaml": wanting(site, "b", "n1", "n2")})
        serves_on(controller, "b", "n1", "n2")
        assert downloads(site, "b") == 2
        assert len(files(second, site.files["/b"])) == 1
        eventually(lambda: {"weights refused", "weights corrupt"} <= told(controller), what="events")
        assert list(first.state.glob("weights/corrupt-*"))

        repo.commit({"c.yaml": wanting(site, "c", "n1"), "limits.yaml": limits})
        serves_on(controller, "c", "n1")
        repo.commit({"c.yaml": wanting(site, "c", "n1", "n2")})
        growing = "weights/partial-*/entry/files/c"
        eventually(lambda: any(path.stat().st_size > MIB for path in second.state.glob(growing)), what="half a file")
        first.kill(signal.SIGKILL)
        serves_on(controller, "c", "n2")
        assert len(files(second, site.files["/c"])) == 1
        again = [asked for asked in site.gets if asked.path == "/c"][1:]
        assert len(again) == 1
        assert int(again[0].headers["Range"].removeprefix("bytes=").removesuffix("-")) > 0

        first.start()
        eventually(lambda: not any(row["silent"] for row in controller.seen("nodes")["nodes"]), what="n1 back")
        site.stall_at = MIB
        repo.commit({"d.yaml": wanting(site, "d", "n1", "n2")})
        growing = "weights/partial-*/entry/files/d"

        def fetching() -> list[Process]:
            return [agent for agent in (first, second) if any(one.stat().st_size for one in agent.state.glob(growing))]

        (dying,) = eventually(fetching, what="one that fetches")
        site.stall_at = None
        dying.kill(signal.SIGKILL)
        other = second if dying is first else first
        serves_on(controller, "d", other.name)
        assert downloads(site, "d") == 2
        assert len(files(other, site.files["/d"])) == 1
