"""A node whose processes end with the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.kill_all()
