"""Buckets and other file systems through fsspec: its own file system in memory stands for them."""

import asyncio
import hashlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from llmgw.catalog.spec import SecretRef, WeightsSpec
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.units import Bytes
from llmgw.weights import filesystems
from llmgw.weights.api import WeightSource
from llmgw.weights.cache import Cache
from llmgw.weights.calls import Caller
from llmgw.weights.filesystems import PACKAGES, Filesystems
from llmgw.weights.registry import canonical_by, own_sources

CONTENT = bytes(range(256)) * 12_000  # 3 MB


@pytest.fixture
def bucket() -> Iterator[Any]:
    system = fsspec.filesystem("memory", use_listings_cache=False)
    system.pipe("/bucket/m.gguf", CONTENT)
    yield system
    system.rm("/bucket", recursive=True)


@pytest.fixture
def cache(cache_with: Callable[[WeightSource], Cache]) -> Cache:
    return cache_with(Filesystems({"memory"}, first_wait=0.01))


async def get(cache: Cache, source: str, **more: Any) -> Path:
    return await cache.fetch(WeightsSpec(source=source, **more), reserve=Bytes(0), progress=lambda _: None)


async def test_a_file_is_fetched_and_found_again(bucket: Any, cache: Cache) -> None:
    path = await get(cache, "memory://bucket/m.gguf", sha256=hashlib.sha256(CONTENT).hexdigest())
    assert (path.name, path.read_bytes()) == ("m.gguf", CONTENT)
    assert await get(cache, "memory://bucket/m.gguf", sha256=hashlib.sha256(CONTENT).hexdigest()) == path
    assert (await Filesystems().describe(WeightsSpec(source="memory://bucket/m.gguf"))).size == len(CONTENT)


async def test_a_split_model_a_folder_and_a_pattern_are_as_on_a_hub(bucket: Any, cache: Cache) -> None:
    for number in (1, 2):
        bucket.pipe(f"/bucket/big/m-0000{number}-of-00002.gguf", CONTENT)
    for name, data in {"config.json": b"{}", "a/tokenizer.json": b"{}", "x.bin": b"x", ".hidden": b"h"}.items():
        bucket.pipe(f"/bucket/repo/{name}", data)
    first = await get(cache, "memory://bucket/big/m-00001-of-00002.gguf")
    assert len(list(first.parent.iterdir())) == 2
    assert (await get(cache, "memory://bucket/big/*00001*.gguf")).name == first.name
    folder = await get(cache, "memory://bucket/repo")
    assert {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()} == {
        "config.json", "a/tokenizer.json", "x.bin",
    }  # fmt: skip
    chosen = await get(cache, "memory://bucket/repo?allow=*.json&ignore=a/*")
    assert [each.name for each in chosen.iterdir()] == ["config.json"]


async def test_what_is_not_there_is_refused_and_no_room_is_told_before_the_first_byte(
    bucket: Any, cache: Cache
) -> None:
    with pytest.raises(WeightsRefused, match=r"memory://bucket/other: there is no such file or folder"):
        await get(cache, "memory://bucket/other")
    bucket.pipe({"/bucket/repo/a": b"a", "/bucket/repo/b": b"b"})
    with pytest.raises(WeightsRefused, match="several files, and a checksum is one file's"):
        await get(cache, "memory://bucket/repo", sha256="0" * 64)
    with pytest.raises(WeightsUnavailable, match=r"no room for memory://bucket/m\.gguf"):
        await cache.fetch(WeightsSpec(source="memory://bucket/m.gguf"), reserve=Bytes(2**60), progress=lambda _: None)


