"""The operating system's side of one replica: its process, port, record and log."""

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from llmgw.agent import launch, logs, process, records, rotation
from llmgw.agent.around import Around
from llmgw.agent.cgroups import OomKills
from llmgw.agent.ending import Ending, Target, find, run_stop_command
from llmgw.agent.listening import Stranger, stranger
from llmgw.agent.probing import Asker
from llmgw.agent.records import Record
from llmgw.agent.watch import Watch
from llmgw.engine.api import engine_key
from llmgw.errors import TerminalError
from llmgw.facts import Exit, Failure, FailureKind
from llmgw.plan import Assignment

_STUBBORN: Final = 60.0  #: seconds after which what does not end is told of
_LEFT_BEHIND: Final = 0.5  #: seconds that workers of an engine that exited 0 have to follow it


class Held:
    """At most one process at a time. Nothing here is undone when a caller is cancelled: `end` takes care of it."""

    def __init__(self, assignment: Assignment, around: Around) -> None:
        self._assignment = assignment
        self._around = around
        self._mark = secrets.token_hex(16)
        self._port: int | None = None
        self._starting: asyncio.Future[Record] | None = None
        self._watch: Watch | None = None
        self._ending: Ending | None = None
        self._hasty = False
        self._oom_kills = OomKills(around.counts)
        self.record: Record | None = None  #: None: no process was ever started

    @cached_property
    def log(self) -> Path:
        return records.log_file(self._around.state, self._assignment.replica)

    @property
    def target(self) -> Target | None:
        """What proves a process the replica's."""
        return None if self.record is None else Target(mark=self.record.mark, leader=self.record.identity)

    @property
    def alive(self) -> bool:
        identity = None if self.record is None else self.record.identity
        return identity is not None and process.is_alive(identity)

    def asker(self) -> Asker:
        assert self.record is not None, "there is an address once there is a process"
        return Asker(self.record.url, engine_key(self._around.secret, self._assignment.replica))

    async def stranger(self) -> Stranger | None:
        """Who answers on its port in its place, where that can be told."""
        target = self.target
        assert self.record is not None
        assert target is not None
        return await asyncio.to_thread(stranger, self._around.host, self.record.port, target)

    def failure(self, kind: FailureKind, reason: str, *, quote: bool = False) -> Failure:
        """`quote`: with the log's last words."""
        if self.record is None:
            return Failure(kind=kind, reason=reason, at=self._around.clock.now().wall)
        return launch.failure(self.record, self._around, kind, reason, logs.tail(self.log), quote=quote)

    async def judge(self, exit: Exit) -> launch.Judged:
        """Why the process ended unasked."""
        assert self.record is not None
        killed_in = self._oom_kills.grown()
        left = await self._left_behind() if exit.code == 0 else ()
        return await asyncio.to_thread(launch.judge, self.record, self._around, exit, left=left, killed_in=killed_in)

    async def ailment(self) -> FailureKind:
        """What it suffers from, though it runs."""
        assert self.record is not None
        return await asyncio.to_thread(launch.ailment, self.record, self._around)

    def look_at_groups(self, pids: Collection[int | str] = ()) -> None:
        """While its processes live: note how often the kernel has killed in their control groups. Some file reads."""
        leader = self.record.identity if self.record is not None else None
        self._oom_kills.look(pids or (() if leader is None else (leader.pid,)), self._around.clock.now().mono)

    def take_over(self, record: Record) -> None:
        """What an agent before us left."""
        self.record, self._mark, self._port = record, record.mark, record.port
        self._around.ports.reserve(record.port)

    async def start(self, files: Mapping[str, Path]) -> Record:
        """Start the process, after ending what is left of one that lost its port.

        Raises TerminalError when it can never start like this, RetryableError or OSError when it might later.
        """
        if self.record is not None:
            await self._stop_service()
            await self._end_all()
            logs.begin_again(self.log)
        elif (home := self.log.parent).exists():
            raise TerminalError(f"{home} exists and cannot be read: end what it tells of, and remove it")
        self._free_port()
        self._port = self._around.ports.take(self._around.host)
        self._oom_kills.look(("self",), self._around.clock.now().mono)  # where it starts, whatever it moves to
        work = partial(
            launch.start_process,
            self._assignment,
            self._around,
            port=self._port,
            mark=self._mark,
            files=files,
            keep=self._keep,
        )
        self._starting = asyncio.get_running_loop().run_in_executor(None, work)
        # Whoever cancels us must still learn what was started: the thread goes on, and `end` waits for it.
        self._starting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._starting)

    def _keep(self, record: Record) -> None:
        self.record = record

    def observe(self, ended: Callable[[Exit], None]) -> None:
        """Have the process's end told, once."""
        assert self.record is not None
        assert self.record.identity is not None, "only a known process can be watched"
        self._watch = Watch(self.record.identity, ended)
        self._watch.start()

    def let_go(self) -> None:
        """Stop watching; the process stays as it is. Idempotent."""
        if self._watch is not None:
            self._watch.close()

    def hasten(self) -> None:
        """No grace, now or later."""
        self._hasty = True
        if self._ending is not None:
            self._ending.hasten()

    async def end(self) -> None:
        """End every process, by the engine's own stop command first; when it returns, none is left."""
        if self._starting is not None and not self._starting.done():
            await asyncio.wait([self._starting])
        if self.record is None:
            return
        await self._stop_service()
        await self._end_all()
        if self.record.identity is not None:
            process.reap(self.record.identity)

    async def _stop_service(self) -> None:
        """What ending the process does not end: a container, say, and that also when its process is gone already."""
        if self.record is not None and self.record.stop_argv is not None:
            await asyncio.to_thread(self._run_stop_command, self.record)

    def _run_stop_command(self, record: Record) -> None:
        env = launch.stop_environment(record, self._around.secret)
        timeout = self._around.grace / 5 if self._hasty else self._around.grace
        run_stop_command(record.stop_argv or (), env, home=self.log.parent, log=self.log, timeout=timeout)

    async def _end_all(self) -> None:
        clock, target = self._around.clock, self.target
        assert target is not None
        ending = self._ending = Ending(target, grace=self._around.grace)
        if self._hasty:
            ending.hasten()
        warn_at: float | None = clock.now().mono + _STUBBORN
        while (wait := await asyncio.to_thread(ending.step, clock.now().mono)) is not None:
            if warn_at is not None and clock.now().mono >= warn_at:
                pids = ", ".join(map(str, ending.left))
                self._tell("will not end", f"pid {pids} survives SIGKILL: is a disk or device it waits for stuck?")
                warn_at = None
            await clock.sleep(wait)
        self._ending = None

    def _tell(self, reason: str, message: str) -> None:
        self._around.tell(self._assignment.replica, reason, f"{self._assignment.model}: {message}")

    async def put_away(self, failure: Failure | None) -> None:
        """After the end: free the port and keep the log; of a failure also the record, until `forget`."""
        self._free_port()
        if self.record is None:
            return
        try:
            await asyncio.to_thread(self._put_away, self.record, failure)
        except OSError as error:
            self._tell("cannot tidy up", str(error))

    def _put_away(self, record: Record, failure: Failure | None) -> None:
        state, replica = self._around.state, self._assignment.replica
        with suppress(OSError):  # no log, or no room for a copy: it is kept as it is
            rotation.fold(self.log, self._around.log_size)
        logs.keep(self.log, state, self._assignment.model, replica)
        if failure is None:
            records.remove(state, replica)
        else:  # until the controller has taken note: neither run nor judged again, should the agent restart
            records.write(state, replace(record, failure=failure))

    async def forget(self) -> None:
        """Nothing of it is needed any more."""
        if self.record is not None:
            await asyncio.to_thread(records.remove, self._around.state, self._assignment.replica)

    def _free_port(self) -> None:
        if self._port is not None:
            self._around.ports.release(self._port)
            self._port = None

    async def _left_behind(self) -> tuple[int, ...]:
        """Pids that live on when the process that was started has exited; workers about to follow it do not count."""
        target, clock = self.target, self._around.clock
        assert target is not None
        until = clock.now().mono + _LEFT_BEHIND
        while True:
            found = await asyncio.to_thread(find, target)
            if not found or clock.now().mono >= until:
                return tuple(sorted(identity.pid for identity in found))
            await clock.sleep(0.05)
