"""The node's re-check, tried by an adversary: outside the root nothing is unlinked, inside it only what was fetched."""

import hashlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.units import Seconds, Wall
from llmgw.weights.doomed import end_file
from llmgw.weights.inside import Inside, hold, is_open_elsewhere, mounted_at_or_below
from llmgw.weights.naming import entry_name
from llmgw.weights.removal import Refusal, finish, remove

NOW = Wall(2_000_000.0)
SOURCE = "pypi://models==1.0/a.gguf"


def root_at(path: Path, cluster: str = "c1") -> Path:
    path.mkdir(parents=True)
    (path / ".llmgw-cache").write_text(json.dumps({"cluster": cluster, "layout": 1}))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("years of work")
    return root_at(tmp_path / "cache")


def make(root: Path, source: str = SOURCE, files: dict[str, bytes] | None = None, *, wanted: float = 1_000_000) -> Path:
    """A complete entry, as a fetch leaves it."""
    entry = root / entry_name(source, None)
    contents = files or {"a.gguf": b"weights"}
    for name, content in contents.items():
        path = entry / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    told = [
        {"path": f"files/{name}", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    ]
    manifest = {"v": 1, "source": source, "files": told, "licence": None, "fetched_at": wanted, "metadata": {}}
    (entry / "manifest.json").write_text(json.dumps(manifest))
    (entry / "last_wanted").write_text(f"{wanted:.0f}\n")
    return entry


def end(root: Path, name: str, *, min_age: float = 0, now: Wall = NOW) -> None:
    remove(root, name, cluster="c1", now=now, min_age=Seconds(min_age))


def tree(path: Path) -> dict[str, str]:
    """Everything below, with what it is: to be compared before and after."""
    found = {}
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            one = Path(folder, name)
            what = os.readlink(one) if one.is_symlink() else "directory" if one.is_dir() else "special"
            what = one.read_bytes().hex() if one.is_file() and not one.is_symlink() else what
            found[str(one.relative_to(path))] = what
    return found


def refused(root: Path, name: str, match: str, **given: float) -> None:
    """It is refused, and nothing at all is different afterwards."""
    before = tree(root.parent)
    with pytest.raises(Refusal, match=match):
        end(root, name, **given)
    assert tree(root.parent) == before


def test_an_entry_goes_whole_and_nothing_else_does(root: Path) -> None:
    other = make(root, "pypi://models==1.0/b.gguf")
    entry = make(root, files={"a.gguf": b"1", "deep/er/b.json": b"2", "deep/c": b""})
    (entry / ".last_wanted.0123abcd").write_text("")  # of a process that was killed
    kept = tree(other)
    end(root, entry.name)
    assert sorted(os.listdir(root)) == [".llmgw-cache", other.name]
    assert tree(other) == kept


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "/", "/etc", "../precious", "files", ".llmgw-cache", "v1-sha256-", "v1-sha256-" + "0" * 63,
        "v1-sha256-" + "0" * 65, "v1-sha256-" + "G" * 64, "V1-sha256-" + "0" * 64, "v2-sha256-" + "0" * 64,
        "v1-sha256-" + "0" * 64 + "/", "v1-sha256-" + "0" * 64 + "\n", "v1-sha256-" + "0" * 64 + "/../../precious",
        "./v1-sha256-" + "0" * 64, "v1-sha512-" + "0" * 64, "partial-0", "removing-v1-sha256-" + "0" * 64 + "-00000000",
        "v1-sha256-" + "0" * 64 + "\0", "corrupt-v1-sha256-" + "0" * 64, "\u0660" * 64, "kept-", "kept-../precious",
        "kept-v1-sha256-" + "0" * 63, "kept-v2-sha256-" + "0" * 64, "kept-v1-sha256-" + "0" * 64 + "/../../precious",
        "kept-kept-v1-sha256-" + "0" * 64, "kept-v1-sha256-" + "0" * 64 + "\n",
    ],
)  # fmt: skip
def test_whatever_is_asked_for_only_the_name_of_an_entry_is_looked_at(name: str, root: Path) -> None:
    make(root)
    refused(root, name, "not the name of a cache entry")


