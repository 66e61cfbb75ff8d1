"""Catalog texts, and what the tests load them with."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from llmgw.catalog.load import Loaded, load_catalog
from llmgw.catalog.rules import EngineRules
from llmgw.catalog.source import Source
from llmgw.errors import CatalogInvalid, Problem

SCHEMAS: Final[dict[str, Mapping[str, Any]]] = {
    "cpu": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "threads": {"type": "integer", "minimum": 1},
            "flash_attn": {"enum": ["on", "off", "auto"]},
            "embeddings": {"type": "boolean"},
        },
    },
    "command": {
        "type": "object",
        "additionalProperties": False,
        "required": ["command"],
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "health": {"type": "string"},
            "stop_command": {"type": "array", "items": {"type": "string"}},
        },
    },
}

ENGINES: Final = {
    name: EngineRules(
        options_schema=schema, needs_weights=name == "cpu", roles=frozenset({"weights"}) if name == "cpu" else None
    )
    for name, schema in SCHEMAS.items()
}

MODEL: Final = """\
apiVersion: llmgw/v1
kind: Model
name: qwen
profiles:
  - name: cpu
    engine: cpu
    weights: {source: /srv/qwen.gguf}
"""


def model(name: str = "qwen", extra: str = "", profile: str = "") -> str:
    """A valid model; `extra` are lines of the document, `profile` lines of its one profile (unindented)."""
    body = "".join(f"    {line}\n" for line in profile.splitlines())
    return MODEL.replace("name: qwen\n", f"name: {name}\n").replace("/qwen.gguf", f"/{name}.gguf") + body + extra


def source(files: Mapping[str, str | bytes], **more: Any) -> Source:
    return Source(
        files={name: text.encode() if isinstance(text, str) else text for name, text in files.items()}, **more
    )


def load(files: Mapping[str, str | bytes], **more: Any) -> Loaded:
    return load_catalog(source(files), ENGINES, **more)


def problems(files: Mapping[str, str | bytes] | str, **more: Any) -> list[Problem]:
    """What is wrong with a catalog, or with one file `a.yaml`."""
    with pytest.raises(CatalogInvalid) as caught:
        load({"a.yaml": files} if isinstance(files, str) else files, **more)
    return list(caught.value.problems)


def texts(files: Mapping[str, str | bytes] | str, **more: Any) -> list[str]:
    return [str(problem) for problem in problems(files, **more)]


def git(directory: Path, *arguments: str) -> str:
    """Run git as a user with a name and nothing else configured."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org",
    }  # fmt: skip
    done = subprocess.run(
        ["git", "-C", str(directory), "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *arguments],
        env=env, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def commit_all(directory: Path, message: str = "change") -> str:
    """Commit everything; the commit's id."""
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "--allow-empty", "-m", message)
    return git(directory, "rev-parse", "HEAD")
