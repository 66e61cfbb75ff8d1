"""Control groups: the limits above a process, and the kernel's kills in them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgw.agent import cgroups, inventory
from llmgw.agent.cgroups import MACHINE, Counts, OomKills, oom_kills
from llmgw.units import MIB, Mono


def group(directory: Path, used: int, *, inactive: int = 0, **limits: str) -> None:
    """A version 2 group; `max="64"` in MiB."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in limits.items():
        (directory / f"memory.{name}").write_text(f"{int(text) * MIB if text.isdigit() else text}\n")
    (directory / "memory.current").write_text(f"{used * MIB}\n")
    (directory / "memory.stat").write_text(f"anon 1\ninactive_file {inactive * MIB}\n")


def events(directory: Path, kills: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom 3\noom_kill {kills}\noom_group_kill 0\n")


def test_the_least_room_among_all_groups_above_counts_wherever_it_is(tmp_path: Path) -> None:
    group(tmp_path / "a", 50, max="64")
    group(tmp_path / "a" / "b", 30, max="40")
    group(tmp_path / "a" / "b" / "c", 5, max="max")
    fact = inventory.memory(cgroups=tmp_path, membership="0::/a/b/c\n")
    assert fact.total == 40 * MIB  # the smallest limit
    assert fact.available == 10 * MIB  # the least room
    group(tmp_path / "a", 60, max="64")
    assert inventory.memory(cgroups=tmp_path, membership="0::/a/b/c\n").available == 4 * MIB


def test_a_group_that_stalls_above_its_high_mark_is_full_there(tmp_path: Path) -> None:
    group(tmp_path / "a", 10, max="64", high="32")
    fact = inventory.memory(cgroups=tmp_path, membership="0::/a\n")
    assert (fact.total, fact.available) == (32 * MIB, 22 * MIB)


def test_in_a_container_whose_group_is_named_as_the_host_sees_it_the_mounts_root_counts(tmp_path: Path) -> None:
    group(tmp_path, 8, max="32")
    fact = inventory.memory(cgroups=tmp_path, membership="0::/kubepods/pod1/deadbeef\n")
    assert (fact.total, fact.available) == (32 * MIB, 24 * MIB)


def test_kills_are_read_of_a_version_2_group_a_version_1_group_or_the_machine(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "vmstat").write_text("pgfault 12\noom_kill 7\n")
    assert oom_kills("0::/\n", root=tmp_path, proc=proc) == {MACHINE: 7}
    events(tmp_path / "a" / "b", 2)
    assert oom_kills("0::/a/b\n", root=tmp_path, proc=proc) == {"/a/b": 2}
    old = tmp_path / "memory" / "x"
    old.mkdir(parents=True)
    (old / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert oom_kills("4:memory:/x\n0::/\n", root=tmp_path, proc=proc) == {"/memory/x": 5}


def watched(tmp_path: Path, member: str) -> OomKills:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(member)
    return OomKills(Counts(root=tmp_path, proc=tmp_path))


def test_a_kill_since_the_last_look_is_seen_and_one_before_it_is_not(tmp_path: Path) -> None:
    events(tmp_path / "a", 4)
    kills = watched(tmp_path, "0::/a\n")
    kills.look([7], Mono(0.0))
    assert kills.grown() is None
    events(tmp_path / "a", 5)
    assert kills.grown() == "/a"
    kills.look([7], Mono(100.0))
    kills.look([7], Mono(200.0))
    assert kills.grown() is None  # old news


def test_a_look_between_the_kernels_count_and_the_death_hides_nothing(tmp_path: Path) -> None:
    events(tmp_path / "a", 0)
    kills = watched(tmp_path, "0::/a\n")
    kills.look([7], Mono(0.0))
    kills.look([7], Mono(5.0))
    events(tmp_path / "a", 1)
    kills.look([7], Mono(10.0))  # still dying
    kills.look([7], Mono(10.5))
    assert kills.grown() == "/a"


def test_a_group_that_a_wrapper_moved_to_is_compared_with_its_own_count(tmp_path: Path) -> None:
    events(tmp_path / "a", 0)
    events(tmp_path / "b", 9)
    kills = watched(tmp_path, "0::/a\n")
    kills.look([7], Mono(0.0))
    (tmp_path / "7" / "cgroup").write_text("0::/b\n")
    kills.look([7], Mono(0.1))
    assert kills.grown() is None
    events(tmp_path / "b", 10)
    assert kills.grown() == "/b"


def test_this_machine_can_be_asked() -> None:
    for limit, used in cgroups.limits(cgroups.CGROUPS, cgroups.membership()):
        assert limit > 0
        assert used >= 0
    if sys.platform.startswith("linux"):
        assert oom_kills(cgroups.membership())


# -- host memory and disks


def test_a_foreign_process_counts_with_what_it_really_holds() -> None:
    size = 300 * MIB
    grown: list[int] = []
    while not any(0.8 * size < one < 1.2 * size for one in grown):  # others come and go on this machine too
        assert len(grown) < 60, grown
        # The first takes up pages that the kernel keeps for each processor, which count as used already.
        with holding(size):
            before = inventory.memory()
            with holding(size) as pid:
                inside = inventory.resident_of(pid)
                during = inventory.memory()
        grown.append(during.foreign - before.foreign)
        assert inside.anonymous >= size
        assert inside.peak >= size


def test_what_an_engine_holds_is_not_foreign() -> None:
    less: list[int] = []
    while not any(0.8 * MIB * 300 < one < 1.2 * MIB * 300 for one in less):
        assert len(less) < 10, less
        less.append(inventory.memory().foreign - inventory.memory(300 * MIB).foreign)


@contextmanager
def holding(size: int) -> Iterator[int]:
    script = f"b = bytearray({size}); b[::4096] = b'x' * len(b[::4096]); print('up', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hog:
        assert hog.stdout is not None
        hog.stdout.readline()
        yield hog.pid
        hog.communicate(b"\n")


def test_the_kernel_remembers_a_peak_between_two_samples() -> None:
    script = "import mmap; m = mmap.mmap(-1, 1 << 26); m.write(b'x' * len(m)); m.close(); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        seen = inventory.resident_of(child.pid)
        child.communicate(b"\n")
    assert seen.peak > 64 * MIB
    assert seen.peak > seen.total + 32 * MIB


def test_a_disk_is_told_with_its_mount_and_bind_mounts_count(tmp_path: Path) -> None:
    assert os.path.ismount(str(inventory.disk(tmp_path / "not" / "made").mount))
    table = tmp_path / "mountinfo"
    place = tmp_path / "a b"
    place.mkdir()
    text = str(place).replace(" ", "\\040")
    table.write_text(f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:1 /sub {text} rw - ext4 /dev/a rw\n")
    assert inventory.mount_of(place, table) == str(place.resolve())
    assert inventory.mount_of(tmp_path, table) == "/"
