"""Plugins that misbehave in every way hurt nobody but themselves. All are really installed, and llmgw is a process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Daemon, eventually, serving
from jsonschema import Draft202012Validator
from little_plugins import AT_IMPORT, AT_RUN_TIME, WORKING, environment, install, llmgw

SCHEMAS = Path(__file__).parents[2] / "schemas" / "output"

WHY = {
    "raises": "RuntimeError: no luck today",
    "sysexit": "SystemExit: 3",
    "osexit": "it ended its process (exit code 7) while being imported",
    "hangs": "it did not return within 10 s while being imported",
    "segfaults": "it ended its process (signal 11) while being imported",
    "interrupts": "KeyboardInterrupt",
    "misspelt": "unknown hook 'llmgw_engine'",
    "unmarked": "mark a function llmgw_engines with @llmgw.engine.hookimpl",
    "hookraises": "LookupError: in the hook",
    "hookexits": "SystemExit",
    "hooknone": "returned None: return a sequence of Engine objects",
    "hooktext": "returned str 'engines'",
    "aclass": "return an object, Base()",
    "notengine": "engines derive from llmgw.engine.Engine",
    "abstract": "TypeError: Can't instantiate abstract class Base",
    "constructor": "OSError: no device",
    "newapi": "Base wants plugin API 99, this llmgw has 1: update llmgw",
    "oldapi": "Base wants plugin API 0, this llmgw has 1: update the plugin",
    "badname": "Base.name is 'Not A Name'",
    "badschema": "Base.options_schema is no JSON Schema: $.type",
    "badpattern": "$.properties.x.pattern: '(' is not a 'regex'",
    "farschema": "refers to 'https://example.org/schema.json'",
    "badroles": "Base.roles is list",
    "twice": "it brings the engine 'twice' twice",
    "thread": "which would keep llmgw from ending",
    "missing": "ModuleNotFoundError: No module named 'a_dependency_that_is_not_installed'",
    "syntax": "SyntaxError",
}

OTHERS = ",".join(sorted({*AT_IMPORT} - {"raises"}))
"""To turn off: what is broken is tried at every start, and many take long."""

OTHER_FINE = WORKING["fine"]
"""Installed as `zz-clash`: brings the engine `fine` once more, and one of its own."""


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Where every little plugin is installed, and a cache directory that all share: one hang is waited for once."""
    root = tmp_path_factory.mktemp("zoo")
    clash = OTHER_FINE.replace('EngineName("@")', 'EngineName("fine")').replace(
        "return [Base()]", 'return [Base(), type("Own", (Base,), {"name": "own"})()]'
    )
    sources = {**AT_IMPORT, **AT_RUN_TIME, **WORKING, "zclash": clash, "raises2": AT_IMPORT["raises"]}
    return install(sources.items(), root / "target", root / "wheels"), root / "cache"


def verdict_of(plugin: str, cache: Path) -> dict[str, Any] | None:
    """As it is remembered, with the time at which it was found. None: it was never tried."""
    file = cache / "llmgw" / "plugins.json"
    known = json.loads(file.read_text())["plugins"] if file.exists() else {}
    found = [verdict for name, verdict in known.items() if f"little_{plugin}" in name]
    return found[0] if found else None


@pytest.fixture(scope="module")
def listed(zoo: tuple[Path, Path]) -> dict[str, dict[str, Any]]:
    ran = llmgw("plugins", "list", "--json", env=environment(*zoo))
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    Draft202012Validator(json.loads((SCHEMAS / "plugins.v1.schema.json").read_text())).validate(answer)
    return {row["name"]: row for row in answer["plugins"]}


@pytest.mark.parametrize("name", AT_IMPORT)
def test_a_plugin_that_cannot_be_loaded_is_reported_with_its_reason_and_traceback(
    listed: dict[str, dict[str, Any]], name: str
) -> None:
    row = listed[name]
    assert row["state"] == "broken"
    assert WHY[name] in row["reason"]
    assert "\n" not in row["reason"]
    if name not in ("osexit", "thread"):  # those leave no trace
        assert f"little_{name}.py" in row["failure"] or "llmgw/engine/loading" in row["failure"]
    if name in ("hangs", "segfaults"):
        assert f'little_{name}.py", line 2' in row["failure"], "it tells where"


