"""The gateway's pure parts: names, answers, balance, bodies, framing."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.catalog.spec import ModelSpec, ProfileSpec, ScalingSpec
from llmgw.gateway import surface
from llmgw.gateway.admission import Admission, Buffers
from llmgw.gateway.balance import pick
from llmgw.gateway.fields import understand
from llmgw.gateway.keys import Caller
from llmgw.gateway.names import near_names
from llmgw.gateway.openai import ApiError, BadBody, Code, error_body, error_event, read_model, rewrite_model
from llmgw.gateway.reply import LONGEST_LINE, Reply
from llmgw.gateway.reply import understand as answered
from llmgw.gateway.request import Head, Request, tag_of
from llmgw.gateway.routes import LOADING_RETRY, Hold, Refusal, Route, RoutingTable, still_loading
from llmgw.ids import Digest, EngineName, ModelName, ProfileName, ReplicaId, Revision
from llmgw.plan import Endpoint, ModelState, ModelStatus, Stopped
from llmgw.store.values import Applied
from llmgw.units import Bytes, Seconds, Wall

APPLIED = Applied(revision=Revision("r"), digest=Digest("d"), at=Wall(0))
M = ModelName("m")


def spec(name: str, *aliases: str) -> ModelSpec:
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("e"))
    return ModelSpec(name=ModelName(name), profiles=(profile,), aliases=aliases)


def ready(model: str, id: str = "r") -> Endpoint:
    return Endpoint(
        id=ReplicaId(id), model=ModelName(model), url="http://127.0.0.1:1", names=(model,), engine=EngineName("e")
    )  # fmt: skip


def table(*states: ModelState, endpoints: tuple[Endpoint, ...] = (), stopped: Stopped | None = None) -> RoutingTable:
    statuses = [ModelStatus(model=M, state=state, reason="because") for state in states]
    models = [spec("m", "alias")]
    return RoutingTable.build(applied=APPLIED, models=models, endpoints=endpoints, statuses=statuses, stopped=stopped)


def test_names_and_aliases_come_to_the_same_endpoints() -> None:
    routes = table(endpoints=(ready("m", "a"), ready("m", "b"), ready("other")))
    assert routes.resolve("m") == routes.resolve("alias") == Route(M, (ready("m", "a"), ready("m", "b")))
    assert isinstance(routes.resolve("M"), Refusal)  # names are case-sensitive
    assert routes.resolve("other").code == Code.MODEL_NOT_FOUND  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (ModelState.FAILED, Code.MODEL_FAILED),
        (ModelState.UNSCHEDULABLE, Code.MODEL_UNSCHEDULABLE),
        (ModelState.INACTIVE, Code.MODEL_INACTIVE),
        (ModelState.STOPPED, Code.SYSTEM_STOPPED),
    ],
)
def test_states_that_refuse(state: ModelState, code: Code) -> None:
    found = table(state).resolve("alias")
    assert isinstance(found, Refusal)
    assert (found.status, found.code) == (503, code)
    assert "because" in found.message


@pytest.mark.parametrize("states", [(), (ModelState.LOADING,), (ModelState.READY,)])
def test_states_that_are_worth_waiting_for(states: tuple[ModelState, ...]) -> None:
    assert isinstance(table(*states).resolve("m"), Hold)
    assert table(*states).state(M) == ModelState.LOADING


def test_the_operators_stop_comes_before_everything_but_a_missing_catalog() -> None:
    stopped = Stopped(at=Wall(0), by="ada")
    assert table(endpoints=(ready("m"),), stopped=stopped).resolve("nope").code == Code.SYSTEM_STOPPED  # type: ignore[union-attr]
    assert RoutingTable(stopped=stopped).resolve("m").code == Code.NOT_READY  # type: ignore[union-attr]


def test_near_names_ignore_case_and_give_up_on_long_ones() -> None:
    known = ("qwen3-8b", "meta-llama/Llama-3.1-8B", "gemma")
    assert near_names("Qwen3-8B", known) == ("qwen3-8b",)
    assert near_names("meta-llama/llama-3.1-8b-instruct", known) == ("meta-llama/Llama-3.1-8B",)
    assert near_names("q" * 10_000, known) == ()


def test_near_names_are_found_among_ten_thousand_alike_by_comparing_few(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tuple(f"team-{number % 50}-model-{number:05d}-instruct-q4" for number in range(10_000))
    compared = 0

    class Counting(difflib.SequenceMatcher[str]):
        def set_seq1(self, a: Sequence[str]) -> None:
            nonlocal compared
            compared += 1
            super().set_seq1(a)

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    for asked, meant in (
        ("team-1-model-00001-instruct-q5", "team-1-model-00001-instruct-q4"),
        ("Team-7-model-00207-instuct-q4", "team-7-model-00207-instruct-q4"),
        ("tam-49-model-00049-instruct-q4", "team-49-model-00049-instruct-q4"),
    ):
        compared = 0
        assert near_names(asked, known)[0] == meant
        assert compared < 100


def test_a_quarantine_tells_when_the_next_attempt_is() -> None:
    refusal = Refusal(status=503, code=Code.MODEL_FAILED, message="failed", retry_at=Wall(190.5))
    assert refusal.answer(Wall(100)).retry_after == 91
    assert "next attempt in 1m31s" in refusal.answer(Wall(100)).message


@pytest.mark.parametrize("now", [190.5, 1000.0])
def test_of_an_attempt_that_is_due_already_no_time_is_told(now: float) -> None:
    """It waits for something else: a client that came back each second would come for nothing."""
    refusal = Refusal(status=503, code=Code.MODEL_UNSCHEDULABLE, message="no disk", retry_at=Wall(190.5))
    answer = refusal.answer(Wall(now))
    assert (answer.retry_after, answer.message) == (LOADING_RETRY, "no disk")
    told = ModelStatus(model=ModelName("m"), state=ModelState.LOADING, retry_at=Wall(190.5))
    assert still_loading(Hold(ModelName("m"), told), Seconds(1), Wall(now)).retry_after == LOADING_RETRY
    assert still_loading(Hold(ModelName("m"), told), Seconds(1), Wall(100)).retry_after == 91


@dataclass(frozen=True)
class Candidate:
    name: str
    outstanding: int = 0
    weight: float = 1.0
    tier: int = 0
    turn: int = 0


def test_the_lowest_tier_comes_first_then_the_least_outstanding_for_its_weight() -> None:
    def chosen(*candidates: Candidate) -> str | None:
        found = pick(candidates)
        return found.name if found else None

    assert chosen() is None
    assert chosen(Candidate("busy", outstanding=9), Candidate("spare", tier=1)) == "busy"
    assert chosen(Candidate("a", outstanding=2), Candidate("b", outstanding=1)) == "b"
    assert chosen(Candidate("a", outstanding=3, weight=2.0), Candidate("b", outstanding=2)) == "a"
    assert chosen(Candidate("a", turn=5), Candidate("b", turn=4)) == "b"
    assert chosen(Candidate("a", weight=0.0), Candidate("b", outstanding=99)) == "b"


@given(st.lists(st.floats(0.5, 8), min_size=1, max_size=5), st.integers(1, 200))
def test_outstanding_requests_spread_by_weight(weights: list[float], requests: int) -> None:
    held = [0] * len(weights)
    for turn in range(requests):
        candidates = [Candidate(str(i), held[i], weight, turn=turn) for i, weight in enumerate(weights)]
        found = pick(candidates)
        assert found is not None
        held[int(found.name)] += 1
    shares = [count / weight for count, weight in zip(held, weights, strict=True)]
    # None is ahead of another by more than the one request that either may just have got.
    assert max(shares) - min(shares) <= max(1 / weight for weight in weights) + 1e-9


def test_the_queue_is_bounded_by_number_and_by_bytes() -> None:
    queue = Admission(max_waiting=2, max_bytes=Bytes(10))
    assert queue.enter(M, 4)
    assert queue.enter(M, 4)
    assert not queue.enter(M, 0)
    assert not queue.enter(ModelName("other"), 3)
    assert queue.enter(ModelName("other"), 2)
    queue.leave(M, 4)
    assert queue.waiting(M) == 1
    assert queue.enter(M, 4)


def test_the_model_is_read_from_the_top_level_only() -> None:
    assert read_model(b'{"x":{"model":"inner"},"model":"m"}') == "m"
    assert read_model(' { "mod\\u0065l" : "é" } '.encode()) == "é"
    with pytest.raises(BadBody):
        read_model(b'{"x":{"model":"inner"}}')


def test_rewriting_changes_the_models_value_and_nothing_else() -> None:
    body = b'\n{ "a" : "\\"model\\":\\"x\\"" , "model"\t:  "x"  ,"b":{"model":"x"},"c":[1.0, 2e5 ] }\n'
    assert rewrite_model(body, "new") == body.replace(b'"model"\t:  "x"', b'"model"\t:  "new"')
    assert rewrite_model(b'{"mod\\u0065l":"x"}', "n") == b'{"mod\\u0065l":"n"}'
    assert json.loads(rewrite_model(b'{"model":"x","n":1,"model":"y","n":2}', "z")) == {"model": "z", "n": 2}
    assert rewrite_model(b'{"model":"x","model":"x"}', "z") == b'{"model":"z","model":"z"}'
    with pytest.raises(BadBody):
        rewrite_model(b"{" + b",".join(b'"k%d":1' % n for n in range(10_001)) + b',"model":"x"}', "z")


KEYS = st.text(max_size=6) | st.just("model")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.text(min_size=1), st.sampled_from([None, 2]), st.booleans())
def test_any_rewritten_body_differs_in_the_model_alone(
    members: dict[str, object], name: str, indent: int | None, ascii: bool
) -> None:
    members["model"] = "before"
    body = json.dumps(members, indent=indent, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    assert read_model(body) == "before"
    rewritten = rewrite_model(body, name)
    assert json.loads(rewritten) == members | {"model": name}
    assert list(json.loads(rewritten)) == list(members)
    assert len(rewritten) - len(body) == len(json.dumps(name, ensure_ascii=False).encode()) - len(b'"before"') or any(
        ord(character) < 32 or character in '"\\\x7f' for character in name
    )


def test_error_objects_have_openais_shape_and_anthropics_under_its_path() -> None:
    error = ApiError(status=429, code=Code.QUEUE_FULL, message="full")
    expected = {"message": "full", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    assert json.loads(error_body(error)) == {"error": expected}
    assert json.loads(error_body(error, "/v1/messages")) == {"type": "error", "error": expected}
    assert error_event(error, "/v1/chat/completions").startswith(b'data: {"error":')
    assert error_event(error, "/v1/responses").startswith(b'event: error\ndata: {"type":"error",')


@pytest.mark.parametrize(
    ("status", "openais", "anthropics"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (404, "invalid_request_error", "not_found_error"),
        (413, "invalid_request_error", "request_too_large"),
        (502, "server_error", "api_error"),
        (503, "server_error", "overloaded_error"),
    ],
)
def test_an_errors_type_is_one_that_the_clients_of_its_path_know(status: int, openais: str, anthropics: str) -> None:
    error = ApiError(status=status, code=Code.ENGINE_LOST, message="it is so")
    assert json.loads(error_body(error, "/v1/chat/completions"))["error"]["type"] == openais
    assert json.loads(error_body(error, "/v1/messages"))["error"]["type"] == anthropics
    assert json.loads(error_event(error, "/v1/messages").split(b"data: ")[1])["error"]["type"] == anthropics


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("POST", "/v1/chat/completions", surface.Resource.RELAYED),
        ("POST", "/v1/new/thing.v2", surface.Resource.OTHER),
        ("POST", "/tokenize", surface.Resource.RELAYED),
        ("GET", "/v1/chat/completions", surface.Resource.RELAYED),
        ("GET", "/v1/new/thing", None),
        ("POST", "/v1/./x", None),
        ("POST", "/v1/x/..", None),
        ("POST", "/v1", None),
        ("POST", "/v1/x y", None),
        ("POST", "/v1/x\n", None),
        ("POST", "/v2/x", None),
        ("GET", "/v1/models/a/b", surface.Resource.MODEL),
    ],
)
def test_paths(method: str, path: str, found: surface.Resource | None) -> None:
    assert surface.find(method, path) is found


# An engine's answer on its way through

LOST = ApiError(status=502, code=Code.ENGINE_LOST, message="lost")
SSE = answered(200, ((b"content-type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")))


def reply(http11: bool = True, keep_alive: bool = True) -> Reply:
    return Reply(
        Request(
            Head("POST", b"/v1/chat/completions", "/v1/chat/completions", http11, understand(())),
            "1", tag_of("1"), Caller(None), Buffers(Bytes(0)), keep_alive=keep_alive,
        )
    )  # fmt: skip


def test_a_stream_is_passed_on_line_by_line() -> None:
    stream = reply()
    assert b"Transfer-Encoding: chunked" in stream.head(SSE, None)
    assert stream.framed(b"data: 1\n\n", False) == b"9\r\ndata: 1\n\n\r\n"
    assert stream.framed(b"data: 2\n\nda", False) == b"9\r\ndata: 2\n\n\r\n"
    assert stream.framed(b"ta: 3\n", False) == b"8\r\ndata: 3\n\r\n"
    assert stream.framed(b": no line end", True) == b"d\r\n: no line end\r\n0\r\n\r\n"


def test_a_stream_that_breaks_off_within_a_line_loses_the_line_and_gets_the_error() -> None:
    stream = reply()
    stream.head(SSE, None)
    stream.framed(b'data: 1\n\ndata: {"ha', False)
    end = stream.broken_off(LOST)
    assert end is not None
    assert b'\r\n\ndata: {"error":' in end
    assert end.endswith(b"\n\n\r\n0\r\n\r\n")


def test_a_line_too_long_to_keep_is_passed_on_and_ended_before_the_error() -> None:
    stream = reply(http11=False)
    stream.head(SSE, None)
    long = b"data: " + b"x" * LONGEST_LINE
    assert stream.framed(long, False) == long
    assert stream.framed(b"y", False) == b""
    end = stream.broken_off(LOST)
    assert end is not None
    assert end.startswith(b'\n\ndata: {"error":')


def test_a_body_of_known_length_keeps_it_and_one_without_is_framed() -> None:
    plain = reply()
    assert b"Content-Length: 3\r\n" in plain.head(answered(200, ()), 3)
    assert plain.framed(b"abc", True) == b"abc"
    assert plain.broken_off(LOST) == b""
    unsized = reply()
    unsized.head(answered(200, ()), None)
    assert unsized.framed(b"", False) == b""
    assert unsized.framed(b"abc", True) == b"3\r\nabc\r\n0\r\n\r\n"
    empty = reply()
    assert b"chunked" not in empty.head(answered(204, ()), None)


def test_an_old_client_is_told_by_a_reset_that_a_body_is_not_complete() -> None:
    old = reply(http11=False)
    assert b"Connection: close" not in old.head(answered(200, ()), None)  # HTTP/1.0 takes that for granted
    assert not old.keep_alive
    assert old.broken_off(LOST) is None


@pytest.mark.parametrize("models", [20, 200])
def test_of_a_table_only_what_became_other_is_worked_out_anew(models: int) -> None:
    specs = [spec(f"{models}-{number}", f"alias-{models}-{number}") for number in range(models)]
    statuses = [ModelStatus(model=one.name, state=ModelState.INACTIVE, reason="not wanted") for one in specs]
    before = built(specs, statuses)
    statuses[3] = ModelStatus(model=specs[3].name, state=ModelState.FAILED, reason="it failed")
    endpoint = ready(specs[5].name)
    after = built(specs, statuses, endpoint)
    other = [name for name, found in after.names.items() if found is not before.names[name]]
    assert other == [name for number in (3, 5) for name in specs[number].names]
    assert after.resolve(specs[5].name) == Route(specs[5].name, (endpoint,))
    refused = after.resolve(f"alias-{models}-3")
    assert isinstance(refused, Refusal)
    assert "it failed" in refused.message
    gone = built([one for one in specs if one is not specs[5]], statuses, endpoint)
    assert gone.endpoints == {}
    assert specs[5].name not in gone.names


def test_a_table_depends_on_nothing_that_was_before() -> None:
    name = ModelName("same-name")
    lazy = replace(spec(name), scaling=ScalingSpec(on_demand=True, min=0))
    idle = ModelStatus(model=name, state=ModelState.INACTIVE, reason="not asked for")
    for model, held in ((spec(name), False), (lazy, True), (replace(lazy, suspend=True), False), (lazy, True)):
        assert isinstance(built([model], [idle]).resolve(name), Hold) == held
    renamed = replace(lazy, aliases=("new",), set_params={"seed": 1})
    assert set(built([renamed], [idle]).names) == {name, "new"}
    assert set(built([renamed], [idle]).params) == {name, "new"}
    assert built([lazy], [idle]).params == {}


def built(specs: list[ModelSpec], statuses: list[ModelStatus], *endpoints: Endpoint) -> RoutingTable:
    return RoutingTable.build(applied=APPLIED, models=specs, endpoints=endpoints, statuses=statuses, stopped=None)
