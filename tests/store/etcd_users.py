"""etcd with users."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from aetcd import rpc
from etcds import Etcd


@asynccontextmanager
async def admin(server: Etcd) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(server.target) as channel:
        yield channel


async def with_users(server: Etcd) -> None:
    """Root, and a user `llmgw` that may do what it wants under /llmgw/ alone."""
    async with admin(server) as channel:
        auth = rpc.AuthStub(channel)
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="llmgw"))
        permission = rpc.Permission(permType=rpc.Permission.READWRITE, key=b"/llmgw/", range_end=b"/llmgw0")
        await auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="llmgw", perm=permission))
        for name, password in (("root", "secret of root"), ("llmgw", "secret of llmgw")):
            await auth.UserAdd(rpc.AuthUserAddRequest(name=name, password=password))
            await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=name, role=name))
        await auth.AuthEnable(rpc.AuthEnableRequest())
