"""What an operator may say a catalog's source is."""

from pathlib import Path
from typing import Any

import pytest

from llmgw.catalog.origin import Access, Origin, Ref, RefKind, is_remote, read_address, read_inside, read_ref
from llmgw.catalog.spec import SecretRef
from llmgw.cli.following import Following, unread_secret
from llmgw.errors import UsageError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def following(catalog: str, **more: Any) -> Origin:
    none = dict.fromkeys(
        ("branch", "tag", "commit", "within", "token_env", "token_file", "user", "key_env", "key_file", "known_hosts")
    )
    return Following(
        catalog=catalog, **{**none, "commits_only": False, "poll": "60s", "depth": 50, "insecure": False, **more}
    ).origin()


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        ("https://git.example.org/a.git", True),
        ("ssh://git@git.example.org:2222/a.git", True),
        ("git@github.com:team/catalog.git", True),
        ("file:///srv/a.git", True),
        ("/srv/catalog", False),
        ("./catalog", False),
        ("catalog", False),
        ("~/a:b", False),
        ("a@b", False),
    ],
)
def test_a_git_address_is_told_from_a_path(text: str, remote: bool) -> None:
    assert is_remote(text) is remote


@pytest.mark.parametrize(
    ("text", "address", "ref", "inside"),
    [
        ("https://h/a.git", "https://h/a.git", Ref(), ""),
        ("https://h/a.git#main", "https://h/a.git", Ref(kind=RefKind.NAMED, name="main"), ""),
        ("https://h/a.git#v1:clusters/home/", "https://h/a.git", Ref(kind=RefKind.NAMED, name="v1"), "clusters/home"),
        ("git@h:a.git#:sub", "git@h:a.git", Ref(), "sub"),
        (f"ssh://h/a#{COMMIT}", "ssh://h/a", Ref(kind=RefKind.COMMIT, name=COMMIT), ""),
        ("http://127.0.0.1:3000/a", "http://127.0.0.1:3000/a", Ref(), ""),
        ("https://robot@h/a.git", "https://robot@h/a.git", Ref(), ""),
    ],
)
def test_an_address_names_what_is_followed(text: str, address: str, ref: Ref, inside: str) -> None:
    assert read_address(text) == (address, ref, inside)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("https://robot:hunter2@h/a.git", "a secret in an address is seen in process lists"),
        ("https://:hunter2@h/a.git", "a secret in an address is seen in process lists"),
        ("http://git.lan/a.git", "is not encrypted"),
        ("git://git.lan/a.git", "is not encrypted"),
        ("ext::sh -c true", "is no git address"),
        ("ftp://h/a.git", "llmgw follows https://"),
        ("https:///a.git", "names no host"),
        ("https://h:port/a b", "has characters that none has"),
        ("https://h/a.git#-x", "can be no branch or tag"),
        ("https://h/a.git#a..b", "can be no branch or tag"),
        ("https://h/a.git#main:../x", "name a directory of the repository"),
        ("git@h:a\n.git", "is no git address"),
    ],
)
def test_what_cannot_be_followed_is_refused_without_its_secret(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        read_address(text)
    assert "hunter2" not in str(refused.value)


def test_an_unencrypted_address_may_be_meant() -> None:
    assert read_address("http://git.lan/a.git", insecure=True)[0] == "http://git.lan/a.git"


@pytest.mark.parametrize("name", ["", "a b", "a~1", "a^", "a:b", "a*", "/a", "a/", "a.lock", ".a", "a//b", "x" * 300])
def test_names_that_git_refuses_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        read_ref(RefKind.BRANCH, name)


def test_a_commit_is_written_out() -> None:
    assert read_ref(RefKind.COMMIT, COMMIT.upper()).name == COMMIT
    with pytest.raises(UsageError, match="write all of its 40"):
        read_ref(RefKind.COMMIT, COMMIT[:12])


def test_a_directory_of_a_repository_stays_in_it() -> None:
    assert read_inside("./clusters//home/") == "clusters/home"
    for wrong in ("/etc", "a/../..", "a\nb"):
        with pytest.raises(UsageError):
            read_inside(wrong)


def test_options_make_an_origin(tmp_path: Path) -> None:
    origin = following(
        "https://h/a.git", branch="main", within="sub", poll="5m", depth=0, token_file="~/token", user="robot",
        key_env="KEY", known_hosts="hosts",
    )  # fmt: skip
    assert (origin.name, origin.poll, origin.depth, origin.scheme) == ("https://h/a.git#main:sub", 300, 0, "https")
    assert origin.access == Access(
        token=SecretRef(from_file=str(Path("~/token").expanduser())),
        user="robot",
        ssh_key=SecretRef(from_env="KEY"),
        known_hosts=str(Path("hosts").absolute()),
    )
    assert following("git@h:a.git").scheme == "ssh"
    assert following("git@h:a.git", within="x").name == "git@h:a.git#:x"


def test_a_path_stays_what_it_was(tmp_path: Path) -> None:
    origin = following(str(tmp_path / "x"))
    assert origin == Origin(where=str(tmp_path / "x"))
    assert origin.name == str(tmp_path / "x")
    assert following(".", commits_only=True).commits


@pytest.mark.parametrize(
    ("catalog", "options", "why"),
    [
        ("https://h/a#x", {"tag": "y"}, "name what to follow once"),
        ("https://h/a#x:sub", {"within": "sub"}, "name the directory once"),
        ("https://h/a", {"tag": "y", "branch": "z"}, "exclude each other"),
        ("https://h/a", {"token_env": "A", "token_file": "b"}, "--git-token-env and --git-token-file exclude"),
        ("/srv/catalog", {"token_env": "A", "key_file": "b"}, "--git-token-env, --ssh-key-file: /srv/catalog is on"),
        ("https://h/a", {"poll": "often"}, "--poll often"),
        ("http://h/a", {"insecure": True, "token_env": "A"}, "a token would travel unencrypted"),
        ("https://h/a", {"poll": "100ms"}, "--poll 100ms: at least 2s"),
    ],
)
def test_options_that_contradict_are_refused(catalog: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        following(catalog, **options)


def test_a_webhooks_secret_that_is_not_there_is_told_at_the_start(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    told = unread_secret(SecretRef(from_file=str(secret)))
    assert told is not None
    assert told.startswith(f"warning: the secret for webhooks cannot be read from {secret}: No such file")
    secret.write_text("word\n")
    assert unread_secret(SecretRef(from_file=str(secret))) is None
    assert unread_secret(None) is None