def test_an_entry_that_is_not_there_is_refused(root: Path) -> None:
    refused(root, entry_name("pypi://x==1/y", None), "not there")


def test_a_link_in_place_of_an_entry_is_not_followed(root: Path) -> None:
    entry = make(root)
    entry.rename(root.parent / "elsewhere")
    entry.symlink_to(root.parent / "elsewhere")
    refused(root, entry.name, "link")


@pytest.mark.parametrize("level", ["files", "files/a.gguf", "manifest.json", "last_wanted"])
def test_a_link_at_any_level_keeps_the_entry(level: str, root: Path) -> None:
    entry = make(root)
    (entry / level).rename(root.parent / "moved")
    (entry / level).symlink_to(root.parent / "moved")
    refused(root, entry.name, "did not fetch|plain file|symbolic link|Not a directory")


def test_a_link_to_a_folder_outside_that_holds_the_same_names_is_refused(root: Path) -> None:
    entry = make(root, files={"sub/a": b"x"})
    (entry / "files" / "sub").rename(root.parent / "precious" / "sub")
    (entry / "files" / "sub").symlink_to(root.parent / "precious" / "sub")
    refused(root, entry.name, "did not fetch|plain file")


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../precious/thesis.tex", "files/../../../precious/thesis.tex", "manifest.json", "files", "files/",
     "files//a", "./files/a", "files/./a", "", "last_wanted", "files/\0"],
)  # fmt: skip
def test_a_manifest_that_names_other_places_is_refused(path: str, root: Path) -> None:
    entry = make(root)
    told = json.loads((entry / "manifest.json").read_text())
    told["files"].append({"path": path, "size": 13, "sha256": "0" * 64})
    (entry / "manifest.json").write_text(json.dumps(told))
    refused(root, entry.name, "no file below files/")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda entry: (entry / "files" / "notes.txt").write_text("mine"), "notes.txt"),
        (lambda entry: (entry / "notes.txt").write_text("mine"), "notes.txt"),
        (lambda entry: (entry / "files" / "mine").mkdir(), "mine"),
        (lambda entry: os.mkfifo(entry / "files" / "pipe"), "pipe"),
        (lambda entry: (entry / ".manifest.json.0123abcdX").touch(), "manifest.json.0123abcdX"),
        (lambda entry: (entry / "files" / ".last_wanted.0123abcd").touch(), "last_wanted"),
        (lambda entry: (entry / "files" / "a.gguf").write_bytes(b"a file of mine"), "14 bytes"),
        (lambda entry: (entry / "files" / "a.gguf").unlink(), "not there"),
        (lambda entry: os.link(entry / "files" / "a.gguf", entry.parent.parent / "also"), "2 names"),
        (lambda entry: (entry / "pinned").write_text("{}"), "pinned"),
        (lambda entry: (entry / "manifest.json").unlink(), "nobody knows"),
        (lambda entry: (entry / "manifest.json").write_text("{"), "cannot be read"),
        (lambda entry: (entry / "last_wanted").write_text("yesterday"), "when it was wanted"),
        (lambda entry: (entry / "last_wanted").write_text("nan"), "when it was wanted"),
    ],
)  # fmt: skip
def test_what_llmgw_did_not_fetch_keeps_the_entry(change: Callable[[Path], object], match: str, root: Path) -> None:
    entry = make(root)
    change(entry)
    refused(root, entry.name, match)


def test_a_user_s_file_hard_linked_in_place_of_ours_keeps_the_entry(root: Path) -> None:
    entry = make(root)
    (entry / "files" / "a.gguf").unlink()
    (root.parent / "mine").write_bytes(b"seven b")
    os.link(root.parent / "mine", entry / "files" / "a.gguf")
    refused(root, entry.name, "hard links")


def test_another_source_s_manifest_is_refused(root: Path) -> None:
    entry = make(root)
    entry.rename(root / entry_name("pypi://else==1/x", None))
    refused(root, entry_name("pypi://else==1/x", None), "not called as")


