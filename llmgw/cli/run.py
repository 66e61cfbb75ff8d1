"""`llmgw run`: a chat in the terminal."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.options import State, state_root
from llmgw.errors import LlmgwError, TerminalError, UsageError

if TYPE_CHECKING:
    from llmgw.cli.chat import Conversation, GatewayClient
    from llmgw.cli.client import AdminClient

LONGEST: Final = 8 * 1024 * 1024  #: characters of a prompt that are read from a pipe

HELP: Final = """\
/system TEXT      how the model is to be; without TEXT: nothing in particular
/set NAME VALUE   a parameter of the requests, such as temperature 0.2; without VALUE: no longer; /set shows all
/clear            begin anew
/bye              leave, as Ctrl-D does
Ctrl-C interrupts an answer. A message that begins with a slash is written with two."""


def run(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Its name or an alias. Default: `default`, else the only one."),
    ] = None,
    prompt: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Answer this, and exit.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="How the model is to be.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0.0, help="0: always alike.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Of each answer.")] = None,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print an answer when it is complete.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print tokens a second, and the wait.")] = False,
    gateway: Annotated[
        str | None, typer.Option("--gateway", metavar="URL", help="Of a gateway elsewhere: http://gpu-1:8080.")
    ] = None,
    state: State = None,
) -> None:
    """Chat with a model in the terminal.

    A prompt, as words or through a pipe, is answered once. `/help` tells what can be typed besides.

    \b
    Example:
      llmgw run
      llmgw run qwen3-8b "What is the capital of France?"
      git diff | llmgw run qwen3-8b --system "Write a commit message."
    """
    from llmgw.cli.chat import Conversation, default_model

    client, look = _connect(state_root(state), gateway)
    text = _prompt(prompt)
    given = {"temperature": temperature, "max_tokens": max_tokens}
    params = {name: value for name, value in given.items() if value is not None}
    chosen = model or default_model(client.models())
    conversation = Conversation(model=chosen, system=system, params=params)
    chat = Chat(client, conversation, lambda: look(chosen), stream=not no_stream, verbose=verbose)
    if text is not None:
        chat.answer(text)
    else:
        chat.loop(input)


def _connect(state: Path, gateway: str | None) -> "tuple[GatewayClient, Callable[[str], str]]":
    """The gateway, and how to learn what a model waits for. Raises DaemonUnreachable, UsageError."""
    from urllib.parse import urlsplit

    from llmgw.cli.chat import GatewayClient
    from llmgw.cli.client import connect
    from llmgw.statedir import StateDir

    if gateway is not None:
        url = gateway if "://" in gateway else f"http://{gateway}"
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UsageError(f"--gateway {gateway}: write an address such as http://gpu-1:8080")
        client = GatewayClient(url=url.rstrip("/").removesuffix("/v1"), hint="check the address")
        return client, lambda model: _state_at(client, model)
    admin = connect(state, None)
    found = StateDir(state).read_admin()
    url = (found.gateway if found is not None else admin.url) or _of_fleet(admin)
    client = GatewayClient(url=_local(url), hint=admin.hint)
    return client, lambda model: _state_by(admin.get, model)


def _of_fleet(admin: "AdminClient") -> str:
    """A gateway's URL, where the daemon is a controller. Raises TerminalError."""
    from llmgw.admin.members import MembersOutput

    members = admin.get("members", MembersOutput).members
    found = next((row.serves for row in members if row.serves), None)
    if found is None:
        raise TerminalError("no gateway of the fleet lives: start one, or name one with --gateway")
    return found


