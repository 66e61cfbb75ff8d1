"""A web server on loopback that stands for a forge or a webhook, and behaves as well or as badly as a test wants."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Call:
    path: str
    query: dict[str, str]
    headers: dict[str, str]  #: names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    status: int = 201
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    after: float = 0.0  #: seconds that it is kept waiting for, unless the server closes


@dataclass
class Forge:
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  #: given first, one a call
    always: Answer = field(default_factory=Answer)
    closing: threading.Event = field(default_factory=threading.Event)

    def wait(self, done: Callable[[list[Call]], bool], within: float = 30) -> list[Call]:
        deadline = time.monotonic() + within
        while not done(self.calls):
            assert time.monotonic() < deadline, [(call.path, call.query, call.body) for call in self.calls]
            time.sleep(0.02)
        return list(self.calls)


@contextmanager
def forge(certificate: Path | None = None) -> Iterator[Forge]:
    """`certificate`: a file with its key; then the connections are encrypted."""
    it = Forge()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            headers = {key.lower(): value for key, value in self.headers.items()}
            it.calls.append(Call(parts.path, query, headers, body))
            answer = it.answers.pop(0) if it.answers else it.always
            if answer.after and it.closing.wait(answer.after):
                return
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Who refuses the certificate goes away in the middle."""

    server = Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # The handshake is for the request's own thread: one that fails must not end the server.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    it.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield it
    finally:
        it.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