def test_a_newer_manifest_is_left_to_a_newer_llmgw(root: Path) -> None:
    entry = make(root)
    told = json.loads((entry / "manifest.json").read_text())
    (entry / "manifest.json").write_text(json.dumps({**told, "v": 2}))
    refused(root, entry.name, "format 2")


@pytest.mark.parametrize("wanted", [NOW - 99, NOW, NOW + 10 * 86_400])
def test_what_is_too_young_or_stamped_in_the_future_stays(wanted: float, root: Path) -> None:
    entry = make(root)
    (entry / "last_wanted").write_text(f"{wanted}\n")
    refused(root, entry.name, "younger than", min_age=100)


@pytest.mark.parametrize(
    ("marker", "match"),
    [
        (None, "no weights cache"),
        ('{"cluster": "c2", "layout": 1}', "another cluster"),
        ('{"cluster": "c1", "layout": 2}', "layout 2"),
        ("{", "cannot be read"),
    ],
)
def test_a_root_that_is_not_this_cluster_s_is_refused(marker: str | None, match: str, root: Path) -> None:
    entry = make(root)
    (root / ".llmgw-cache").unlink()
    if marker is not None:
        (root / ".llmgw-cache").write_text(marker)
    refused(root, entry.name, match)


def test_the_home_directory_is_no_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = make(root)
    monkeypatch.setenv("HOME", str(root))
    refused(root, entry.name, "no place for a weights cache")


def test_a_root_that_vanished_is_refused(root: Path) -> None:
    with pytest.raises(Refusal):
        end(root.parent / "unmounted", entry_name(SOURCE, None))


def test_a_root_that_is_a_link_to_another_disk_works(root: Path) -> None:
    entry = make(root)
    (root.parent / "link").symlink_to(root)
    end(root.parent / "link", entry.name)
    assert not entry.exists()


def test_mounts_at_and_below_are_seen_and_neighbours_are_not(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / /c/e rw - ext4 x rw\n3 1 0:3 / /c/e/f\\040g rw - ext4 x rw\n"
        "4 1 0:4 / /c/ee rw - ext4 x rw\n"
    )
    assert mounted_at_or_below("/c/e", table) == ["/c/e", "/c/e/f g"]
    assert mounted_at_or_below("/c/e/f g", table) == ["/c/e/f g"]
    assert mounted_at_or_below("/c/x", table) == []


@pytest.mark.parametrize("place", ["", "files", "files/sub"])
def test_a_bind_mount_at_any_level_keeps_the_entry(place: str, root: Path) -> None:
    entry = make(root, files={"sub/a": b"x"})
    outside = root.parent / "precious"
    (outside / "sub").mkdir()
    (outside / "sub" / "a").write_bytes(b"y")
    (outside / "a").write_bytes(b"z")
    if os.geteuid() != 0 or subprocess.run(["mount", "--bind", outside, entry / place], capture_output=True).returncode:
        pytest.skip("bind mounts are not permitted here")
    try:
        refused(root, entry.name, "mounted")
    finally:
        subprocess.run(["umount", entry / place], check=True)


