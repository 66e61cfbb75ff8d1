"""The engine `vllm`: vLLM's OpenAI server, for models in Hugging Face layout. vLLM is installed apart from llmgw."""

from collections.abc import Sequence

from llmgw.engine import Engine, hookimpl
from llmgw_vllm.engine import VllmEngine


@hookimpl
def llmgw_engines() -> Sequence[Engine]:
    return (VllmEngine(),)
