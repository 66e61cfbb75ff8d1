"""`llmgw bench` on a real engine: what one replica holds is measured, kept, and outlives a restart."""

import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from harness import Repo, eventually, model, serving

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
