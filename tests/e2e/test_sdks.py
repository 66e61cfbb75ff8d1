"""The official SDKs, as their users have them, against real engines: OpenAI's for Python and for Node, and Anthropic's.

One llmgw for all of them. `chat` runs on the engine `cpu`, `llama` and `embed` on a llama-server, `late` on demand. The
model is small: it calls a tool where it is asked to repeat the call.
"""

import fcntl
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anthropic
import httpx
import openai
import pytest
from harness import MESSAGES, WEB, Daemon, Repo, cluster, eventually, serving
from llama_server import need_llama_server

from llmgw.engine.api import engine_key

HERE: Final = Path(__file__).parent
NODE_SDK: Final = "openai@>=6 <8"
LONG: Final[list[Any]] = [{"role": "user", "content": "word " * 5000}]
ASK: Final[list[Any]] = list(MESSAGES)
CALL: Final = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
REPEAT: Final[list[Any]] = [{"role": "user", "content": f"Repeat this: {CALL}"}]
PLACE: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Final[Any] = {"type": "function", "function": {"name": "weather", "description": "A day.", "parameters": PLACE}}
both = pytest.mark.parametrize("model", [pytest.param("chat", marks=pytest.mark.slow), "llama"])


def document(name: str, engine: str, weights: Path, more: str = "", **options: Any) -> str:
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: {name}
aliases: [{name}-alias]
{more}
profiles:
  - name: p
    engine: {engine}
    weights: {{source: "file://{weights}", size: 94MiB}}
    context: 1024
    parallel: 2
    options: {json.dumps({"threads": 1, **options})}
"""


@pytest.fixture(scope="module")
def daemon(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    need_llama_server()
    template = (HERE / "tools.jinja").read_text()
    repo = Repo(tmp_path_factory.mktemp("sdks") / "catalog")
    repo.commit(
        {
            "cluster.yaml": cluster(gateway={"cold_start_timeout": "200ms"}),
            "chat.yaml": document("chat", "cpu", smollm2, chat_template=template),
            "llama.yaml": document("llama", "llamacpp", smollm2, chat_template=template),
            "embed.yaml": document("embed", "llamacpp", smollm2, embeddings=True, pooling="mean"),
            "late.yaml": document("late", "cpu", smollm2, "scaling: {min: 0, on_demand: true, idle_timeout: 1h}"),
        }
    )
    with serving(repo.path, repo.path.parent / "home") as found:
        found.ready("chat", "llama", "embed")
        yield found


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[openai.OpenAI]:
    web = openai.DefaultHttpxClient(**WEB)
    with openai.OpenAI(base_url=f"{daemon.gateway}/v1", api_key="any", max_retries=0, http_client=web) as found:
        yield found


@pytest.fixture(scope="module")
def anthropic_client(daemon: Daemon) -> Iterator[anthropic.Anthropic]:
    web = anthropic.DefaultHttpxClient(**WEB)
    with anthropic.Anthropic(base_url=daemon.gateway, api_key="any", max_retries=0, http_client=web) as found:
        yield found


def engine(daemon: Daemon, row: dict[str, Any], path: str) -> httpx.Response:
    """GET from a replica's engine, which knows the gateway and us by a key."""
    key = engine_key((daemon.state / "secret").read_bytes().strip(), row["id"])
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{row['url']}{path}", headers=headers, timeout=60, **WEB).raise_for_status()


def decoding(daemon: Daemon, model: str) -> int:
    """Slots of the model's engine that are at work, by its own word."""
    return sum(slot["is_processing"] for slot in engine(daemon, daemon.replicas()[model], "/slots").json())


def sample(metrics: str, name: str) -> float:
    return next((float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(f"{name} ")), 0.0)


def counted(daemon: Daemon, metric: str, model: str) -> float:
    return sample(daemon.admin("/metrics").text, f'{metric}{{model="{model}"}}')


def coming(daemon: Daemon, model: str) -> float:
    """Requests for it that the gateway has: in its engine, or waiting for a slot there."""
    return sum(counted(daemon, f"llmgw_gateway_{name}", model) for name in ("in_flight", "queued"))


