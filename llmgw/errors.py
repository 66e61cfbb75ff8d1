"""What can go wrong, as types. Whether trying again can help is a type too, not a flag to remember."""

from collections.abc import Sequence
from dataclasses import dataclass


class LlmgwError(Exception):
    """The root. Its text is for the person who has to act: what happened and what to do."""


class RetryableError(LlmgwError):
    """May pass by itself: try again after a back-off."""


class TerminalError(LlmgwError):
    """Will not pass by itself: something must change first."""


class UsageError(TerminalError):
    """The command line asked for something that cannot be: exit 64."""


class StateDirError(TerminalError):
    """The state directory cannot be used: locked, from a newer version, or not ours."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong in a catalog file.

    `line` and `column` count from 1 (0: the file as a whole); `path` is the JSON path, `$.profiles[0].engine`.
    """

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{where}: {self.path}: {self.message}" if self.path not in ("", "$") else f"{where}: {self.message}"


class CatalogInvalid(TerminalError):
    """A catalog that must not be served: every problem at once, sorted by place."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))


class CatalogUnreadable(RetryableError):
    """The source could not be read now (missing, busy, no permission): nothing is known of the catalog."""


class NoSuchRevision(TerminalError):
    """A revision that nobody here knows; the text says how to find those that are known."""


class WeightsError(LlmgwError):
    """Weights could not be had. Subclasses say whether trying again can help."""


class WeightsUnavailable(WeightsError, RetryableError):
    """Network, disk or registry: may pass."""


class WeightsRefused(WeightsError, TerminalError):
    """Wrong checksum, no such file, malformed source: will not pass."""


class EngineUnavailable(TerminalError):
    """The engine cannot be used on this node; the text says why and how to get it."""


class StaleRevision(RetryableError):
    """A conditional write lost: the key changed since it was read."""


class LeaseLost(RetryableError):
    """The lease that a key was to be under ended: ask for a new one."""


class Resync(RetryableError):
    """A watch cannot tell all that changed since: list again."""


class NewerFormat(TerminalError):
    """A stored value was written by a newer llmgw: upgrade, or restore the backup that the downgrade named."""
