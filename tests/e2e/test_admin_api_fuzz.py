"""The admin API of a real daemon against its own OpenAPI document: every answer is one that it announces.

What cannot be asked blindly: to restart the daemon, and to follow a log, which does not end.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import httpx
import pytest
import schemathesis
from harness import WEB, Daemon, Repo, command, serving
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from llmgw.admin.openapi import OPERATIONS

UNASKED: Final = {("post", "/api/v1/restart")}
ASKED: Final = sorted(set(OPERATIONS) - UNASKED)
MODES: Final = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    repo = Repo(tmp_path_factory.mktemp("admin") / "catalog")
    repo.commit({"a.yaml": command("a")})
    with serving(repo.path, repo.path.parent / "home") as found:
        found.ready("a")
        yield found


@pytest.fixture(scope="module")
def schema(daemon: Daemon) -> Any:
    return schemathesis.openapi.from_dict(daemon.seen("openapi.json"))


def tried(daemon: Daemon, schema: Any, method: str, path: str, examples: int) -> None:
    address = json.loads((daemon.state / "admin.json").read_text())
    headers = {"Authorization": f"Bearer {address['token']}"}
    for mode in MODES:

        @seed(8)
        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=schema[path][method].as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            if str((case.query or {}).get("follow", "")).lower() in ("true", "1", "yes", "on", "t", "y"):
                return
            answer = case.call(base_url=address["url"], headers=headers, timeout=60)
            case.validate_response(answer, checks=CHECKS)

        with suppress(Unsatisfiable):  # nothing can be asked wrongly of what asks for nothing
            ask()
    assert httpx.get(f"{address['url']}/healthz", **WEB).status_code == 200


CHECKS: Final = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]


@pytest.mark.parametrize(("method", "path"), ASKED)
def test_every_answer_is_one_that_the_document_announces(daemon: Daemon, schema: Any, method: str, path: str) -> None:
    tried(daemon, schema, method, path, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), ASKED)
def test_every_answer_is_announced_at_length(daemon: Daemon, schema: Any, method: str, path: str) -> None:
    tried(daemon, schema, method, path, 100)
