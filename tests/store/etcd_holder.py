"""A process for tests to kill or pause: it leads, and writes a counter for as long as it does.

python etcd_holder.py TARGET PREFIX NAME TTL
"""

import asyncio
import sys

from llmgw.clock import SystemClock
from llmgw.errors import RetryableError
from llmgw.store.address import Address
from llmgw.store.election import Fenced, NotLeader, elected
from llmgw.store.etcd import EtcdStore
from llmgw.units import Seconds


async def main() -> None:
    target, prefix, name, ttl = sys.argv[1:]
    store = EtcdStore(Address(targets=tuple(target.split(",")), prefix=prefix))
    leadership = await elected(store, name, SystemClock(), ttl=Seconds(float(ttl)))
    print("leads", flush=True)
    fenced, count = Fenced(store, leadership), 0
    while True:
        count += 1
        try:
            await fenced.put("by", f"{name} {count}".encode())
        except NotLeader:
            print("refused", flush=True)
            break
        except RetryableError:
            pass
        await asyncio.sleep(0.02)
    await leadership.resign()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
