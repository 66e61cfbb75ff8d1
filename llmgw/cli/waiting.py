"""Says what an answer waits for, while it waits."""

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

from llmgw.cli.text import clean

PATIENCE: Final = 0.7  #: seconds of waiting that need no explanation
POLL: Final = 0.5  #: seconds between looks


class Waiting:
    """While it is entered, `look` is asked (in a thread) what there is to wait for, and stderr has it: on one line that
    is written over on a terminal, else a line for each change. `done` ends that, and clears the line."""

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._shown = ""

    def __enter__(self) -> "Waiting":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done()

    def done(self) -> None:
        """Idempotent."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        if self._shown and sys.stderr.isatty():
            self._write("\r\x1b[K")

    def _watch(self) -> None:
        wait = PATIENCE
        while not self._over.wait(wait):
            wait = POLL
            text = clean(self._look())
            if text != self._shown and not self._over.is_set():
                self._write(f"\r\x1b[K{text}" if sys.stderr.isatty() else f"{text}\n" if text else "")
                self._shown = text

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # closed: nobody is there to be told
            pass
