"""What can be said of a URL without asking the network: whether it can be connected to at all, and whether it stays on
the machine, and so may be unencrypted."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    try:
        host = (urlsplit(url).hostname or "").lower()
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def fault_of(url: str) -> str | None:
    """Why nobody could connect to it, however the network is; None: it is well formed."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:  # a port beyond 65535, a bracket that is not closed
        return str(error)
    if not host or port == 0:
        return "it names no host" if not host else "there is no port 0"
    if not url.isascii():
        return "it is not ASCII: write the host in Punycode (xn--...) and percent-encode the path"
    try:
        host.encode("idna")  # as whoever looks it up does
    except UnicodeError:
        return "its host is no name: the parts between its dots have 1 to 63 characters"
    return None
