"""How much of a prompt llama.cpp takes at once. Pure.

Only between two batches does it act on anything else: on the word that a client has left, and on slots that generate.
On a CPU its own 2048 tokens take many seconds, in which those who left are served on and those who listen hear nothing.
"""

from typing import Final

BATCH: Final = 2048
"""llama.cpp's own number of prompt tokens taken at once, over all slots."""
UBATCH: Final = 512
"""And of those computed at once."""

CPU_BATCH: Final = 128
"""On a CPU. Of 631 tokens that SmolLM2-135M read, one thread computed 169 a second with batches of 512, 168 with 128,
160 with 64 and 138 with 32."""
_EACH: Final = 8
"""Of a batch, the tokens for each slot at the least: those that generate take one each, and prompts the rest."""


def cpu_batch(parallel: int, ubatch: int | None) -> int:
    """Where a profile does not say. `ubatch`: what it says of the tokens to be computed at once."""
    return max(CPU_BATCH, _EACH * parallel, ubatch or 0)
