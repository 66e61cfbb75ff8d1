"""`llmgw diff` on real git repositories, without a daemon."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from llmgw.admin.diffs import ChangeRow, DiffOutput
from llmgw.cli.differences import told

SCHEMA = Path(__file__).parents[2] / "schemas" / "output" / "diff.v1.schema.json"

MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: smol
profiles:
  - name: own
    engine: command
    memory: 1MiB
    env: {TOKEN: hunter2}
    options: {command: [server, --port, "{port}"]}
"""


class Checkout:
    """A catalog in a repository, with one commit, and a state directory on which no daemon runs."""

    def __init__(self, path: Path, state: Path, cli: Any) -> None:
        self.path = path
        self.state = state
        self._cli = cli
        path.mkdir()
        self._git("init", "-q", "-b", "main")
        self.commit({"a.yaml": MODEL})

    def _git(self, *arguments: str) -> None:
        named = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(self.path), *named, *arguments], check=True, capture_output=True)

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            (self.path / name).write_text(text)

    def commit(self, files: dict[str, str]) -> None:
        self.write(files)
        self._git("add", "-A")
        self._git("commit", "-q", "-m", "change")

    def diff(self, *arguments: str) -> Any:
        return self._cli("diff", *arguments, "--state", self.state)


@pytest.fixture
def checkout(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    checkout = Checkout(tmp_path / "catalog", tmp_path / "state", cli)
    monkeypatch.chdir(checkout.path)
    return checkout


def test_a_revision_is_compared_with_the_files_as_they_stand(checkout: Checkout) -> None:
    same = checkout.diff("HEAD")
    assert (same.code, same.err) == (0, "")
    assert same.out.startswith("no difference: ")
    checkout.write({"a.yaml": MODEL.replace("1MiB", "2MiB") + "priority: 5\n"})
    ran = checkout.diff("HEAD")
    assert (ran.code, ran.err) == (2, "")
    *lines, total = ran.out.splitlines()
    assert lines == [
        "~ smol",
        "  ~ priority             0 -> 5        decided again",
        "  ~ profiles.own.memory  1MiB -> 2MiB  decided again",
    ]
    assert total.endswith(": 2 differences; none replaces an engine")


def test_two_revisions_are_compared_whatever_the_files_are_now(checkout: Checkout) -> None:
    checkout.commit({"a.yaml": MODEL.replace("server,", "other,"), "b.yaml": MODEL.replace("smol", "more")})
    checkout.write({"a.yaml": "not: [a, catalog"})
    ran = checkout.diff("HEAD~1", "HEAD")
    assert ran.code == 2
    *lines, total = ran.out.splitlines()
    assert lines == [
        "+ more  added: 1 profile: own (command)",
        "~ smol",
        "  ~ profiles.own.options.command  its engines are replaced",
        '      ["server", "--port", "{port}"]',
        '   -> ["other", "--port", "{port}"]',
    ]
    assert total.endswith(": 2 differences; engines are replaced or ended of 1 model: smol")
    gone = checkout.diff("HEAD", "HEAD~1").out
    assert gone.startswith("- more  removed: its engines are ended\n")


def test_directories_are_compared_wherever_they_are(checkout: Checkout, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.yml").write_text(
        MODEL.replace("hunter2", "hunter3") + "---\napiVersion: llmgw/v1\nkind: Cluster\nname: home\n"
    )
    ran = checkout.diff(".", str(other))
    assert ran.code == 2
    assert "hunter" not in ran.out
    assert "  ~ profiles.own.env.TOKEN  (hidden) -> (hidden)  its engines are replaced\n" in ran.out
    assert "~ Cluster document\n  ~ name  default -> home  nothing that runs\n" in ran.out
    assert checkout.diff("HEAD", ".").code == 0


def test_json_is_one_object_as_its_schema_has_it(checkout: Checkout) -> None:
    checkout.write({"a.yaml": MODEL.replace("server,", "other,")})
    ran = checkout.diff("HEAD", "--json")
    value = json.loads(ran.out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(value)
    assert (ran.code, value["differs"], value["restarts"]) == (2, True, ["smol"])
    assert [row["effect"] for row in value["changes"]] == ["restart"]


def test_an_invalid_side_is_named_with_its_problems(checkout: Checkout) -> None:
    checkout.commit({"a.yaml": MODEL.replace("profiles", "profile")})
    for arguments, side in [(("HEAD", "HEAD~1"), "HEAD"), (("HEAD~1",), "."), (("HEAD~1", "HEAD"), "HEAD")]:
        ran = checkout.diff(*arguments)
        assert ran.code == 3
        assert "a.yaml:4:1: $.profile: unknown key 'profile'; did you mean 'profiles'?" in ran.out
        assert ran.err == f"{side}: 2 problems; nothing was compared\n"
    value = json.loads(checkout.diff("HEAD", "HEAD~1", "-o", "json").out)
    assert (value["valid"], value["invalid"], len(value["problems"])) == (False, "HEAD", 2)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nope", "."), 1, "no revision 'nope' in the repository of ."),
        (("./nope", "."), 1, "cannot read ./nope: name the directory that holds the catalog, or a revision"),
        (("applied", "applied"), 64, "the catalog in force against itself"),
        ((), 1, "without a daemon, name what to compare: `llmgw diff HEAD ./catalog`"),
        (("applied", "HEAD"), 1, "without a daemon, name what to compare"),
    ],
)
def test_what_cannot_be_compared_is_told_with_what_to_do(
    checkout: Checkout, arguments: tuple[str, ...], code: int, message: str
) -> None:
    ran = checkout.diff(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_values_from_a_catalog_cannot_steer_the_terminal(checkout: Checkout) -> None:
    checkout.write({"a.yaml": MODEL + 'description: "\\e[31mred\\a"\n'})
    ran = checkout.diff("HEAD")
    assert ran.code == 2
    assert "\x1b" not in ran.out
    assert "\a" not in ran.out


def test_an_effect_that_a_newer_daemon_names_is_shown_as_it_is() -> None:
    row = ChangeRow(model="m", path="x", change="changed", old="1", new=None, effect="newer")
    assert "  ~ x  1 -> none  newer" in list(told(DiffOutput(valid=True, differs=True, changes=(row,))))
