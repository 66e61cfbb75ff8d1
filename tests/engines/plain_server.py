"""A program as `engine: command` meets it: HTTP on the host and port it is told, nothing of llmgw inside.

`plain_server.py HOST PORT [--key] [--load]`: answers /health and /v1/models. With --key it demands LLMGW_ENGINE_KEY;
with --load it has /metrics.
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        open_to_all = self.path == "/health" or "--key" not in sys.argv
        if not open_to_all and self.headers["Authorization"] != f"Bearer {os.environ['LLMGW_ENGINE_KEY']}":
            self.answer(401, b'{"error": "wrong key"}')
        elif self.path == "/metrics" and "--load" in sys.argv:
            self.answer(
                200, b'# TYPE own:running gauge\nown:running{slot="a b}"} 2.0\nown:running{slot="c"} 1\nown:waiting 1\n'
            )
        elif self.path in ("/health", "/v1/models"):
            self.answer(200, b'{"data": []}')
        else:
            self.answer(404, b'{"error": "not here"}')

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    allow_reuse_address = True  # a port that was used a moment ago is free


if __name__ == "__main__":
    Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
