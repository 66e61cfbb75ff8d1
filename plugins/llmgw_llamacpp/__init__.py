"""The engine `llamacpp`: a llama-server binary of yours, for GGUF weights, on the CPU and on accelerators."""

from collections.abc import Sequence

from llmgw.engine import Engine, hookimpl
from llmgw_llamacpp.engine import LlamaCppEngine


@hookimpl
def llmgw_engines() -> Sequence[Engine]:
    return (LlamaCppEngine(),)
