"""Which etcd, and as whom: `etcd://host:2379[,host2:2379][/prefix]`, `etcds://` for TLS; secrets by environment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llmgw.errors import UsageError

PREFIX: Final = "/llmgw/default/"
"""Where keys lie unless the address says otherwise. Each cluster that shares an etcd wants its own."""

PORT: Final = 2379

USER: Final = "LLMGW_ETCD_USER"
PASSWORD: Final = "LLMGW_ETCD_PASSWORD"
PASSWORD_FILE: Final = "LLMGW_ETCD_PASSWORD_FILE"
CA: Final = "LLMGW_ETCD_CA"
CERT: Final = "LLMGW_ETCD_CERT"
KEY: Final = "LLMGW_ETCD_KEY"

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM, as read. `ca` None: the authorities that gRPC brings."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """`targets` are host:port, tried in this order; `prefix` begins and ends with a slash."""

    targets: tuple[str, ...]
    prefix: str = PREFIX
    tls: Tls | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{'etcds' if self.tls else 'etcd'}://{','.join(self.targets)}{self.prefix}"


def read_address(url: str, environment: Mapping[str, str]) -> Address:
    """Raises UsageError, which never quotes a secret."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("etcd", "etcds"):
        raise UsageError("a store is etcd://HOST[:PORT][,HOST...][/PREFIX], or etcds://... for TLS")
    hosts, _, path = rest.partition("/")
    if "@" in hosts:
        raise UsageError(f"a store's address shows in process lists: give user and password by {USER} and {PASSWORD}")
    prefix = f"/{path.strip('/')}/" if path.strip("/") else PREFIX
    user = environment.get(USER) or None
    return Address(
        targets=tuple(_target(host) for host in hosts.split(",")),
        prefix=prefix,
        tls=_tls(environment) if scheme == "etcds" else None,
        user=user,
        password=_password(environment) if user else None,
    )


def _target(text: str) -> str:
    found = _HOST.fullmatch(text)
    port = int(found[2] or PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise UsageError(f"not an etcd's HOST[:PORT]: {text!r}")
    return f"{found[1]}:{port}"


def _tls(environment: Mapping[str, str]) -> Tls:
    ca, cert, key = (_file(environment, name) for name in (CA, CERT, KEY))
    if (cert is None) != (key is None):
        raise UsageError(f"{CERT} and {KEY} belong together: one is missing")
    return Tls(ca=ca, cert=cert, key=key)


def _password(environment: Mapping[str, str]) -> str:
    if (given := environment.get(PASSWORD)) is not None:
        return given
    read = _file(environment, PASSWORD_FILE)
    if read is None:
        raise UsageError(f"{USER} is set: {PASSWORD} or {PASSWORD_FILE} must be too")
    try:
        return read.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError(f"the file that {PASSWORD_FILE} names is not UTF-8 text") from None


def _file(environment: Mapping[str, str], name: str) -> bytes | None:
    path = environment.get(name)
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: {path} cannot be read: {error.strerror}") from error
