"""Takes catalog revisions in: read, validate, judge, swap whole, publish. A bad revision changes nothing, and neither
does one that is held."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from llmgw.catalog import kept
from llmgw.catalog.commits import REMOVAL, Pushed, Unsigned, approves, signed_apart, signed_by
from llmgw.catalog.holds import Held, HoldReason
from llmgw.catalog.live import CatalogState, LiveCatalog, in_force_since, load_last_good, save_last_good
from llmgw.catalog.load import Loaded, Loader, revision_of
from llmgw.catalog.place import Place
from llmgw.catalog.source import Source
from llmgw.catalog.spec import Catalog
from llmgw.catalog.watch import Observation
from llmgw.clock import Clock
from llmgw.engine.manager import Engines
from llmgw.errors import CatalogInvalid, CatalogUnreadable, LlmgwError, RetryableError
from llmgw.facts import Event
from llmgw.ids import Revision, shortened
from llmgw.reconcile.earlier import Earlier
from llmgw.reconcile.gate import judge
from llmgw.reconcile.history import History
from llmgw.reconcile.in_force import in_force, read_applied
from llmgw.reconcile.orders import is_order, read_orders
from llmgw.reconcile.publishing import Publisher
from llmgw.reconcile.resolving import Resolver
from llmgw.reconcile.workqueue import Trigger
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.follow import follow as follow_store
from llmgw.store.follow import listed
from llmgw.store.values import Pinned
from llmgw.units import Instant

log = structlog.get_logger("llmgw.sync")

RETRY: Final = 5.0
"""Seconds until what could not be written (a full disk), or was not signed by an allowed signer, is tried again."""

GRACE: Final = 1.0
"""Seconds that the newest revision may take at a start, before the last good one serves until it has come: a git that
hangs, a server that is slow and a catalog that is large keep nobody waiting."""

T = TypeVar("T")


class CatalogSync:
    """Follows one source. `wake` is called after each change that a pass should act on. `signers`: who may sign
    commits, a file; None: they need not be signed."""

    def __init__(
        self,
        *,
        place: Place,
        store: Store,
        live: LiveCatalog,
        engines: Engines,
        clock: Clock,
        record: Callable[[Event], None],
        last_good: Path,
        wake: Callable[[], None],
        retry: float = RETRY,
        grace: float = GRACE,
        signers: Path | None = None,
    ) -> None:
        self._place = place
        self._store = store
        self._live = live
        self._engines = engines
        self._clock = clock
        self._record = record
        self._last_good = last_good
        self._wake = wake
        self._retry = retry
        self._grace = grace
        self._grace_ends: float | None = None  #: by the loop's clock; None: it is over, or has not begun
        self._signers = signers
        self._loader, self._canonical = Loader(), engines.canonical  # of one load and the next, the same
        self._newest: Observation | None = None
        self._asked = 0  #: the newest ask that it came after
        self._judged: tuple[Observation, Loaded] | None = None  #: loaded last: an order is no reason to load anew
        self._arrived = Trigger()
        self._unwritten: str | None = None  #: why the newest could not be taken in yet
        self._lost: Pinned | None = None  #: a rollback whose content cannot be had
        self._afresh = False  #: what branches and tags are at is to be asked anew
        self._retry_sources = False  #: and where that failed a moment ago
        history = History(store)
        self._publisher = Publisher(store, history)
        self._resolver = Resolver(
            engines.sources,
            store=store,
            clock=clock,
            record=record,
            changed=lambda: self._arrived.set(),
            history=history,
        )
        self._earlier = Earlier(store=store, last_good=last_good, engines=engines, read=place.read)

    async def run(self) -> None:
        """Until cancelled. What is on disk is tried first; where it cannot serve, or not at once, the last good is
        restored."""
        self._grace_ends = asyncio.get_running_loop().time() + self._grace
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._heed())
            group.create_task(self._resolver.run())
            while True:
                came = await self._arrived.wait(self._retry if self._is_tried_again() else self._grace_left())
                newest, asked = self._newest, self._asked
                if newest is not None:
                    await self._try(newest)
                    self._wake()
                    await self._place.asks.answer(asked)
                elif not came:
                    await self._meanwhile()

    def _is_tried_again(self) -> bool:
        """What kept the newest from coming into force may be over without a sign: a disk that was full, a key that was
        not among the allowed signers."""
        held = self._live.state().held
        return self._unwritten is not None or (held is not None and held.reason is HoldReason.UNSIGNED)

    async def _follow(self) -> None:
        async for seen in self._place.follow():
            self._asked = seen.asked
            if self._newest is None or self._newest.told != seen.told:
                self._newest = seen
            self._arrived.set()

    async def refresh(self, patience: float, weights: bool = False) -> tuple[CatalogState, bool]:
        """Look at the source now: how the catalog stands once what was found is taken in, or refused, and whether that
        is so within `patience` seconds; 0: only ask for it. `weights`: what branches and tags are at is asked anew."""
        self._afresh, self._retry_sources = self._afresh or weights, True
        asked = self._place.asks.ask()
        try:
            async with asyncio.timeout(patience):
                await self._place.asks.answered(asked)
        except TimeoutError:
            return self._live.state(), False
        return self._live.state(), True

    async def _heed(self) -> None:
        """What the operator says counts at once."""
        async for changes in follow_store(self._store, keys.SETTINGS, await listed(self._store, keys.SETTINGS)):
            if any(is_order(change.key) for change in changes):
                self._arrived.set()

    async def verdict(self, catalog: Catalog, pushed: Pushed | None = None) -> Held | None:
        """Why a valid catalog would be held, were it the newest revision. `pushed`: of its commits; those that are here
        already are asked."""
        if self._signers is not None:
            try:
                await asyncio.to_thread(self._signed, catalog.revision, pushed, self._signers)
            except Unsigned as why:
                return Held(reason=HoldReason.UNSIGNED, message=f"{shortened(catalog.revision)} {why}")
        before, orders = self._live.current, await read_orders(self._store)
        held = judge(catalog, before, orders, removal_approved=pushed is not None and pushed.approved)
        if held is not None and held.reason in (HoldReason.REMOVAL, HoldReason.PROTECTED) and before is not None:
            approved = await asyncio.to_thread(self._approves, catalog.revision, before.revision)
            held = judge(catalog, before, orders, removal_approved=approved)
        return held

    def _signed(self, revision: Revision, pushed: Pushed | None, signers: Path) -> None:
        """Raises Unsigned. What cannot be looked at (it is of a directory, say) is not judged."""
        with suppress(CatalogUnreadable):
            if pushed is not None and pushed.raw is not None:
                signed_apart(pushed.raw, signers)
            elif revision.isalnum():
                source = self._place.read(revision)
                if source.commit is not None and source.repository is not None:
                    signed_by(source.repository, source.commit, signers)

    def _approves(self, revision: Revision, before: Revision) -> bool:
        try:
            return revision.isalnum() and _approved(self._place.read(revision), before)
        except LlmgwError:  # no commit, or none that is here
            return False

    async def find(self, revision: str | None) -> Catalog:
        """An earlier catalog, or the one before that in force. Raises as `Earlier.find`."""
        pinned, current = (await read_orders(self._store)).pinned, self._live.current
        return await self._earlier.find(revision, current.digest if current is not None else None, pinned)

    async def _try(self, seen: Observation) -> None:
        self._live.watcher = seen.watcher
        try:
            await self._take(seen)
            self._unwritten = None
        except (OSError, RetryableError) as error:  # the state directory's disk is full, say: what is in force goes on
            if self._unwritten != str(error):
                log.error("catalog_not_applied", error=str(error))
            self._unwritten = str(error)
            why = f"cannot write the state directory: {error}" if isinstance(error, OSError) else str(error)
            self._live.reject(None, error=f"cannot be put in force yet: {why}", now=self._clock.now())
        except Exception as error:  # our own fault must not be the catalog's author's means to end what serves
            log.exception("catalog_not_taken")
            text = f"llmgw failed at this revision: {type(error).__name__}: {error}; the log has more"
            self._live.reject(None, error=text, now=self._clock.now())

    async def _take(self, seen: Observation) -> None:
        orders = await read_orders(self._store)
        if orders.pinned is not None:
            await self._go_back(orders.pinned)
        if seen.source is None:
            await self._refuse(None, seen.error or LlmgwError("the catalog cannot be read"))
            return
        again = self._judged is not None and self._judged[0] is seen
        source = seen.source
        try:
            if self._judged is None or not again:
                source = await self._soon(asyncio.to_thread(self._as_signed, source))
                self._judged = (seen, await self._soon(asyncio.to_thread(self._load, source)))
            before = self._live.current or await self._known_before()
            loaded = await self._soon(self._resolved(self._judged[1], before))
        except CatalogInvalid as invalid:
            await self._refuse(source, invalid)
            return
        except Unsigned as why:
            await self._hold(revision_of(source), Held(reason=HoldReason.UNSIGNED, message=str(why)))
            return
        catalog = loaded.catalog
        held = judge(catalog, before, orders)
        if held is not None and held.reason in (HoldReason.REMOVAL, HoldReason.PROTECTED) and before is not None:
            approved = await asyncio.to_thread(_approved, source, before.revision)
            held = judge(catalog, before, orders, removal_approved=approved)
        if held is not None:
            await self._hold(catalog.revision, held)
            return
        await self._put_in_force(loaded, before, quietly=again)
        await asyncio.to_thread(self._save, catalog, before)
        self._grace_ends = None

    async def _soon(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of `work`; where that takes long at a start, the last good serves meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            if (left := self._grace_left()) is not None:
                await asyncio.wait({task}, timeout=left)
                if not task.done():
                    await self._meanwhile()
            return await task
        finally:
            task.cancel()

    def _grace_left(self) -> float | None:
        return None if self._grace_ends is None else max(0.0, self._grace_ends - asyncio.get_running_loop().time())

    async def _meanwhile(self) -> None:
        self._grace_ends = None
        if self._live.current is not None:
            return
        try:
            await self._restore()
        except (OSError, RetryableError) as error:  # the newest revision is told of that too
            log.error("last_good_not_restored", error=str(error))
        self._wake()

    async def _resolved(self, loaded: Loaded, before: Catalog | None) -> Loaded:
        afresh, self._afresh = self._afresh, False
        retry, self._retry_sources = self._retry_sources, False
        catalog = await self._resolver.resolved(loaded.catalog, before, afresh=afresh, retry=retry)
        return replace(loaded, catalog=catalog)

    async def _known_before(self) -> Catalog | None:
        """What was in force when llmgw ended: there it still is, or on disk."""
        if (found := await in_force(self._store)) is not None:
            return found[0]
        return (await asyncio.to_thread(load_last_good, self._last_good))[0]

    def _as_signed(self, source: Source) -> Source:
        """Where signatures are wanted, what the commit has, whatever the files are. Raises Unsigned."""
        if self._signers is None:
            return source
        if source.commit is None or source.repository is None:
            raise Unsigned("it is no commit, and signed commits alone are put in force (--allowed-signers)")
        try:
            signed_by(source.repository, source.commit, self._signers)
        except Unsigned as why:
            raise Unsigned(f"{source.commit[:12]} {why}, so it is not put in force") from why
        return self._place.read(source.commit) if source.dirty else source

    def _save(self, catalog: Catalog, before: Catalog | None) -> None:
        if before is not None and before.digest != catalog.digest:
            kept.keep(self._last_good, before.digest)
        save_last_good(self._last_good, catalog, self._live.state().applied_at)

    async def _hold(self, revision: Revision, held: Held) -> None:
        """What is in force stays; where nothing is yet, the last good."""
        if self._live.current is None:
            await self._restore()
        was = self._live.state()
        self._live.hold(revision, held)
        if (was.attempted, was.held) != (revision, held):
            self._event("catalog held", f"{revision}: {held.reason}: {held.message}")

    async def _go_back(self, pinned: Pinned) -> None:
        """To what the operator wants in force. Where its content cannot be had, what is in force stays."""
        current = self._live.current
        if current is not None and current.digest == pinned.digest:
            return
        if current is None and (found := await in_force(self._store)) is not None and found[0].digest == pinned.digest:
            await self._restore()  # another controller carried it out
            return
        catalog = await self._earlier.get(pinned.revision, pinned.digest)
        if catalog is None:
            if self._lost != pinned:
                self._event("rollback impossible", f"the content of {pinned.revision} cannot be had any more")
            self._lost = pinned
            return
        now, before = self._clock.now(), current or await self._known_before()
        if current is None:
            now = await self._since(catalog, now)
        await self._publisher.publish(catalog, now, before=before)
        self._live.accept(catalog, now)
        await asyncio.to_thread(self._save, catalog, before)
        self._event("catalog rolled back", f"{catalog.revision}: {_count(catalog)}; by {pinned.by}")

    def _load(self, source: Source) -> Loaded:
        return self._loader.load(
            source,
            self._engines.rules(),
            canonical=self._canonical,
        )

    async def _put_in_force(self, loaded: Loaded, earlier: Catalog | None, *, quietly: bool = False) -> None:
        """`earlier`: what it takes the place of, also where that was before this process. `quietly`: it was looked at
        already, and an order is the occasion."""
        catalog, before, now = loaded.catalog, self._live.current, self._clock.now()
        if before is not None and (before.digest, before.revision) == (catalog.digest, catalog.revision):
            self._live.accept(catalog, now)  # an earlier problem is over
            if before.models != catalog.models:  # a source has told how large its files are
                began = Instant(now.mono, self._live.state().applied_at or now.wall)
                await self._publisher.publish(catalog, began, before=before)
                self._live.complete(catalog)
                return
            if self._unwritten is None and not quietly:
                self._event("catalog unchanged", f"{catalog.revision} is in force already")
            return
        if before is None:
            now = await self._since(catalog, now)
        await self._publisher.publish(catalog, now, before=earlier)  # first: where that fails, what was in force stays
        self._live.accept(catalog, now)
        for warning in loaded.warnings:
            self._event("catalog warning", str(warning))
        same = before is not None and before.digest == catalog.digest
        self._event("catalog applied", f"{catalog.revision}: " + ("same content" if same else _count(catalog)))

    async def _since(self, catalog: Catalog, now: Instant) -> Instant:
        """When the catalog came into force, where it was when this process, or another controller, ended."""
        found = await read_applied(self._store)  # whether its models are there or not
        if found is None:
            at = await asyncio.to_thread(in_force_since, self._last_good, catalog)
        else:
            at = found.at if (found.digest, found.revision) == (catalog.digest, catalog.revision) else None
        return now if at is None else Instant(now.mono, min(at, now.wall))

    async def _refuse(self, source: Source | None, error: LlmgwError) -> None:
        """Say why, and serve the last good where nothing is in force yet."""
        if self._live.current is None:
            await self._restore()
        now, was = self._clock.now(), self._live.state()
        if source is not None and isinstance(error, CatalogInvalid):
            revision = revision_of(source)
            self._live.reject(revision, problems=error.problems, now=now)
            reason, text = "catalog invalid", f"{revision}: {error}"
        else:
            self._live.reject(None, error=str(error), now=now)
            reason, text = "catalog unreadable", str(error)
        state = self._live.state()
        if (was.attempted, was.problems, was.error) != (state.attempted, state.problems, state.error):
            self._event(reason, text)

    async def _restore(self) -> None:
        """What another controller put in force, else the last good one on disk."""
        if (found := await in_force(self._store)) is not None:
            taken, since = found
            self._live.accept(taken, Instant(self._clock.now().mono, since))
            self._event("catalog taken over", str(taken.revision))
            return
        catalog, why = await asyncio.to_thread(load_last_good, self._last_good)
        if why:
            self._event("last good unusable", why)
        if catalog is not None:
            now = await self._since(catalog, self._clock.now())
            await self._publisher.publish(catalog, now)
            self._live.accept(catalog, now)
            self._event("last good restored", str(catalog.revision))

    def _event(self, reason: str, message: str) -> None:
        self._record(Event(at=self._clock.now().wall, subject="catalog", reason=reason, message=message))


def _approved(source: Source, before: Revision) -> bool:
    """Whether the commit, or one since the revision in force, says that its removals are meant. Blocks."""
    if source.commit is None or source.dirty or source.repository is None:
        return False
    since = before.partition("+")[0]
    return REMOVAL in approves(source.repository, source.commit, since)


def _count(catalog: Catalog) -> str:
    count = len(catalog.models)
    return "1 model" if count == 1 else f"{count} models"