async def test_a_download_that_fails_goes_on_where_it_was_and_anew_when_the_file_changed(
    bucket: Any, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    whole = type(bucket).open

    def breaking(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        return _Breaking(whole(self, path, mode, **options), asked)

    monkeypatch.setattr(type(bucket), "open", breaking)
    with pytest.raises(WeightsUnavailable, match=r"cannot read memory://bucket/m.gguf \(ConnectionResetError: gone\)"):
        await get(cache, "memory://bucket/m.gguf")
    assert asked[:2] == [0, 2 * 1024 * 1024], "it goes on from what came"
    assert len(asked) == filesystems.TRIES
    monkeypatch.setattr(type(bucket), "open", whole)
    assert (await get(cache, "memory://bucket/m.gguf")).read_bytes() == CONTENT


class _Breaking:
    """A remote file that breaks off after 2 MiB, and then at once."""

    def __init__(self, file: Any, asked: list[int]) -> None:
        self._file = file
        self._at = 0
        self._asked: list[int] | None = asked

    def close(self) -> None:
        self._file.close()

    def seek(self, at: int) -> None:
        self._at = at
        self._file.seek(at)

    def readinto(self, room: memoryview) -> int:
        if self._asked is not None:
            self._asked.append(self._at)
            self._asked = None
        if self._at >= 2 * 1024 * 1024:
            raise ConnectionResetError("gone")
        count: int = self._file.readinto(room)
        self._at += count
        return count


async def test_a_fetch_that_nobody_wants_any_more_ends(bucket: Any, cache: Cache) -> None:
    task = asyncio.ensure_future(get(cache, "memory://bucket/m.gguf"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(cache.root.glob("partial-*"))


async def test_who_leaves_does_not_wait_for_a_file_system_that_does_not_answer(
    bucket: Any, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def stalls(self: Any, path: str, **options: Any) -> Any:
        asked.set()
        go_on.wait(60)
        raise FileNotFoundError(path)

    monkeypatch.setattr(type(bucket), "info", stalls)
    task = asyncio.ensure_future(get(cache, "memory://bucket/m.gguf"))
    await asyncio.to_thread(asked.wait, 20)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 20
    go_on.set()


def test_what_a_call_returns_or_raises_is_its_callers() -> None:
    with Caller(threading.Event()) as call:
        assert call(lambda: 5) == 5
        with pytest.raises(TimeoutError, match="its own"):
            call(lambda: _raise(TimeoutError("its own")))


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "scheme", sorted(name for name in PACKAGES if importlib.util.find_spec(PACKAGES[name]) is None)
)
async def test_a_kind_whose_package_is_not_installed_says_which_one(scheme: str) -> None:
    with pytest.raises(WeightsRefused) as raised:
        await Filesystems().describe(WeightsSpec(source=f"{scheme}://bucket.invalid/x"))
    said = str(raised.value)
    assert f"{scheme}://bucket.invalid/x" in said
    assert PACKAGES[scheme] in said


async def test_a_token_is_none_of_theirs() -> None:
    with pytest.raises(WeightsRefused, match="s3fs finds its credentials where llmgw runs"):
        await Filesystems().describe(WeightsSpec(source="s3://b/k", token=SecretRef(from_env="X")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("S3://Bucket/a/b.gguf", "s3://Bucket/a/b.gguf"),
        ("gs://b/folder/", "gs://b/folder"),
        ("sftp://me@host/a", "sftp://me@host/a"),
        ("s3://b/f?ignore=z&allow=*.json", "s3://b/f?allow=*.json&ignore=z"),
        ("s3://b/a b@c", "s3://b/a b@c"),
    ],
)
def test_spellings_of_one_place_are_one(text: str, expected: str) -> None:
    canonical = canonical_by(own_sources())
    assert canonical(text) == expected
    assert canonical(expected) == expected


@pytest.mark.parametrize(
    "text", ["s3://bucket", "s3:///key", "s3://b/../k", "s3://b//k", "s3://b/k?version=1", "sftp://me:pw@h/x"]
)
def test_what_names_no_place_is_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no|write|password") as raised:
        canonical_by(own_sources())(text)
    assert "pw" not in str(raised.value)
