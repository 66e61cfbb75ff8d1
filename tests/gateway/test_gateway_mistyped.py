"""Paths that somebody mistyped: what was meant is told, where nobody could serve what was asked."""

import pytest
from gateway_rig import Rig, get, lazy, model, post

from llmgw.gateway.surface import find, meant
from llmgw.plan import ModelState

CHAT = {"model": "m", "messages": []}


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/Chat/Completions", "/v1/chat/completions"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/message", "/v1/messages"),
        ("/v1/tokenise", "/v1/tokenize"),
        ("/models", "/v1/models"),
        ("/v1/health", None),
        ("/v1/infill", None),
        ("/v1/responses/compact", None),
        ("/v1/images/edits", None),
        ("/v1/chat/completions/input_tokens", None),
        ("/v1/embed", None),
        ("/", None),
        ("/v1/", None),
        ("/v1/chat/completion" + "s" * 100, None),
    ],
)
def test_what_was_meant_is_known_where_it_is_alike(path: str, near: str | None) -> None:
    assert meant(path) == near
    assert near is None or find("GET", near) is not None


async def test_a_path_that_nothing_is_at_says_which_was_meant(rig: Rig) -> None:
    await rig.serving()
    for data, near in (
        (post(CHAT, "/chat/completions"), "/v1/chat/completions"),
        (post(CHAT, "/v1/chat/completions/"), "/v1/chat/completions"),
        (get("/models"), "/v1/models"),
    ):
        answer = await rig.ask(data)
        assert (answer.status, answer.code) == (404, "path_not_found")
        assert answer.json["error"]["message"].endswith(f"did you mean {near}?")


async def test_what_no_engine_could_serve_is_not_passed_to_one_but_told(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("m"))
    await rig.endpoint("m", engine.url, surfaces=("chat/completions",))
    answer = await rig.post(CHAT, "/v1/chat/completion")
    assert (answer.status, answer.code) == (404, "path_not_found")
    assert answer.json["error"]["message"].endswith("did you mean /v1/chat/completions?")
    assert engine.asked == []
    assert rig.metric("llmgw_gateway_in_flight", model="m") == 0
    assert (await rig.post(CHAT, "/v1/infill")).status == 200, "like nothing that is known: who knows"
    assert (await rig.post(CHAT, "/v1/chat/completions")).status == 200


async def test_an_engine_that_may_serve_anything_or_says_that_it_serves_that_is_asked(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("m"))
    for surfaces in (None, ("chat/completion",)):
        await rig.endpoint("m", engine.url, surfaces=surfaces)
        assert (await rig.post(CHAT, "/v1/chat/completion")).status == 200
    assert [asked.target for asked in engine.asked] == ["/v1/chat/completion"] * 2


async def test_no_model_is_loaded_for_a_mistyped_path(rig: Rig) -> None:
    await rig.catalog(lazy())
    await rig.status("m", ModelState.INACTIVE, surfaces=("chat/completions",))
    assert (await rig.post(CHAT, "/v1/chat/completion")).code == "path_not_found"
    assert (await rig.post({"model": "x"}, "/v1/chat/completion")).code == "model_not_found", "whose engines may differ"
    assert rig.metric("llmgw_gateway_held", model="m") == 0
