"""A model on a llama-server, from a commit to an answer: it is launched, kept over a restart, and changed."""

from pathlib import Path

from harness import Repo, alive, eventually, run_cli, serving
from llama_server import need_llama_server


def document(weights: Path, **options: object) -> str:
    given = ", ".join(f"{name}: {value}" for name, value in {"threads": 1, **options}.items())
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: small
profiles:
  - name: p
    engine: llamacpp
    weights: {{source: "file://{weights}"}}
    draft: {{source: "file://{weights}"}}
    context: 1024
    options: {{{given}}}
"""


def test_a_model_with_a_draft_is_served_kept_and_replaced(smollm2: Path, tmp_path: Path) -> None:
    need_llama_server()
    repo = Repo(tmp_path / "catalog")
    repo.commit({"small.yaml": document(smollm2)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("small")["small"]
        assert "Paris" in daemon.chat("small")
        daemon.kill()
        daemon.start()
        assert daemon.ready("small")["small"]["pid"] == before["pid"], "adopted"
        repo.commit({"small.yaml": document(smollm2, draft_n_max=5)})

        def replaced() -> bool:
            return daemon.replicas().get("small", before)["pid"] != before["pid"]

        eventually(replaced, what="the replica of the new catalog")
        assert "Paris" in daemon.chat("small")
        eventually(lambda: not alive(before["pid"]), what="the old engine's end")


def test_a_flag_of_llmgws_own_is_refused_at_validation(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(document(smollm2) + '    args: [--port, "8080"]\n')
    done = run_cli("validate", str(tmp_path))
    assert done.returncode == 3
    assert "small.yaml:11:" in done.stdout + done.stderr
    assert "llmgw chooses where it listens" in done.stdout + done.stderr


def test_a_binary_that_is_missing_fails_for_good_saying_so(smollm2: Path, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    named = "/nowhere/llama-server"
    repo.commit({"small.yaml": document(smollm2, binary=named)})
    with serving(repo.path, tmp_path / "home") as daemon:

        def said() -> bool:
            return f"{named} is no program on this node" in str(daemon.seen("models"))

        eventually(said, what="the reason")
