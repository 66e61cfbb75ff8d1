"""Starting a replica's process and judging its end. Blocking: called in worker threads."""

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from llmgw.agent import logs, process, records, scopes, spawn
from llmgw.agent.around import Around
from llmgw.agent.records import Record
from llmgw.engine.api import KEY_VARIABLE, Engine, LaunchSpec, Slot, Verdict, engine_key
from llmgw.errors import LlmgwError, TerminalError
from llmgw.facts import DeviceFact, Exit, Failure, FailureKind
from llmgw.plan import Assignment
from llmgw.statedir import write_atomic
from llmgw.units import Bytes

_NO_PROGRAM: Final = (FileNotFoundError, PermissionError, NotADirectoryError)


def engine_of(assignment: Assignment, around: Around) -> Engine:
    """Raises TerminalError when this node has no such engine."""
    engine = around.engines.by_name.get(assignment.profile.engine)
    if engine is None:
        why = around.engines.lost.get(assignment.profile.engine, "install its plugin and restart llmgw")
        raise TerminalError(f"no engine {assignment.profile.engine!r} on {around.node}: {why}")
    return engine


def start_process(
    assignment: Assignment,
    around: Around,
    *,
    port: int,
    mark: str,
    files: Mapping[str, Path],
    keep: Callable[[Record], None],
) -> Record:
    """Start the engine; `keep` gets the record before that, and again with the process's identity.

    Raises TerminalError when it can never start like this, OSError when it might later.
    """
    state = around.state
    home = records.directory(state, assignment.replica)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    slot = Slot(
        replica=assignment.replica,
        model=assignment.model,
        node=around.node,
        host=around.host,
        port=port,
        directory=home,
        files=files,
        devices=assignment.devices,
        device_share=device_share(assignment, around.devices()),
        draft_url=assignment.draft_url,
    )
    spec = _launch_spec(engine_of(assignment, around), assignment, slot)
    env = _environment(assignment, spec, around, mark)
    stop = None if spec.stop_argv is None else tuple(spec.stop_argv)
    intent = Record(assignment=assignment, mark=mark, port=port, url=spec.url.rstrip("/"), stop_argv=stop)
    records.write(state, intent)
    keep(intent)
    argv = [*assignment.profile.wrapper, *spec.argv]
    if spec.key_file is not None:
        write_atomic(_inside(home, spec.key_file), env[KEY_VARIABLE].encode(), mode=0o600)
    if scope := around.scopes.before(assignment.replica, assignment.model):
        if not scopes.has_program(argv, env):
            raise TerminalError(f"cannot start {argv[0]}: there is no such program")
        argv = [*scope, *argv]
    try:
        pid = spawn.spawn(argv, env, home=home, log=records.log_file(state, assignment.replica))
    except _NO_PROGRAM as error:
        raise TerminalError(f"cannot start {argv[0]}: {error.strerror}") from error
    started = replace(intent, identity=process.current(pid))
    keep(started)  # before the write, which may fail: whatever runs must be known
    records.write(state, started)
    return started


def device_share(assignment: Assignment, devices: Iterable[DeviceFact]) -> float | None:
    """The part of each accelerator's memory that the placement counts, of the smallest one. None: not known."""
    totals = {device.uuid: device.total for device in devices}
    smallest = min((totals.get(uuid, Bytes(0)) for uuid in assignment.devices), default=Bytes(0))
    if smallest <= 0 or assignment.footprint.device <= 0:
        return None
    return assignment.footprint.device / len(assignment.devices) / smallest


def _inside(home: Path, file: Path) -> Path:
    if file.parent != home:
        raise TerminalError(f"the engine wants its key in {file}, which is not in its own directory: update its plugin")
    return file


def _launch_spec(engine: Engine, assignment: Assignment, slot: Slot) -> LaunchSpec:
    try:
        return engine.launch(assignment.profile, slot, assignment.level)
    except LlmgwError as error:
        raise TerminalError(str(error)) from error
    except Exception as error:
        raise TerminalError(f"engine {engine.name} failed at launch: {type(error).__name__}: {error}") from error


def _environment(assignment: Assignment, spec: LaunchSpec, around: Around, mark: str) -> dict[str, str]:
    profile = spawn.resolve(assignment.profile.env, os.environ)
    key = engine_key(around.secret, assignment.replica)
    env = spawn.environment(os.environ, spec.env, profile, key=key, mark=mark)
    return env | dict.fromkeys(spec.key_variables, key)


