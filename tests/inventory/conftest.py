"""A stand-in for the driver's library, and a node whose processes end with the test."""

from collections.abc import Iterator
from pathlib import Path

import fake_nvml
import pytest
from agent_world import Node


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.kill_all()
