"""Downloads from a real web server on loopback."""

import asyncio
import hashlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from servers import CERTIFICATE, Site, closed_port, serve

from llmgw.catalog.spec import FetchLimits, SecretRef, WeightsSpec
from llmgw.clock import SystemClock
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.facts import Progress
from llmgw.units import Bytes
from llmgw.weights.cache import Cache
from llmgw.weights.http import MOST_REDIRECTS
from llmgw.weights.naming import entry_name
from llmgw.weights.web import Web

CONTENT = bytes(range(256)) * 20_000  # 5 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as served:
        served.files["/m/model.bin"] = CONTENT
        yield served


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(root: Path) -> Cache:
    return open_cache(root)


def open_cache(root: Path, stall: float = 5.0) -> Cache:
    web = Web(stall=stall, first_wait=0.01)
    made = Cache(root, cluster_id="c1", clock=SystemClock(), sources={"http": web, "https": web})
    made.open()
    return made


def spec_of(site: Site, *, path: str = "/m/model.bin", **more: object) -> WeightsSpec:
    return WeightsSpec(source=f"{site.url}{path}", **more)  # type: ignore[arg-type]


async def get(cache: Cache, spec: WeightsSpec, *, reserve: int = 0, seen: list[Progress] | None = None) -> Path:
    return await cache.fetch(spec, reserve=Bytes(reserve), progress=(seen if seen is not None else []).append)


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()} - {".llmgw-cache"}


@contextmanager
def tunnel(status: int) -> Iterator[int]:
    """A proxy that answers each CONNECT so, and no more."""
    over = threading.Event()

    def answer(listening: socket.socket) -> None:
        while not over.is_set():
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(f"HTTP/1.1 {status} So\r\nContent-Length: 0\r\n\r\n".encode())

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,), daemon=True)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


async def until(condition: Callable[[], bool], within: float = 30) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


async def test_a_file_comes_whole_and_is_kept(cache: Cache, root: Path, site: Site) -> None:
    seen: list[Progress] = []
    spec = spec_of(site, sha256=SHA256, size=Bytes(len(CONTENT)))
    path = await get(cache, spec, seen=seen)
    assert path.name == "model.bin"
    assert path.read_bytes() == CONTENT
    assert names(root) == {entry_name(spec.source, SHA256)}
    assert {each.name for each in path.parents[1].iterdir()} == {"files", "manifest.json"}
    assert seen[-1] == Progress(done=Bytes(len(CONTENT)), total=Bytes(len(CONTENT)))
    assert cache.locate(spec) == path
    (fact,) = cache.facts([])
    assert (fact.size, fact.sha256, fact.complete) == (len(CONTENT), SHA256, True)
    assert await get(cache, spec) == path
    assert len(site.asked) == 1


async def test_many_that_want_it_share_one_download(cache: Cache, site: Site) -> None:
    paths = await asyncio.gather(*(get(cache, spec_of(site)) for _ in range(10)))
    assert len(set(paths)) == 1
    assert len(site.gets) == 1


async def test_a_connection_that_breaks_is_gone_on_with(cache: Cache, site: Site) -> None:
    site.cut_at = [2_000_000, 100_000, 5, 1_500_000]
    path = await get(cache, spec_of(site))
    assert path.read_bytes() == CONTENT
    assert site.sent == len(CONTENT), "no byte came twice"
    assert [asked.headers.get("Range") for asked in site.gets] == [
        None, "bytes=2000000-", "bytes=2100000-", "bytes=2100005-", "bytes=3600005-",
    ]  # fmt: skip
    assert {asked.headers.get("If-Range") for asked in site.gets[1:]} == {'"1"'}


async def test_what_was_given_up_is_gone_on_with_at_the_next_try_and_after_a_restart(root: Path, site: Site) -> None:
    site.cut_at = [2_000_000]
    site.statuses = []
    spec = spec_of(site)

    async def fail(cache: Cache) -> str:
        with pytest.raises(WeightsUnavailable) as caught:
            await get(cache, spec)
        return str(caught.value)

    cache = open_cache(root)
    original = site.files["/m/model.bin"]
    site.cut_at = [2_000_000, *[0] * 4]
    said = await fail(cache)
    assert "stopped after 1.9 MiB of 4.9 MiB" in said
    assert "goes on from there" in said
    assert "http_proxy" in said
    assert names(root) == {f"kept-{entry_name(spec.source, None)}"}
    site.cut_at = [1_000_000, *[0] * 4]
    assert "2.9 MiB" in await fail(cache)
    again = open_cache(root)
    path = await get(again, spec)
    assert path.read_bytes() == original
    assert site.sent == len(CONTENT)
    assert names(root) == {entry_name(spec.source, None)}


