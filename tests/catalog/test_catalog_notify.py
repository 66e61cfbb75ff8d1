"""The Cluster's `notify`: what of it is a value, and what is refused."""

import pytest
from catalog_texts import load, problems

from llmgw.catalog.spec import NotifyKind, NotifySpec, Occasion, SecretRef

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\nnotify:\n"
TOKEN = "token: {from_env: T}"


def of(*targets: str) -> dict[str, str]:
    text = CLUSTER + "".join(f"  - {{{each}}}\n" for each in targets)
    return {"cluster.yaml": text}


def test_whom_to_tell_becomes_values() -> None:
    catalog = load(
        of(
            f"name: ci, kind: github, repository: team/catalog, {TOKEN}",
            "name: hook, kind: webhook, url: 'https://h.example/x?y=z', secret: {from_file: /s}, events: [ready, held]",
        )
    ).catalog
    assert catalog.cluster.notify == (
        NotifySpec(name="ci", kind=NotifyKind.GITHUB, repository="team/catalog", token=SecretRef(from_env="T")),
        NotifySpec(
            name="hook",
            kind=NotifyKind.WEBHOOK,
            url="https://h.example/x?y=z",
            secret=SecretRef(from_file="/s"),
            events=(Occasion.READY, Occasion.HELD),
        ),
    )


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (f"name: a, kind: gitea, repository: t/c, {TOKEN}", "$.notify[0]: `url` is missing: where the forge is"),
        ("name: a, kind: webhook", "$.notify[0]: `url` is missing: where the webhook is"),
        (f"name: a, kind: github, {TOKEN}", "$.notify[0]: `repository` is missing: OWNER/NAME"),
        ("name: a, kind: gitlab, repository: t/c", "$.notify[0]: `token` is missing"),
        (f"name: a, kind: github, repository: t/../c, {TOKEN}", "$.notify[0].repository: expected OWNER/NAME"),
        (
            f"name: a, kind: github, repository: t/c, {TOKEN}, secret: {{from_env: S}}",
            "$.notify[0].secret: signs what a webhook gets",
        ),
        (
            "name: a, kind: webhook, url: 'https://h.example', repository: t/c",
            "$.notify[0].repository: says nothing of a webhook",
        ),
        ("name: a, kind: webhook, url: 'http://h.example'", "$.notify[0].url: http:// is not encrypted"),
        (
            f"name: a, kind: webhook, url: 'http://h.example', insecure: true, {TOKEN}",
            "$.notify[0].url: the token would travel unencrypted",
        ),
        ("name: a, kind: webhook, url: 'https://me:pw@h.example'", "$.notify[0].url: expected https://HOST/PATH"),
        ("name: a, kind: webhook, url: 'https://h.example', events: [redy]", "did you mean"),
    ],
)
def test_what_could_not_be_told_is_refused_with_what_to_write(target: str, problem: str) -> None:
    (found,) = problems(of(target))
    assert problem in str(found)


def test_a_name_is_for_one_of_them_and_both_places_are_named() -> None:
    hook = "name: a, kind: webhook, url: 'https://h.example'"
    (found,) = problems(of(hook, hook))
    assert "'a' is already the name of the one at " in str(found)


@pytest.mark.parametrize(
    "url", ["'http://127.0.0.1:8000/x'", "'http://localhost/x'", "'http://h.example', insecure: true"]
)
def test_what_is_not_encrypted_is_for_the_machine_itself_or_by_permission(url: str) -> None:
    assert load(of(f"name: a, kind: webhook, url: {url}")).catalog.cluster.notify
