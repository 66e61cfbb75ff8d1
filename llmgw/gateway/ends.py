"""Where an answer goes: the client's connection, as those see it who answer."""

from typing import Protocol

from llmgw.gateway.openai import ApiError
from llmgw.gateway.request import Request


class Client(Protocol):
    """The connection that a request came from. It calls `Exchange.pause` and `resume` when it is slow to take."""

    @property
    def peer(self) -> str:
        """The address that it comes from."""
        ...

    def write(self, data: bytes) -> None:
        """Bytes of an answer, framed."""
        ...

    def finish(self, *, keep_alive: bool) -> None:
        """The answer is complete."""
        ...

    def abort(self) -> None:
        """Close so that the client notices that its answer is not complete."""
        ...

    def refuse(self, request: Request, error: ApiError) -> None:
        """Answer with an error, and finish."""
        ...