async def test_a_changed_file_starts_anew(cache: Cache, site: Site) -> None:
    other = CONTENT[::-1]
    site.cut_at = [2_000_000, *[0] * 4]
    with pytest.raises(WeightsUnavailable):
        await get(cache, spec_of(site))
    site.files["/m/model.bin"], site.etag = other, '"2"'
    assert (await get(cache, spec_of(site))).read_bytes() == other


async def test_a_server_that_ignores_if_range_is_found_out_by_its_etag(cache: Cache, site: Site) -> None:
    site.cut_at = [2_000_000, *[0] * 4]
    with pytest.raises(WeightsUnavailable):
        await get(cache, spec_of(site))
    other = CONTENT[::-1]
    site.files["/m/model.bin"] = other
    site.headers["ETag"] = '"2"'
    site.etag = None  # so that If-Range matches nothing: see below

    def ignoring(path: str) -> None:
        site.asked[-1].headers.pop("If-Range", None)

    site.location = ignoring
    assert (await get(cache, spec_of(site))).read_bytes() == other


async def test_a_changed_file_without_an_etag_is_found_out_by_its_checksum(cache: Cache, site: Site) -> None:
    other = CONTENT[::-1]
    spec = spec_of(site, sha256=hashlib.sha256(other).hexdigest())
    site.etag, site.cut_at = None, [2_000_000, *[0] * 4]
    with pytest.raises(WeightsUnavailable):
        await get(cache, spec)
    site.files["/m/model.bin"] = other
    assert (await get(cache, spec)).read_bytes() == other
    assert site.gets[-2].headers["Range"] == "bytes=2000000-"
    assert "Range" not in site.gets[-1].headers


@pytest.mark.parametrize("etag", [None, 'W/"1"'])
async def test_without_anything_to_resume_by_it_starts_anew(etag: str | None, cache: Cache, site: Site) -> None:
    site.etag, site.cut_at = etag, [2_000_000]
    assert (await get(cache, spec_of(site))).read_bytes() == CONTENT
    assert ["Range" in asked.headers for asked in site.gets] == [False, False]


async def test_a_server_without_ranges_sends_it_again(cache: Cache, site: Site) -> None:
    site.ranges, site.cut_at = False, [2_000_000]
    assert (await get(cache, spec_of(site))).read_bytes() == CONTENT


async def test_a_file_that_became_shorter_than_what_is_here_starts_anew(cache: Cache, site: Site) -> None:
    site.cut_at = [2_000_000, *[0] * 4]
    with pytest.raises(WeightsUnavailable):
        await get(cache, spec_of(site))
    site.files["/m/model.bin"] = b"short"  # under the same ETag: 416
    assert (await get(cache, spec_of(site))).read_bytes() == b"short"


async def test_a_length_that_is_a_lie_is_no_whole_file(cache: Cache, root: Path, site: Site) -> None:
    site.lie = 10
    size = len(CONTENT)
    with pytest.raises(WeightsUnavailable, match=f"stopped after {size} of {size + 10} bytes .*wrong length"):
        await get(cache, spec_of(site))
    assert cache.locate(spec_of(site)) is None


async def test_a_stalled_server_is_given_up_and_gone_on_with(root: Path, site: Site) -> None:
    cache = open_cache(root, stall=0.2)
    site.stall_at = 1_000_000
    with pytest.raises(WeightsUnavailable, match=r"no byte came in time"):
        await get(cache, spec_of(site, sha256="0" * 64))
    site.stall_at = None
    with pytest.raises(WeightsRefused, match="sha256"):
        await get(cache, spec_of(site, sha256="0" * 64))
    assert names(root) == set()


async def test_who_cancels_a_stalled_download_does_not_wait_for_the_server(
    cache: Cache, root: Path, site: Site
) -> None:
    site.stall_at = 1_000_000
    asker = asyncio.ensure_future(get(cache, spec_of(site)))
    await until(lambda: any(path.stat().st_size for path in root.glob("partial-*/entry/files/model.bin")))
    began = time.monotonic()
    asker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asker
    assert time.monotonic() - began < 20
    assert {name.partition("-")[0] for name in names(root)} == {"kept"}


