"""An engine that costs almost nothing: a fixed answer, or 64 chunks 2 ms apart when the body asks to stream.

python bench/gateway/upstream.py PORT
"""

import asyncio
import json
import sys
from typing import cast

import uvloop

CHUNKS = 64
GAP = 0.002  #: seconds between two chunks

_ANSWER = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there, how can I help you today?"},
                 "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21},
}  # fmt: skip
_DELTA = {
    "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
    "choices": [{"index": 0, "delta": {"content": "tok"}, "finish_reason": None}],
}  # fmt: skip


def _plain(value: object) -> bytes:
    body = json.dumps(value, separators=(",", ":")).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWER = _plain(_ANSWER)
MODELS = _plain({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "bench"}]})
HEALTH = _plain({"status": "ok"})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DELTA = _chunk(b"data: " + json.dumps(_DELTA, separators=(",", ":")).encode() + b"\n\n")
END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Engine(asyncio.Protocol):
    """Understands just enough HTTP for the gateways compared here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.pending = b""
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.pending += data
        while (request := self._take()) is not None:
            head, body = request
            if head.startswith(b"get"):
                self.transport.write(MODELS if b"/models" in head.partition(b"\r\n")[0] else HEALTH)
            elif b'"stream":true' in body.replace(b" ", b""):
                self.transport.write(HEAD)
                self.loop.call_soon(self._step, CHUNKS)
            else:
                self.transport.write(ANSWER)

    def _take(self) -> tuple[bytes, bytes] | None:
        """The next whole request: its head in lower case, and its body."""
        end = self.pending.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = self.pending[:end].lower()
        if b"transfer-encoding: chunked" in head:
            last = self.pending.find(b"0\r\n\r\n", end + 4)
            if last < 0:
                return None
            body, self.pending = self.pending[end + 4 : last], self.pending[last + 5 :]
            return head, body
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].partition(b"\r\n")[0]) if at >= 0 else 0
        if len(self.pending) < end + 4 + length:
            return None
        body, self.pending = self.pending[end + 4 : end + 4 + length], self.pending[end + 4 + length :]
        return head, body

    def _step(self, left: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(DELTA)
        if left > 1:
            self.loop.call_later(GAP, self._step, left - 1)
        else:
            self.transport.write(END)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
