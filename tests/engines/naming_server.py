"""An engine without a model that says in each answer who it is. Usage: naming_server.py HOST PORT MODEL TAG

It understands just enough HTTP, and costs next to nothing. A request's body says how to answer it: `think` seconds
until the answer begins; of a stream, `pieces` events, `gap` seconds apart, each with `pad` characters besides. A
request for another model is answered all the same: it is for the client to see whose answer it got.
"""

import asyncio
import json
import os
import sys
from typing import Any

HOST, PORT, MODEL, TAG = sys.argv[1:5]
NAME = f"{MODEL}/{TAG}/{os.getpid()}"
running = 0


def plain(value: Any, more: str = "") -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Engine: {NAME}\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(path: str, asked: dict[str, Any]) -> Any:
    """`model` in it is the name by which this engine was asked."""
    said: dict[str, Any] = {"model": asked["model"], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
    if path == "/v1/embeddings":
        return {**said, "object": "list", "data": [{"index": 0, "embedding": [0.5, 0.25], "engine": NAME}]}
    choice = {"text": NAME} if path == "/v1/completions" else {"message": {"role": "assistant", "content": NAME}}
    return {**said, "choices": [{"index": 0, **choice}]}


async def while_there(writer: asyncio.StreamWriter, seconds: float) -> bool:
    """Wait, unless the other side goes."""
    end = asyncio.get_running_loop().time() + seconds
    while not writer.is_closing() and (left := end - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(min(left, 0.2))
    return not writer.is_closing()


async def stream(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Engine: {NAME}\r\n"
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    pad = "." * asked.get("pad", 0)
    for number in range(asked.get("pieces", 5)):
        delta = {"content": f"{number} {NAME}", "pad": pad}
        event = {"model": asked["model"], "choices": [{"index": 0, "delta": delta}]}
        writer.write(chunk(b"data: %b\n\n" % json.dumps(event).encode()))
        await writer.drain()
        if not await while_there(writer, asked.get("gap", 0.0)):
            return
    writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    global running
    try:
        while not writer.is_closing():
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.lower().split("\r\n")
            path = line.split()[1]
            if line.startswith("get"):
                writer.write(plain({"status": "ok", "running": running, "engine": NAME}))
                continue
            size = next(int(each.partition(":")[2]) for each in fields if each.startswith("content-length:"))
            asked = json.loads(await reader.readexactly(size))
            running += 1
            try:
                if await while_there(writer, asked.get("think", 0.0)):
                    if asked.get("stream"):
                        await stream(asked, writer)
                    else:
                        writer.write(plain(answer(path, asked)))
                await writer.drain()
            finally:
                running -= 1
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, HOST, int(PORT), backlog=512)
    await server.serve_forever()


asyncio.run(main())
