"""The engine `cpu`: llama.cpp's own HTTP server, from the xllamacpp wheel, on this machine's processors."""

from collections.abc import Sequence

from llmgw.engine import Engine, hookimpl
from llmgw_cpu.engine import CpuEngine


@hookimpl
def llmgw_engines() -> Sequence[Engine]:
    return (CpuEngine(),)
