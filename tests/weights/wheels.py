"""Small wheels, and a package index that serves them as slowly as a test wants."""

import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MEMBER = "tiny/model.bin"


def make_wheel(
    directory: Path, dist: str, version: str, members: Mapping[str | zipfile.ZipInfo, bytes], *headers: str
) -> Path:
    """A wheel that pip accepts. `headers` go into its METADATA."""
    name = dist.replace("-", "_")
    path = directory / f"{name}-{version}-py3-none-any.whl"
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {dist}", f"Version: {version}", *headers, "", ""])
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        archive.writestr(
            f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


@dataclass
class Index:
    """`/simple/` over the wheels of one directory."""

    wheels: Path
    url: str = ""
    downloads: int = 0
    stall: bool = False  #: send half of a wheel, then wait for `go_on`
    go_on: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve_index(wheels: Path) -> Iterator[Index]:
    index = Index(wheels)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").rpartition("/")[2]
            if self.path.startswith("/simple/"):
                found = sorted(path.name for path in wheels.glob(f"{name.replace('-', '_')}-*.whl"))
                links = "".join(f'<a href="/files/{wheel}">{wheel}</a>' for wheel in found)
                self.answer(
                    200 if found else 404, f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html"
                )
            else:
                index.downloads += 1
                self.answer(200, (wheels / name).read_bytes(), "application/zip", stall=index.stall)

        def answer(self, status: int, body: bytes, kind: str, *, stall: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            half = len(body) // 2 if stall else len(body)
            try:
                self.wfile.write(body[:half])
                self.wfile.flush()
                if stall:
                    index.go_on.wait(30)
                self.wfile.write(body[half:])
            except OSError:  # the client was killed: what the test is about
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
