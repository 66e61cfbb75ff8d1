"""A model that others run beside one of ours: routed, listed, explained and planned by a real daemon."""

from pathlib import Path

from harness import MESSAGES, Repo, command, eventually, model, serving


def test_a_model_that_others_run_is_served_as_any_is_and_never_placed(tmp_path: Path, smollm2: Path) -> None:
    ours = Repo(tmp_path / "ours")
    ours.commit({"a.yaml": model("near", smollm2)})
    with serving(ours.path, tmp_path / "one") as other:  # what stands for a provider
        other.ready("near")
        (tmp_path / "key").write_text("sk-theirs\n")
        repo = Repo(tmp_path / "catalog")
        far = (
            "apiVersion: llmgw/v1\nkind: Model\nname: far\n"
            f"external: {{url: '{other.gateway}/v1', model: near, api_key: {{from_file: {tmp_path / 'key'}}}}}\n"
            "variants: [{name: far-cold, set_params: {temperature: 0}}]\n"
        )
        repo.commit({"far.yaml": far, "own.yaml": command("own")})
        with serving(repo.path, tmp_path / "two") as daemon:
            daemon.ready("own")
            eventually(lambda: "far" in daemon.routed(), what="far routed")
            for name in ("far", "far-cold"):
                answer = daemon.post(model=name, messages=MESSAGES, max_tokens=1)
                assert answer.status_code == 200, answer.text
            models = {model["name"]: model for model in daemon.ask("models")["models"]}
            assert (models["far"]["state"], models["far"]["wanted"]) == ("ready", 0)
            told = daemon.cli("explain", "far").stdout
            assert (
                f"run at       {other.gateway}/v1, where it is called near, with the key in {tmp_path / 'key'}" in told
            )
            assert "sk-theirs" not in told
            plan = daemon.cli("plan").stdout
            assert "Nothing to do" in plan
            assert "Not served" not in plan
            before = daemon.replicas()["own"]["pid"]
            repo.commit({"far.yaml": far.replace("temperature: 0", "temperature: 1")})
            eventually(lambda: daemon.ask("status")["catalog"]["applied"].startswith(repo.git("rev-parse", "HEAD")))
            assert daemon.replicas()["own"]["pid"] == before
            other.cli("stop")
            refused = daemon.post(model="far", messages=[])
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "system_stopped"), "as they say it"
