"""Commands that ask a running daemon, over a real port."""

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import pytest
from jsonschema import Draft202012Validator

from llmgw.admin.schemas import file_name
from llmgw.admin.shapes import ModelRow
from llmgw.cli.rows import model_reason
from llmgw.facts import Event, Level, Progress
from llmgw.ids import NodeName, ReplicaId
from llmgw.plan import ModelState
from llmgw.store import keys
from llmgw.units import MIB, Bytes, Wall

SCHEMAS = Path(__file__).parents[2] / "schemas" / "output"


def parsed(schema: str, out: str) -> Any:
    """The one JSON object on stdout, as its schema has it."""
    value = json.loads(out)
    Draft202012Validator(json.loads((SCHEMAS / file_name(schema)).read_text())).validate(value)
    return value


@pytest.fixture
def ask(cli: Any, daemon: Any) -> Any:
    return lambda *args: cli(*args, "--state", daemon.state)


@pytest.mark.parametrize("command", ["status", "models", "replicas", "nodes", "events", "collect"])
@pytest.mark.parametrize("flag", [["--json"], ["-o", "json"], ["--output", "json"]])
def test_json_is_one_object_as_its_schema_has_it(ask: Any, command: str, flag: list[str]) -> None:
    ran = ask(command, *flag)
    assert (ran.code, ran.err) == (0, "")
    assert parsed(command, ran.out)["version"] == 1


def test_status_shows_the_catalog_every_model_and_node(ask: Any) -> None:
    ran = ask("status")
    assert ran.code == 0
    assert "cluster      home" in ran.out
    assert "catalog      /srv/catalog" in ran.out
    assert "applied      aaaaaaaaaaaa" in ran.out
    assert "attempted" not in ran.out
    assert "qwen   ready    cpu" in ran.out
    assert "smol   loading" in ran.out
    assert "gpu-1" in ran.out
    assert "cannot be used" not in ran.out, "an engine that no model uses is no news"
    assert "\x1b" not in ran.out


def test_settings_for_a_node_that_nobody_is_are_told(ask: Any, daemon: Any) -> None:
    assert "settings for" not in ask("status").out
    daemon.do(daemon.seeds.settings(nodes=(NodeName("gpu-9"), seed.NODE)))
    assert "the catalog has settings for gpu-9, but only gpu-1 reported" in ask("status").out


def test_nodes_are_shown_with_the_engines_that_they_lack(ask: Any) -> None:
    ran = ask("nodes")
    assert ran.code == 0
    assert "gpu-1" in ran.out
    assert "vllm" in ran.out
    assert "not installed: pip install vllm" in ran.out


def test_status_of_an_invalid_revision_shows_it_and_each_problem(ask: Any, daemon: Any) -> None:
    daemon.do(daemon.seeds.status(applied=seed.GOOD, attempted=seed.BAD, problems=(seed.PROBLEM,)))
    ran = ask("status")
    assert ran.code == 0
    assert "attempted    bbbbbbbbbbbb is invalid, so the applied one stays in force" in ran.out
    assert "  models.yaml:3:5: $.profiles[0].engine: no engine 'vlm'; did you mean 'vllm'?" in ran.out


def test_status_says_when_only_polling_finds_changes(ask: Any, daemon: Any) -> None:
    daemon.do(daemon.seeds.status(applied=seed.GOOD, attempted=seed.GOOD, watcher="degraded: no inotify watches left"))
    assert "watcher      degraded: no inotify watches left" in ask("status").out


def test_models_and_replicas_are_tables(ask: Any) -> None:
    models, replicas = ask("models").out.splitlines(), ask("replicas").out.splitlines()
    assert models[0].split() == ["MODEL", "STATE", "ENGINE", "SINCE", "ALIASES", "REASON"]
    assert models[1].split()[:3] == ["qwen", "ready", "cpu"]
    assert replicas[1].split()[:6] == ["r1", "qwen", "cpu", "gpu-1", "ready", "4242"]
    assert "fetching 10.0 MiB of 100.0 MiB (10 %)" in replicas[2]


