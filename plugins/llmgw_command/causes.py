"""What a program died of that llmgw knows nothing of: its exit, and words that many programs share. Pure."""

import re
from typing import Final

from llmgw.engine import Exit, FailureKind, Verdict

_TAIL: Final = 4096
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PORT_TAKEN: Final = re.compile(
    r"address (?:is )?already in use|address in use|port is already allocated|EADDRINUSE", re.IGNORECASE
)
_NO_MEMORY: Final = re.compile(
    r"out of memory|cannot allocate memory|failed to map segment|bad_alloc|MemoryError|oom[-_]kill", re.IGNORECASE
)
_NOT_FOUND: Final = re.compile(r"not found|No such file or directory|Permission denied|cannot execute", re.IGNORECASE)
_NOT_RUN: Final = (126, 127)  #: as shells, env, nice, docker and the loader of shared libraries end
_BAD_OPTION: Final = re.compile(
    r"^(?:[^\s:]+: )*(?:error: )?("
    # argparse
    r"unrecognized arguments?: .+|argument \S+: (?:expected|invalid) .+|the following arguments are required: .+"
    r"|no such option:? .+|missing option .+|invalid value for .+"  # click
    r"|unexpected argument .+|found argument .+ which wasn't expected.*|invalid value '.+' for '.+"  # clap
    r"|unknown (?:shorthand )?flag: .+|flag provided but not defined: .+|invalid argument .+ for .+ flag.*"  # Go
    r"|(?:unrecognized|unknown|invalid) option\b.+"  # getopt
    r"|invalid argument: -.+|error while handling argument .+"  # llama.cpp
    r")$",
    re.IGNORECASE | re.MULTILINE,
)
"""A line of its own, so that a request's error in the log of a server that later crashed is not taken for one."""


def verdict(exit: Exit, log: str) -> Verdict:
    """`log`: the tail of what it wrote."""
    tail = _COLOURS.sub("", log[-_TAIL:])
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    said = f": {lines[-1][:200]}" if lines else ""
    if _PORT_TAKEN.search(tail):
        return Verdict(kind=FailureKind.CRASH, reason="its port was taken meanwhile", port_clash=True)
    if _NO_MEMORY.search(tail):
        return Verdict(kind=FailureKind.OOM, reason=f"out of memory ({exit}{said})")
    if exit.code in _NOT_RUN and _NOT_FOUND.search("\n".join(lines[-3:])):
        return Verdict(kind=FailureKind.TERMINAL, reason=f"its program, or a file that it needs, is not there{said}")
    if exit.code and (match := _BAD_OPTION.search(tail)):
        reason = f"it does not accept its command line: {match[0].strip()[:300]}"
        return Verdict(kind=FailureKind.TERMINAL, reason=reason)
    return Verdict(kind=FailureKind.CRASH, reason=f"ended with {exit}{said}")