def stop_environment(record: Record, secret: bytes) -> dict[str, str]:
    """For the stop command: as the engine's, without what can no longer be resolved. No mark: it is no engine."""
    try:
        profile = spawn.resolve(record.assignment.profile.env, os.environ)
    except spawn.MissingSecret:
        profile = {}
    env = spawn.environment(os.environ, {}, profile, key=engine_key(secret, record.assignment.replica), mark="")
    env.pop(process.MARK_VARIABLE)
    return env


class Judged(NamedTuple):
    """What an unrequested end means; the rest as in engine.api.Verdict."""

    failure: Failure
    port_clash: bool = False
    damaged: bool = False

    def retried(self) -> Failure:
        """Where nobody can look at files now: the next launch will tell whether they are damaged."""
        return replace(self.failure, kind=FailureKind.CRASH) if self.damaged else self.failure


def judge(
    record: Record, around: Around, exit: Exit, *, left: tuple[int, ...] = (), killed_in: str | None = None
) -> Judged:
    """What an unrequested end means.

    `left`: pids of what a wrapper that exited 0 left running. `killed_in`: the control group in which the kernel
    killed a process for want of memory just before.
    """
    log = records.log_file(around.state, record.assignment.replica)
    itself = killed_in is not None and (exit.signal == signal.SIGKILL or exit.code == 137 or exit == Exit())
    text = logs.of_last_start(logs.tail(log))
    known = text  # what the engine's classifier gets: the kernel's part of the story too
    if killed_in is not None:
        known += logs.add(log, f"the kernel's oom_kill ended {'it' if itself else 'a process'} (cgroup {killed_in})")
    if left:
        pids = ", ".join(map(str, left))
        verdict = Verdict(
            kind=FailureKind.DETACHED,
            reason=f"it exited and left its engine running elsewhere (pid {pids}): have it stay in the foreground",
        )
    elif around.scopes.command and scopes.FAILED in text:
        said = next(line for line in text.splitlines() if scopes.FAILED in line)
        verdict = Verdict(kind=FailureKind.NODE, reason=f"systemd gave it no scope: {said}")
    else:
        verdict = _classify(record, around, exit, known)
        if itself and verdict.kind is not FailureKind.OOM:  # its own log cannot know
            verdict = Verdict(kind=FailureKind.OOM, reason=f"out of memory: the kernel killed it (cgroup {killed_in})")
    told = failure(record, around, verdict.kind, verdict.reason, text)
    return Judged(told, verdict.port_clash, verdict.damaged)


def _classify(record: Record, around: Around, exit: Exit, text: str) -> Verdict:
    try:
        return engine_of(record.assignment, around).classify(exit, text)
    except Exception:  # noqa: BLE001 - the rule: no classifier, or one that raises, means a crash
        return Verdict(kind=FailureKind.CRASH, reason=f"ended with {exit}")


def ailment(record: Record, around: Around) -> FailureKind:
    """What an engine suffers from that runs and does not do its work: want of memory where its log says so."""
    text = logs.of_last_start(logs.tail(records.log_file(around.state, record.assignment.replica)))
    kind = _classify(record, around, Exit(), text).kind
    return kind if kind is FailureKind.OOM else FailureKind.CRASH


def lost(record: Record, around: Around) -> Failure:
    """Why a replica is dead that ended while nobody watched."""
    if record.identity is not None and not process.same_world(record.identity):
        text = logs.tail(records.log_file(around.state, record.assignment.replica))
        return failure(
            record, around, FailureKind.NODE, "the machine or its container was restarted", text, quote=False
        )
    found = judge(record, around, Exit()).retried()
    return replace(found, reason=f"it ended while llmgw was away: {found.reason}")


def failure(
    record: Record, around: Around, kind: FailureKind, reason: str, text: str, *, quote: bool = True
) -> Failure:
    """With the log's last words and where to read the rest."""
    said = logs.last_line(text) if quote else ""
    quoted = f": {said}" if said and said not in reason else ""
    log = logs.kept_log(around.state, record.assignment.model, record.assignment.replica)
    return Failure(kind=kind, reason=f"{reason}{quoted} (log: {log})", at=around.clock.now().wall)
