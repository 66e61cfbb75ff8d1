"""llmgw's gateway alone, over a store that holds one model with one ready endpoint and one API key with all limits set,
too high to be met; with an access log.

python bench/gateway/serve.py PORT UPSTREAM_PORT TOKEN ACCESS_LOG
"""

import asyncio
import sys
from pathlib import Path

import uvloop

from llmgw.catalog.spec import ModelSpec, ProfileSpec
from llmgw.clock import SystemClock
from llmgw.gateway.access import AccessLog
from llmgw.gateway.keys import Credential
from llmgw.gateway.server import Gateway
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision
from llmgw.plan import Endpoint
from llmgw.store import codec, keys
from llmgw.store.api import Put
from llmgw.store.contents import contents_of
from llmgw.store.memory import MemoryStore
from llmgw.store.values import ApiKey, Applied
from llmgw.units import Wall

PLENTY = 1_000_000_000


async def main(port: int, upstream: int, token: str, access: Path) -> None:
    store, digest, engine = MemoryStore(), Digest("bench"), EngineName("command")
    profile = ProfileSpec(name=ProfileName("p"), engine=engine)
    model = ModelSpec(name=ModelName("m"), profiles=(profile,), aliases=("alias",))
    endpoint = Endpoint(
        id=ReplicaId("r"), model=model.name, url=f"http://127.0.0.1:{upstream}", names=model.names, engine=engine
    )
    contents = contents_of({model.name: model})
    applied = Applied(revision=Revision("bench"), digest=digest, at=Wall(0.0), parts=contents.parts)
    await store.txn([Put(key, value) for key, value in contents.values.items()])
    await store.put(keys.endpoint(NodeName("bench"), endpoint.id), codec.encode(endpoint))
    await store.put(keys.APPLIED, codec.encode(applied))
    credential = Credential.of(token.encode())
    assert credential.id is not None, "not a token of llmgw"
    key = ApiKey(
        id=credential.id, name="bench", digest=credential.digest, created=Wall(0.0), by="bench",
        requests_per_minute=PLENTY, tokens_per_minute=PLENTY, concurrency=PLENTY,
    )  # fmt: skip
    await store.put(keys.api_key(key.name), codec.encode(key))
    gateway = Gateway(store=store, secret=b"bench", clock=SystemClock(), access=AccessLog(access))
    await gateway.start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])))
