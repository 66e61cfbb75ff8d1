"""What an editor makes of the schemas: the YAML language server, as VS Code's extension runs it."""

import fcntl
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from llmgw.catalog.bundle import bundled
from llmgw.catalog.schemas import schema_directory
from llmgw.engine.manager import find_engines

SERVER: Final = "yaml-language-server@1.25.0"
NO_SERVER: Final = "no Node, or no npm registry: yaml-language-server is not to be had"
EXAMPLES: Final = Path(__file__).parents[2] / "catalog-examples"
HEAD: Final = "apiVersion: llmgw/v1\nkind: "
MODEL: Final = f"{HEAD}Model\nname: qwen\n"
TEMPLATE: Final = f"{HEAD}Template\nname: shared\n"

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Editor:
    """`schema`: what it is set to check by; without one, what the file says itself counts."""

    server: Path
    directory: Path
    schema: Path | None = None

    def open(self, text: str) -> tuple[list[tuple[int, int, str]], list[Any]]:
        """What is marked, as line, column (from 0) and message; at each `|` of the text what is offered and told."""
        at = [[n, len(line.partition("|")[0])] for n, line in enumerate(text.splitlines()) if "|" in line]
        file = self.directory / "opened.yaml"
        file.write_text(text.replace("|", ""))
        schemas = {} if self.schema is None else {self.schema.as_uri(): ["*.yaml"]}
        asked = {"server": str(self.server), "file": str(file), "schemas": schemas, "at": at}
        words = ["node", str(Path(__file__).with_name("editor.mjs")), json.dumps(asked)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        return [tuple(each) for each in told["diagnostics"]], told["places"]


@pytest.fixture(scope="module")
def server(downloads: Path) -> Path:
    """Fetched once for each user."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip(NO_SERVER)
    place = downloads / "yaml-language-server"
    place.mkdir(parents=True, exist_ok=True)
    program = place / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            words = [npm, "install", "--prefix", str(place), "--no-audit", "--no-fund", "--ignore-scripts", SERVER]
            done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                pytest.skip(NO_SERVER)
    return program


@pytest.fixture
def editor(server: Path, tmp_path: Path) -> Editor:
    schema = tmp_path / "catalog.schema.json"
    engines = {name: rules.options_schema for name, rules in find_engines().rules().items()}
    schema.write_text(json.dumps(bundled("catalog", engines)))
    return Editor(server=server, directory=tmp_path, schema=schema)


def test_keys_are_offered_that_the_document_may_have(editor: Editor) -> None:
    profile = "profiles:\n  - name: gpu\n    |\n"
    text = f"{MODEL}prio|\n---\n{TEMPLATE}|\n---\n{HEAD}Cluster\nname: home\n|\n---\n{MODEL}{profile}"
    _, (model, template, cluster, profile) = editor.open(text)
    assert {"priority", "aliases", "scaling", "extends"} <= set(model["offered"])
    assert {"priority", "scaling", "extends"} <= set(template["offered"])
    assert {"time_zone", "sync", "nodes"} <= set(cluster["offered"])
    assert {"engine", "weights", "options"} <= set(profile["offered"])
    assert not {"aliases", "variants"} & set(template["offered"])
    for place in (model, template, profile):
        assert "adapter_of" not in place["offered"], "not supported yet"
        assert "time_zone" not in place["offered"]


def test_values_are_offered_and_keys_explained(editor: Editor) -> None:
    profile = "profiles:\n  - name: gpu\n    engine: |\n"
    text = f"{HEAD}Cluster\nname: home\nsync: |\n---\n{MODEL}{profile}---\n{MODEL}prio|rity: 3\n"
    _, (sync, engine, priority) = editor.open(text)
    assert set(sync["offered"]) == {"auto", "manual"}
    assert {"cpu", "llamacpp", "vllm", "command"} <= set(engine["offered"])
    assert "the higher" in priority["told"]


def test_options_are_those_of_the_profiles_engine(editor: Editor) -> None:
    profile = "profiles:\n  - name: gpu\n    engine: {}\n    options:\n      a|\n"
    text = f"{MODEL}{profile.format('llamacpp')}---\n{MODEL}{profile.format('command')}"
    _, (llamacpp, command) = editor.open(text)
    assert "flash_attn" in llamacpp["offered"]
    assert "command" in command["offered"]
    assert "flash_attn" not in command["offered"]


def test_what_is_wrong_is_marked_where_it_is_in_words(editor: Editor) -> None:
    profile = "profiles:\n  - name: gpu\n    engine: cpu\n    contxt: 4\n    options: {thread: 2}\n    memory: lots\n"
    marked, _ = editor.open(f"{MODEL}{profile}---\n{TEMPLATE}aliases: [a]\nadapter_of: b\n")
    told = {(line, column): message for line, column, message in marked}
    assert told[6, 4] == "Property contxt is not allowed."
    assert told[7, 14] == "Property thread is not allowed."
    assert told[8, 12].startswith("expected a size")
    assert told[13, 9] == "no `aliases` in a template: each is of one model"
    assert told[14, 12] == "not supported yet"
    assert len(told) == 5
    assert editor.open(f"{MODEL}external: {{url: 'https://api.example.org/v1'}}\n")[0] == []


def test_a_modeline_that_names_the_committed_schema_is_enough(server: Path, tmp_path: Path) -> None:
    shutil.copytree(schema_directory(), tmp_path / "schemas")
    (tmp_path / "catalog").mkdir()
    editor = Editor(server=server, directory=tmp_path / "catalog")
    line = "# yaml-language-server: $schema=../schemas/catalog.v1.schema.json\n"
    marked, (place,) = editor.open(f"{line}{TEMPLATE}pinnd: true\naliases: [a]\n|\n")
    assert sorted((line, column) for line, column, _ in marked) == [(4, 0), (5, 9)]
    assert "pinned" in place["offered"]


def test_nothing_is_marked_in_what_we_show_people(editor: Editor) -> None:
    for file in sorted(EXAMPLES.rglob("*.yaml")):
        if file.name != "fleet.yaml":
            assert editor.open(file.read_text().replace("$schema=", ""))[0] == [], file
