"""How an engine whose memory grows with its context makes a profile smaller. Pure."""

from dataclasses import replace
from typing import Final

from llmgw.catalog.spec import ProfileSpec
from llmgw.facts import Level

SHORTEST: Final = 2048
"""Tokens of context below which no level goes: a shorter one serves nobody."""

_DIVISOR: Final = {Level.FULL: 1, Level.DEGRADED: 2, Level.MINIMAL: 4}


def shorter_context(profile: ProfileSpec, level: Level) -> ProfileSpec | None:
    """Half the context for `degraded`, a quarter for `minimal`, never under SHORTEST. None: that is no shorter.

    A declared `memory` goes with the context that it was declared for: the smaller profile's is estimated.
    """
    context = max(profile.context // _DIVISOR[level], SHORTEST)
    return None if context >= profile.context else replace(profile, context=context, memory=None)
