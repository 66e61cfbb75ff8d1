"""Engines in scopes of systemd's: with a stand-in for systemd-run, and with systemd itself where it runs."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from agent_world import Node, alive, eventually, pids_in

from llmgw.agent import cgroups, scopes
from llmgw.agent.scopes import FAILED, Scopes
from llmgw.facts import FailureKind, Phase
from llmgw.ids import ModelName, ReplicaId

STAND_IN = """\
#!/bin/sh
echo "$@" >> {asked}
while [ "$1" != "--" ]; do shift; done
shift
exec "$@"
"""


def systemd_run(tmp_path: Path, script: str = STAND_IN) -> Path:
    """A program of that name; what it is asked for is in `asked`."""
    program = tmp_path / "bin" / "systemd-run"
    program.parent.mkdir(exist_ok=True)
    program.write_text(script.format(asked=shlex.quote(str(tmp_path / "asked"))))
    program.chmod(0o755)
    return program


def look(tmp_path: Path, *, root: bool = True, limited: bool = False, booted: Path | None = None) -> Scopes:
    return scopes.look(
        booted=tmp_path if booted is None else booted,
        root=root,
        limited=lambda: limited,
        path=str(tmp_path / "bin"),
    )


def test_scopes_are_for_where_systemd_runs_and_lets_us_and_what_is_missing_is_said(tmp_path: Path) -> None:
    assert look(tmp_path, booted=tmp_path / "none").why == "systemd does not run here"
    assert look(tmp_path).why == "there is no systemd-run"
    program = systemd_run(tmp_path)
    assert look(tmp_path, root=False).why == "only root may make them"
    assert "limited" in look(tmp_path, limited=True).why
    found = look(tmp_path)
    assert (found.command[0], found.why) == (str(program), "")
    assert "--scope" in (tmp_path / "asked").read_text()  # one was had, to see
    systemd_run(tmp_path, "#!/bin/sh\necho 'no bus' >&2\nexit 1\n")
    refused = look(tmp_path)
    assert refused.command == ()
    assert "no bus" in refused.why


def test_arguments_are_left_alone_by_those_that_would_replace_names_in_them(tmp_path: Path) -> None:
    systemd_run(tmp_path)
    assert "--expand-environment=no" in look(tmp_path).command
    old = STAND_IN.replace("shift; done", 'case "$1" in --expand*) exit 1;; esac; shift; done')
    systemd_run(tmp_path, old)
    found = look(tmp_path)
    assert "--scope" in found.command
    assert "--expand-environment=no" not in found.command


def test_no_two_starts_share_a_name_and_without_scopes_nothing_is_put_before(tmp_path: Path) -> None:
    assert Scopes().before(ReplicaId("r"), ModelName("m")) == ()
    given = Scopes(command=("systemd-run", "--scope"))
    first, second = (given.before(ReplicaId("r"), ModelName("m")) for _ in range(2))
    assert first[:2] == ("systemd-run", "--scope")
    assert first[-1] == "--"
    assert first != second


async def test_an_engine_in_a_scope_is_the_process_that_was_started(node: Node, tmp_path: Path) -> None:
    systemd_run(tmp_path)
    node.scopes = look(tmp_path)
    async with node.agent():
        assignment, fact = await node.ready()
        assert "--unit=llmgw-r1-" in (tmp_path / "asked").read_text()
        assert os.getsid(fact.pid) == fact.pid
        # The engine itself, not a parent of it.
        assert b"server.py" in Path(f"/proc/{fact.pid}/cmdline").read_bytes()
    async with node.agent():
        adopted = await node.until(Phase.READY)
        assert (adopted.pid, adopted.adopted) == (fact.pid, True)
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        assert not alive(fact.pid)
        assert pids_in(node.state.root) == []


async def test_a_program_that_is_not_there_is_still_a_terminal_failure(node: Node, tmp_path: Path) -> None:
    systemd_run(tmp_path)
    node.scopes = look(tmp_path)
    async with node.agent():
        await node.assign(node.assignment(wrapper=("/no/such/wrapper",)))
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.TERMINAL
        assert "/no/such/wrapper" in failure.reason


async def test_a_scope_that_cannot_be_had_later_is_not_the_models_fault(node: Node, tmp_path: Path) -> None:
    systemd_run(tmp_path)
    node.scopes = look(tmp_path)
    systemd_run(tmp_path, f"#!/bin/sh\necho '{FAILED}: Connection timed out' >&2\nexit 1\n")
    async with node.agent():
        await node.assign(node.assignment())
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.NODE
        assert "Connection timed out" in failure.reason


@pytest.mark.skipif(not scopes.BOOTED.is_dir(), reason="systemd does not run here")
async def test_systemd_gives_an_engine_a_control_group_of_its_own(node: Node) -> None:
    node.scopes = scopes.look()
    if not node.scopes.command:
        pytest.skip("systemd does not run here" if os.geteuid() else node.scopes.why)
    async with node.agent():
        assignment, fact = await node.ready()
        assert "llmgw-r1-" in cgroups.membership(fact.pid)
        assert cgroups.membership(fact.pid) != cgroups.membership()
        await node.stop(assignment)
        await node.until(Phase.STOPPED)

        def scope_is_gone() -> bool:
            argv = ["systemctl", "list-units", "--all", "--plain", "llmgw-r1-*"]
            return "llmgw-r1-" not in subprocess.run(argv, capture_output=True, text=True, check=True).stdout

        await eventually(scope_is_gone, "collected")
