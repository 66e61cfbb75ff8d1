"""Verdicts on plugins: when they hold, and what their cache survives."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import msgspec
import pytest
from little_plugins import AT_IMPORT, GOOD, unpack

from llmgw.engine import vetting
from llmgw.engine.child import Ended, run_child
from llmgw.engine.manager import Engines, PluginState, find_engines
from llmgw.facts import Exit
from llmgw.ids import EngineName


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "target"
    path.mkdir()
    monkeypatch.syspath_prepend(path)
    yield path
    for name in [name for name in sys.modules if name.startswith("little_") and name != "little_plugins"]:
        del sys.modules[name]


@pytest.fixture
def put(target: Path, tmp_path: Path) -> Callable[..., list[EntryPoint]]:
    """Install plugins, and give their entry points."""

    def installed(**sources: str) -> list[EntryPoint]:
        unpack(sources.items(), target, tmp_path / "wheels")
        return [point for dist in distributions(path=[str(target)]) for point in dist.entry_points]

    return installed


def states(engines: Engines) -> dict[str, str]:
    return {plugin.name: str(plugin.state) for plugin in engines.plugins}


def test_a_good_verdict_holds_until_the_plugins_files_change(
    put: Callable[..., list[EntryPoint]], target: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "plugins.json"
    trace = tmp_path / "imports"
    source = f"open({str(trace)!r}, 'a').write('x')\n{GOOD}"
    points = put(one=source)
    for _ in range(2):
        assert vetting.vet_all(points, cache=cache)[0].ok
    assert trace.read_text() == "x"
    os.utime(target / "little_one.py", (1, 1))
    assert vetting.vet_all(points, cache=cache)[0].ok
    assert trace.read_text() == "xx"
    (target / "another_dependency").mkdir()
    assert vetting.vet_all(points, cache=cache)[0].ok
    assert trace.read_text() == "xxx"


def test_a_failure_is_looked_at_again_since_its_cause_may_lie_elsewhere(
    put: Callable[..., list[EntryPoint]], tmp_path: Path
) -> None:
    cache = tmp_path / "plugins.json"
    flag = tmp_path / "fixed"
    points = put(one=f"import os\nif not os.path.exists({str(flag)!r}): raise OSError('no device')\n{GOOD}")
    assert vetting.vet_all(points, cache=cache)[0].reason == "OSError: no device"
    flag.touch()
    assert vetting.vet_all(points, cache=cache)[0].ok


def test_a_hang_is_remembered_for_a_while_and_looked_at_again_when_asked(
    put: Callable[..., list[EntryPoint]], tmp_path: Path
) -> None:
    cache = tmp_path / "plugins.json"
    points = put(one=AT_IMPORT["hangs"])

    def tried(**more: bool) -> float:
        began = time.monotonic()
        found = vetting.vet_all(points, cache=cache, timeout=1.5, **more)[0]
        assert (found.ok, found.hangs) == (False, True)
        return time.monotonic() - began

    assert tried() >= 1.5
    assert tried() < 1.5, "not tried: that takes so long at least"
    assert tried(afresh=True) >= 1.5
    stored = msgspec.json.decode(cache.read_bytes())
    for entry in stored["plugins"].values():
        entry["at"] -= vetting.HANG_KEPT + 1
    cache.write_bytes(msgspec.json.encode(stored))
    assert tried() >= 1.5


def test_a_plugin_that_broke_with_an_update_still_says_which_engines_it_brought(
    put: Callable[..., list[EntryPoint]], tmp_path: Path
) -> None:
    cache = tmp_path / "plugins.json"
    working = GOOD.replace('EngineName("@")', 'EngineName("turbo")')
    assert set(find_engines(put(acme=working), cache=cache).by_name) == {"turbo"}
    engines = find_engines(put(acme="raise OSError('no turbo')"), cache=cache)
    assert engines.lost == {"turbo": "plugin acme is broken: OSError: no turbo"}
    assert engines.rules()["turbo"].lost == engines.lost[EngineName("turbo")]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"v":2,"plugins":{}}', b'{"v":1,"plugins":{"a":{"ok":"yes"}}}']
)
def test_a_damaged_cache_is_as_none(put: Callable[..., list[EntryPoint]], tmp_path: Path, content: bytes) -> None:
    cache = tmp_path / "plugins.json"
    cache.write_bytes(content)
    assert vetting.vet_all(put(one=GOOD), cache=cache)[0].ok
    assert b"one" in cache.read_bytes()
    assert cache.stat().st_mode & 0o777 == 0o600


def test_without_a_place_for_the_cache_plugins_are_tried_each_time(
    put: Callable[..., list[EntryPoint]], tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for cache in (None, blocked / "plugins.json"):
        assert vetting.vet_all(put(one=GOOD), cache=cache)[0].ok


def test_two_who_write_the_cache_at_once_leave_a_whole_one(
    put: Callable[..., list[EntryPoint]], tmp_path: Path
) -> None:
    cache = tmp_path / "plugins.json"
    points = put(one=GOOD, two=GOOD)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: vetting.vet_all([points[n % 2]], cache=cache), range(8)))
    assert all(verdict.ok for verdicts in found for verdict in verdicts)
    assert msgspec.json.decode(cache.read_bytes())["v"] == 1
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("setting", ["two", "little-two, three", "Little_Two", "two,little.three,"])
def test_plugins_can_be_turned_off_by_their_name_or_their_distributions(
    put: Callable[..., list[EntryPoint]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    mark = tmp_path / "imported"
    monkeypatch.setenv("LLMGW_DISABLE_PLUGINS", setting)
    points = put(one=GOOD, two=f"open({str(mark)!r}, 'w')\n{GOOD}", three=GOOD)
    found = states(find_engines(points, cache=tmp_path / "plugins.json"))
    assert (found["one"], found["two"]) == ("ok", "disabled")
    assert found["three"] == ("disabled" if "three" in setting else "ok")
    assert not mark.exists()


@pytest.mark.parametrize("setting", ["", "0", "none", " "])
def test_an_empty_setting_turns_nothing_off(
    put: Callable[..., list[EntryPoint]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("LLMGW_DISABLE_PLUGINS", setting)
    assert states(find_engines(put(one=GOOD), cache=tmp_path / "plugins.json")) == {"one": "ok"}


def test_an_engine_that_comes_with_llmgw_cannot_be_replaced_by_an_installed_package(
    put: Callable[..., list[EntryPoint]], tmp_path: Path
) -> None:
    own = [point for point in _llmgws_own() if point.name == "command"]
    thief = put(aaa=GOOD.replace('EngineName("@")', 'EngineName("command")'))
    engines = find_engines([*thief, *own], cache=tmp_path / "plugins.json")
    assert type(engines.by_name[EngineName("command")]).__module__ == "llmgw_command.engine"
    assert states(engines) == {"command": PluginState.OK, "aaa": PluginState.CLASH}


def test_two_distributions_may_use_one_plugin_name(
    put: Callable[..., list[EntryPoint]], target: Path, tmp_path: Path
) -> None:
    put(one=GOOD, two=GOOD.replace('EngineName("@")', 'EngineName("two")'))
    (target / "little_two-1.0.dist-info" / "entry_points.txt").write_text("[llmgw]\none = little_two\n")
    points = [point for dist in distributions(path=[str(target)]) for point in dist.entry_points]
    engines = find_engines(points, cache=tmp_path / "plugins.json")
    assert states(engines) == {"one": "ok", "one of little-two": "ok"}
    assert set(engines.by_name) == {"one", "two"}


def _llmgws_own() -> list[EntryPoint]:
    return [point for dist in distributions(name="llmgw") for point in dist.entry_points if point.group == "llmgw"]


# -- the child process itself


@pytest.fixture
def child(target: Path) -> Callable[..., Ended]:
    def run(code: str, *, timeout: float = 10) -> Ended:
        body = "\n".join(f"    {line}" for line in code.splitlines())
        (target / "childish.py").write_text(f"import os, subprocess, sys, time\ndef main(request, fd):\n{body}\n")
        return run_child("childish", {"name": "x"}, timeout=timeout)

    return run


def test_a_flood_of_output_is_taken_in_and_only_its_end_kept(child: Callable[..., Ended]) -> None:
    ended = child("for _ in range(200000): print('x' * 100)\nprint('the end')\nos.write(fd, b'{\"ok\": 1}\\n')")
    assert ended.exit == Exit(code=0)
    assert ended.said.endswith("the end\n")
    assert len(ended.said) <= 8192
    assert ended.reports == ({"ok": 1},)


def test_noise_in_the_report_is_passed_over(child: Callable[..., Ended]) -> None:
    ended = child('os.write(fd, b\'noise\\n[1]\\n\\xff\\n{"ok": 1}\\n{"cut\')')
    assert ended.reports == ({"ok": 1},)


def test_what_the_child_leaves_running_is_not_waited_for_and_is_ended(
    child: Callable[..., Ended], tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    began = time.monotonic()
    ended = child(
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(left.pid))\nos._exit(4)",
        timeout=50,
    )
    assert ended.exit == Exit(code=4)
    assert time.monotonic() - began < 45
    stat = Path(f"/proc/{pid_file.read_text()}/stat")
    deadline = time.monotonic() + 30
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_closed_pipes_do_not_make_it_spin_or_wait_beyond_its_end(child: Callable[..., Ended]) -> None:
    ended = child("os.close(1)\nos.close(2)\nos.close(fd)\ntime.sleep(0.5)\nos._exit(0)")
    assert ended.exit == Exit(code=0)
    assert child("time.sleep(60)", timeout=1).exit is None


def test_finding_plugins_imports_none_of_a_third_party_in_the_parent_that_did_not_come_through(
    put: Callable[..., list[EntryPoint]], tmp_path: Path
) -> None:
    find_engines(put(raises=AT_IMPORT["raises"], osexit=AT_IMPORT["osexit"]), cache=tmp_path / "plugins.json")
    assert not {"little_raises", "little_osexit"} & set(sys.modules)


def test_a_plugin_that_is_imported_says_nothing_on_stdout(put: Callable[..., list[EntryPoint]], tmp_path: Path) -> None:
    put(noisy="import os\nprint('noise')\nos.system('echo more')\n" + GOOD)
    code = "from llmgw.engine.manager import find_engines; print(sorted(find_engines().by_name))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "target"), "XDG_CACHE_HOME": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert ran.stdout.count("\n") == 1, ran.stdout
    assert "'noisy'" in ran.stdout
