"""Talking to a model through the gateway, as any OpenAI client does."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from llmgw.errors import TerminalError

CONNECT: Final = 10.0  #: seconds; an answer may take as long as it takes
NUMBERS: Final = frozenset(
    {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty"}
)  # fmt: skip
WHOLE: Final = frozenset({"max_tokens", "max_completion_tokens", "seed", "top_k"})
OURS: Final = frozenset({"model", "messages", "stream", "stream_options"})


class ChatFailed(TerminalError):
    """The gateway or the engine behind it said no, or went away. One line."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A bit of an answer. `reasoning`: what the model says to itself before it."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """How many tokens the engine says that it made. Comes last, if at all."""

    tokens: int


@dataclass(slots=True)
class Conversation:
    """What was said so far, and how the model is to answer."""

    model: str
    system: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, str]] = field(default_factory=list)

    def request(self, text: str) -> dict[str, Any]:
        """The body that asks `text` after all that was said."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, *self.turns, {"role": "user", "content": text}]
        return {**self.params, "model": self.model, "messages": messages}

    def said(self, text: str, answer: str) -> None:
        """Remember a question and its answer, cut short or not; a question without any is forgotten."""
        if answer:
            self.turns += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


def parameter(name: str, text: str) -> Any:
    """The value of a request parameter as somebody typed it. Raises ValueError, saying what is expected."""
    if name in OURS or not name.replace("_", "").isalnum():
        raise ValueError(f"{name} is not a parameter that can be set")
    if name in WHOLE:
        if not text.lstrip("-").isdecimal():
            raise ValueError(f"{name} is a whole number")
        return int(text)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if name in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name} is a number")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayClient:
    """`url`: the gateway's, without a path. `hint`: what to do when nobody answers."""

    url: str
    hint: str

    def models(self) -> list[Mapping[str, Any]]:
        """As GET /v1/models has them. Raises ChatFailed."""
        try:
            with self._client() as client:
                reply = client.get("/v1/models", timeout=CONNECT)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._gone(error) from error
        found = _object(reply.content).get("data") if reply.is_success else None
        if not isinstance(found, list):
            raise ChatFailed(_refusal(reply.status_code, reply.content))
        return [each for each in found if isinstance(each, dict)]

    def ask(self, body: Mapping[str, Any], *, stream: bool) -> Iterator[Piece | Counted]:
        """The answer as it comes. Close the iterator to have the model stop. Raises ChatFailed."""
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        try:
            with (
                self._client() as client,
                client.stream("POST", "/v1/chat/completions", json={**body, **more}) as reply,
            ):
                if not reply.is_success:
                    raise ChatFailed(_refusal(reply.status_code, reply.read()))
                if "text/event-stream" in reply.headers.get("content-type", ""):
                    yield from _streamed(reply.iter_lines())
                else:
                    yield from _whole(reply.read())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._gone(error) from error

    def _client(self) -> httpx.Client:
        timeout = httpx.Timeout(CONNECT, read=None, write=None)
        key = os.environ.get("LLMGW_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, timeout=timeout, trust_env=False, headers=headers)

    def _gone(self, error: Exception) -> ChatFailed:
        return ChatFailed(f"the gateway at {self.url} cannot be reached ({error}): {self.hint}")


def default_model(models: Sequence[Mapping[str, Any]]) -> str:
    """The one with the alias `default`, else the only one. Raises ChatFailed, naming what there is."""
    names = [str(each.get("id")) for each in models]
    if "default" in names or any("default" in (each.get("aliases") or ()) for each in models):
        return "default"
    if len(names) == 1:
        return names[0]
    if not names:
        raise ChatFailed("the gateway has no models")
    listed = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
    raise ChatFailed(f"which model? None has the alias `default`; there are {listed}")


def _streamed(lines: Iterator[str]) -> Iterator[Piece | Counted]:
    finished = False
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        event = _object(data.encode())
        if "error" in event:
            raise ChatFailed(_message(event))
        choice = _first(event)
        finished = finished or bool(choice.get("finish_reason"))
        yield from _pieces(choice.get("delta"))
        yield from _counted(event)
    if not finished:
        raise ChatFailed("the answer was cut off")


def _whole(body: bytes) -> Iterator[Piece | Counted]:
    answer = _object(body)
    yield from _pieces(_first(answer).get("message"))
    yield from _counted(answer)


def _pieces(message: Any) -> Iterator[Piece]:
    if not isinstance(message, dict):
        return
    for key in ("reasoning_content", "reasoning", "content"):
        text = message.get(key)
        if isinstance(text, str) and text:
            yield Piece(text, reasoning=key != "content")


def _counted(answer: Mapping[str, Any]) -> Iterator[Counted]:
    usage = answer.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if isinstance(tokens, int):
        yield Counted(tokens)


def _first(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _refusal(status: int, body: bytes) -> str:
    answer = _object(body)
    error = answer.get("error")
    if isinstance(error, dict) and error.get("code") == "key_missing":
        return "the gateway wants an API key: put one into LLMGW_API_KEY; `llmgw keys create NAME` makes one"
    if status == 401 and (said := _message(answer)):
        return f"{said} (it is the one in LLMGW_API_KEY; `llmgw keys list` lists what there is)"
    return _message(answer) or f"the gateway answered {status} with something that is not an OpenAI answer"


def _message(answer: Mapping[str, Any]) -> str:
    error = answer.get("error")
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text or "").split())
