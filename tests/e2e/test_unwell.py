"""Engines that were ready and only seem to serve, in a whole llmgw, in its own time: each is ended and started anew."""

import os
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from harness import Repo, alive, eventually, model, serving

from llmgw.facts import FailureKind

SICK = """
    import os, sys
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(500 if self.path == "/decode" and os.path.exists(sys.argv[2]) else 200)
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(500 if os.path.exists(sys.argv[2]) else 200)
        def answer(self, status):
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
        def log_message(self, *args):
            pass
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def sick_model(server: Path, when: Path) -> str:
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: sick
profiles:
  - name: p
    engine: command
    memory: 64MiB
    options:
      command: ["{sys.executable}", "-S", "{server}", "{{port}}", "{when}"]
      health: /health
      probe_path: /decode
"""


@pytest.mark.slow
def test_a_hung_engine_and_one_that_only_says_it_is_well_are_replaced(smollm2: Path, tmp_path: Path) -> None:
    server, when = tmp_path / "server.py", tmp_path / "sick"
    server.write_text(textwrap.dedent(SICK))
    repo = Repo(tmp_path / "catalog")
    repo.commit({"hung.yaml": model("hung", smollm2), "sick.yaml": sick_model(server, when)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("hung", "sick")
        assert "Paris" in daemon.chat("hung")
        os.kill(before["hung"]["pid"], signal.SIGSTOP)
        began = time.monotonic()
        assert daemon.post(model="sick", messages=[]).status_code == 200
        when.touch()
        assert daemon.post(model="sick", messages=[]).status_code == 500

        def failure(name: str, kind: FailureKind) -> dict[str, Any] | None:
            told = daemon.seen(f"explain?model={name}")["failures"]
            return told[0] if told and told[0]["kind"] == kind else None

        sick = eventually(lambda: failure("sick", FailureKind.CRASH), within=90, what="sick has failed")
        assert "GET /decode: 500" in sick["reason"]
        when.unlink()
        hung = eventually(lambda: failure("hung", FailureKind.HANG), within=240, what="hung has failed")
        assert time.monotonic() - began >= 120
        assert "answered nothing" in hung["reason"]
        after = daemon.ready("hung", "sick", within=120)
        for name in before:
            assert after[name]["pid"] != before[name]["pid"]
            assert not alive(before[name]["pid"])
        assert "Paris" in daemon.chat("hung")
