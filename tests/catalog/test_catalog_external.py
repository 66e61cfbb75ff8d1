"""Models that others run, and parameters of requests: what is accepted, refused, doubted, and planned."""

import pytest
from catalog_texts import ENGINES, MODEL, model, source, texts

from llmgw.catalog.diff import diff
from llmgw.catalog.load import Loaded, load_catalog
from llmgw.catalog.spec import ExternalSpec, SecretRef, VariantSpec
from llmgw.ids import ModelName

HEAD = "apiVersion: llmgw/v1\nkind: Model\nname: far\n"


def external(block: str = "url: https://api.example.org", more: str = "") -> str:
    return f"{HEAD}external: {{{block}}}\n{more}"


def loaded(*documents: str) -> Loaded:
    return load_catalog(source({"a.yaml": "---\n".join(documents)}), ENGINES)


def test_a_model_that_others_run_is_an_address_a_key_and_a_name() -> None:
    text = external("url: 'https://api.example.org/v2/', api_key: {from_env: KEY}, model: org/far, max_requests: 20")
    spec = loaded(text).catalog.models[ModelName("far")]
    assert spec.external == ExternalSpec(
        url="https://api.example.org/v2", api_key=SecretRef(from_env="KEY"), model="org/far", max_requests=20
    )  # fmt: skip
    assert spec.profiles == ()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.example.org", "https://api.example.org/v1"),
        ("https://api.example.org/", "https://api.example.org/v1"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("https://api.example.org/v1beta/openai/", "https://api.example.org/v1beta/openai"),
    ],
)
def test_an_address_without_a_path_means_v1(url: str, expected: str) -> None:
    found = loaded(external(f"url: '{url}'")).catalog.models[ModelName("far")].external
    assert found is not None
    assert found.url == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD, "missing key 'profiles' or 'external'"),
        (external("model: x"), "missing key 'url'"),
        (external("url: ftp://x"), "expected an address such as https://api.example.com/v1"),
        (external("url: 'https://me:pw@x'"), "expected an address"),
        (external("url: 'https://x?a=1'"), "expected an address"),
        (external("url: 'https://x:99999/v1'"), "$.external.url: nothing can be sent there: Port out of range"),
        (external("url: 'https://:80/v1'"), "$.external.url: nothing can be sent there: it names no host"),
        (external("url: 'https://x:0/v1'"), "$.external.url: nothing can be sent there: there is no port 0"),
        (external("url: 'https://[::1/v1'"), "$.external.url: nothing can be sent there: Invalid IPv6 URL"),
        (external("url: 'https://a..b/v1'"), "$.external.url: nothing can be sent there: its host is no name"),
        (external("url: 'https://x/\u8def'"), "$.external.url: nothing can be sent there: it is not ASCII"),
        (external("url: https://x, api_key: sk-secret"), "from_env"),
        (
            external(more="scaling: {min: 2}\n"),
            "$.scaling: says nothing of a model that is run elsewhere (`external`): remove it",
        ),
        (external(more="fallback: far\n"), "$.fallback: says nothing of a model that is run elsewhere"),
        (
            MODEL + "external: {url: https://x}\n",
            "$.profiles: says nothing of a model that is run elsewhere (`external`): write one",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason_and_never_the_secret(text: str, says: str) -> None:
    found = "\n".join(texts(text))
    assert says in found
    assert "sk-secret" not in found
    assert "pw" not in found


@pytest.mark.parametrize("end", ["/chat/completions", "/chat/completions/", "/embeddings"])
def test_an_address_that_is_one_of_requests_is_doubted(end: str) -> None:
    (warning,) = loaded(external(f"url: 'https://api.example.org/v1{end}'")).warnings
    assert warning.message.endswith(f"goes to this address and {end.rstrip('/')}: leave that out here")
    assert (warning.line, warning.column) == (4, 17)


def test_a_key_that_would_travel_unencrypted_is_doubted() -> None:
    (warning,) = loaded(external("url: http://10.0.0.9:8000, api_key: {from_env: K}")).warnings
    assert "unencrypted" in warning.message
    assert not loaded(external("url: http://127.0.0.1:8000, api_key: {from_env: K}")).warnings
    assert not loaded(external("url: http://10.0.0.9:8000")).warnings


def test_it_may_stand_in_for_others_and_cannot_draft() -> None:
    assert loaded(external(), model(extra="fallback: far\n")).catalog.models[ModelName("qwen")].fallback == "far"
    found = texts({"a.yaml": external(), "b.yaml": model(profile="draft: {model: far}")})
    assert any("is run elsewhere: what drafts runs on the same node" in text for text in found)


def test_parameters_and_variants_are_kept_as_they_are_written() -> None:
    text = model(
        extra="default_params: {temperature: 0.7, stop: [a, {b: null}]}\nset_params: {n: 1}\nstrip_params: [user]\n"
        "variants:\n  - {name: qwen-cold, default_params: {temperature: 0}}\n"
    )
    spec = loaded(text).catalog.models[ModelName("qwen")]
    assert spec.default_params == {"temperature": 0.7, "stop": ["a", {"b": None}]}
    assert (spec.set_params, spec.strip_params) == ({"n": 1}, ("user",))
    assert spec.variants == (VariantSpec(name="qwen-cold", default_params={"temperature": 0}),)
    assert spec.names == ("qwen", "qwen-cold")


@pytest.mark.parametrize("key", ["set_params: {model: x}", "default_params: {stream: true}", "strip_params: [model]"])
def test_the_clients_own_parameters_are_left_to_it(key: str) -> None:
    assert any("which are the client's own" in text for text in texts(model(extra=f"{key}\n")))


def test_a_variants_name_is_a_name_among_all() -> None:
    found = texts({"a.yaml": model("a", extra="variants: [{name: b}]\n"), "b.yaml": model("b")})
    assert found == ["a.yaml:8:19: $.variants[0].name: 'b' is already a name, alias or variant at b.yaml:3:7"]


def test_what_changes_of_them_restarts_nothing() -> None:
    new = model(extra="set_params: {n: 1}\nvariants: [{name: v, set_params: {top_k: 1}}]\n")
    found = diff(loaded(model()).catalog, loaded(new).catalog)
    assert {(change.path, str(change.effect)) for change in found} >= {("set_params.n", "routing")}
    assert {str(change.effect) for change in found} == {"routing"}
    moved = diff(loaded(external()).catalog, loaded(external("url: https://b.example.org")).catalog)
    assert [(change.path, str(change.effect)) for change in moved] == [("external.url", "routing")]