@pytest.mark.parametrize(
    ("labels", "found"),
    [(["team"], ["qwen"]), (["team=search"], ["qwen"]), (["team=other"], []), (["team", "use"], [])],
)
def test_models_are_filtered_by_their_labels(ask: Any, labels: list[str], found: list[str]) -> None:
    flags = [word for label in labels for word in ("--label", label)]
    assert [row["name"] for row in parsed("models", ask("models", "--json", *flags).out)["models"]] == found


def test_text_from_elsewhere_cannot_steer_the_terminal(ask: Any, daemon: Any) -> None:
    evil = seed.failed("r2", seed.SMOL, "died\x1b[2J\x1b]0;owned\x07\nnext line")
    daemon.do(daemon.seeds.report(evil))
    out = ask("replicas").out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert len(out.splitlines()) == 3


def test_events_are_shown(ask: Any) -> None:
    assert "model/qwen  ready   in 3.2s" in ask("events").out


@contextmanager
def _following(daemon: Any, *more: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "llmgw", "events", "-f", "--state", str(daemon.state), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def test_followed_events_are_lines_that_come_as_things_happen(daemon: Any) -> None:
    with _following(daemon) as running:
        assert running.stdout is not None
        assert running.stdout.readline().endswith("model/qwen  ready: in 3.2s\n")
        daemon.events.record(Event(at=seed.NOW, subject="catalog", reason="catalog applied", message="x"))
        assert running.stdout.readline().endswith("catalog  catalog applied: x\n")
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130


def test_followed_events_as_json_are_one_object_a_line_each_once(daemon: Any) -> None:
    with _following(daemon, "--json", "-n", "1") as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["number"] == 1
        for reason in ("first", "second"):
            daemon.events.record(Event(at=seed.NOW, subject="catalog", reason=reason, message="é"))
        assert [json.loads(running.stdout.readline())["reason"] for _ in range(2)] == ["first", "second"]
        running.terminate()


@pytest.mark.parametrize("args", [["status"], ["models", "--json"], ["events"]])
def test_stdout_that_is_closed_or_knows_ascii_only_is_no_traceback(daemon: Any, args: list[str]) -> None:
    daemon.events.record(Event(at=seed.NOW, subject="model/qwen", reason="ready", message="é"))
    command = [sys.executable, "-m", "llmgw", *args, "--state", str(daemon.state)]
    plain = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=True)
    assert plain.stdout.isascii()
    if "--json" in args:
        json.loads(plain.stdout)
    closed = subprocess.run(["/bin/sh", "-c", '"$@" >&-', "sh", *command], capture_output=True)
    assert (closed.returncode, closed.stderr) == (0, b"")


@pytest.mark.parametrize("admin", ["http://[::1", "127.0.0.1:99999", "ftp://x", "::"])
def test_an_address_that_is_none_is_wrong_usage(cli: Any, monkeypatch: pytest.MonkeyPatch, admin: str) -> None:
    monkeypatch.setenv("LLMGW_TOKEN", "t")
    ran = cli("status", "--admin", admin)
    assert ran.code == 64
    assert "write an address such as" in ran.err