@pytest.mark.parametrize("kind", ["a file over a file", "another file system"])
def test_other_mounts_keep_the_entry_too(kind: str, root: Path) -> None:
    entry = make(root)
    at = entry / "files" / "a.gguf" if kind == "a file over a file" else entry / "files"
    what = ["--bind", root.parent / "precious" / "thesis.tex"] if at.is_file() else ["-t", "tmpfs", "none"]
    if os.geteuid() != 0 or subprocess.run(["mount", *what, at], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        refused(root, entry.name, "mounted")
    finally:
        subprocess.run(["umount", at], check=True)


def test_on_a_file_system_that_is_mounted_read_only_an_entry_stays_and_the_answer_says_so(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "none", disk], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        root = root_at(disk / "cache")
        entry = make(root)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        refused(root, entry.name, f"its file system is mounted read-only: {entry}")
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        end(root, entry.name)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_entry_that_a_process_has_open_or_mapped_stays(root: Path) -> None:
    entry = make(root)
    with (entry / "files" / "a.gguf").open("rb") as file:
        refused(root, entry.name, "open")
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    refused(root, entry.name, "open")
    mapped.close()
    end(root, entry.name)


def test_a_directory_that_may_not_be_written_is_refused_before_anything_is_touched(root: Path) -> None:
    entry = make(root)
    code = (
        "import os, sys\n"
        "from pathlib import Path\nfrom llmgw.weights.removal import remove, Refusal\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n    remove(Path(sys.argv[1]), sys.argv[2], cluster='c1', now=2e6, min_age=0)\n"
        "except Refusal as error:\n    print(error)\n"
    )
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    open_to_all = Path(tempfile.mkdtemp(prefix="llmgw-removal-"))
    try:
        open_to_all.chmod(0o755)
        shared = root_at(open_to_all / "cache")
        theirs = make(shared)
        before = tree(shared)
        found = subprocess.run(
            [sys.executable, "-c", code, str(shared), theirs.name], capture_output=True, text=True, check=False
        )
        if "ermission" not in found.stdout and "ermission" in found.stderr:
            pytest.skip("another user cannot read this interpreter")
        assert "no permission to delete there" in found.stdout, found.stderr
        assert tree(shared) == before
    finally:
        subprocess.run(["rm", "-r", str(open_to_all)], check=True)
    assert entry.exists()


def test_a_folder_full_of_somebody_s_files_is_refused_at_the_first(root: Path) -> None:
    entry = make(root)
    theirs = entry / "files" / "theirs"
    theirs.mkdir()
    for number in range(5_000):
        (theirs / f"{number}").touch()
    with pytest.raises(Refusal, match="theirs") as refused:
        end(root, entry.name)
    assert str(refused.value).count("theirs") < 10
    assert len(os.listdir(theirs)) == 5_000


def test_a_snapshot_of_many_files_goes_too(root: Path) -> None:
    entry = make(root, files={f"part/{number % 7}/{number}": b"x" for number in range(1_000)})
    end(root, entry.name)
    assert os.listdir(root) == [".llmgw-cache"]


def test_nothing_is_deleted_without_a_word_in_the_audit_log(root: Path) -> None:
    entry = make(root)
    before = tree(root)

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(Refusal, match="No space left"):
        remove(root, entry.name, cluster="c1", now=NOW, min_age=Seconds(0), about_to=full)
    assert tree(root) == before


def test_an_entry_exchanged_at_the_last_moment_is_put_back(root: Path) -> None:
    entry = make(root)

    def exchange(_: object) -> None:
        entry.rename(root.parent / "away")
        (root.parent / "precious").rename(entry)

    with pytest.raises(Refusal):
        remove(root, entry.name, cluster="c1", now=NOW, min_age=Seconds(0), about_to=exchange)
    assert (entry / "thesis.tex").read_text() == "years of work"
    assert sorted(os.listdir(root)) == [".llmgw-cache", entry.name]


def test_a_file_that_appears_at_the_last_moment_keeps_the_entry(root: Path) -> None:
    entry = make(root)
    with pytest.raises(Refusal, match="notes"):
        remove(
            root, entry.name, cluster="c1", now=NOW, min_age=Seconds(0),
            about_to=lambda _: (entry / "files" / "notes").write_text("mine"),  # type: ignore[arg-type,return-value]
        )  # fmt: skip
    assert (entry / "files" / "notes").read_text() == "mine"
    assert (entry / "files" / "a.gguf").exists()


class Swapping(Inside):
    """A directory in which somebody exchanges a file just before it is moved away."""

    def enter_below(self, path: str) -> "Swapping":
        with super().enter_below(path) as found:
            return Swapping(os.dup(found._fd))

    def rename(self, name: str, into: Inside, to: str) -> None:
        here = f"/proc/self/fd/{self._fd}"
        os.rename(f"{here}/{name}", f"{here}/moved-by-somebody")
        Path(here, name).write_text("a user's own")
        super().rename(name, into, to)


def test_a_file_exchanged_in_the_last_moment_outlives_also_who_finishes_after_a_crash(root: Path) -> None:
    entry = make(root)
    private = root / f"removing-{entry.name}-00000000"
    private.mkdir()
    entry.rename(private / "entry")
    with hold(root) as top, top.enter(private.name) as room, room.enter("entry") as inside:
        swapping = Swapping(os.dup(inside._fd))
        with swapping, pytest.raises(Refusal, match="exchanged for another file, which is kept as"):
            end_file(room, swapping, "0", "files/a.gguf")
    (private / "entry" / "files" / "moved-by-somebody").unlink()
    finish(root, cluster="c1", now=Wall(time.time() + 3600))
    assert [path.read_text() for path in private.glob("not-ours-*")] == ["a user's own"]


def test_two_processes_that_remove_the_same_at_once_do_it_once_at_most(root: Path) -> None:
    entries = [make(root, f"pypi://models==1.0/{number}.gguf").name for number in range(20)]
    code = (
        "import sys\nfrom pathlib import Path\nfrom llmgw.weights.removal import Refusal, remove\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for entry in sys.argv[2:]:\n"
        "    try:\n        remove(Path(sys.argv[1]), entry, cluster='c1', now=2e6, min_age=0); print(entry)\n"
        "    except Refusal: pass\n"
    )
    argv = [sys.executable, "-c", code, str(root), *entries]
    children = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    told = [child.communicate(timeout=60) for child in children]
    assert [err for _, err in told] == ["", ""]
    removed = [line for out, _ in told for line in out.split()]
    assert removed
    assert len(set(removed)) == len(removed)
    # Each may find a file open in the other, which looks at it: a refusal harms nobody.
    left = sorted(set(os.listdir(root)) - {".llmgw-cache"})
    assert left == sorted(set(entries) - set(removed))
    for name in left:
        end(root, name)
    assert os.listdir(root) == [".llmgw-cache"]


def test_an_adversary_who_exchanges_paths_all_the_while_loses_nothing(root: Path) -> None:
    """Another thread swaps the entry, its folder and its file for links to what must not go."""
    victim, over = root.parent / "precious", threading.Event()
    (victim / "a.gguf").write_bytes(b"weights")

    def swap() -> None:
        dice = random.Random(7)
        while not over.is_set():
            path = root / entry_name(SOURCE, None) / dice.choice(["", "files", "files/a.gguf"])
            aside = root.parent / "aside"
            try:
                os.rename(path, aside)
                os.symlink(victim if path.name != "a.gguf" else victim / "a.gguf", path)
                os.unlink(path)
                os.rename(aside, path)
            except OSError:
                subprocess.run(["rm", "-rf", str(aside)], check=True)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(150):
            try:
                entry = make(root)
                end(root, entry.name)
            except (Refusal, OSError):
                pass
            assert (victim / "thesis.tex").read_text() == "years of work"
            assert (victim / "a.gguf").read_bytes() == b"weights"
    finally:
        over.set()
        thread.join()


def test_killed_at_any_point_it_is_finished_by_the_next_and_the_rest_is_whole(root: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom llmgw.weights.removal import remove\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "remove(Path(sys.argv[1]), sys.argv[2], cluster='c1', now=2e6, min_age=0)\n"
    )
    dice = random.Random(3)
    other = make(root, "pypi://models==1.0/other.gguf")
    kept = tree(other)
    for _ in range(6):
        entry = make(root, files={f"{number}": b"x" for number in range(300)})
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(root), entry.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        child.stdin.write(b"\n")
        child.stdin.flush()
        time.sleep(dice.uniform(0, 0.03))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        finish(root, cluster="c1", now=Wall(time.time()), idle=Seconds(0))
        assert not [name for name in os.listdir(root) if name.startswith("removing-")]
        assert not entry.exists() or (len(os.listdir(entry / "files")) == 300 and (entry / "manifest.json").exists())
        assert tree(other) == kept
        subprocess.run(["rm", "-rf", str(entry)], check=True)


def test_what_another_process_is_deleting_now_is_not_finished_for_it(root: Path) -> None:
    entry = make(root)
    doomed = root / f"removing-{entry.name}-00000000"
    doomed.mkdir()
    entry.rename(doomed / "entry")
    assert finish(root, cluster="c1", now=Wall(time.time())) == ()
    assert [done.source for done in finish(root, cluster="c1", now=Wall(time.time() + 61))] == [SOURCE]
    assert not doomed.exists()


def test_what_somebody_put_where_a_killed_process_deleted_stays(root: Path) -> None:
    entry = make(root)
    doomed = root / f"removing-{entry.name}-00000000"
    doomed.mkdir()
    entry.rename(doomed / "entry")
    (doomed / "entry" / "notes").write_text("mine")
    assert finish(root, cluster="c1", now=NOW, idle=Seconds(-1e12)) == ()
    assert (doomed / "entry" / "notes").read_text() == "mine"


# -- any tree at all

_NAMES = st.sampled_from(
    ["files", "files/a.gguf", "files/b", "files/sub", "files/sub/c", "notes", "manifest.json", "last_wanted", "pinned"]
)
_KINDS = st.sampled_from(["file", "folder", "link to a folder", "link to a file", "hard link", "pipe", "nothing"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(_NAMES, _KINDS), max_size=6), st.sampled_from([0.0, 5.0]))
def test_over_hostile_trees_only_what_the_manifest_names_is_ever_unlinked(
    changes: list[tuple[str, str]], min_age: float
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        outside = top / "precious"
        (outside / "sub").mkdir(parents=True)
        for name in ("a.gguf", "b", "c", "sub/c", "manifest.json"):
            (outside / name).write_bytes(b"weights")
        root = root_at(top / "cache")
        entry = make(root, files={"a.gguf": b"weights", "sub/c": b"weights"})
        for name, kind in changes:
            _put(entry / name, kind, outside)
        before = tree(top)
        try:
            end(root, entry.name, min_age=min_age)
        except Refusal:
            assert tree(top) == before
        else:
            ours = {f"cache/{entry.name}{rest}" for rest in (
                "", "/files", "/files/sub", "/files/a.gguf", "/files/sub/c", "/manifest.json", "/last_wanted"
            )}  # fmt: skip
            assert before.keys() - tree(top).keys() <= ours
        assert {name: what for name, what in tree(top).items() if name.startswith("precious")} == {
            name: what for name, what in before.items() if name.startswith("precious")
        }


def _put(path: Path, kind: str, outside: Path) -> None:
    if path.is_symlink() or path.exists():
        subprocess.run(["rm", "-rf", str(path)], check=True)
    if not path.parent.is_dir() or path.parent.is_symlink():
        return
    match kind:
        case "file":
            path.write_bytes(b"a user's own")
        case "folder":
            path.mkdir()
        case "link to a folder":
            path.symlink_to(outside / "sub")
        case "link to a file":
            path.symlink_to(outside / "a.gguf")
        case "hard link":
            os.link(outside / "a.gguf", path)
        case "pipe":
            os.mkfifo(path)


def test_whoever_opens_a_file_while_it_is_looked_at_is_neither_refused_nor_ends_us(root: Path) -> None:
    entry = make(root)
    code = "import sys\nprint('on', flush=True)\nwhile True:\n    open(sys.argv[1], 'rb').close()\n"
    with subprocess.Popen([sys.executable, "-c", code, entry / "files" / "a.gguf"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with hold(root) as top, top.enter(entry.name) as inside, inside.enter("files") as files:
            seen = {is_open_elsewhere(files, "a.gguf") for _ in range(3_000)}
            deadline = time.monotonic() + 30  # all those fit in a moment that the other was not scheduled in
            while False not in seen and time.monotonic() < deadline:
                seen.add(is_open_elsewhere(files, "a.gguf"))
        assert child.poll() is None
        child.kill()
    assert False in seen
