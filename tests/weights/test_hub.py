"""Weights of a hub, asked through huggingface_hub on loopback."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import Hub, serve_hub

from llmgw.catalog.spec import SecretRef, WeightsSpec
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.facts import Progress
from llmgw.units import Bytes
from llmgw.weights import hub as hub_source
from llmgw.weights.api import WeightSource
from llmgw.weights.cache import Cache
from llmgw.weights.manifest import Manifest
from llmgw.weights.naming import entry_name

LARGE = bytes(range(256)) * 4_000  # 1 MB: in LFS
SMALL = b'{"a": 1}'
TOKEN = "hf_secret"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as served:
        yield served


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxies, tokens or hubs of whoever runs the tests."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "hf_token", "hf_endpoint", "hf_token_path"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def cache(cache_with: Callable[[WeightSource], Cache]) -> Cache:
    return cache_with(hub_source.Hub(stall=5.0, first_wait=0.01))


def spec_of(hub: Hub, source: str, **more: object) -> WeightsSpec:
    return WeightsSpec(source=source, endpoint=hub.url, **more)  # type: ignore[arg-type]


async def get(cache: Cache, spec: WeightsSpec, seen: list[Progress] | None = None) -> Path:
    return await cache.fetch(spec, reserve=Bytes(0), progress=(seen if seen is not None else []).append)


def manifest_of(cache: Cache, source: str) -> Manifest:
    found = cache.manifest_of(entry_name(source, None))
    assert found is not None
    return found


async def test_a_file_is_fetched_at_the_commit_that_its_branch_has_now(hub: Hub, cache: Cache) -> None:
    commit = hub.repo("org/m").commit({"q4/m.gguf": LARGE, "README.md": b"hello"})
    path = await get(cache, spec_of(hub, "hf://org/m/q4/m.gguf"))
    assert path.name == "m.gguf"
    assert path.read_bytes() == LARGE
    found = manifest_of(cache, f"hf://org/m/q4/m.gguf@{commit}")
    assert found.files[0].sha256 == hashlib.sha256(LARGE).hexdigest()
    assert found.licence == "apache-2.0"


async def test_what_is_here_of_a_branch_is_used_though_the_branch_moved_or_the_hub_is_away(
    hub: Hub, cache: Cache
) -> None:
    repo = hub.repo("org/m")
    repo.commit({"m.gguf": LARGE})
    first = await get(cache, spec_of(hub, "hf://org/m/m.gguf"))
    newer = repo.commit({"m.gguf": LARGE + b"newer"})
    assert await get(cache, spec_of(hub, "hf://org/m/m.gguf")) == first
    hub.site.answer_always = 503
    assert cache.locate(spec_of(hub, "hf://org/m/m.gguf")) == first
    assert cache.locate(spec_of(hub, f"hf://org/m/m.gguf@{newer}")) is None


async def test_a_commit_names_its_own_entry_and_tags_are_resolved(hub: Hub, cache: Cache) -> None:
    repo = hub.repo("org/m")
    old = repo.commit({"m.gguf": LARGE}, ref="v1.0")
    new = repo.commit({"m.gguf": LARGE + b"new"})
    assert (await get(cache, spec_of(hub, "hf://org/m/m.gguf@v1.0"))).read_bytes() == LARGE
    assert cache.locate(spec_of(hub, f"hf://org/m/m.gguf@{old}")) is not None
    assert (await get(cache, spec_of(hub, f"hf://org/m/m.gguf@{new}"))).read_bytes() == LARGE + b"new"
    described = await hub_source.Hub().describe(spec_of(hub, f"hf://org/m/m.gguf@{old}"))
    assert described.resolved == f"hf://org/m/m.gguf@{old}"
    assert described.size == len(LARGE)


async def test_sizes_and_checksums_are_known_before_the_first_byte(hub: Hub, cache: Cache) -> None:
    hub.repo("org/m").commit({"m.gguf": LARGE})
    described = await hub_source.Hub().describe(spec_of(hub, "hf://org/m/m.gguf"))
    assert described.size == len(LARGE)
    assert described.files[0].sha256 == hashlib.sha256(LARGE).hexdigest()
    assert hub.cdn.asked == []
    with pytest.raises(WeightsUnavailable, match=r"no room for hf://org/m/m\.gguf"):
        await cache.fetch(spec_of(hub, "hf://org/m/m.gguf"), reserve=Bytes(2**60), progress=lambda _: None)
    assert not any(cache.root.glob("v1-*"))


async def test_a_split_model_comes_whole_by_its_first_part_and_an_engine_is_given_that(hub: Hub, cache: Cache) -> None:
    parts = {f"Q8/m-0000{n}-of-00003.gguf": LARGE + bytes([n]) for n in (1, 2, 3)}
    hub.repo("org/m").commit(parts)
    for source in ("hf://org/m/Q8/m-00001-of-00003.gguf", "hf://org/m/Q8", "hf://org/m/*Q8*", "hf://org/m"):
        path = await get(cache, spec_of(hub, source))
        assert path.name == "m-00001-of-00003.gguf"
        assert sorted(each.name for each in path.parent.iterdir()) == [name.partition("/")[2] for name in parts]
    with pytest.raises(WeightsRefused, match=r"not the first of its 3 parts: name m-00001-of-00003.gguf"):
        await get(cache, spec_of(hub, "hf://org/m/Q8/m-00002-of-00003.gguf"))


async def test_a_whole_repository_is_a_directory_without_other_copies_of_its_tensors(hub: Hub, cache: Cache) -> None:
    hub.repo("org/m").commit(REPOSITORY)
    path = await get(cache, spec_of(hub, "hf://org/m"))
    found = {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()}
    assert found == {"config.json", "model.safetensors", "tokenizer/vocab.json", "README.md"}
    (fact,) = cache.facts(())
    assert fact.metadata["config.model_type"] == "llama"
    assert fact.size == sum(len(REPOSITORY[name]) for name in found)
    assert cache.locate(spec_of(hub, "hf://org/m")) == path


async def test_allow_and_ignore_choose_among_files_and_make_entries_of_their_own(hub: Hub, cache: Cache) -> None:
    hub.repo("org/m").commit(REPOSITORY)
    chosen = spec_of(hub, "hf://org/m?allow=*.json&allow=*.bin&ignore=tokenizer/*")
    path = await get(cache, chosen)
    assert {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()} == {
        "config.json", "pytorch_model.bin",
    }  # fmt: skip
    assert cache.locate(spec_of(hub, "hf://org/m")) is None
    with pytest.raises(WeightsRefused, match="leave no file of it"):
        await get(cache, spec_of(hub, "hf://org/m?allow=*.exe"))


async def test_a_pattern_that_means_several_models_is_refused_with_their_names(hub: Hub, cache: Cache) -> None:
    hub.repo("org/m").commit({"m-Q4.gguf": LARGE, "m-Q8.gguf": LARGE + b"8", "README.md": b"x"})
    assert (await get(cache, spec_of(hub, "hf://org/m/*Q8*"))).name == "m-Q8.gguf"
    for source in ("hf://org/m", "hf://org/m/*.gguf"):
        with pytest.raises(WeightsRefused, match=r"holds 2 models.*m-Q4.gguf, m-Q8.gguf"):
            await get(cache, spec_of(hub, source))


async def test_what_is_not_there_is_told_with_what_is(hub: Hub, cache: Cache) -> None:
    hub.repo("org/m").commit({"m-Q4_K_M.gguf": LARGE})
    with pytest.raises(WeightsRefused, match=r"no file m-Q4_K_S.gguf; it has m-Q4_K_M.gguf"):
        await get(cache, spec_of(hub, "hf://org/m/m-Q4_K_S.gguf"))
    with pytest.raises(WeightsRefused, match=r"no revision v9: correct what follows the '@'"):
        await get(cache, spec_of(hub, "hf://org/m/m-Q4_K_M.gguf@v9"))
    with pytest.raises(WeightsRefused, match=r"no repository org/other, or it is private \(401\).*set HF_TOKEN"):
        await get(cache, spec_of(hub, "hf://org/other/x.gguf"))


async def test_a_gated_repository_says_where_to_ask_and_opens_with_a_token(
    hub: Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repo = hub.repo("org/m")
    repo.gated, repo.readers = "manual", {TOKEN}
    repo.commit({"m.gguf": LARGE})
    spec = spec_of(hub, "hf://org/m/m.gguf")
    with pytest.raises(WeightsRefused, match=rf"gated \(401\): accept its terms at {hub.url}/org/m, then set HF_TOKEN"):
        await get(cache, spec)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(WeightsRefused, match=r"gated \(403\): ask for access .* with the account of the token"):
        await get(cache, spec)
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert await get(cache, spec_of(hub, "hf://org/m/m.gguf", token=SecretRef(from_file=str(tmp_path / "token"))))
    assert all("Authorization" not in asked.headers for asked in hub.cdn.asked)
    assert not any(TOKEN in text for text in map(str, [manifest_of(cache, cache.facts(())[0].source)]))


async def test_hf_token_and_hf_endpoint_are_what_huggingface_users_know(
    hub: Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repo("org/m")
    repo.private, repo.readers = True, {TOKEN}
    repo.commit({"m.gguf": LARGE})
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert (await get(cache, WeightsSpec(source="hf://org/m/m.gguf"))).read_bytes() == LARGE


async def test_a_hub_that_is_away_or_busy_is_tried_again_later(hub: Hub, cache: Cache) -> None:
    hub.site.answer_always = 503
    with pytest.raises(WeightsUnavailable, match="answers 503: it is tried again later"):
        await get(cache, spec_of(hub, "hf://org/m/m.gguf"))
    spec = WeightsSpec(source="hf://org/m/m.gguf", endpoint="http://127.0.0.1:9")
    with pytest.raises(WeightsUnavailable, match=r"cannot ask http://127.0.0.1:9 for hf://org/m/m.gguf"):
        await get(cache, spec)


async def test_an_unencrypted_hub_elsewhere_is_refused(cache: Cache) -> None:
    spec = WeightsSpec(source="hf://org/m/m.gguf", endpoint="http://hub.example.org")
    with pytest.raises(WeightsRefused, match=r"http://hub.example.org is not encrypted"):
        await get(cache, spec)


async def test_a_download_that_was_cut_is_gone_on_with(hub: Hub, cache: Cache) -> None:
    hub.repo("org/m").commit({"m.gguf": LARGE})
    hub.cdn.cut_at = [400_000]
    path = await get(cache, spec_of(hub, "hf://org/m/m.gguf"))
    assert path.read_bytes() == LARGE
    assert hub.cdn.sent == len(LARGE)
    assert "Range" in hub.cdn.gets[-1].headers


async def test_bytes_that_are_not_what_the_hub_tells_of_are_not_taken(hub: Hub, cache: Cache) -> None:
    hub.repo("org/m").commit({"m.gguf": LARGE})
    hub.wrong_lfs = True
    with pytest.raises(WeightsUnavailable, match=r"the hub tells of .*fetched anew"):
        await get(cache, spec_of(hub, "hf://org/m/m.gguf"))
    assert cache.locate(spec_of(hub, "hf://org/m/m.gguf")) is None
    hub.wrong_lfs = False
    assert (await get(cache, spec_of(hub, "hf://org/m/m.gguf"))).read_bytes() == LARGE


async def test_a_declared_checksum_is_compared_before_the_first_byte(hub: Hub, cache: Cache) -> None:
    hub.repo("org/m").commit({"m.gguf": LARGE, "x": SMALL})
    with pytest.raises(WeightsRefused, match=r"0000 is declared"):
        await get(cache, spec_of(hub, "hf://org/m/m.gguf", sha256="0" * 64))
    assert hub.cdn.asked == []
    good = hashlib.sha256(SMALL).hexdigest()
    assert await get(cache, spec_of(hub, "hf://org/m/x", sha256=good))


def _safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F16", "shape": [1000], "data_offsets": [0, 2000]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(2000)


REPOSITORY = {
    ".gitattributes": b"x",
    "README.md": b"hello",
    "config.json": json.dumps({"model_type": "llama", "hidden_size": 8}).encode(),
    "model.safetensors": _safetensors(),
    "pytorch_model.bin": LARGE,
    "original/consolidated.00.pth": LARGE,
    "tokenizer/vocab.json": SMALL,
}
