"""`llmgw schema` and `llmgw migrate`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from llmgw.cli.main import main
from llmgw.cli.schema import Kind

Ran = tuple[int, str, str]

MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: one
profiles:
  - {name: main, engine: cpu, weights: {source: /a}, options: {threads: 2}}
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def llmgw(*args: object) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, args)])
        out = capsys.readouterr()
        return int(str(ended.value.code)), out.out, out.err

    return llmgw


@pytest.mark.parametrize("kind", Kind)
def test_a_kinds_schema_is_printed_whole(kind: Kind, run: Callable[..., Ran]) -> None:
    code, out, _ = run("schema", kind)
    Draft202012Validator.check_schema(json.loads(out))
    assert code == 0


def test_with_engines_options_are_judged_too(run: Callable[..., Ran], tmp_path: Path) -> None:
    code, out, err = run("schema", "--engines", "--to", tmp_path / "s.json")
    assert (code, out) == (0, "")
    assert "# yaml-language-server: $schema=s.json" in err
    validator = Draft202012Validator(json.loads((tmp_path / "s.json").read_text()))
    profile = {"name": "main", "engine": "cpu", "weights": {"source": "/a"}, "options": {"threads": 2}}
    document = {"apiVersion": "llmgw/v1", "kind": "Model", "name": "one", "profiles": [profile]}
    assert validator.is_valid(document)
    profile["options"] = {"thread": 2}
    assert not validator.is_valid(document)


def test_an_engines_schema_serves_where_its_plugin_is_not_installed(run: Callable[..., Ran], tmp_path: Path) -> None:
    catalog, schemas = tmp_path / "catalog", tmp_path / "schemas"
    catalog.mkdir()
    schemas.mkdir()
    (schemas / "far.json").write_text(run("schema", "--engine", "cpu")[1])
    (catalog / "a.yaml").write_text(MODEL.replace("engine: cpu", "engine: far"))
    assert run("validate", catalog)[0] == 3
    assert run("validate", catalog, "--engine-schemas", schemas)[0] == 0


def test_an_engine_that_is_not_installed_has_no_schema(run: Callable[..., Ran]) -> None:
    code, out, err = run("schema", "--engine", "cpuu")
    assert (code, out) == (64, "")
    assert "did you mean 'cpu'?" in err


def test_where_nothing_is_of_an_earlier_version_nothing_is_migrated(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MODEL)
    for arguments in ("--check",), ():
        code, out, _ = run("migrate", tmp_path, *arguments)
        assert (code, "nothing to migrate" in out) == (0, True)
    assert (tmp_path / "a.yaml").read_text() == MODEL
