"""Durable values that cannot be read: power cuts and careless hands happen, and one bad file must not end it all.

All of them can do without: what is in force is published again, histories and recovery records grow anew. Only the
operator's words must not be lost: a damaged switch stays thrown, a node with a damaged cordon stays cordoned, what was
suspended stays so, and after a rollback that cannot be read the catalog in force stays.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from llmgw.errors import NewerFormat, TerminalError
from llmgw.facts import Ask, Concurrency, Cordon, Measured, RecoveryRecord, ScalingState, Suspension
from llmgw.plan import Rollout, Stopped
from llmgw.store import keys
from llmgw.store.api import Delete, Put, Store
from llmgw.store.codec import check_version, decode, encode
from llmgw.store.values import ApiKey, Applied, Approval, HistoryEntry, Notified, Pinned
from llmgw.units import Instant

KINDS: Final[Mapping[str, type[Any]]] = {
    keys.STOPPED: Stopped,
    keys.APPLIED: Applied,
    keys.HISTORY: HistoryEntry,
    keys.RECOVERY: RecoveryRecord,
    keys.MEASURED: Measured,
    keys.CONCURRENCY: Concurrency,
    keys.ASKS: Ask,
    keys.SCALING: ScalingState,
    keys.CORDONS: Cordon,
    keys.SUSPENDED: Suspension,
    keys.PINNED: Pinned,
    keys.APPROVED: Approval,
    keys.SUSPENSIONS: Suspension,
    keys.ROLLOUTS: Rollout,
    keys.NOTIFIED: Notified,
    keys.API_KEYS: ApiKey,
}
"""Durable keys, or prefixes of them, and what lies there."""


async def set_aside(store: Store, now: Instant) -> tuple[str, ...]:
    """Remove what cannot be read; a sentence for each. Raises NewerFormat: that needs a newer llmgw, not a loss."""
    told: list[str] = []
    for prefix, kind in KINDS.items():
        for entry in (await store.list(prefix)).entries:
            try:
                decode(entry.value, kind, where=f"the stored {entry.key}")
            except NewerFormat:
                raise
            except TerminalError as error:
                told.append(await _replace(store, entry.key, error, now))
    return tuple(told)


async def refuse_newer(store: Store) -> None:
    """Raises NewerFormat where any of it was written by a newer llmgw: who decides without it would overrule it, and
    write over it. What is damaged is passed over: whoever needs it says so. Histories are not looked at: they are long,
    and whoever writes one writes which catalog is in force with it."""
    for prefix in KINDS.keys() - {keys.HISTORY}:
        for entry in (await store.list(prefix)).entries:
            with suppress(msgspec.MsgspecError):
                check_version(entry.value, where=f"the stored {entry.key}")


async def _replace(store: Store, key: str, error: TerminalError, now: Instant) -> str:
    if key == keys.STOPPED:
        stopped = Stopped(at=now.wall, by="llmgw, which found the switch damaged")
        await store.txn([Put(key, encode(stopped))])
        return f"{error}: serving stays stopped; `llmgw start` resumes it"
    if key.startswith(keys.CORDONS):
        cordon = Cordon(at=now.wall, by="llmgw, which found the cordon damaged")
        await store.txn([Put(key, encode(cordon))])
        return f"{error}: the node stays cordoned; `llmgw uncordon {keys.last(key)}` ends that"
    if key in (keys.SUSPENDED, keys.PINNED):
        suspension = Suspension(at=now.wall, by="llmgw, which found the operator's word damaged")
        await store.txn([Delete(keys.PINNED), Put(keys.SUSPENDED, encode(suspension))])
        return f"{error}: the catalog in force stays; `llmgw resume` follows it again"
    if key.startswith(keys.SUSPENSIONS):
        suspension = Suspension(at=now.wall, by="llmgw, which found the suspension damaged")
        await store.txn([Put(key, encode(suspension))])
        return f"{error}: the model stays suspended; `llmgw resume {keys.last(key)}` ends that"
    if key.startswith(keys.API_KEYS):  # gone, it could be the last, and the gateways open to everybody
        name = keys.last(key)
        revoked = ApiKey(id="", name=name, digest="", created=now.wall, by="llmgw", revoked=now.wall)
        await store.txn([Put(key, encode(revoked))])
        return f"{error}: the API key is revoked; `llmgw keys create {name}` makes it anew"
    await store.txn([Delete(key)])
    return f"{error}: removed; llmgw goes on without"