def test_a_token_that_can_be_none_is_told_before_it_is_sent(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_TOKEN", "é")
    assert "LLMGW_TOKEN holds characters" in cli("status", "--admin", "127.0.0.1:1").err


def test_a_command_to_paste_is_quoted_for_the_shell(cli: Any, tmp_path: Path) -> None:
    assert f"--state '{tmp_path}/a b'`" in cli("status", "--state", tmp_path / "a b").err


def test_a_stopped_model_announces_no_next_try() -> None:
    row = ModelRow(
        name="a", aliases=(), description="", priority=0, pinned=False, state="stopped", reason="stopped",
        wanted=0, engine="cpu", profile=None, replica=None, since=None, attempts=2, retry_at=99.0, progress=None,
        revision=None,
    )  # fmt: skip
    assert model_reason(row, 0.0) == "stopped"


def test_a_try_that_is_due_already_is_not_told_as_the_next_one() -> None:
    due = 4.0
    row = ModelRow(
        name="a", aliases=(), description="", priority=0, pinned=False, state="unschedulable", reason="disk",
        wanted=1, engine="cpu", profile=None, replica=None, since=None, attempts=2, retry_at=due, progress=None,
        revision=None,
    )  # fmt: skip
    assert model_reason(row, due - 4) == "disk; next try in 4.0s"
    assert model_reason(row, due) == "disk"


def test_every_node_that_fetches_a_model_is_told_of_with_what_it_waits_for(ask: Any, daemon: Any) -> None:
    def there(node: str, id: str, **fields: Any) -> None:
        one = replace(seed.fetching(id, seed.SMOL, **fields), node=NodeName(node))
        daemon.do(daemon.seeds.report(one, node=NodeName(node)))

    there("gpu-1", "r2", done=10 * MIB, total=100 * MIB)
    progress = Progress(done=Bytes(10 * MIB), total=Bytes(100 * MIB))
    status = seed.told(seed.SMOL, ModelState.LOADING, "fetching", replica=ReplicaId("r2"), progress=progress)
    daemon.do(daemon.seeds.explain(status))
    assert "fetching 10.0 MiB of 100.0 MiB (10 %)\n" in ask("models").out, "of one replica, where it is is known"
    same = (seed.fetching(id, seed.SMOL, 10 * MIB, 100 * MIB) for id in ("r2", "r5"))
    daemon.do(daemon.seeds.report(*same))
    assert ask("models").out.count("on gpu-1") == 1, "replicas of a node share the download"
    there("gpu-1", "r2", done=10 * MIB, total=100 * MIB)
    there("gpu-2", "r3", done=0, total=None, waits_for="gpu-1 to fetch it")
    there("gpu-3", "r4", done=0, total=None, waits_for="")
    each = ("fetching 10.0 MiB of 100.0 MiB (10 %)", "waiting for gpu-1 to fetch it", "waiting for its turn")
    told = "; ".join(f"{text} on gpu-{number}" for number, text in enumerate(each, 1))
    for command in ("models", "status"):
        assert told in ask(command).out
    (row,) = [row for row in parsed("models", ask("models", "--json").out)["models"] if row["name"] == "smol"]
    assert [(one["node"], one["progress"]["waits_for"]) for one in row["fetching"]] == [
        ("gpu-1", ""), ("gpu-2", "gpu-1 to fetch it"), ("gpu-3", ""),
    ]  # fmt: skip
    replicas = parsed("replicas", ask("replicas", "--json").out)["replicas"]
    assert [one["coming"][0]["source"] for one in replicas if one["coming"]] == [seed.SMOL_SOURCE] * 3


def test_a_next_try_is_never_told_in_the_past(ask: Any, daemon: Any) -> None:
    before = time.time()
    daemon.do(daemon.seeds.explain(seed.told(seed.SMOL, ModelState.UNSCHEDULABLE, "disk", retry_at=Wall(before - 60))))
    for command in ("models", "status"):
        (row,) = [row for row in parsed(command, ask(command, "--json").out)["models"] if row["name"] == "smol"]
        assert before <= row["retry_at"] <= time.time()


def test_stop_and_start_say_what_they_did(ask: Any) -> None:
    assert "stopped: engines are ending" in ask("stop").out
    assert "already stopped" in ask("stop").out
    assert "`llmgw start` serves again" in ask("status").out
    assert "started" in ask("start").out
    assert "not stopped" in ask("start").out
    assert parsed("switch", ask("stop", "--json").out)["changed"] is True
    assert parsed("switch", ask("start", "--json").out) == {"version": 1, "changed": True, "stopped": None}


def test_collect_lists_with_a_verdict_each(ask: Any) -> None:
    ran = ask("collect")
    assert ran.code == 0
    assert seed.OLD_SOURCE in ran.out
    assert "removable: last wanted" in ran.out
    assert "93.0 MiB removable, 0 B kept" in ran.out


def test_a_list_that_is_another_than_the_agreed_one_is_refused(ask: Any) -> None:
    ran = ask("collect", "--collect", "--plan-id", "0" * 12)
    assert (ran.code, ran.out) == (1, "")
    assert "the list is another now" in ran.err
    assert "nothing was removed" in ran.err
    assert ask("collect", "--plan-id", "0" * 12).code == 64


def test_collect_narrows_by_node_model_age_and_revisions(ask: Any, daemon: Any) -> None:
    daemon.do(daemon.seeds.history(1, seed.OLD_SOURCE, digest="c" * 64))
    assert "kept: revision" in ask("collect", "--node", "gpu-1").out
    assert "removable" in ask("collect", "--keep-revisions", "0").out
    assert "too young" in ask("collect", "--keep-revisions", "0", "--older-than", "300000d").out
    assert "no node" in ask("collect", "--node", "gpu-9").err
    assert "no catalog that is remembered" in ask("collect", "--model", "nobody").err
    assert ask("collect", "--older-than", "soon").code == 64


def test_where_no_node_has_anything_that_can_go_nobody_is_asked(ask: Any, daemon: Any) -> None:
    daemon.do(daemon.seeds.history(1, seed.OLD_SOURCE, digest="c" * 64))
    ran = ask("collect", "--collect")
    assert (ran.code, ran.out) == (0, "0 asked for, 0 B removed\n")


def test_weights_are_listed_with_what_holds_them(ask: Any) -> None:
    ran = ask("weights", "list")
    assert ran.code == 0
    assert seed.SMOL_SOURCE in ran.out
    rows = parsed("weights", ask("weights", "list", "--json").out)["entries"]
    assert {(row["source"], row["wanted"]) for row in rows} == {(seed.SMOL_SOURCE, True), (seed.OLD_SOURCE, False)}
    assert "no cache entry is" in ask("weights", "pin", "nobody").err


def test_weights_that_are_being_fetched_are_listed_with_what_came_of_them(ask: Any, daemon: Any) -> None:
    daemon.do(daemon.seeds.report(seed.ready("r1", seed.QWEN), seed.fetching("r2", seed.SMOL, 10 * MIB, 100 * MIB)))
    assert "being fetched" in ask("weights", "list").out
    (row,) = parsed("weights", ask("weights", "list", "--json").out)["entries"]
    assert (row["source"], row["size"], row["state"]) == (seed.SMOL_SOURCE, 10 * MIB, "being fetched")
    daemon.do(daemon.seeds.report(seed.fetching("r2", seed.SMOL, 0, None, waits_for="")))
    assert ask("weights", "list").out == "no weights lie on any node\n"


def test_with_dry_run_and_collect_both_given_nothing_is_deleted(ask: Any) -> None:
    ran = ask("collect", "--collect", "--dry-run")
    assert ran.code == 0
    assert "nothing was deleted" in ran.out
    assert parsed("collect", ask("collect", "--dry-run", "--json").out)["dry_run"] is True


def test_dry_run_lists_only_what_may_go(ask: Any, daemon: Any) -> None:
    daemon.do(daemon.seeds.history(1, seed.OLD_SOURCE, digest="c" * 64))
    assert seed.OLD_SOURCE in ask("collect").out
    assert seed.OLD_SOURCE not in ask("collect", "--dry-run").out


def test_collect_says_why_nothing_may_go_now(ask: Any, daemon: Any) -> None:
    daemon.do(daemon.seeds.status(applied=seed.GOOD, attempted=seed.BAD, problems=(seed.PROBLEM,)))
    assert "nothing is removable now: the newest catalog is invalid" in ask("collect").out


def test_with_no_catalog_in_force_nothing_is_said_of_what_it_wants(ask: Any, daemon: Any) -> None:
    async def forget() -> None:
        for key in (keys.APPLIED, keys.HISTORY, keys.NODES):
            for entry in (await daemon.seeds.store.list(key)).entries:
                await daemon.seeds.store.delete(entry.key)

    daemon.do(forget())
    assert ask("collect").out == "nothing is removable now: no catalog is in force\n"
    assert "`llmgw status` says which catalog is in force" in ask("models").out


def test_a_daemon_elsewhere_is_asked_with_the_token_from_the_environment(
    cli: Any, daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_TOKEN", daemon.token)
    assert cli("models", "--admin", daemon.url, "--state", "/nowhere").code == 0
    assert cli("models", "--admin", daemon.url.removeprefix("http://")).code == 0
    monkeypatch.delenv("LLMGW_TOKEN")
    ran = cli("models", "--admin", daemon.url)
    assert ran.code == 64
    assert "LLMGW_TOKEN" in ran.err


def test_the_state_directory_comes_from_the_environment_too(
    cli: Any, daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_STATE", str(daemon.state))
    assert cli("models").code == 0


def test_a_proxy_in_the_environment_is_not_asked(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert ask("models").code == 0


def test_a_wrong_token_is_told_as_such(ask: Any, daemon: Any) -> None:
    daemon.write_admin(daemon.url, "another")
    ran = ask("status")
    assert ran.code == 1
    assert "does not accept the token" in ran.err


@pytest.mark.parametrize("command", ["status", "models", "replicas", "events", "stop", "start", "collect"])
def test_without_a_daemon_every_command_says_how_to_start_one(cli: Any, tmp_path: Path, command: str) -> None:
    ran = cli(command, "--state", tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert f"llmgw up CATALOG --state {tmp_path}" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_daemon_that_ended_without_a_goodbye_is_told_as_such(cli: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "admin.json").write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "token": "t", "gateway": ""}))
    ran = cli("status", "--state", tmp_path)
    assert ran.code == 1
    assert "cannot be reached" in ran.err
    assert "seems to have ended" in ran.err


def test_an_unreadable_admin_file_is_an_error_that_names_it(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "admin.json").write_text("{")
    ran = cli("status", "--state", tmp_path)
    assert ran.code == 1
    assert "admin.json" in ran.err


class _Stranger(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    """Another program's web server."""
    server = http.server.HTTPServer(("127.0.0.1", 0), _Stranger)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_program_on_the_port_is_told_as_such(cli: Any, stranger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_TOKEN", "t")
    ran = cli("models", "--admin", stranger)
    assert ran.code == 1
    assert "another program" in ran.err


def test_a_daemon_that_does_not_answer_in_time_is_told_as_such() -> None:
    from llmgw.admin.shapes import ModelsOutput
    from llmgw.cli.client import AdminClient, DaemonUnreachable

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = AdminClient(url=url, token="t", hint="it seems to have ended", timeout=0.2)
        with pytest.raises(DaemonUnreachable, match=r"did not answer within .* s: a daemon is there, and busy"):
            client.get("models", ModelsOutput)


def test_a_level_that_is_not_full_is_told_of_models_and_replicas(ask: Any, daemon: Any) -> None:
    shrunk = replace(seed.ready("r1", seed.QWEN), level=Level.MINIMAL)
    daemon.do(daemon.seeds.report(shrunk))
    daemon.do(daemon.seeds.explain(seed.told(seed.QWEN, ModelState.READY, replica=shrunk.id, level=Level.MINIMAL)))
    for command in ("models", "replicas"):
        assert "ready (minimal)" in ask(command).out
    rows = {row["name"]: row for row in parsed("models", ask("models", "--json").out)["models"]}
    assert (rows["qwen"]["level"], rows["smol"]["level"]) == ("minimal", "full")
