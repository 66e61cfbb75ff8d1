"""Models that others run, and requests whose parameters the catalog changes: at a real gateway, over real TLS."""

import asyncio
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from gateway_rig import Asked, FakeEngine, Rig, echo, model, say, until

from llmgw.catalog.spec import ExternalSpec, ModelSpec, SecretRef, VariantSpec
from llmgw.gateway import dialling
from llmgw.gateway.params import params_of
from llmgw.ids import ModelName
from llmgw.plan import ModelState


def elsewhere(url: str, name: str = "far", **more: object) -> ModelSpec:
    return ModelSpec(name=ModelName(name), profiles=(), external=ExternalSpec(url=url, **more))  # type: ignore[arg-type]


# -- external models


async def test_a_model_that_others_run_is_asked_at_its_address_by_its_name_there_with_its_own_key(
    rig: Rig, tmp_path: Path
) -> None:
    engine = await rig.engine()
    (tmp_path / "key").write_text("sk-theirs\n")
    key = SecretRef(from_file=str(tmp_path / "key"))
    await rig.catalog(elsewhere(f"{engine.url}/api/v1", api_key=key, model="org/theirs"))
    answer = await rig.post({"model": "far", "n": 1}, headers="Authorization: Bearer sk-mine\r\n")
    assert answer.status == 200
    (asked,) = engine.asked
    assert (asked.target, asked.json) == ("/api/v1/chat/completions", {"model": "org/theirs", "n": 1})
    assert (asked.headers["authorization"], asked.headers["x-api-key"]) == ("Bearer sk-theirs", "sk-theirs")
    assert asked.headers["host"] == engine.url.removeprefix("http://")
    assert "sk-mine" not in str(asked.headers)


@pytest.mark.parametrize(
    ("base", "path", "expected"),
    [
        ("/v1", "/v1/embeddings", "/v1/embeddings"),
        ("/v1beta/openai", "/v1/chat/completions", "/v1beta/openai/chat/completions"),
        ("/v1", "/tokenize", "/tokenize"),
        ("/base/v1", "/tokenize?x=1", "/base/tokenize?x=1"),
    ],
)
async def test_its_address_stands_for_v1(rig: Rig, base: str, path: str, expected: str) -> None:
    engine = await rig.engine()
    await rig.catalog(elsewhere(engine.url + base))
    assert (await rig.post({"model": "far"}, path)).status == 200
    assert engine.asked[0].target == expected