def test_every_other_plugin_works(listed: dict[str, dict[str, Any]]) -> None:
    for name in ("cpu", "command", *WORKING, *AT_RUN_TIME):
        assert (listed[name]["state"], listed[name]["engines"], listed[name]["api_version"]) == ("ok", [name], 1)
    assert (listed["fine"]["distribution"], listed["fine"]["version"], listed["fine"]["own"]) == (
        "little-fine", "1.0", False,
    )  # fmt: skip
    assert listed["cpu"]["own"]


def test_the_second_plugin_with_an_engine_of_the_same_name_keeps_its_others(listed: dict[str, dict[str, Any]]) -> None:
    row = listed["zclash"]
    assert (row["state"], row["engines"]) == ("clash", ["own"])
    assert "engine 'fine' is left out: the plugin 'fine'" in row["reason"]


def test_what_a_broken_plugin_brings_is_told_where_it_can_be_told(listed: dict[str, dict[str, Any]]) -> None:
    assert listed["newapi"]["engines"] == ["newapi"]
    assert listed["raises"]["engines"] == []


@pytest.mark.usefixtures("listed")
def test_verdicts_are_remembered_so_that_a_command_does_not_wait_for_a_hang_again(
    zoo: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "cluster.yaml").write_text("apiVersion: llmgw/v1\nkind: Cluster\nname: home\n")
    others = ",".join(sorted({*AT_IMPORT} - {"hangs", "raises"}))
    before = verdict_of("hangs", zoo[1])
    ran = llmgw("validate", tmp_path, "--json", env=environment(*zoo, LLMGW_DISABLE_PLUGINS=others))
    assert verdict_of("hangs", zoo[1]) == before, "it was not tried again"
    assert json.loads(ran.stdout)["valid"], "no plugin's noise stands in the answer"
    assert "llmgw: plugin raises: RuntimeError: no luck today" in ran.stderr


def test_help_is_quick_and_imports_no_plugin(zoo: tuple[Path, Path], tmp_path: Path) -> None:
    for arguments in (["--help"], ["plugins", "--help"], ["up", "--help"], ["--version"]):
        assert llmgw(*arguments, env=environment(zoo[0], tmp_path)).returncode == 0
    assert not (tmp_path / "llmgw").exists(), "not one was tried"


@pytest.mark.usefixtures("listed")
def test_list_shows_each_traceback_when_asked(zoo: tuple[Path, Path]) -> None:
    env = environment(*zoo, LLMGW_DISABLE_PLUGINS=OTHERS)
    short, long = llmgw("plugins", "list", env=env), llmgw("plugins", "list", "-v", env=env)
    assert (short.returncode, long.returncode) == (0, 0)
    assert "Traceback" not in short.stdout
    assert long.stdout.count("RuntimeError: no luck") >= 4  # two plugins, in the table and below it
    assert "little_raises.py" in long.stdout


def model(name: str) -> str:
    options = "{}" if name != "command" else "{command: [sleep, '1']}"
    return (
        f"apiVersion: llmgw/v1\nkind: Model\nname: m-{name}\n"
        f"profiles: [{{name: p, engine: {name}, options: {options}, start_timeout: 20s}}]\n"
    )


