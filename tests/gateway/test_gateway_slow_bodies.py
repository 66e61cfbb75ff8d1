"""Bodies that come slowly keep their room while nobody else wants it, and give way where somebody does."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from gateway_rig import Rig, Wire, echo, opened, post, until

from llmgw.gateway.admission import Buffers
from llmgw.gateway.client import Limits
from llmgw.gateway.fields import understand
from llmgw.gateway.keys import Caller
from llmgw.gateway.request import Head, Request
from llmgw.gateway.slow import Coming, Watch
from llmgw.units import KIB, MIB, Bytes, Seconds

LIMITS = Limits(bodies=Bytes(3 * MIB), sweep=Seconds(0.01), span=Seconds(0.05), rate=Bytes(100 * MIB))
"""Where whatever is not there at once is slow."""
LARGE = post({"model": "m", "x": "x" * MIB})


async def partial(rig: Rig, size: int, framed: Callable[[bytes], bytes] = lambda data: data) -> Wire:
    """A body that comes as far as that."""
    before = rig.metric("llmgw_gateway_body_bytes")
    wire = await rig.wire()
    wire.send(framed(post({"model": "m", "x": "x" * (4 * MIB // 3)})[:size]))
    await until(lambda: rig.metric("llmgw_gateway_body_bytes") > before + size - 4 * KIB, "its coming")
    return wire


def in_chunks(data: bytes) -> bytes:
    head, _, body = data.partition(b"\r\n\r\n")
    return b"%b\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (head.rpartition(b"\r\n")[0], len(body), body)


@pytest.mark.parametrize("framed", [in_chunks, lambda data: data])
async def test_a_body_that_comes_slowly_gives_way_where_its_room_is_needed(framed: Callable[[bytes], bytes]) -> None:
    async with opened(LIMITS) as rig:
        await rig.serving(echo)
        small = await partial(rig, MIB, framed)
        large = await partial(rig, 4 * MIB // 3, framed)
        await until(lambda: len(rig.gateway._buffers.slow) == 2, "both being slow")
        assert (await rig.ask(LARGE)).status == 200
        answer = await large.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert "others needed its room" in answer.json["error"]["message"]
        await large.until_closed()
        assert rig.metric("llmgw_gateway_body_bytes") > MIB - 4 * KIB, "one was enough"
        await small.close()
        await until(lambda: rig.metric("llmgw_gateway_body_bytes") == 0, "all being given back")


async def test_a_body_that_comes_slowly_is_taken_where_nobody_needs_its_room() -> None:
    async with opened(LIMITS) as rig:
        await rig.serving(echo)
        data = post({"model": "m", "x": "x" * 2 * MIB})
        wire = await rig.wire()
        wire.send(data[:-10])
        await until(lambda: len(rig.gateway._buffers.slow) == 1, "its being slow")
        assert (await rig.post({"model": "m"})).status == 200
        wire.send(data[-10:])
        assert (await wire.answer()).status == 200


async def test_one_that_is_slow_itself_finds_no_room_by_that() -> None:
    async with opened(LIMITS) as rig:
        await rig.serving(echo)
        data = in_chunks(post({"model": "m", "x": "x" * 2 * MIB}))
        wire = await rig.wire()
        wire.send(data)
        await until(lambda: len(rig.gateway._buffers.slow) == 1, "its being slow")
        wire.send(b"%x\r\n%b\r\n" % (2 * MIB, b"x" * 2 * MIB))
        assert (await wire.answer()).code == "overloaded"
        await wire.close()
        await until(lambda: rig.metric("llmgw_gateway_body_bytes") == 0, "all being given back")
        assert (await rig.ask(LARGE)).status == 200


@dataclass
class Sender:
    coming: Coming | None
    gone: list[Request] = field(default_factory=list)

    def give_way(self, request: Request, asker: object) -> None:
        self.gone.append(request)


def request(buffers: Buffers) -> Request:
    head = Head("POST", b"/", "/", True, understand(()))
    return Request(head, "id", b"", Caller(None), buffers)


def test_what_is_slow_is_what_came_of_late_and_while_much_of_the_room_is_taken() -> None:
    buffers = Buffers(Bytes(1000), used=501)
    watch = Watch(buffers, Bytes(10), Seconds(10))
    fast, slow, late = (Sender(Coming(request(buffers), 300)) for _ in range(3))

    def look(now: float, *sizes: int) -> list[Sender]:
        for sender, size in zip((fast, slow, late), sizes, strict=True):
            assert sender.coming is not None
            sender.coming = Coming(sender.coming.request, size)
        watch.look((fast, slow, late), now)
        for each in buffers.slow:
            each.give_way(None)
        found = [sender for sender in (fast, slow, late) if sender.gone]
        for sender in found:
            sender.gone.clear()
        return found

    assert look(0, 300, 300, 0) == []
    assert look(9, 300, 300, 0) == [], "too short a time to tell"
    assert look(10, 400, 399, 100) == [slow]
    assert look(15, 400, 399, 100) == [slow], "until it is measured again"
    assert look(20, 499, 600, 200) == [fast]
    late.coming = Coming(request(buffers), 200)
    assert look(30, 600, 700, 200) == [], "another request of the same client"
    assert look(40, 600, 700, 200) == [fast, slow, late]
    buffers.used = 500
    assert look(50, 600, 700, 200) == [], "there is room"
    buffers.used = 501
    assert look(60, 600, 700, 200) == [], "and is measured anew"


def test_the_largest_goes_first() -> None:
    buffers = Buffers(Bytes(1000), used=900)
    watch = Watch(buffers, Bytes(10), Seconds(10))
    senders = [Sender(Coming(request(buffers), size)) for size in (100, 500, 300)]
    watch.look(senders, 0)
    watch.look(senders, 10)
    buffers.slow.pop().give_way(None)
    assert [len(sender.gone) for sender in senders] == [0, 1, 0]
