"""Log lines: `key=value` on stderr, quiet unless asked."""

import io
import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog


class _Stderr(io.TextIOBase):
    """Whatever stderr is when something is said. Where nobody listens any more, a pipe whose reader has gone, say, what
    is said is lost: it must not break what serves."""

    def write(self, text: str, /) -> int:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(verbosity: int = 0) -> None:
    """Warnings and worse; 1: what happens; 2: everything."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )
    # Libraries speak through logging. Theirs is at most a warning's worth to an operator, unless asked for.
    logging.basicConfig(
        level=max(level, logging.INFO) if verbosity < 2 else level,
        stream=sys.stderr,
        format="timestamp=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s",
        force=True,
    )
    for noisy in ("httpx", "httpcore", "watchfiles", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
