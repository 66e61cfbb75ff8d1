"""Asks a running daemon over its admin API."""

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from llmgw.admin.shapes import NOT_NOW, NOT_THERE, ErrorOutput
from llmgw.errors import TerminalError, UsageError
from llmgw.statedir import StateDir

T = TypeVar("T")

TIMEOUT: Final = 10.0  #: seconds


class DaemonUnreachable(TerminalError):
    """Nobody answers; the text says where one was looked for and how to start one."""


class DaemonRefused(TerminalError):
    """The daemon answered, but not with what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminClient:
    """Where a daemon is and how to be let in. `hint`: what to do when nobody answers."""

    url: str
    token: str
    hint: str
    timeout: float = TIMEOUT

    def get(self, path: str, kind: type[T], params: Mapping[str, str | int | bool] | None = None) -> T:
        """Raises DaemonUnreachable, DaemonRefused."""
        return self._ask("GET", path, kind, params=params)

    def post(self, path: str, kind: type[T], body: object) -> T:
        """Raises DaemonUnreachable, DaemonRefused."""
        return self._ask("POST", path, kind, body=msgspec.json.encode(body))

    def stream(self, path: str, kind: type[T], params: Mapping[str, str | int | bool]) -> Iterator[T]:
        """Objects a line, as they come. Ends with the daemon: raises DaemonUnreachable, DaemonRefused."""
        headers = {"Authorization": f"Bearer {self.token}"}
        timeout = httpx.Timeout(self.timeout, read=None)
        try:
            with (
                self._client(timeout) as client,
                client.stream("GET", f"/api/v1/{path}", params=params, headers=headers) as reply,
            ):
                if not reply.is_success:
                    reply.read()
                    self._read(reply, kind)
                for line in reply.iter_lines():
                    yield msgspec.json.decode(line, type=kind)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DaemonUnreachable(f"{self.url} is gone ({error}): {self.hint}") from error
        except msgspec.MsgspecError as error:
            raise DaemonRefused(f"{self.url} sent something that is not an llmgw answer ({error})") from error
        raise DaemonUnreachable(f"{self.url} ended the answer: {self.hint}")

    def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, str | int | bool] | None = None,
        body: bytes | None = None,
    ) -> T:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            with self._client(httpx.Timeout(self.timeout)) as client:
                reply = client.request(method, f"/api/v1/{path}", params=params, content=body, headers=headers)
        except httpx.ConnectTimeout as error:
            raise DaemonUnreachable(f"{self.url} cannot be reached in {self.timeout:g} s: {self.hint}") from error
        except httpx.TimeoutException as error:
            raise DaemonUnreachable(
                f"{self.url} did not answer within {self.timeout:g} s: a daemon is there, and busy or stuck; "
                "try again, and see what it logs"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DaemonUnreachable(f"{self.url} cannot be reached ({error}): {self.hint}") from error
        return self._read(reply, kind)

    def _client(self, timeout: httpx.Timeout) -> httpx.Client:
        # A proxy from the environment has no business between us and our own daemon. Certificate authorities take
        # longer to read than a daemon to answer: only where one is needed.
        encrypted = self.url.startswith("https:")
        return httpx.Client(base_url=self.url, timeout=timeout, trust_env=False, verify=encrypted)

    def _read(self, reply: httpx.Response, kind: type[T]) -> T:
        if reply.status_code == 401:
            raise DaemonRefused(f"{self.url} does not accept the token: {self.hint}")
        try:
            if reply.is_success:
                return msgspec.json.decode(reply.content, type=kind)
            failure = msgspec.json.decode(reply.content, type=ErrorOutput).error
        except msgspec.MsgspecError as error:
            raise DaemonRefused(
                f"{self.url} answered {reply.status_code} with something that is not an llmgw answer ({error}): "
                "is another program, or an llmgw of another version, listening there?"
            ) from error
        if failure.code in (NOT_THERE, NOT_NOW) or reply.status_code == 400:  # what was asked, not how it went
            raise DaemonRefused(failure.message)
        raise DaemonRefused(f"{self.url} answered {reply.status_code}: {failure.message}")


def connect(state: Path, admin: str | None) -> AdminClient:
    """The daemon of a state directory, or the one at `admin`, its token from LLMGW_TOKEN.

    Raises UsageError, DaemonUnreachable when none ever ran there, StateDirError.
    """
    if admin is not None:
        return _remote(admin)
    found = StateDir(state).read_admin()
    start = f"start one with `llmgw up CATALOG --state {shlex.quote(str(state))}`"
    if found is None:
        raise DaemonUnreachable(f"no llmgw daemon runs on {state}: {start}, or name its directory with --state")
    hint = f"the daemon of {state} seems to have ended; {start}"
    return AdminClient(url=found.url, token=found.token, hint=hint)


def _remote(admin: str) -> AdminClient:
    url = admin if "://" in admin else f"http://{admin}"
    if not _is_address(url):
        raise UsageError(f"--admin {admin}: write an address such as 127.0.0.1:8081 or https://gpu-1:8081")
    token = os.environ.get("LLMGW_TOKEN", "").strip()
    if not token:
        raise UsageError("--admin needs the daemon's token in LLMGW_TOKEN: it is in admin.json in its state directory")
    if not (token.isascii() and token.isprintable()):
        raise UsageError("LLMGW_TOKEN holds characters that no token has: copy it anew from the daemon's admin.json")
    return AdminClient(url=url.rstrip("/"), token=token, hint="check the address and LLMGW_TOKEN")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unclosed bracket, a port beyond 65535
        return False
