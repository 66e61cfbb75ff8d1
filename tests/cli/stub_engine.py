"""An engine for `llmgw bench`: real HTTP and server-sent events, answers made up. Not under test itself."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "the-key"
FORMS = "the fields that it knows"


class StubEngine:
    """Sends `tokens` pieces, `between` seconds apart, the first after `first`. What it is set to be changes that:

    `status`, `error`: a refusal; `plain_only`: no chat; `strict`: it refuses fields it does not know; `event`: an error
    in the stream; `cut`: it leaves after the first piece; `whole`: it does not stream.
    """

    def __init__(self, key: str) -> None:
        self.first, self.between, self.tokens = 0.0, 0.0, 4
        self.status, self.error = 0, ""
        self.plain_only = self.strict = self.event = self.cut = self.whole = False
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.heard: Callable[[], None] = lambda: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, body))
                outer.heard()
                if self.headers["Authorization"] != f"Bearer {key}":
                    self._json(401, {"error": {"message": "wrong key"}})
                elif outer.status:
                    self._json(outer.status, {"error": {"message": outer.error}})
                elif outer.plain_only and "chat" in self.path:
                    self._json(404, {"error": {"message": "no chat here"}})
                elif outer.strict and "ignore_eos" in body:
                    self._json(422, {"error": {"message": "ignore_eos: extra fields not permitted"}})
                elif outer.whole:
                    self._json(200, {"choices": [{"message": {"content": "all of it"}}]})
                else:
                    self._stream("chat" in self.path)

            def _stream(self, chat: bool) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream; charset=utf-8")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    for event in self._events(chat):
                        data = f"data: {event}\n\n".encode()
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                    if not outer.cut:
                        self.wfile.write(b"0\r\n\r\n")
                except (BrokenPipeError, ConnectionResetError):
                    pass
                self.close_connection = True

            def _events(self, chat: bool) -> Iterator[str]:
                if chat:
                    yield json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
                time.sleep(outer.first)
                for index in range(outer.tokens):
                    if index:
                        time.sleep(outer.between)
                    yield json.dumps({"choices": [{"delta": {"content": "a"}} if chat else {"text": "a"}]})
                    if outer.cut:
                        return
                    if outer.event:
                        yield json.dumps({"error": {"message": "out of\nmemory"}})
                        return
                yield json.dumps({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": outer.tokens}})
                yield "[DONE]"

            def _json(self, status: int, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
