"""Exit codes of every command."""

from enum import IntEnum


class ExitCode(IntEnum):
    FINE = 0
    ERROR = 1
    CHANGES = 2  #: pending (`plan`), or found (`diff`)
    INVALID_CATALOG = 3
    USAGE = 64  #: as sysexits.h has it; Click's own 2 means something else here
    INTERRUPTED = 130
