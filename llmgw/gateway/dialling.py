"""Fresh connections to endpoints."""

import asyncio
import ssl
from functools import cache

from llmgw.gateway.upstream import EngineConnection, Target


@cache
def tls() -> ssl.SSLContext:
    """Certificates are checked against the system's authorities, or those that SSL_CERT_FILE names."""
    return ssl.create_default_context()


async def dial(target: Target, timeout: float) -> EngineConnection:
    """A fresh connection to an endpoint. Raises OSError, TimeoutError (after `timeout` seconds) or ValueError: what
    looks a host up judges for itself what is one."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        _, connection = await loop.create_connection(
            lambda: EngineConnection(target, loop), target.host, target.port, ssl=tls() if target.tls else None
        )
    return connection
