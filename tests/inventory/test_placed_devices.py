"""Replicas on accelerators, as a daemon places them: what their processes are given, and what is left when that fails.

The driver is a stand-in; the engines are real and compute on the CPU, whatever they are told.
"""

import json
from pathlib import Path
from typing import Any

import fake_nvml
from harness import PLAIN_SERVER, Repo, cluster, serving
from llama_server import need_llama_server

TWO = "driver 550.54.15\ngpu GPU-a NVIDIA_L4 3072 0 0 0\ngpu GPU-b NVIDIA_L4 1024 0 0 0\n"
_WITHOUT = 'case "$*" in *--gpu-layers*) echo CUDA error: out of memory >&2; exit 1;; esac; exec "$@"'
NO_ROOM = ["sh", "-c", _WITHOUT, "sh"]
"""A wrapper that fails as llama.cpp does where the accelerator has no room."""


def variable(replica: dict[str, Any], name: str) -> str | None:
    """As the engine's process has it."""
    found = Path(f"/proc/{replica['pid']}/environ").read_text().split("\0")
    return next((each.partition("=")[2] for each in found if each.startswith(f"{name}=")), None)


def environment(library: Path, tmp_path: Path) -> dict[str, str]:
    scenario = tmp_path / "scenario"
    scenario.write_text(TWO)
    return fake_nvml.environment(library, scenario)


def on_devices(name: str, weights: Path, *, wrapper: list[str] | None = None, context: int = 512) -> str:
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: {name}
profiles:
  - name: gpu
    engine: llamacpp
    weights: {{source: "file://{weights}"}}
    context: {context}
    devices: 1
    options: {{threads: 1}}
    wrapper: {json.dumps(wrapper or [])}
"""


def test_an_engine_sees_the_device_that_has_room_and_keeps_it_over_a_restart(
    nvml_library: Path, smollm2: Path, tmp_path: Path
) -> None:
    need_llama_server()
    repo = Repo(tmp_path / "catalog")
    repo.commit({"m.yaml": on_devices("small", smollm2)})
    with serving(repo.path, tmp_path / "home", env=environment(nvml_library, tmp_path)) as daemon:
        replica = daemon.ready("small")["small"]
        assert variable(replica, "CUDA_VISIBLE_DEVICES") == "GPU-a"
        assert "Paris" in daemon.chat("small")

        def counted() -> dict[str, int]:
            (node,) = daemon.seen("nodes")["nodes"]
            return {device["uuid"]: device["counted"] for device in node["devices"]}

        before = counted()
        assert before["GPU-a"] > 0
        assert before["GPU-b"] == 0
        daemon.kill()
        daemon.start()
        assert daemon.ready("small")["small"]["pid"] == replica["pid"]
        assert counted() == before, "an adopted one still holds its device"


def test_one_replica_on_two_devices_is_given_both(nvml_library: Path, tmp_path: Path) -> None:
    command = json.dumps(["env", "PLACED={devices}", *PLAIN_SERVER])
    model = f"""\
apiVersion: llmgw/v1
kind: Model
name: wide
profiles:
  - name: p
    engine: command
    devices: 2
    memory: 800MiB
    options: {{command: {command}}}
"""
    repo = Repo(tmp_path / "catalog")
    repo.commit({"m.yaml": model})
    with serving(repo.path, tmp_path / "home", env=environment(nvml_library, tmp_path)) as daemon:
        replica = daemon.ready("wide")["wide"]
        assert variable(replica, "CUDA_VISIBLE_DEVICES") == variable(replica, "PLACED") == "GPU-a,GPU-b"


def test_where_the_accelerator_has_no_room_after_all_it_ends_on_the_cpu(
    nvml_library: Path, smollm2: Path, tmp_path: Path
) -> None:
    need_llama_server()
    repo = Repo(tmp_path / "catalog")
    quick = cluster(recovery={"backoff": "100ms", "backoff_cap": "200ms"})
    repo.commit({"m.yaml": on_devices("small", smollm2, wrapper=NO_ROOM, context=8192), "cluster.yaml": quick})
    with serving(repo.path, tmp_path / "home", env=environment(nvml_library, tmp_path)) as daemon:
        replica = daemon.ready("small")["small"]
        assert variable(replica, "CUDA_VISIBLE_DEVICES") == ""
        assert "Paris" in daemon.chat("small")
        events = daemon.seen("events?limit=1000")["events"]
        failed = [e["message"] for e in events if e["subject"] == "model/small" and e["reason"] == "failed"]
        assert [message.rpartition("level ")[2] for message in failed] == ["degraded", "minimal"]
        assert all("out of device memory" in message for message in failed)
        (node,) = daemon.seen("nodes")["nodes"]
        assert [device["counted"] for device in node["devices"]] == [0, 0]
