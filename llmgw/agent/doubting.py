"""An engine ended and said that a file of its is damaged: the file is looked at before anybody is blamed."""

import asyncio

from llmgw.agent.around import Around
from llmgw.agent.launch import Judged
from llmgw.facts import Failure, Phase
from llmgw.plan import Assignment


async def doubted(
    judged: Judged, phase: Phase, assignment: Assignment, around: Around, hurried: asyncio.Event
) -> Failure:
    """What it failed with, once its files were hashed; at once, where somebody waits for its end (`hurried`).

    Until then it counts as starting: nobody shall try again meanwhile what cannot come to anything. One that served is
    tried again first, for its endpoint must not stand that long.
    """
    doubt, failure = around.doubt, judged.failure
    if doubt is None:
        return failure
    if phase is not Phase.STARTING:
        return judged.retried()
    around.tell(assignment.replica, "hashing weights", f"{assignment.model}: {failure.reason}")
    looking = asyncio.ensure_future(doubt.look(failure, assignment.profile.roles))
    waiting = asyncio.ensure_future(hurried.wait())
    try:
        await asyncio.wait({looking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return looking.result() if looking.done() else failure
    finally:
        for task in (looking, waiting):
            task.cancel()
        await asyncio.wait({looking, waiting})
