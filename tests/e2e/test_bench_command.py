"""`llmgw bench` on a real engine: what one replica holds is measured, kept, outlives a restart, and scaling uses it."""

import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
from harness import MESSAGES, Repo, cluster, eventually, model, serving

SHORT = ("--prompt-tokens", "24", "--max-tokens", "6", "--requests", "2", "--max-concurrency", "2")
EASY = ("--ttft", "60s", "--itl", "30s")  #: on a machine that is busy with other things, too


def test_what_a_real_replica_holds_is_kept_and_an_interrupt_keeps_nothing(smollm2: Path, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    document = model("smol", smollm2, aliases=["default"], parallel=2)
    repo.commit({"a.yaml": document.replace("{threads: 1}", "{threads: 1, chat_template: chatml}")})
    chart = tmp_path / "smol.svg"
    with serving(repo.path, tmp_path / "box") as daemon:
        replica = daemon.ready("smol")["smol"]
        # Interrupted in the middle: nothing is kept, the engine is left with nothing to do.
        long = ("--prompt-tokens", "64", "--max-tokens", "200", "--requests", "500")
        argv = [sys.executable, "-m", "llmgw", "bench", "smol", *EASY, *long, "--state", str(daemon.state)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            eventually(lambda: (daemon.replicas()["smol"]["running"] or 0) > 0, what="load on the replica")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, "")
        assert "interrupted: nothing was kept" in err
        assert "Traceback" not in err
        assert daemon.ask("bench", "--show")["capacities"] == []

        told = daemon.ask("bench", "default", *EASY, *SHORT, "--chart", str(chart))
        assert (told["model"], told["replica"], told["holds"], told["stored"]) == ("smol", replica["id"], 2, True)
        assert [step["at_once"] for step in told["steps"]] == [1, 2]
        assert all(step["failed"] == 0 and 0 < step["ttft_p50"] < 60 for step in told["steps"])
        assert all(step["itl_p95"] < 30 and step["tokens_per_second"] > 0 for step in told["steps"])
        assert ElementTree.parse(chart).getroot().tag.endswith("svg")
        metrics = daemon.admin("/metrics").text
        assert 'llmgw_measured_requests{model="smol",node="box",profile="cpu"} 2.0' in metrics
        assert 'llmgw_launches_total{level="full"} 1.0' in metrics
        assert 'llmgw_model_ready{model="smol"} 1.0' in metrics
        assert "measured" in [event["reason"] for event in daemon.seen("events")["events"]]

        missed = daemon.cli("bench", "smol", *SHORT, "--ttft", "1ms", check=False)
        assert missed.returncode == 1
        assert "the target is missed with one request at a time" in missed.stderr

        daemon.kill()
        daemon.start()
        daemon.ready("smol")
        (kept,) = eventually(lambda: daemon.ask("bench", "--show", "smol")["capacities"], what="what was kept")
        assert (kept["profile"], kept["node"], kept["requests"]) == ("cpu", "box", 2)


@pytest.mark.slow
def test_what_was_measured_has_a_model_scale_up_though_no_request_waits(smollm2: Path, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    document = model("smol", smollm2, parallel=4, context=2048, more="scaling: {min: 1, max: 2}")
    repo.commit({
        "a.yaml": document.replace("{threads: 1}", "{threads: 1, chat_template: chatml}"),
        "cluster.yaml": cluster(scaling={"min_residency": "0s", "up_after": "1s", "down_after": "1m"}),
    })  # fmt: skip
    with serving(repo.path, tmp_path / "box") as daemon, ThreadPoolExecutor(3) as pool:
        daemon.ready("smol")
        told = daemon.ask("bench", "smol", *EASY, *SHORT[:-1], "1")
        assert (told["holds"], told["at_most"], told["stored"]) == (1, True, True)
        body = {"model": "smol", "max_tokens": 150, "ignore_eos": True, "messages": MESSAGES}
        answers = [pool.submit(daemon.post, timeout=120, **body) for _ in range(3)]

        def scaled() -> list[str]:
            return [e["message"] for e in daemon.seen("events")["events"] if e["reason"] == "scaled up"]

        (text,) = eventually(scaled, what="a step up")
        assert re.match("1 to 2 replicas: 0 requests wait and [23] run on 1, of 1 that one replica holds", text)
        eventually(lambda: 'llmgw_scaling_steps_total{direction="up"} 1.0' in daemon.admin("/metrics").text)
        eventually(lambda: 'llmgw_model_ready{model="smol"} 2.0' in daemon.admin("/metrics").text, what="two replicas")
        assert [answer.result().status_code for answer in answers] == [200] * 3