@pytest.mark.parametrize("statuses", [[503], [429, 502], [500, 504, 408]])
async def test_a_busy_server_is_asked_again(statuses: list[int], cache: Cache, site: Site) -> None:
    site.statuses = statuses
    assert (await get(cache, spec_of(site))).read_bytes() == CONTENT


@pytest.mark.parametrize("when", ["3600", "date"])
async def test_a_server_that_asks_for_much_patience_gets_it_from_the_next_try(
    when: str, cache: Cache, site: Site
) -> None:
    asked = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True) if when == "date" else when
    site.answer_always, site.headers = 503, {"Retry-After": asked}
    with pytest.raises(WeightsUnavailable, match=r"asks to wait (3600|3599) s") as caught:
        await get(cache, spec_of(site))
    assert "the server's own" in str(caught.value)
    assert "check the network" not in str(caught.value), "it was reached"
    assert len(site.asked) == 1


async def test_a_server_that_asks_for_little_patience_gets_it_at_once(cache: Cache, site: Site) -> None:
    site.statuses, site.headers = [429], {"Retry-After": "1"}
    began = time.monotonic()
    assert (await get(cache, spec_of(site))).read_bytes() == CONTENT
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "token"), (403, "token"), (404, "no such file"), (410, "no such file"), (400, "correct the source")],
)
async def test_a_refusal_says_what_to_do_and_leaves_nothing(
    status: int, said: str, cache: Cache, root: Path, site: Site
) -> None:
    site.answer_always = status
    with pytest.raises(WeightsRefused, match=said) as caught:
        await get(cache, spec_of(site))
    assert spec_of(site).source in str(caught.value)
    assert str(status) in str(caught.value)
    assert names(root) == set()


