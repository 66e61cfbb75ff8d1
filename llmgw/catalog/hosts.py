"""Whether a URL stays on the machine, and so may be unencrypted."""

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
