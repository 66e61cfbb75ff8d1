"""One stream of changes from etcd, from its begin to its end."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from llmgw.errors import Resync
from llmgw.store.etcd_calls import Calls, NoAnswer
from llmgw.store.etcd_rpc import grpc, rpc


@dataclass(frozen=True, slots=True)
class Batch:
    """Events up to `revision`; none: nothing changed up to there. `cluster`: etcd's own id of it."""

    events: Sequence[Any]
    revision: int
    cluster: int


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, which is UTF-8: no byte of it is 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


async def changes(calls: Calls, begin: bytes, position: int) -> AsyncGenerator[Batch, None]:
    """What changes after revision `position` under the prefix `begin`. All of one revision come together.

    Raises NoAnswer when the stream breaks off, Resync when etcd compacted what is asked for or went back in time.
    """
    create = rpc.WatchCreateRequest(
        key=begin, range_end=end_of(begin), start_revision=position + 1, progress_notify=True
    )
    async with calls.stream("watch", "Watch") as stream:
        async with calls.exchange():
            await stream.write(rpc.WatchRequest(create_request=create))
            answer = await stream.read()
        if answer is not grpc.aio.EOF and answer.created and answer.header.revision < position:
            await _confirm(calls, begin, position)
        while True:
            if answer is grpc.aio.EOF:
                raise NoAnswer("etcd ended the watch")
            if answer.canceled:
                _ended(calls, answer, position)
            if not answer.created:
                position = answer.events[-1].kv.mod_revision if answer.events else max(position, answer.header.revision)
                yield Batch(answer.events, position, answer.header.cluster_id)
            answer = await stream.read()


async def _confirm(calls: Calls, begin: bytes, position: int) -> None:
    """A member may lag behind; the cluster is behind only when it was restored from a copy."""
    request = rpc.RangeRequest(key=begin, keys_only=True)
    newest = (await calls.call("kv", "Range", request, again=True)).header.revision
    if newest < position:
        raise Resync(f"etcd is at revision {newest}, and was at {position}: was it restored from a copy?")


def _ended(calls: Calls, answer: Any, position: int) -> None:
    if answer.compact_revision:
        raise Resync(f"etcd compacted up to revision {answer.compact_revision}, the watch was at {position}")
    if (refusal := calls.refusal(answer.cancel_reason)) is not None:
        raise refusal
    calls.log_out()  # where that was the reason, the next stream is another login's
    raise NoAnswer(f"etcd ended the watch: {answer.cancel_reason}")
