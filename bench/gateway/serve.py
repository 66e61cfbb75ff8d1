"""llmgw's gateway alone, over a store that holds one model with one ready endpoint.

python bench/gateway/serve.py PORT UPSTREAM_PORT
"""

import asyncio
import sys

import uvloop

from llmgw.catalog.spec import ModelSpec, ProfileSpec
from llmgw.clock import SystemClock
from llmgw.gateway.server import Gateway
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision
from llmgw.plan import Endpoint
from llmgw.store import codec, keys
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied
from llmgw.units import Wall


async def main(port: int, upstream: int) -> None:
    store, digest, engine = MemoryStore(), Digest("bench"), EngineName("command")
    profile = ProfileSpec(name=ProfileName("p"), engine=engine)
    model = ModelSpec(name=ModelName("m"), profiles=(profile,), aliases=("alias",))
    endpoint = Endpoint(
        id=ReplicaId("r"), model=model.name, url=f"http://127.0.0.1:{upstream}", names=model.names, engine=engine
    )
    applied = Applied(revision=Revision("bench"), digest=digest, at=Wall(0.0))
    await store.put(keys.model(digest, model.name), codec.encode(model))
    await store.put(keys.endpoint(NodeName("bench"), endpoint.id), codec.encode(endpoint))
    await store.put(keys.APPLIED, codec.encode(applied))
    gateway = Gateway(store=store, secret=b"bench", clock=SystemClock())
    await gateway.start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
