"""A web server on loopback that behaves as well or as badly as a test wants."""

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Site:
    """What the server does; a test changes it as it goes."""

    files: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    etag: str | None = '"1"'
    ranges: bool = True
    statuses: list[int] = field(default_factory=list)  #: answered first, one a request
    answer_always: int | None = None
    headers: dict[str, str] = field(default_factory=dict)  #: in every answer
    location: Callable[[str], str | None] = lambda path: None
    cut_at: list[int] = field(default_factory=list)  #: bytes sent before the connection breaks, one a download
    stall_at: int | None = None  #: bytes sent before nothing comes any more
    lie: int = 0  #: added to the Content-Length
    no_length: bool = False
    chunked: bool = False
    head_status: int | None = None
    token: str | None = None
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0
    go_on: threading.Event = field(default_factory=threading.Event)

    @property
    def gets(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "GET"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        site = self.site
        site.asked.append(Asked(self.command, self.path, dict(self.headers)))
        if self.command == "HEAD" and site.head_status is not None:
            return self.bare(site.head_status)
        if site.statuses:
            return self.bare(site.statuses.pop(0))
        if site.answer_always is not None:
            return self.bare(site.answer_always)
        if (target := site.location(self.path)) is not None:
            return self.bare(302, {"Location": target})
        if site.token is not None and self.headers.get("Authorization") != f"Bearer {site.token}":
            return self.bare(401)
        content = site.files.get(self.path.partition("?")[0])
        if content is None:
            return self.bare(404)
        return self.whole_or_part(content, body)

    def whole_or_part(self, content: bytes, body: bool) -> None:
        site, start, status = self.site, 0, 200
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        matches = self.headers.get("If-Range") in (None, site.etag)
        if found and site.ranges and matches:
            start, status = int(found[1]), 206
            if start >= len(content):
                self.bare(416, {"Content-Range": f"bytes */{len(content)}"})
                return
        rest = content[start : int(found[2]) + 1] if found and found[2] and status == 206 else content[start:]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{start + len(rest) - 1}/{len(content)}")
        if site.etag is not None:
            self.send_header("ETag", site.etag)
        for name, value in site.headers.items():
            self.send_header(name, value)
        if site.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif not site.no_length:
            self.send_header("Content-Length", str(len(rest) + site.lie))
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        if body:
            self.send_body(rest)

    def send_body(self, rest: bytes) -> None:
        site = self.site
        stop = site.cut_at.pop(0) if site.cut_at else site.stall_at
        part = rest if stop is None else rest[:stop]
        site.sent += len(part)  # before the client has it, and a test asks
        try:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if site.chunked else part)
            self.wfile.flush()
        except OSError:
            site.sent -= len(part)
            return
        try:
            if site.stall_at is not None and stop == site.stall_at:
                site.go_on.wait(30)
            elif stop is None and site.chunked:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass

    def bare(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**self.site.headers, **(headers or {}), "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away is what some tests are about


CERTIFICATE = Path(__file__).with_name("loopback.cert")
"""For 127.0.0.1 and localhost, with its key, signed by itself: good for nothing but these tests."""


@contextmanager
def serve(*, encrypted: bool = False) -> Iterator[Site]:
    site = Site()
    server = Server(("127.0.0.1", 0), type("OwnHandler", (Handler,), {"site": site}))
    if encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    site.url = f"http{'s' if encrypted else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
