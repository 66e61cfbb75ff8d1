"""gRPC, and etcd's messages and stubs for it, from aetcd."""

import os

# Children of ours run another program at once: gRPC need not survive a fork, nor tell on stderr that it would not.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from aetcd import rpc

__all__ = ["grpc", "rpc"]
