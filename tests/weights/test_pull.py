"""`llmgw pull`, as a process, against a server on loopback."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Site, serve

CONTENT = bytes(range(256)) * 4_000
MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: two
aliases: [second]
profiles:
  - name: own
    engine: command
    memory: 1GiB
    weights: {{source: "{url}/a.gguf"}}
    files:
      more: {{source: "{url}/b.bin"}}
    options: {{command: [run, "{{port}}", "{{weights}}", "{{files.more}}"]}}
"""


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as served:
        served.files["/a.gguf"] = CONTENT
        served.files["/b.bin"] = CONTENT[::-1]
        yield served


def pull(tmp_path: Path, *args: object, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "llmgw", "pull", *map(str, args), "--state", str(tmp_path / "state")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})


def test_a_source_is_downloaded_once_and_its_path_told(tmp_path: Path, site: Site) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    first = pull(tmp_path, f"{site.url}/a.gguf", "--checksum", digest)
    assert (first.returncode, first.stderr) == (0, "")
    path = Path(first.stdout.strip())
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(tmp_path / "state/weights")
    assert pull(tmp_path, f"{site.url}/a.gguf").stdout == first.stdout
    assert len(site.gets) == 1
    elsewhere = pull(tmp_path, f"{site.url}/a.gguf", LLMGW_CACHE=str(tmp_path / "own"))
    assert Path(elsewhere.stdout.strip()).is_relative_to(tmp_path / "own")


def test_all_files_of_a_model_are_downloaded(tmp_path: Path, site: Site) -> None:
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog/two.yaml").write_text(MODEL.format(url=site.url))
    done = pull(tmp_path, "second", "--catalog", tmp_path / "catalog")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(Path(line).name for line in done.stdout.splitlines()) == ["a.gguf", "b.bin"]
    missing = pull(tmp_path, "third", "--catalog", tmp_path / "catalog")
    assert (missing.returncode, "it has two" in missing.stderr) == (64, True)


def test_one_that_fails_does_not_end_the_others(tmp_path: Path, site: Site) -> None:
    site.files["/empty.gguf"] = b""
    done = pull(tmp_path, f"{site.url}/nothing", f"{site.url}/a.gguf", f"{site.url}/empty.gguf")
    assert done.returncode == 1
    assert f"{site.url}/empty.gguf has 0 bytes" in done.stderr
    assert len(list((tmp_path / "state/weights").iterdir())) == 2, "the marker and what came"
    assert Path(done.stdout.strip()).read_bytes() == CONTENT
    assert "no such file (404" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_comes_from_the_environment(tmp_path: Path, site: Site) -> None:
    site.token = "s3cret"
    assert "name a token" in pull(tmp_path, f"{site.url}/a.gguf").stderr
    assert pull(tmp_path, f"{site.url}/a.gguf", "--token-env", "TOKEN", TOKEN="s3cret").returncode == 0


@pytest.mark.parametrize(
    "args",
    [
        ["model"],
        ["hf://a"],
        ["https://h/x", "--checksum", "12"],
        ["https://u:p@h/x"],
        ["/a", "/b", "--checksum", "0" * 64],
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(tmp_path: Path, args: list[str]) -> None:
    done = pull(tmp_path, *args)
    assert (done.returncode, done.stdout) == (64, "")
    assert not (tmp_path / "state").exists()