async def test_a_token_is_shown_to_its_own_server_alone_and_never_printed(
    cache: Cache, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_TOKEN", "s3cret")
    site.token = "s3cret"
    spec = spec_of(site, token=SecretRef(from_env="MODEL_TOKEN"))
    assert (await get(cache, spec)).read_bytes() == CONTENT
    with serve() as elsewhere:
        elsewhere.files["/there"] = CONTENT
        site.token = None
        site.location = lambda path: f"{elsewhere.url}/there"
        assert await get(cache, spec_of(site, path="/other.bin", token=SecretRef(from_env="MODEL_TOKEN")))
        assert "Authorization" in site.gets[-1].headers
        assert "Authorization" not in elsewhere.gets[-1].headers
    monkeypatch.setenv("MODEL_TOKEN", "wr0ng")
    site.token, site.location = "s3cret", lambda path: None
    with pytest.raises(WeightsRefused, match="renew it") as caught:
        await get(cache, spec_of(site, path="/m/model.bin?2", token=SecretRef(from_env="MODEL_TOKEN")))
    assert "wr0ng" not in repr(caught.value)
    monkeypatch.delenv("MODEL_TOKEN")
    with pytest.raises(WeightsRefused, match="set the variable MODEL_TOKEN"):
        await get(cache, spec_of(site, path="/m/model.bin?3", token=SecretRef(from_env="MODEL_TOKEN")))


async def test_redirects_are_followed_and_bounded(cache: Cache, root: Path, site: Site) -> None:
    site.location = lambda path: "/m/model.bin" if path == "/go" else None
    assert (await get(cache, spec_of(site, path="/go"))).read_bytes() == CONTENT
    site.location = lambda path: path + "x"
    with pytest.raises(WeightsRefused, match="redirected more than 10 times"):
        await get(cache, spec_of(site, path="/loop"))
    assert sum(asked.path.startswith("/loop") for asked in site.asked) == MOST_REDIRECTS + 1
    site.location = lambda path: "file:///etc/passwd"
    with pytest.raises(WeightsRefused, match="no web address"):
        await get(cache, spec_of(site, path="/file"))
    site.location = lambda path: "http://192.0.2.1/x"
    with pytest.raises(WeightsRefused, match="not encrypted"):
        await get(cache, spec_of(site, path="/away"))


async def test_plain_http_to_another_machine_needs_permission_and_takes_no_token(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WeightsRefused, match="insecure: true"):
        await get(cache, WeightsSpec(source="http://192.0.2.1/x"))
    monkeypatch.setenv("MODEL_TOKEN", "s3cret")
    with pytest.raises(WeightsRefused, match="unencrypted"):
        await get(
            cache,
            WeightsSpec(source="http://192.0.2.1/x", insecure=True, token=SecretRef(from_env="MODEL_TOKEN")),
        )


async def test_over_https_a_certificate_must_be_trusted_and_no_redirect_leaves_encryption(
    cache: Cache, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(encrypted=True) as secure:
        secure.files["/m/model.bin"] = CONTENT
        with pytest.raises(WeightsUnavailable, match=r"certificate of 127\.0\.0\.1 cannot be trusted .*SSL_CERT_FILE"):
            await get(cache, spec_of(secure))
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        secure.cut_at = [2_000_000]
        assert (await get(cache, spec_of(secure))).read_bytes() == CONTENT
        secure.location = lambda path: f"{site.url}/m/model.bin"
        with pytest.raises(WeightsRefused, match="redirected from https to http"):
            await get(cache, spec_of(secure, path="/away", insecure=True))
        assert not site.asked


async def test_the_environments_proxy_is_used(cache: Cache, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["http://models.invalid/x.bin"] = CONTENT  # a proxy is asked for the whole URL
    monkeypatch.setenv("http_proxy", site.url.replace("http://", "http://me:pass@"))
    path = await get(cache, WeightsSpec(source="http://models.invalid/x.bin", insecure=True))
    assert path.read_bytes() == CONTENT
    assert site.gets[-1].headers["Proxy-Authorization"] == "Basic bWU6cGFzcw=="
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(WeightsUnavailable, match=r"models.invalid by the proxy 127\.0\.0\.1"):
        await get(cache, WeightsSpec(source="http://models.invalid/y.bin", insecure=True))
    monkeypatch.setenv("no_proxy", "models.invalid")
    with pytest.raises(WeightsUnavailable, match=r"models.invalid: "):
        await get(cache, WeightsSpec(source="http://models.invalid/y.bin", insecure=True))


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (407, WeightsRefused, r"the proxy wants other credentials \(407\): correct https_proxy"),
        (403, WeightsUnavailable, r"models.invalid by the proxy 127\.0\.0\.1:\d+: Tunnel connection failed: 403"),
        (200, WeightsUnavailable, r"models.invalid by the proxy 127\.0\.0\.1:\d+: "),
    ],
)
async def test_a_proxy_that_opens_no_way_is_named(
    status: int, kind: type[Exception], said: str, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tunnel(status) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(kind, match=said) as caught:
            await get(cache, WeightsSpec(source="https://models.invalid/x.bin"))
    assert "https://models.invalid/x.bin" in str(caught.value)


async def test_a_kind_of_proxy_that_is_not_known_is_told(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(WeightsUnavailable, match=r"socks5:// are not supported: set https_proxy to http://"):
        await get(cache, WeightsSpec(source="https://models.invalid/x.bin"))


async def test_what_is_under_way_counts_for_the_next_one_s_room(cache: Cache, root: Path, site: Site) -> None:
    half, free = 3_000_000_000, shutil.disk_usage(root).free  # far more than others take meanwhile
    site.files["/a"], site.stall_at = bytes(1000), 500
    site.lie = half - 1000  # it says so, and so much is set aside for it
    reserve = Bytes(free - 5_000_000_000)
    first = asyncio.ensure_future(get(cache, spec_of(site, path="/a"), reserve=reserve))
    await until(lambda: any(path.stat().st_size == 500 for path in root.glob("partial-*/entry/files/a")))
    with pytest.raises(WeightsUnavailable, match=r"needs 2.8 GiB, .* beyond the reserve of .* and what is under way"):
        await get(cache, spec_of(site, path="/b", size=Bytes(half)), reserve=reserve)
    assert [asked.path for asked in site.asked] == ["/a"], "it was not even asked for"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_of_a_machine_that_does_not_answer_nothing_is_kept(cache: Cache, root: Path) -> None:
    with pytest.raises(WeightsUnavailable):
        await get(cache, WeightsSpec(source=f"http://127.0.0.1:{closed_port()}/model.bin"))
    assert names(root) == set()


async def test_a_machine_that_does_not_answer_may_answer_later(cache: Cache) -> None:
    with pytest.raises(WeightsUnavailable, match="check the network"):
        await get(cache, WeightsSpec(source=f"http://127.0.0.1:{closed_port()}/x"))


async def test_the_size_is_checked_before_the_first_byte_is_written(cache: Cache, root: Path, site: Site) -> None:
    with pytest.raises(WeightsRefused, match=r"the catalog declares 1.0 MiB"):
        await get(cache, spec_of(site, size=Bytes(1024 * 1024)))
    site.lie = 2**54 - len(CONTENT)  # more than any disk has: what is free here changes meanwhile
    with pytest.raises(WeightsUnavailable, match=r"no room .* needs 16384.0 TiB"):
        await get(cache, spec_of(site))
    assert not [name for name in names(root) if (root / name / "entry/files/model.bin").stat().st_size]


async def test_an_unfinished_download_gives_way_to_one_that_needs_its_room(
    root: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache(root)
    site.cut_at = [2_000_000, *[0] * 4]
    with pytest.raises(WeightsUnavailable):
        await get(cache, spec_of(site))
    (kept,) = names(root)
    free = shutil.disk_usage(root).free
    with pytest.raises(WeightsUnavailable, match="no room"):
        await get(cache, spec_of(site, path="/other", size=Bytes(100)), reserve=free + 2**40)
    assert kept not in names(root)


async def test_a_page_is_no_model(cache: Cache, site: Site) -> None:
    site.headers["Content-Type"] = "text/html; charset=utf-8"
    with pytest.raises(WeightsRefused, match="web page"):
        await get(cache, spec_of(site))


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_empty_file_is_no_model(cache: Cache, root: Path, site: Site, chunked: bool) -> None:
    site.files["/m/model.bin"], site.chunked = b"", chunked
    with pytest.raises(WeightsRefused, match="0 bytes"):
        await get(cache, spec_of(site))
    assert names(root) == set()


async def test_a_model_with_an_empty_part_is_none(cache: Cache, root: Path, site: Site) -> None:
    site.files |= {"/m-00001-of-00002.gguf": b"weights", "/m-00002-of-00002.gguf": b""}
    with pytest.raises(WeightsRefused, match=r"m-00002-of-00002\.gguf has 0 bytes"):
        await get(cache, spec_of(site, path="/m-00001-of-00002.gguf"))
    assert names(root) == set()


async def test_where_the_end_cannot_be_told_a_checksum_is_asked_for(cache: Cache, site: Site) -> None:
    site.no_length = True
    with pytest.raises(WeightsRefused, match="declare `sha256`"):
        await get(cache, spec_of(site))
    assert (await get(cache, spec_of(site, sha256=SHA256))).read_bytes() == CONTENT
    site.no_length, site.chunked = False, True
    site.files["/c"] = CONTENT
    assert (await get(cache, spec_of(site, path="/c"))).read_bytes() == CONTENT
    site.cut_at = [1_000_000]
    site.files["/d"] = CONTENT
    assert (await get(cache, spec_of(site, path="/d"))).read_bytes() == CONTENT


async def test_all_parts_of_a_split_model_come(cache: Cache, site: Site) -> None:
    for number in (1, 2, 3):
        site.files[f"/m-0000{number}-of-00003.gguf"] = bytes([number]) * 1000
    site.head_status = 405
    spec = spec_of(site, path="/m-00001-of-00003.gguf")
    path = await get(cache, spec)
    assert path.name == "m-00001-of-00003.gguf"
    assert [each.read_bytes()[0] for each in sorted(path.parent.iterdir())] == [1, 2, 3]
    assert cache.facts([])[0].size == 3000
    with pytest.raises(WeightsRefused, match="not the first"):
        await get(cache, spec_of(site, path="/m-00002-of-00003.gguf"))
    with pytest.raises(WeightsRefused, match="leave it out"):
        await get(cache, spec_of(site, path="/m-00001-of-00003.gguf", sha256=SHA256))


async def test_a_source_tells_its_size_without_a_download(site: Site) -> None:
    (file,) = (await Web().describe(spec_of(site))).files
    assert (file.path, file.size) == ("model.bin", len(CONTENT))
    assert site.sent == 0
    site.head_status = 403
    assert (await Web().describe(spec_of(site))).size == len(CONTENT)
    assert [asked.headers["Range"] for asked in site.gets] == ["bytes=0-0"]


def test_a_download_survives_the_kill_of_its_process(root: Path, site: Site) -> None:
    site.stall_at = 2_000_000
    spec = spec_of(site)
    code = (
        "import asyncio; from pathlib import Path; from llmgw.weights.cache import Cache\n"
        "from llmgw.clock import SystemClock; from llmgw.catalog.spec import WeightsSpec\n"
        f"cache = Cache(Path({str(root)!r}), cluster_id='c1', clock=SystemClock()); cache.open()\n"
        f"asyncio.run(cache.fetch(WeightsSpec(source={spec.source!r}), reserve=0, progress=lambda p: None))\n"
    )
    daemon = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)

    def written() -> int:
        return sum(path.stat().st_size for path in root.glob("partial-*/entry/files/model.bin"))

    try:
        asyncio.run(until(lambda: written() == 2_000_000))
        daemon.send_signal(signal.SIGKILL)
    finally:
        daemon.kill()
        daemon.wait()
    site.stall_at = None
    cache = open_cache(root)
    assert names(root) == {f"kept-{entry_name(spec.source, None)}"}
    path = asyncio.run(get(cache, spec))
    assert path.read_bytes() == CONTENT
    assert site.gets[-1].headers["Range"] == "bytes=2000000-"


async def test_downloads_share_a_bandwidth_that_can_change_meanwhile(cache: Cache, site: Site) -> None:
    site.files["/a"] = site.files["/b"] = bytes(1_000_000)
    slow = FetchLimits(bandwidth=Bytes(2_000_000), parallel=2)

    async def fetch(path: str, limits: FetchLimits) -> None:
        await cache.fetch(spec_of(site, path=path), reserve=Bytes(0), progress=lambda _: None, limits=limits)

    began = time.monotonic()
    await asyncio.gather(fetch("/a", slow), fetch("/b", slow))
    assert time.monotonic() - began > 0.8, "2 MB at 2 MB/s, less what may be caught up on"
    site.files["/c"] = bytes(1_000_000)
    crawling = asyncio.ensure_future(fetch("/c", FetchLimits(bandwidth=Bytes(50_000))))
    await until(lambda: any(asked.path == "/c" for asked in site.gets))
    began = time.monotonic()
    await cache.fetch(spec_of(site, path="/a"), reserve=Bytes(0), progress=lambda _: None, limits=FetchLimits())
    await crawling
    assert time.monotonic() - began < 15, "the rest came as fast as it goes"


async def test_so_many_downloads_run_at_once_and_the_others_wait_for_their_turn(cache: Cache, site: Site) -> None:
    for name in "abcd":
        site.files[f"/{name}"] = bytes(1000)
    site.stall_at = 500

    def begin(name: str) -> "asyncio.Future[Path]":
        spec = spec_of(site, path=f"/{name}")
        return asyncio.ensure_future(
            cache.fetch(spec, reserve=Bytes(0), progress=lambda _: None, limits=FetchLimits(parallel=1))
        )

    first, second, third, fourth = (begin(name) for name in "abcd")
    await until(lambda: len(site.gets) == 1)
    second.cancel()  # while it waits
    await asyncio.gather(second, return_exceptions=True)
    await asyncio.sleep(0.1)
    assert [asked.path for asked in site.gets] == ["/a"]
    site.stall_at = None
    first.cancel()  # while it runs: its turn is the next one's
    assert (await third).read_bytes() == bytes(1000)
    assert (await fourth).read_bytes() == bytes(1000)
    assert [asked.path for asked in site.gets] == ["/a", "/c", "/d"]
    await asyncio.gather(first, return_exceptions=True)


def test_a_disk_that_fills_up_meanwhile_is_told_and_given_back(tmp_path: Path, site: Site) -> None:
    site.chunked = True  # nobody knows how much is to come
    small = tmp_path / "small"
    small.mkdir()
    code = (
        "import asyncio, os, sys; from pathlib import Path; from llmgw.weights.cache import Cache\n"
        "from llmgw.clock import SystemClock; from llmgw.catalog.spec import WeightsSpec\n"
        "cache = Cache(Path(sys.argv[1]), cluster_id='c1', clock=SystemClock()); cache.open()\n"
        f"fetch = cache.fetch(WeightsSpec(source={spec_of(site).source!r}), reserve=0, progress=lambda p: None)\n"
        "try: asyncio.run(fetch)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "print(os.listdir(sys.argv[1]))\n"
    )
    mounted = 'mount -t tmpfs -o size=3m none "$0" || exit 99; exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mounted, str(small), sys.executable, "-c", code, str(small / "cache")]
    if shutil.which("unshare") is None:
        pytest.skip("no file system can be mounted here")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode in (1, 99) and "Traceback" not in done.stderr:
        pytest.skip("no file system can be mounted here")
    told, left = done.stdout.splitlines()[-2:]
    assert "WeightsUnavailable" in told
    assert "the disk of" in told
    assert "free some space" in told
    assert left == "['.llmgw-cache']"
