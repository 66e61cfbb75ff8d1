"""A git server on loopback: `git http-backend` behind Python's HTTP server, with passwords, and a way to go away."""

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class GitServer:
    """Serves the bare repositories below `root`. `users`: name -> password; none: everybody may read.

    `seen` are the requests, as (path, Authorization header).
    """

    def __init__(self, root: Path, users: dict[str, str] | None = None) -> None:
        self.root = root
        self.users = users or {}
        self.seen: list[tuple[str, str | None]] = []
        self.elsewhere: str | None = None  #: where requests are sent on to
        self.hang = threading.Event()  #: set: requests are taken, and not answered until it is cleared
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Again on the port that it had before."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def allows(self, header: str | None) -> bool:
        if not self.users:
            return True
        wanted = {base64.b64encode(f"{name}:{password}".encode()).decode() for name, password in self.users.items()}
        return header is not None and header.removeprefix("Basic ") in wanted

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                header = self.headers.get("authorization")
                owner.seen.append((self.path, header))
                while owner.hang.is_set() and owner._server is not None:
                    threading.Event().wait(0.02)
                if not owner.allows(header):
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="git"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if owner.elsewhere is not None:
                    self.send_response(302)
                    self.send_header("Location", owner.elsewhere + self.path)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self._answer(self._ask_git(body))

            def _ask_git(self, body: bytes) -> bytes:
                path, _, query = self.path.partition("?")
                env = {
                    "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(owner.root), "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("content-type", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("git-protocol", ""), "REMOTE_ADDR": "127.0.0.1",
                }  # fmt: skip
                done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=env, check=False)
                return done.stdout

            def _answer(self, said: bytes) -> None:
                head, _, body = said.partition(b"\r\n\r\n")
                fields = [line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line]
                status = next((int(value.split()[0]) for name, value in fields if name.lower() == "status"), 200)
                self.send_response(status)
                for name, value in fields:
                    if name.lower() != "status":
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


@contextmanager
def git_server(root: Path, users: dict[str, str] | None = None) -> Iterator[GitServer]:
    server = GitServer(root, users)
    server.start()
    try:
        yield server
    finally:
        server.stop()