def figure(daemon: Daemon, row: dict[str, Any], metric: str) -> float:
    return sample(engine(daemon, row, "/metrics").text, metric)


@both
def test_chat_completions_responses_and_structured_answers(client: openai.OpenAI, model: str) -> None:
    chat = client.chat.completions.create(model=model, messages=ASK, max_tokens=12, temperature=0)
    assert "Paris" in (chat.choices[0].message.content or "")
    assert chat.model == model
    assert chat.usage is not None
    assert chat.usage.completion_tokens > 2
    done = client.completions.create(model=f"{model}-alias", prompt="The capital of France is", max_tokens=4)
    assert done.choices[0].text
    response = client.responses.create(model=model, input="What is the capital of France?", max_output_tokens=4)
    assert response.output_text
    shape: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}
    shaped = client.chat.completions.create(
        model=model, messages=ASK, max_tokens=40, temperature=0, response_format=shape
    )
    assert json.loads(shaped.choices[0].message.content or "")["city"]


@both
def test_streams_of_chat_and_of_responses(client: openai.OpenAI, model: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model=model, messages=ASK, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    words = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in words
    assert chunks[-1].usage is not None
    events = client.responses.create(model=model, input="What is the capital?", max_output_tokens=4, stream=True)
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert "response.output_text.delta" in kinds


@both
def test_a_tool_is_called_and_its_result_is_answered_with(client: openai.OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "tools": [TOOL], "max_tokens": 60, "temperature": 0}
    (choice,) = client.chat.completions.create(messages=REPEAT, **asked).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    said: list[Any] = [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    after = client.chat.completions.create(messages=REPEAT + said, **{**asked, "max_tokens": 6})
    assert after.usage is not None
    assert after.usage.prompt_tokens > 60, "the call and its result are in the prompt"
    with client.chat.completions.stream(messages=REPEAT, **asked) as stream:
        stream.until_done()
        final = stream.get_final_completion().choices[0]
    (call,) = final.message.tool_calls or ()
    assert json.loads(call.function.arguments) == {"city": "Paris"}


def test_embeddings_are_the_same_however_they_are_sent(client: openai.OpenAI) -> None:
    texts = ["The capital of France", "a cat"]
    packed = client.embeddings.create(model="embed-alias", input=texts)  # the SDK asks for base64 by itself
    plain = client.embeddings.create(model="embed", input=texts, encoding_format="float")
    assert [len(each.embedding) for each in packed.data] == [576, 576]
    for a, b in zip(packed.data, plain.data, strict=True):
        assert a.embedding == pytest.approx(b.embedding, abs=1e-4)
    assert packed.data[0].embedding != pytest.approx(packed.data[1].embedding, abs=1e-2)
    with pytest.raises(openai.NotFoundError, match="does not serve /v1/embeddings") as none:
        client.embeddings.create(model="llama", input="x")
    assert none.value.code == "surface_not_served"


@both
def test_errors_of_the_gateway_and_of_the_engine_are_typed(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError, match="no model") as unknown:
        client.chat.completions.create(model=f"{model}-none", messages=ASK)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert unknown.value.request_id
    with pytest.raises(openai.BadRequestError, match="context size"):
        client.chat.completions.create(model=model, messages=LONG)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=model, messages=ASK, temperature="hot")  # type: ignore[call-overload]
    with pytest.raises(openai.NotFoundError) as nowhere:
        client.with_options(base_url=f"{client.base_url}nowhere").chat.completions.create(model=model, messages=ASK)
    assert nowhere.value.status_code == 404


def test_models_are_listed_and_found_by_both_sdks(client: openai.OpenAI, anthropic_client: anthropic.Anthropic) -> None:
    assert {each.id for each in client.models.list()} == {"chat", "llama", "embed", "late"}
    assert {each.id for each in anthropic_client.models.list()} == {"chat", "llama", "embed", "late"}
    assert client.models.retrieve("chat-alias").id == "chat"
    assert anthropic_client.models.retrieve("chat-alias").id == "chat"


@both
def test_a_timeout_and_a_stream_left_alone_cancel_what_the_engine_does(
    daemon: Daemon, client: openai.OpenAI, model: str
) -> None:
    before = counted(daemon, "llmgw_gateway_cancelled_total", model)
    asked: dict[str, Any] = {"model": model, "messages": ASK, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.01).chat.completions.create(**asked, max_tokens=200)
    with client.chat.completions.create(**asked, max_tokens=900, stream=True) as stream:
        next(iter(stream))
    eventually(
        lambda: counted(daemon, "llmgw_gateway_cancelled_total", model) == before + 2, within=30, what="both cancelled"
    )
    assert counted(daemon, "llmgw_gateway_in_flight", model) == 0
    # The first is a whole answer, which llama.cpp finishes for nobody: 200 tokens. The other would take long.
    eventually(lambda: decoding(daemon, model) == 0, within=30, what="both slots free")
    assert client.chat.completions.create(model=model, messages=ASK, max_tokens=1).choices


def test_a_stream_that_its_client_leaves_frees_its_slot_at_once(daemon: Daemon, client: openai.OpenAI) -> None:
    endless: dict[str, Any] = {"model": "llama", "messages": ASK, "max_tokens": 900}
    with client.chat.completions.create(**endless, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        assert decoding(daemon, "llama") == 1
    eventually(lambda: decoding(daemon, "llama") == 0, within=30, what="the slot free")


def test_fifty_clients_that_vanish_while_prompts_are_read_cost_the_engine_no_more_than_what_it_has_begun(
    daemon: Daemon, client: openai.OpenAI
) -> None:
    tokens, row = 150, daemon.replicas()["llama"]
    before = counted(daemon, "llmgw_gateway_cancelled_total", "llama")
    read = figure(daemon, row, "llamacpp:prompt_tokens_total")
    address = urlsplit(daemon.gateway)
    with ExitStack() as stack:
        for number in range(50):
            said = [{"role": "user", "content": f"{number} " + "word " * tokens}]
            body = json.dumps({"model": "llama", "stream": True, "max_tokens": 1, "messages": said}).encode()
            wire = stack.enter_context(socket.create_connection((address.hostname or "", address.port or 0)))
            wire.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
            wire.sendall(body)
        eventually(lambda: coming(daemon, "llama") > 40, what="most of them there")
    gone = time.monotonic()
    eventually(lambda: coming(daemon, "llama") == 0, within=30, what="all forgotten")
    assert counted(daemon, "llmgw_gateway_cancelled_total", "llama") > before + 40
    # llama.cpp reads on what it has begun to read, and drops the rest.
    eventually(lambda: decoding(daemon, "llama") == 0, within=60, what="the slots free")
    assert client.chat.completions.create(model="llama", messages=ASK, max_tokens=1).choices
    assert figure(daemon, row, "llamacpp:prompt_tokens_total") - read < 20 * tokens, time.monotonic() - gone


def test_a_model_that_has_to_be_loaded_first_is_waited_for_by_the_sdks_own_retries(daemon: Daemon) -> None:
    seen: list[int] = []
    hooks: Any = {"response": [lambda answer: seen.append(answer.status_code)]}
    web = openai.DefaultHttpxClient(event_hooks=hooks, **WEB)
    with openai.OpenAI(base_url=f"{daemon.gateway}/v1", api_key="any", max_retries=30, http_client=web) as patient:
        assert patient.chat.completions.create(model="late", messages=ASK, max_tokens=1).choices
    assert (seen[0], set(seen[:-1]), seen[-1]) == (503, {503}, 200)


@both
def test_anthropic_messages_streams_tools_and_counts(anthropic_client: anthropic.Anthropic, model: str) -> None:
    asked: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
    told = anthropic_client.messages.create(model=f"{model}-alias", messages=asked, max_tokens=8)
    assert [block.type for block in told.content] == ["text"]
    assert told.usage.output_tokens > 0
    with anthropic_client.messages.stream(model=model, messages=asked, max_tokens=8) as stream:
        words = "".join(stream.text_stream)
        (block,) = stream.get_final_message().content
    assert words
    assert block.type == "text"
    assert words == block.text
    counted = anthropic_client.messages.count_tokens(model=model, messages=asked).input_tokens
    longer: list[Any] = [{"role": "user", "content": "What is the capital of France? " * 5}]
    assert 5 < counted < anthropic_client.messages.count_tokens(model=model, messages=longer).input_tokens
    tool: Any = {"name": "weather", "description": "A day.", "input_schema": PLACE}
    used = anthropic_client.messages.create(
        model=model, messages=REPEAT, tools=[tool], max_tokens=60, extra_body={"temperature": 0}
    )
    (use,) = (block for block in used.content if block.type == "tool_use")
    assert (used.stop_reason, use.name, use.input) == ("tool_use", "weather", {"city": "Paris"})


@both
def test_anthropic_errors_timeouts_and_cancelled_streams(
    daemon: Daemon, anthropic_client: anthropic.Anthropic, model: str
) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        anthropic_client.messages.create(model=f"{model}-none", messages=ASK[1:], max_tokens=1)
    assert unknown.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        anthropic_client.messages.create(model=model, messages=LONG, max_tokens=1)
    endless: dict[str, Any] = {"model": model, "messages": ASK[1:], "extra_body": {"ignore_eos": True}}
    with pytest.raises(anthropic.APITimeoutError):
        anthropic_client.with_options(timeout=0.01).messages.create(**endless, max_tokens=200)
    with anthropic_client.messages.stream(**endless, max_tokens=900) as stream:
        next(stream.text_stream)
    eventually(lambda: coming(daemon, model) == 0, within=30, what="both cancelled")
    eventually(lambda: decoding(daemon, model) == 0, within=30, what="both slots free")


@pytest.fixture(scope="module")
def node_sdk(downloads: Path) -> Path:
    """A directory in which Node finds OpenAI's SDK, fetched once for each user."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip(NO_NODE)
    place = downloads / "npm"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "node_modules" / "openai" / "package.json").exists():
            argv = [npm, "install", "--prefix", str(place), "--no-audit", "--no-fund", "--ignore-scripts", NODE_SDK]
            done = subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode != 0:
                pytest.skip(NO_NODE)
    return place


NO_NODE: Final = "no Node, or no npm registry: OpenAI's SDK for Node is not to be had"


@pytest.fixture(scope="module")
def told(daemon: Daemon, node_sdk: Path) -> dict[str, Any]:
    """What the Node program of this directory has to tell."""
    program = node_sdk / "sdk_openai.mjs"  # Node looks for packages beside a program
    shutil.copyfile(HERE / "sdk_openai.mjs", program)
    asked = {"base": f"{daemon.gateway}/v1", "messages": MESSAGES, "long": LONG, "repeat": REPEAT, "tool": TOOL}
    done = subprocess.run(
        ["node", str(program), json.dumps(asked)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("model", ["chat", "llama"])
def test_nodes_sdk_chats_streams_and_calls_tools(told: dict[str, Any], model: str) -> None:
    heard = told[model]
    assert "Paris" in heard["chat"]
    assert heard["streamed"] == heard["chat"]
    assert heard["usage"] > 2
    assert heard["tool"] == {"name": "weather", "arguments": {"city": "Paris"}}
    assert heard["streamedTool"] == heard["tool"]
    assert heard["response"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["chat", "llama"])
def test_nodes_sdk_has_typed_errors_timeouts_and_aborts(daemon: Daemon, told: dict[str, Any], model: str) -> None:
    heard = told[model]
    assert heard["unknown"] == {"name": "NotFoundError", "status": 404, "code": "model_not_found", "id": True}
    assert (heard["tooLong"]["name"], heard["tooLong"]["status"]) == ("BadRequestError", 400)
    assert heard["timeout"]["name"] == "APIConnectionTimeoutError"
    assert heard["abort"]["name"] == "APIUserAbortError"
    eventually(lambda: decoding(daemon, model) == 0, within=30, what="what it left is over")


@pytest.mark.slow
def test_nodes_sdk_embeds_lists_models_and_retries(told: dict[str, Any]) -> None:
    assert told["embedded"] == [576, 576]
    assert set(told["models"]) == {"chat", "llama", "embed", "late"}
    assert told["late"]["answered"]
    assert set(told["late"]["statuses"][:-1]) <= {503}
    assert told["late"]["statuses"][-1] == 200
