"""A process of a fleet says that it lives, where it can be asked, and begins anew when it is told to."""

import os
import socket
from collections.abc import Callable
from typing import Final

import structlog

from llmgw import __version__
from llmgw.app.ending import Say
from llmgw.clock import Clock
from llmgw.errors import LlmgwError, RetryableError, TerminalError
from llmgw.ids import short_hash
from llmgw.statedir import AdminAddress, StateDir
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode, encode
from llmgw.store.follow import follow
from llmgw.store.held import TTL, Writer
from llmgw.store.values import Member, RestartOrder, Role

log = structlog.get_logger("llmgw.app")

RETRY: Final = 1.0
"""Seconds between two looks for another process of the same name."""


class Membership:
    """One process's. `anew`: has it begin anew."""

    def __init__(
        self,
        store: Store,
        own: Writer,
        *,
        role: Role,
        name: str,
        state: StateDir,
        clock: Clock,
        anew: Callable[[], None],
    ) -> None:
        self._store = store
        self._own = own
        self._role = role
        self._name = name
        self._clock = clock
        self._anew = anew
        self._instance = os.urandom(8).hex()
        self._since = clock.now().wall
        self._place = short_hash(f"{socket.gethostname()}\n{state.root}")

    async def claim(self, say: Say) -> None:
        """Wait for one of the same name that died elsewhere to be known as gone.

        Raises TerminalError where it lives: two agents of one name would start everything twice.
        """
        key = keys.member(self._role, self._name)
        deadline = self._clock.now().mono + TTL + 5
        told = False
        while True:
            entry = await self._store.get(key)
            found = None if entry is None else decode(entry.value, Member, where=entry.key)
            # Our own place's: its process is dead, since we hold the state directory's lock.
            if found is None or found.place == self._place:
                return
            which = f"{self._role} named {self._name} runs on {found.host} (pid {found.pid})"
            if self._clock.now().mono > deadline:
                raise TerminalError(f"another {which}: end it, or give this one another name")
            if not told:
                say(f"another {which}, or did until a moment ago: waiting for it to be gone")
            told = True
            await self._clock.sleep(RETRY)

    async def tell(self, address: AdminAddress) -> None:
        """That we live. Where the store is away, it is told as soon as it is back."""
        member = Member(
            role=self._role,
            name=self._name,
            instance=self._instance,
            since=self._since,
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
            place=self._place,
            url=address.url,
            serves=address.gateway if self._role in (Role.GATEWAY, Role.UP) else "",
        )
        try:
            await self._own.put(keys.member(self._role, self._name), encode(member))
        except RetryableError as error:
            log.warning("presence_not_told", error=str(error))

    async def obey(self) -> None:
        """Until cancelled: begin anew once this instance is told to."""
        key = keys.restart(self._role, self._name)
        while True:
            try:
                snapshot = await self._store.list(key)
                break
            except RetryableError:
                await self._clock.sleep(RETRY)
        for entry in snapshot.entries:
            self._order(entry.key, entry.value)
        async for changes in follow(self._store, key, snapshot):
            for change in changes:
                if change.value is not None:
                    self._order(change.key, change.value)

    def _order(self, key: str, value: bytes) -> None:
        if key != keys.restart(self._role, self._name):
            return
        try:
            order = decode(value, RestartOrder, where=key)
        except LlmgwError as error:
            log.error("order_unreadable", error=str(error))
            return
        if order.instance == self._instance:
            log.info("restart", by=order.by)
            self._anew()