@pytest.fixture(scope="module")
def daemon(zoo: tuple[Path, Path], listed: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("daemon")
    names = (*AT_IMPORT, *AT_RUN_TIME, *WORKING)
    catalog = root / "catalog"
    catalog.mkdir()
    (catalog / "models.yaml").write_text("---\n".join(map(model, names)))
    recovery = "recovery: {backoff: 1h, backoff_cap: 1h}"
    (catalog / "cluster.yaml").write_text(f"apiVersion: llmgw/v1\nkind: Cluster\nname: home\n{recovery}\n")
    with serving(catalog, root, env=environment(*zoo)) as running:
        yield running


@pytest.fixture(scope="module")
def told(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """Each model by its engine's name, once nothing is under way."""

    def settled() -> dict[str, dict[str, Any]] | None:
        rows = {row["name"].removeprefix("m-"): row for row in daemon.seen("models")["models"]}
        waiting = [row for row in rows.values() if row["state"] == "loading" and "failed once" not in row["reason"]]
        return None if waiting or not rows else rows

    return eventually(settled, within=90, what="every model's fate") or {}


def test_a_catalog_that_names_broken_engines_is_in_force_and_the_rest_of_it_is_served(
    daemon: Daemon, told: dict[str, dict[str, Any]]
) -> None:
    status = daemon.ask("status")
    assert status["catalog"]["problems"] == []
    assert {name for name, row in told.items() if row["state"] == "ready"} == set(WORKING)
    stalled = next(row for row in status["catalog"]["conditions"] if row["type"] == "Stalled")
    assert stalled["status"]
    assert "m-raises" in stalled["message"]


@pytest.mark.parametrize("name", AT_IMPORT)
def test_a_model_whose_plugin_is_broken_waits_and_says_why(told: dict[str, dict[str, Any]], name: str) -> None:
    assert told[name]["state"] == "unschedulable"
    assert f"engine unavailable on box: plugin {name} is broken: " in told[name]["reason"]
    assert WHY[name] in told[name]["reason"]


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("fphangs", "unschedulable", "its fingerprint did not return within 10 s"),
        ("fpraises", "unschedulable", "its fingerprint failed: OSError: no driver"),
        ("fpnonsense", "unschedulable", "its fingerprint failed: TypeError: it returned {}"),
        ("fppath", "unschedulable", "Encoding objects of type PosixPath is unsupported"),
        ("footfraction", "unschedulable", "size unknown"),
        ("footraises", "unschedulable", "size unknown"),
        ("footnonsense", "unschedulable", "size unknown"),
        ("launchraises", "failed", "engine launchraises failed at launch: ValueError: not today"),
        ("launchnonsense", "failed", "it returned None: a LaunchSpec was expected"),
        ("classifyraises", "loading", "ended with exit code 9"),
        ("proberaises", "failed", "what answer?"),
        ("probetrue", "failed", "it returned True: a Readiness was expected"),
    ],
)
def test_an_engine_that_misbehaves_at_run_time_hurts_its_own_models_only(
    told: dict[str, dict[str, Any]], name: str, state: str, reason: str
) -> None:
    assert (told[name]["state"], reason in told[name]["reason"]) == (state, True), told[name]


def test_a_footprint_that_fails_is_logged_once(daemon: Daemon, told: object) -> None:
    log = daemon.output.read_text()
    assert log.count("engine=footraises") == 1
    assert "ValueError: no idea" in log


def test_the_catalog_warns_of_models_whose_plugin_is_broken(daemon: Daemon, told: object) -> None:
    ran = llmgw("validate", daemon.catalog, "--json", env=daemon.env)
    answer = json.loads(ran.stdout)
    assert answer["valid"]
    warned = {row["message"].split()[1] for row in answer["warnings"]}
    assert warned == set(AT_IMPORT)


def test_a_name_that_no_plugin_has_is_told_as_a_slip(zoo: tuple[Path, Path]) -> None:
    ran = llmgw("plugins", "list", env=environment(zoo[0], zoo[1], LLMGW_DISABLE_PLUGINS=f"{OTHERS},fien"))
    assert "event=no_such_plugin" in ran.stderr
    assert "name=fien" in ran.stderr
    assert "name=hangs" not in ran.stderr


def test_plugins_that_are_turned_off_are_not_imported_and_their_models_wait(
    zoo: tuple[Path, Path], tmp_path: Path
) -> None:
    catalog = tmp_path / "catalog"
    catalog.mkdir()
    (catalog / "models.yaml").write_text(f"{model('fine')}---\n{model('hangs')}")
    for setting in ("1", "all"):
        env = environment(zoo[0], tmp_path / f"cache-{setting}", LLMGW_DISABLE_PLUGINS=setting)
        rows = {row["name"]: row for row in json.loads(llmgw("plugins", "list", "--json", env=env).stdout)["plugins"]}
        assert verdict_of("hangs", tmp_path / f"cache-{setting}") is None, "it was not tried"
        assert {name for name, row in rows.items() if row["state"] == "disabled"} == set(rows) - {
            name for name, row in rows.items() if row["own"]
        }
        assert rows["cpu"]["state"] == "ok"
        checked = json.loads(llmgw("validate", catalog, "--json", env=env).stdout)
        assert checked["valid"]
        assert (
            "plugin fine is not loaded: it is turned off by LLMGW_DISABLE_PLUGINS" in checked["warnings"][0]["message"]
        )
