"""The engine `command`: any program that serves HTTP, started by an argv of yours."""

from collections.abc import Sequence

from llmgw.engine import Engine, hookimpl
from llmgw_command.engine import CommandEngine


@hookimpl
def llmgw_engines() -> Sequence[Engine]:
    return (CommandEngine(),)
