"""`llmgw keys create`, `list`, `revoke` and `forget`"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, duration, state_root, user, wants_json

if TYPE_CHECKING:
    from llmgw.admin.key_routes import KeyRow

Name = Annotated[str, typer.Argument(metavar="KEY", help="Its name, or its id.")]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N")]


def make_app() -> typer.Typer:
    """The group."""
    app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    app.callback()(_group)
    app.command("create")(create)
    app.command("list")(list_keys)
    app.command("revoke")(revoke)
    app.command("forget")(forget)
    return app


def _group() -> None:
    """Make, list and revoke API keys. As soon as there is one, gateways ask for it.

    \b
    Example:
      llmgw keys create ada --model qwen3-8b --requests-per-minute 60
      llmgw keys list
    """


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: a person, a team, a service.")],
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="It may ask for this model. May be given again.")
    ] = None,
    requests_per_minute: Limit = None,
    tokens_per_minute: Limit = None,
    concurrency: Annotated[int | None, typer.Option(min=1, metavar="N", help="Requests under way at once.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", metavar="AGE", help="Good for so long: 30d, 12h.")] = None,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Make an API key, and print it: this once.

    Without --model it is for all models. Limits are of each gateway; without them there are none.

    \b
    Example:
      llmgw keys create ada
      llmgw keys create ci --model qwen3-8b --concurrency 4 --expires 30d
    """
    from llmgw.admin.key_routes import KeyOutput, KeyRequest
    from llmgw.catalog.document import quoted
    from llmgw.cli.client import connect
    from llmgw.cli.printing import note, print_json, print_line
    from llmgw.errors import UsageError
    from llmgw.ids import is_name

    if not is_name(name):
        what = "letters, digits, `.`, `_` and `-`, in lower case, 63 at most"
        raise UsageError(f"{quoted(name)} is no name for a key: {what}")
    asked = KeyRequest(
        name=name,
        models=tuple(model or ()),
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrency=concurrency,
        expires_in=None if expires is None else duration(expires, "--expires"),
        by=user(),
    )
    answer = connect(state_root(state), admin).post("keys", KeyOutput, asked)
    if wants_json(output, as_json):
        print_json(answer)
        return
    print_line(answer.token or "")
    note("keep it: it cannot be shown again; from now on gateways answer nobody without a key")


def list_keys(
    state: State = None, admin: Admin = None, output: Output = OutputFormat.TABLE, as_json: Json = False
) -> None:
    """List API keys, and what each may ask.

    \b
    Example:
      llmgw keys list
    """
    from llmgw.admin.key_routes import KeysOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line, print_table

    answer = connect(state_root(state), admin).get("keys", KeysOutput)
    if wants_json(output, as_json):
        print_json(answer)
    elif not answer.keys:
        print_line("there are no keys: gateways answer whoever reaches them; `llmgw keys create NAME` makes one")
    else:
        headers = ("NAME", "ID", "STATE", "MODELS", "LIMITS", "CREATED", "EXPIRES")
        print_table(headers, [_row(key, time.time()) for key in answer.keys])


def revoke(
    key: Name,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Have gateways refuse an API key from now on. Answers under way are finished.

    \b
    Example:
      llmgw keys revoke ada
    """
    from llmgw.admin.key_routes import KeyOutput, NamedKey
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line
    from llmgw.cli.text import ago

    answer = connect(state_root(state), admin).post("keys/revoke", KeyOutput, NamedKey(key=key, by=user()))
    if wants_json(output, as_json):
        print_json(answer)
    elif answer.changed:
        print_line(f"revoked {answer.key.name}: gateways refuse it; it stays listed until `llmgw keys forget {key}`")
    else:
        print_line(f"{answer.key.name} was revoked {ago(answer.key.revoked or 0.0, time.time())}: nothing to do")


def forget(
    key: Name,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Forget a revoked API key. With the last one, gateways ask for none any more.

    \b
    Example:
      llmgw keys forget ada
    """
    from llmgw.admin.key_routes import KeyOutput, NamedKey
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line

    answer = connect(state_root(state), admin).post("keys/forget", KeyOutput, NamedKey(key=key, by=user()))
    if wants_json(output, as_json):
        print_json(answer)
        return
    opened = "" if answer.required else "; it was the last: gateways now answer whoever reaches them"
    print_line(f"forgot {answer.key.name}{opened}")


def _row(key: "KeyRow", now: float) -> tuple[str, ...]:
    from llmgw.cli.text import ago
    from llmgw.units import format_seconds

    limits = (
        (key.requests_per_minute, "requests/min"), (key.tokens_per_minute, "tokens/min"), (key.concurrency, "at once")
    )  # fmt: skip
    expires = "-"
    if key.expires is not None:
        left = key.expires - now
        expires = f"in {format_seconds(round(left))}" if left > 0 else ago(key.expires, now)
    return (
        key.name,
        key.id,
        key.state,
        ", ".join(key.models) or "all",
        ", ".join(f"{limit} {what}" for limit, what in limits if limit is not None) or "-",
        ago(key.created, now),
        expires,
    )
