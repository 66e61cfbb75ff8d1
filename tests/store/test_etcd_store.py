"""etcd as a store passes the suite of all stores."""

import secrets

import pytest
from etcds import Etcd

from llmgw.store.address import Address
from llmgw.store.etcd import EtcdStore
from llmgw.testing.store_checks import STORE_CHECKS, StoreCase
from llmgw.units import Seconds


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_etcd_store(check, shared_etcd: Etcd) -> None:
    prefix = f"/test/{secrets.token_hex(8)}/"

    async def make() -> EtcdStore:
        return EtcdStore(Address(targets=(shared_etcd.target,), prefix=prefix))

    await check(StoreCase(open=make, reopen=make, keeps_all=True, ttl=Seconds(1), grace=Seconds(3)))
