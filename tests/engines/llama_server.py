"""Where tests find a llama-server; those that need one are skipped where there is none."""

from typing import Final

import pytest

from llmgw_llamacpp import binary

SKIPPED: Final = "no llama-server: set LLMGW_LLAMA_SERVER, or put it in PATH"


def need_llama_server() -> str:
    found = binary.default()
    if found is None:
        pytest.skip(SKIPPED)
    return found
