"""`llmgw keys`: made, listed, revoked, forgotten, against a daemon's admin API."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from jsonschema import Draft202012Validator

OUTPUTS = Path(__file__).parents[2] / "schemas" / "output"


@pytest.fixture
def ask(cli: Any, daemon: Any) -> Iterator[Any]:
    """The daemon logs events, and here it is in the process that the command is."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(io.StringIO()))
    yield lambda *args: cli("keys", *args, "--state", daemon.state)
    structlog.reset_defaults()


def as_json(ask: Any, *arguments: str, schema: str = "key") -> Any:
    value = json.loads(ask(*arguments, "--json").out)
    Draft202012Validator(json.loads((OUTPUTS / f"{schema}.v1.schema.json").read_text())).validate(value)
    return value


def test_a_key_is_made_shown_once_listed_revoked_and_forgotten(ask: Any) -> None:
    assert "no keys" in ask("list").out
    made = ask("create", "ada", "--requests-per-minute", "60", "--concurrency", "4", "--expires", "30d")
    token = made.out.strip()
    assert (made.code, token[:9], len(token)) == (0, "sk-llmgw-", 61)
    assert "cannot be shown again" in made.err
    listed = ask("list").out
    assert token.split("-")[2] in listed
    assert token not in listed
    assert "60 requests/min, 4 at once" in listed
    assert "active" in listed
    again = ask("create", "ada")
    assert (again.code, again.out) == (1, "")
    assert "revoke that one first" in again.err
    early = ask("forget", "ada")
    assert early.code == 1
    assert "llmgw keys revoke ada" in early.err
    assert ask("revoke", "ada").out.startswith("revoked ada")
    assert "nothing to do" in ask("revoke", token.split("-")[2]).out
    assert "revoked" in ask("list").out
    assert "it was the last" in ask("forget", "ada").out
    assert "no keys" in ask("list").out


def test_a_revoked_name_can_be_used_for_a_new_key(ask: Any) -> None:
    first = as_json(ask, "create", "ada")
    ask("revoke", "ada")
    second = as_json(ask, "create", "ada")
    assert first["token"] != second["token"]
    assert first["key"]["id"] != second["key"]["id"]
    assert second["required"] is True
    (row,) = as_json(ask, "list", schema="keys")["keys"]
    assert (row["state"], row["id"]) == ("active", second["key"]["id"])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("create", "Ada"), 64, "llmgw: 'Ada' is no name for a key"),
        (("create", "a b"), 64, "llmgw: 'a b' is no name for a key"),
        (("create", "a", "--model", "nope"), 1, "no model"),
        (("create", "a", "--concurrency", "0"), 64, "concurrency"),
        (("create", "a", "--expires", "soon"), 64, "--expires"),
        (("revoke", "nobody"), 1, "llmgw keys list"),
    ],
)
def test_what_cannot_be_done_says_why(ask: Any, arguments: tuple[str, ...], code: int, says: str) -> None:
    ran = ask(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert says in ran.err
    assert "no keys" in ask("list").out
