"""`docker`, as far as `engine: command` meets it: `run` and `stop` of a server that is no child of theirs.

`run --rm --name NAME -p HOST:PORT:8000 IMAGE` waits for the container, and ending it does not end the container. The
container has none of the client's environment, session or parents. STAND_IN_DOCKER holds a file for each: its pid.
`first-fails` in that directory: the next `run` finds its port allocated, and leaves a container that never started.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

SERVER = Path(__file__).with_name("plain_server.py")


def run(root: Path, arguments: list[str]) -> int:
    given = dict(itertools.pairwise(arguments))
    container = root / given["--name"]
    if container.exists():
        print(f"Conflict. The container name {container.name} is already in use", file=sys.stderr)
        return 125
    container.touch()
    if (root / "first-fails").exists():
        (root / "first-fails").unlink()
        print("driver failed programming external connectivity: port is already allocated", file=sys.stderr)
        return 125
    host, port, _ = given["-p"].rsplit(":", 2)
    start(container, [sys.executable, str(SERVER), host, port])
    pid = int(container.read_text())
    while alive(pid):
        time.sleep(0.05)
    container.unlink(missing_ok=True)
    return 137


def start(container: Path, argv: list[str]) -> None:
    """By a process that ends at once, so that the server's parent is none of ours."""
    if (child := os.fork()) == 0:
        server = subprocess.Popen(argv, env={}, cwd="/", start_new_session=True, stdin=subprocess.DEVNULL)
        container.write_text(str(server.pid))
        os._exit(0)
    os.waitpid(child, 0)


def stop(root: Path, name: str) -> int:
    container = root / name
    with (root / "stopped").open("a") as stopped:
        stopped.write(f"{name}\n")
    if not container.exists():
        print(f"No such container: {name}", file=sys.stderr)
        return 1
    if pid := container.read_text():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        while alive(int(pid)):
            time.sleep(0.02)
    container.unlink(missing_ok=True)
    return 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if __name__ == "__main__":
    here = Path(os.environ["STAND_IN_DOCKER"])
    sys.exit(run(here, sys.argv[2:]) if sys.argv[1] == "run" else stop(here, sys.argv[-1]))
