"""A gateway for `llmgw run`: real HTTP, answers made up. Not under test itself."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StubGateway:
    """Answers `Echo: <last message>` word by word. What a message says can have it do otherwise:

    `refuse`: an error object; `locked`: it wants a key; `break`: an error event in the middle; `cut`: the stream ends
    early; `think`: reasoning comes first; `slow`: it says `begun` and then nothing until its client leaves; `late`:
    nothing comes for a while.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.models: list[dict[str, Any]] = [{"id": "qwen", "aliases": ["default"], "state": "ready"}, {"id": "smol"}]
        self.left = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._json(200, {"object": "list", "data": outer.models})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                said = body["messages"][-1]["content"]
                if said == "refuse":
                    self._json(503, {"error": {"message": "model 'qwen' failed:\nno memory", "code": "model_failed"}})
                elif said == "locked":
                    code = "invalid_api_key" if "Authorization" in self.headers else "key_missing"
                    self._json(401, {"error": {"message": "send a header", "code": code}})
                elif said == "nonsense":
                    self._send(200, b"<html>")
                elif body.get("stream"):
                    self._stream(said)
                else:
                    message = {"role": "assistant", "content": f"Echo: {said}"}
                    self._json(200, {"choices": [{"message": message}], "usage": {"completion_tokens": 3}})

            def _stream(self, said: str) -> None:
                if said == "late":
                    time.sleep(1.5)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for event in outer.events(said):
                        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                        self.wfile.flush()
                    if said not in ("cut", "break"):
                        self.wfile.write(b"data: [DONE]\n\n")
                except (BrokenPipeError, ConnectionResetError):
                    outer.left.set()
                self.close_connection = True

            def _json(self, status: int, value: Any) -> None:
                self._send(status, json.dumps(value).encode())

            def _send(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def events(self, said: str) -> Iterator[dict[str, Any]]:
        if said == "think":
            yield {"choices": [{"delta": {"reasoning_content": "let me see"}}]}
        if said == "slow":
            yield {"choices": [{"delta": {"content": "begun"}}]}
            for _ in range(600):
                time.sleep(0.05)
                yield {"choices": [{"delta": {}}]}
        for word in f"Echo: {said}".split(" "):
            yield {"choices": [{"delta": {"content": word + " "}}]}
            if said == "break":
                yield {"error": {"message": "the engine was lost", "code": "engine_lost"}}
                return
            if said == "cut":
                return
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 7}}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
