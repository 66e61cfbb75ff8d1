"""API keys of a running daemon: made and revoked while it serves, kept over a crash, used by real clients."""

import json
import os
from pathlib import Path

import httpx
import openai
import pytest
from harness import MESSAGES, WEB, Repo, eventually, model, run_cli, serving


def test_a_key_lets_its_holder_in_is_kept_over_a_crash_and_is_refused_once_revoked(
    tmp_path: Path, smollm2: Path
) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": model("a", smollm2), "b.yaml": model("b", smollm2, aliases=["bee"])})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("a", "b")
        assert daemon.post(model="a", messages=MESSAGES, max_tokens=1).status_code == 200, "no key, none needed"
        made = json.loads(daemon.cli("keys", "create", "ada", "--model", "bee", "--json").stdout)
        token = made["token"]

        def refused() -> bool:
            return daemon.post(model="a", messages=MESSAGES, max_tokens=1).status_code == 401

        eventually(refused, what="a key asked for")
        daemon.kill()
        daemon.start()
        eventually(lambda: httpx.get(f"{daemon.gateway}/health", **WEB).is_success, what="the gateway back")

        def client(key: str) -> openai.OpenAI:
            return openai.OpenAI(
                base_url=f"{daemon.gateway}/v1", api_key=key, max_retries=0, http_client=httpx.Client(**WEB)
            )

        with client("sk-of-another-place") as nobody, pytest.raises(openai.AuthenticationError):
            nobody.models.list()
        with client(token) as ada:

            def listed() -> bool:
                try:
                    models = ada.models.list().data
                except openai.InternalServerError:  # just started: no catalog is in force yet
                    return False
                return [(each.id, getattr(each, "state", "")) for each in models] == [("b", "ready")]

            eventually(listed, what="the one model that it may see")
            with pytest.raises(openai.PermissionDeniedError, match="not for model 'a'"):
                ada.chat.completions.create(model="a", messages=MESSAGES)  # type: ignore[arg-type]
            stream = ada.chat.completions.create(
                model="bee", messages=MESSAGES, max_tokens=8, temperature=0, stream=True  # type: ignore[arg-type]
            )  # fmt: skip
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

        def counted(direction: str) -> int:
            metrics = daemon.admin("/metrics").text
            name = f'llmgw_gateway_key_tokens_total{{direction="{direction}",key="ada"}} '
            return next((int(float(line.split()[-1])) for line in metrics.splitlines() if line.startswith(name)), 0)

        assert 1 <= counted("out") <= 8
        assert counted("in") > 10
        env = {**os.environ, "LLMGW_API_KEY": token}
        told = run_cli("run", "bee", "Hello", "--state", str(daemon.state), env=env)
        assert (told.returncode, bool(told.stdout.strip())) == (0, True), told.stderr
        assert "API key" in run_cli("run", "bee", "Hello", "--state", str(daemon.state)).stderr

        daemon.cli("keys", "revoke", "ada")

        def revoked() -> bool:
            with client(token) as ada:
                try:
                    ada.models.list()
                except openai.AuthenticationError as error:
                    return "revoked" in str(error)
            return False

        assert eventually(revoked, what="the key refused")