async def test_it_is_listed_as_ready_and_its_answers_come_through_whatever_they_say(rig: Rig) -> None:
    engine = await rig.engine(say({"error": {"message": "slow down"}}, "429 Too Many Requests", "Retry-After: 7\r\n"))
    await rig.catalog(elsewhere(engine.url))
    listed = await rig.ask(b"GET /v1/models/far HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (listed.json["id"], listed.json["state"]) == ("far", ModelState.READY)
    answer = await rig.post({"model": "far"})
    assert (answer.status, answer.headers["retry-after"], answer.json["error"]["message"]) == (429, "7", "slow down")


async def test_no_more_than_its_limit_are_sent_there_at_once_and_the_others_wait_for_their_turn(rig: Rig) -> None:
    let_go = asyncio.Event()

    async def slow(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_go.wait()
        await echo(asked, reader, writer)

    engine = await rig.engine(slow)
    await rig.catalog(elsewhere(engine.url, max_requests=2))
    answers = [asyncio.create_task(rig.post({"model": "far"})) for _ in range(5)]
    await until(lambda: rig.metric("llmgw_gateway_queued", model="far") == 3, "three waiting")
    await until(lambda: len(engine.asked) == 2, "two asked")
    let_go.set()
    assert {answer.status for answer in await asyncio.gather(*answers)} == {200}
    assert len(engine.asked) == 5

    let_go.clear()
    await rig.catalog(elsewhere(engine.url, max_requests=0))
    answers = [asyncio.create_task(rig.post({"model": "far"})) for _ in range(5)]
    await until(lambda: len(engine.asked) == 10, "all asked at once")
    let_go.set()
    await asyncio.gather(*answers)


async def test_without_a_key_none_is_sent(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(elsewhere(engine.url))
    await rig.post({"model": "far"}, headers="Authorization: Bearer sk-mine\r\n")
    assert not {"authorization", "x-api-key"} & engine.asked[0].headers.keys()


async def test_a_key_that_is_not_there_is_told_and_one_that_is_changed_is_read_again(rig: Rig, tmp_path: Path) -> None:
    async def guarded(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        right = asked.headers.get("authorization") == "Bearer sk-new"
        await (echo if right else say({"error": {"message": "wrong key"}}, "401 Unauthorized"))(asked, reader, writer)

    engine = await rig.engine(guarded)
    file = tmp_path / "key"
    missing = elsewhere(engine.url, "none", api_key=SecretRef(from_file=str(file)))
    await rig.catalog(missing)
    told = await rig.post({"model": "none"})
    assert (told.status, told.code) == (503, "model_failed")
    assert str(file) in told.json["error"]["message"]
    file.write_text("sk-old")
    assert (await rig.post({"model": "none"})).status == 401  # nobody has to tell the gateway that it is there now
    file.write_text("sk-new")
    assert [(await rig.post({"model": "none"})).status for _ in range(2)] == [401, 200]


@pytest.mark.parametrize(
    "url",
    ["http://h:99999/v1", "http://h/\u8def", "http://h\u8def/v1", "http://:80/v1", "http://[::1/v1", "http://a..b/v1"],
)
async def test_an_address_that_is_none_is_told_and_all_other_models_are_served(rig: Rig, url: str) -> None:
    await rig.serving()
    await rig.catalog(elsewhere(url))
    told = await rig.post({"model": "far"})
    assert (told.status, told.code) == (503, "model_failed")
    assert url in told.json["error"]["message"]
    assert (await rig.post({"model": "m"})).status == 200
    assert rig.metric("llmgw_gateway_in_flight", model="far") == 0


async def test_whatever_stands_in_the_way_of_connecting_the_request_is_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.gateway.addresses.fault_of", lambda url: None)
    await rig.catalog(elsewhere("http://a..b/v1"))  # which the resolver takes for no name: a ValueError
    assert (await rig.post({"model": "far"})).code == "engine_lost"


async def test_an_external_model_stands_in_for_one_of_ours(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(replace(model("m"), fallback=ModelName("far")), elsewhere(engine.url, model="theirs"))
    await rig.status("m", ModelState.FAILED, fallback=ModelName("far"))
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.headers["x-llmgw-fallback"]) == (200, "far")
    assert engine.asked[0].json["model"] == "theirs"


async def test_one_that_cannot_be_reached_is_told_as_lost(rig: Rig) -> None:
    await rig.catalog(elsewhere("http://127.0.0.1:9/v1"))
    answer = await rig.post({"model": "far"})
    assert (answer.status, answer.code) == (502, "engine_lost")


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side of TLS, whose authority the gateway trusts."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    dialling.tls.cache_clear()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context


async def test_it_is_asked_over_tls_and_only_where_its_certificate_is_right(
    rig: Rig, certified: ssl.SSLContext
) -> None:
    engine = FakeEngine(echo)
    await engine.start(ssl=certified)
    rig.engines.append(engine)
    port = engine.url.rpartition(":")[2]
    await rig.catalog(elsewhere(f"https://localhost:{port}/v1"))
    assert (await rig.post({"model": "far"})).status == 200
    assert (await rig.post({"model": "far"})).status == 200
    assert engine.connections == 1, "kept"
    await rig.catalog(elsewhere(f"https://127.0.0.1:{port}/v1", "wrong"))
    refused = await rig.post({"model": "wrong"})
    assert (refused.status, refused.code) == (502, "engine_lost")
    assert "certificate" in refused.json["error"]["message"].lower()
    dialling.tls.cache_clear()


# -- parameters


def shaped(**params: object) -> ModelSpec:
    return replace(model("m", "alias"), **params)  # type: ignore[arg-type]


async def test_parameters_are_stripped_set_and_filled_in_and_all_else_is_as_it_was(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(
        shaped(strip_params=("user",), set_params={"max_tokens": 5}, default_params={"temperature": 0.2, "top_p": 1})
    )
    await rig.endpoint("m", engine.url)
    body = '{"user": "x", "messages": [{"user": 1.50}], "model": "alias", "max_tokens": 9, "temperature": 0}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    assert (await rig.ask(head.encode())).status == 200
    assert engine.asked[0].body == (
        b'{"messages":[{"user": 1.50}],"model":"m","max_tokens":5,"temperature":0,"top_p":1}'
    )


async def test_a_variant_is_served_by_its_models_replicas_with_its_own_defaults_on_top(rig: Rig) -> None:
    engine = await rig.engine()
    variants = (
        VariantSpec(name="m-coding", default_params={"temperature": 0.1}),
        VariantSpec(name="m-short", set_params={"max_tokens": 1}, strip_params=("stop",)),
    )
    await rig.catalog(shaped(default_params={"temperature": 0.7}, variants=variants))
    await rig.endpoint("m", engine.url)
    for name in ("m", "m-coding", "m-short"):
        assert (await rig.post({"model": name, "stop": "."})).status == 200
    assert [asked.json for asked in engine.asked] == [
        {"model": "m", "stop": ".", "temperature": 0.7},
        {"model": "m", "stop": ".", "temperature": 0.1},
        {"model": "m", "temperature": 0.7, "max_tokens": 1},
    ]
    listed = await rig.ask(b"GET /v1/models/m-coding HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (listed.json["id"], listed.json["variants"]) == ("m", ["m-coding", "m-short"])


async def test_a_body_that_nothing_is_to_become_of_is_passed_on_as_it_came(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(shaped(variants=(VariantSpec(name="v", set_params={"n": 1}),)))
    await rig.endpoint("m", engine.url)
    await rig.post({"model": "m", "messages": []})
    assert engine.asked[0].body == b'{"model": "m", "messages": []}'


async def test_a_stand_in_is_asked_as_it_asks_for_itself(rig: Rig) -> None:
    engine = await rig.engine()
    stand_in = replace(model("small"), default_params={"temperature": 0})
    await rig.catalog(shaped(fallback=ModelName("small"), set_params={"reasoning": "high"}), stand_in)
    await rig.endpoint("small", engine.url)
    await rig.status("m", ModelState.FAILED, fallback=ModelName("small"))
    assert (await rig.post({"model": "m"})).status == 200
    assert engine.asked[0].json == {"model": "small", "temperature": 0}


def test_models_without_parameters_cost_nothing() -> None:
    assert params_of(model("m", "a")) == {}
    assert params_of(replace(model("m"), variants=(VariantSpec(name="v"),))) == {}
