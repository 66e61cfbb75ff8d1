"""`llmgw run`: a chat in the terminal, or one answer."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import daemon_seeds as seed
import pytest
from stub_gateway import StubGateway

from llmgw.cli.chat import ChatFailed, Conversation, GatewayClient, default_model, parameter
from llmgw.cli.run import Chat, speed
from llmgw.facts import Progress
from llmgw.plan import ModelState
from llmgw.units import MIB, Bytes


@pytest.fixture
def gateway() -> Iterator[StubGateway]:
    gateway = StubGateway()
    yield gateway
    gateway.close()


@pytest.fixture
def ask(cli: Any, gateway: StubGateway) -> Any:
    return lambda *args: cli("run", *args, "--gateway", gateway.url)


def test_a_prompt_is_answered_once(ask: Any, gateway: StubGateway) -> None:
    ran = ask("smol", "What is", "the capital?")
    assert (ran.code, ran.out, ran.err) == (0, "Echo: What is the capital? \n", "")
    (body,) = gateway.requests
    assert body["model"] == "smol"
    assert body["messages"] == [{"role": "user", "content": "What is the capital?"}]
    assert body["stream"] is True


def test_options_go_into_the_request(ask: Any, gateway: StubGateway) -> None:
    ran = ask("smol", "hi", "--system", "Be kind.", "--temperature", "0", "--max-tokens", "9", "--no-stream")
    assert (ran.code, ran.out) == (0, "Echo: hi\n")
    (body,) = gateway.requests
    assert (body["temperature"], body["max_tokens"], "stream" in body) == (0.0, 9, False)
    assert body["messages"][0] == {"role": "system", "content": "Be kind."}


def test_a_prompt_may_come_through_a_pipe(ask: Any, gateway: StubGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a long\ntext\n"))
    assert ask().code == 0
    assert gateway.requests[0]["model"] == "default"
    assert gateway.requests[0]["messages"][0]["content"] == "a long\ntext\n"


def test_an_empty_pipe_is_wrong_usage(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    assert ask("smol").code == 64


def test_what_is_piped_in_is_left_alone_where_a_prompt_was_given(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = io.StringIO("next line of a loop\n")
    monkeypatch.setattr(sys, "stdin", rest)
    assert ask("smol", "hi").code == 0
    assert rest.read() == "next line of a loop\n"


@pytest.mark.parametrize(
    ("prompt", "out", "said"),
    [
        ("refuse", "", "llmgw: model 'qwen' failed: no memory\n"),
        ("break", "Echo: \n", "llmgw: the engine was lost\n"),
        ("cut", "Echo: \n", "llmgw: the answer was cut off\n"),
    ],
)
def test_what_went_wrong_is_one_line_and_exit_1(ask: Any, prompt: str, out: str, said: str) -> None:
    ran = ask("qwen", prompt)
    assert (ran.code, ran.out, ran.err) == (1, out, said)


def test_a_key_that_is_missing_or_wrong_is_told_by_where_it_comes_from(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLMGW_API_KEY", raising=False)
    assert "put one into LLMGW_API_KEY; `llmgw keys create NAME`" in ask("smol", "locked").err
    monkeypatch.setenv("LLMGW_API_KEY", "sk-other")
    told = ask("smol", "locked")
    assert (told.code, told.out) == (1, "")
    assert told.err == "llmgw: send a header (it is the one in LLMGW_API_KEY; `llmgw keys list` lists what there is)\n"


def test_nobody_there_is_one_line_and_exit_1(cli: Any) -> None:
    ran = cli("run", "qwen", "hi", "--gateway", "127.0.0.1:1")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "the gateway at http://127.0.0.1:1 cannot be reached" in ran.err


@pytest.mark.parametrize("args", [["--gateway", "ftp://x"], ["--temperature", "-1"], ["--max-tokens", "0"]])
def test_wrong_usage_of_run(cli: Any, args: list[str]) -> None:
    assert cli("run", "qwen", "hi", *args).code == 64


def test_what_a_model_says_to_itself_is_left_out_of_a_pipe(ask: Any) -> None:
    assert ask("qwen", "think").out == "Echo: think \n"


def test_verbose_tells_tokens_a_second_and_the_wait(ask: Any) -> None:
    ran = ask("qwen", "hi", "-v")
    assert ran.out == "Echo: hi \n"
    assert re.fullmatch(r"7 tokens(, [\d.]+ a second)?; first one after [\d.]+s\n", ran.err)
    assert speed(5, None, 0.0, 1.0, 3.0) == "about 5 tokens, 2.0 a second; first one after 1.0s"


@pytest.mark.parametrize(
    ("models", "chosen"),
    [
        ([{"id": "a"}, {"id": "b", "aliases": ["default"]}], "default"),
        ([{"id": "a"}], "a"),
        ([{"id": "a"}, {"id": "default"}], "default"),
    ],
)
def test_without_a_name_the_default_is_asked_else_the_only_one(models: list[Any], chosen: str) -> None:
    assert default_model(models) == chosen


@pytest.mark.parametrize(("models", "said"), [([], "no models"), ([{"id": "a"}, {"id": "b"}], "there are a, b")])
def test_without_a_name_and_a_default_what_there_is_is_named(models: list[Any], said: str) -> None:
    with pytest.raises(ChatFailed, match=said):
        default_model(models)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.2", 0.2),
        ("max_tokens", "9", 9),
        ("seed", "-1", -1),
        ("stop", '["a"]', ["a"]),
        ("x", "y", "y"),
    ],
)
def test_a_parameter_is_read_as_json_or_text(name: str, text: str, value: object) -> None:
    assert parameter(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("temperature", "hot"), ("max_tokens", "1.5"), ("messages", "[]"), ("a-b", "1"), ("top_p", "true")],
)
def test_a_parameter_that_cannot_be_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=name):
        parameter(name, text)


def test_a_chat_remembers_and_takes_commands(gateway: StubGateway, capsys: pytest.CaptureFixture[str]) -> None:
    typed = iter(
        [
            *("hi", "", "/set temperature 0.2", "/set temperature hot", "/system Be kind.", "again", "//slash"),
            *("/sett x", "refuse", "/clear", "/set", "/set temperature", "/help", "last", "/bye", "never"),
        ]
    )
    client = GatewayClient(url=gateway.url, hint="")
    Chat(client, Conversation(model="qwen"), lambda: "").loop(lambda prompt: next(typed))
    asked = [[turn["content"] for turn in body["messages"]] for body in gateway.requests]
    assert asked == [
        ["hi"],
        ["Be kind.", "hi", "Echo: hi ", "again"],
        ["Be kind.", "hi", "Echo: hi ", "again", "Echo: again ", "/slash"],
        ["Be kind.", "hi", "Echo: hi ", "again", "Echo: again ", "/slash", "Echo: /slash ", "refuse"],
        ["Be kind.", "last"],
    ]
    assert [body.get("temperature") for body in gateway.requests] == [None, 0.2, 0.2, 0.2, None]
    err = capsys.readouterr().err
    for said in ("temperature is a number", "did you mean '/set'?", "llmgw: model 'qwen' failed", "temperature 0.2"):
        assert said in err


def test_while_a_request_is_held_it_is_said_what_for(cli: Any, daemon: Any, gateway: StubGateway) -> None:
    daemon.write_admin(daemon.url, daemon.token, gateway=gateway.url)
    progress = Progress(done=Bytes(10 * MIB), total=Bytes(100 * MIB))
    daemon.do(daemon.seeds.explain(seed.told(seed.SMOL, ModelState.LOADING, "fetching", progress=progress)))
    ran = cli("run", "smol", "late", "--state", daemon.state)
    assert (ran.code, ran.out) == (0, "Echo: late \n")
    assert "smol is loading: fetching 10.0 MiB of 100.0 MiB (10 %) …" in ran.err


class Terminal:
    """`llmgw run` on a terminal of its own."""

    def __init__(self, *args: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", "run", *args],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, "TERM": "dumb"},
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str, *, within: float = 30) -> str:
        """What came until `text` did."""
        deadline = time.monotonic() + within
        while text not in self.seen:
            assert time.monotonic() < deadline, f"never {text!r}: {self.seen!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._master, 4096).decode()
                except OSError:  # nobody holds the other end any more
                    assert text in self.seen, f"ended before {text!r}: {self.seen!r}"
        before, _, self.seen = self.seen.partition(text)
        return before

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_on_a_terminal_ctrl_c_interrupts_an_answer_and_ctrl_d_leaves(gateway: StubGateway) -> None:
    terminal = Terminal("--gateway", gateway.url, "-v")
    try:
        terminal.until(">>> ")
        terminal.type("slow\n")
        terminal.until("begun")
        terminal.type("\x03")
        terminal.until(">>> ")
        assert gateway.left.wait(30), "the model was told to stop"
        terminal.type("\x03")
        terminal.until("(Ctrl-D leaves)")
        terminal.until(">>> ")
        terminal.type("hi\n")
        terminal.until("Echo: hi")
        terminal.until("7 tokens")
        assert [turn["content"] for turn in gateway.requests[-1]["messages"]] == ["slow", "begun", "hi"]
        terminal.until(">>> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
