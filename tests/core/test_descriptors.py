"""Many clients need many descriptors; engines get what llmgw itself was given."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, resource, sys
from pathlib import Path
from llmgw import descriptors
from llmgw.agent import process, spawn

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400))
assert descriptors.raise_limit() == 400
assert descriptors.raise_limit() == 400
home = Path(sys.argv[1])
show = "import resource, time; time.sleep(0.2); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
argv = [sys.executable, "-c", show]
pid = spawn.spawn(argv, {}, home=home, log=home / "log")
os.waitpid(pid, 0)
descriptors.restore_for(pid)
print(resource.getrlimit(resource.RLIMIT_NOFILE), (home / "log").read_text().strip())
"""


def test_the_limit_is_raised_for_us_and_not_for_engines(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "(400, 400) (200, 400)", done.stderr