def _local(url: str) -> str:
    """A gateway that listens on all addresses is asked on this machine's own."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _state_by(get: "Callable[..., object]", model: str) -> str:
    from llmgw.admin.shapes import ModelsOutput
    from llmgw.cli.rows import model_reason

    try:
        answer = get("models", ModelsOutput)
    except LlmgwError:
        return ""
    rows = answer.models if isinstance(answer, ModelsOutput) else ()
    row = next((row for row in rows if model in (row.name, *row.aliases)), None)
    if row is None or row.state == "ready":
        return ""
    reason = model_reason(row, time.time())
    return f"{row.name} is {row.state}" + (f": {reason}" if reason else "") + " …"


def _state_at(client: "GatewayClient", model: str) -> str:
    try:
        rows = client.models()
    except LlmgwError:
        return ""
    row = next((row for row in rows if model == row.get("id") or model in (row.get("aliases") or ())), None)
    return "" if row is None or row.get("state", "ready") == "ready" else f"{row.get('id')} is {row.get('state')} …"


def _prompt(words: list[str] | None) -> str | None:
    """What was asked on the command line or through a pipe; None: somebody is there to talk. Raises UsageError."""
    if words:
        return " ".join(words)
    if sys.stdin is None or sys.stdin.isatty():
        return None
    text = sys.stdin.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise UsageError(f"the prompt is longer than {LONGEST:,} characters")
    if not text.strip():
        raise UsageError("nothing was asked: write the prompt after the model's name, or pipe it in")
    return text


@dataclass(slots=True)
class Chat:
    """A conversation with somebody at a terminal. `look`: what the model waits for, in words."""

    client: "GatewayClient"
    conversation: "Conversation"
    look: Callable[[], str]
    stream: bool = True
    verbose: bool = False

    def loop(self, read: Callable[[str], str]) -> None:
        """Until Ctrl-D or /bye. `read` asks for a line, as `input` does."""
        _line_editing()
        self._say(f"{self.conversation.model}; /help tells what can be typed, Ctrl-D leaves")
        while True:
            try:
                text = read(">>> ").strip()
            except EOFError:
                self._say("")
                return
            except KeyboardInterrupt:
                self._say("\n(Ctrl-D leaves)")
                continue
            if text.startswith("/") and not text.startswith("//"):
                if not self.command(text):
                    return
            elif text:
                self._turn(text.removeprefix("/") if text.startswith("//") else text)

    def _turn(self, text: str) -> None:
        try:
            self.answer(text)
        except LlmgwError as error:
            self._say(f"llmgw: {error}")

    def answer(self, text: str) -> None:
        """Ask, and print the answer as it comes. Ctrl-C interrupts it. Raises ChatFailed."""
        from llmgw.cli.chat import Counted
        from llmgw.cli.waiting import Waiting

        printer, began, first, tokens = Printer(), time.monotonic(), None, None
        pieces = self.client.ask(self.conversation.request(text), stream=self.stream)
        try:
            with Waiting(self.look) as waiting:
                for piece in pieces:
                    if isinstance(piece, Counted):
                        tokens = piece.tokens
                        continue
                    waiting.done()
                    first = first or time.monotonic()
                    printer.write(piece.text, reasoning=piece.reasoning)
        except KeyboardInterrupt:
            if sys.stdin is None or not sys.stdin.isatty():
                raise
            printer.interrupted = True
        finally:
            pieces.close()  # type: ignore[attr-defined] # a generator: the request ends with it
            printer.end()
            self.conversation.said(text, printer.answer)
        if self.verbose:
            self._say(speed(printer.pieces, tokens, began, first or time.monotonic(), time.monotonic()))

    def command(self, text: str) -> bool:
        """Do what a line that begins with a slash says; False: leave."""
        from llmgw.catalog.schemas import did_you_mean

        word, _, rest = text.partition(" ")
        rest = rest.strip()
        match word:
            case "/bye" | "/quit" | "/exit":
                return False
            case "/help" | "/?":
                self._say(HELP)
            case "/clear":
                self.conversation.turns.clear()
                self._say("begun anew")
            case "/system":
                self.conversation.system = rest or None
            case "/set":
                self._set(*rest.partition(" ")[::2])
            case _:
                known = ("/help", "/clear", "/system", "/set", "/bye")
                self._say(f"no command {word}{did_you_mean(word, known)}; /help lists them")
        return True

    def _set(self, name: str, value: str) -> None:
        from llmgw.cli.chat import parameter

        params = self.conversation.params
        if not name:
            self._say("\n".join(f"{each} {params[each]}" for each in sorted(params)) or "nothing is set")
        elif not value.strip():
            params.pop(name, None)
        else:
            try:
                params[name] = parameter(name, value.strip())
            except ValueError as error:
                self._say(str(error))

    def _say(self, text: str) -> None:
        from llmgw.cli.printing import note

        for line in text.split("\n"):
            note(line)


class Printer:
    """Puts an answer on stdout, and keeps it. On a terminal what a model says to itself is dim; elsewhere it is left
    out. `pieces`: how many there were."""

    def __init__(self) -> None:
        self.answer = ""
        self.pieces = 0
        self.interrupted = False
        self._terminal = sys.stdout.isatty()
        self._dim = False
        self._midline = False

    def write(self, text: str, *, reasoning: bool) -> None:
        self.pieces += 1
        if not reasoning:
            self.answer += text
        elif not self._terminal:
            return
        if self._terminal:
            text = _printable(text)
            if reasoning != self._dim:
                self._put("\x1b[2m" if reasoning else "\x1b[0m\n")
                self._dim = reasoning
        self._put(text)
        self._midline = not text.endswith("\n")

    def end(self) -> None:
        """The line is ended, and colours are as they were."""
        if self._dim:
            self._put("\x1b[0m")
        if self.interrupted:
            self._put(" …")
        if self._midline or self.interrupted:
            self._put("\n")

    def _put(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _printable(text: str) -> str:
    """Without what would steer the terminal; lines stay lines."""
    from llmgw.cli.text import clean

    return "".join(c if c in "\n\t" else clean(c) for c in text)


def speed(pieces: int, tokens: int | None, began: float, first: float, ended: float) -> str:
    """`12 tokens, 24.0 a second; first one after 0.3s`. Without the engine's count, pieces stand for tokens."""
    from llmgw.units import format_seconds

    count = pieces if tokens is None else tokens
    rate = f", {(count - 1) / (ended - first):.1f} a second" if count > 1 and ended > first else ""
    about = "about " if tokens is None else ""
    return f"{about}{count} tokens{rate}; first one after {format_seconds(first - began)}"


def _line_editing() -> None:
    """Arrows and history in `input`, where Python has them."""
    try:
        import readline  # noqa: F401 - importing is what turns it on
    except ImportError:
        pass
