from collections.abc import Iterator

import pytest
from forges import Forge, forge


@pytest.fixture
def server() -> Iterator[Forge]:
    with forge() as it:
        yield it
