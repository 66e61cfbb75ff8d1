"""Where endpoints are, by their URLs. Pure."""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from llmgw.catalog.hosts import fault_of


class Address(NamedTuple):
    host: str
    port: int
    base: str  #: path before every request's own, without a trailing slash
    netloc: str
    tls: bool = False


NOWHERE: Final = Address("", 0, "", "")
"""Of an external model whose address is none."""


def address_of(url: str, *, external: bool = False) -> Address:
    """Where an endpoint is. Raises ValueError for anything but http://host:port, or https:// of an external one.

    An external one's `base` stands for the `/v1` of a request's path.
    """
    if (fault := fault_of(url)) is not None:
        raise ValueError(f"cannot connect to {url!r}: {fault}")
    parts = urlsplit(url)
    schemes = ("http", "https") if external else ("http",)
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"cannot connect to {url!r}: only {' and '.join(schemes)}://host:port can be served")
    tls = parts.scheme == "https"
    return Address(parts.hostname, parts.port or (443 if tls else 80), parts.path.rstrip("/"), parts.netloc, tls)
