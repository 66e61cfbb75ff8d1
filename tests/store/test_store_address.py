"""What `--store` may say."""

from pathlib import Path

import pytest

from llmgw.errors import UsageError
from llmgw.store.address import Address, Tls, read_address


@pytest.mark.parametrize(
    ("url", "targets", "prefix"),
    [
        ("etcd://box", ("box:2379",), "/llmgw/default/"),
        ("etcd://box:1/", ("box:1",), "/llmgw/default/"),
        ("etcd://10.0.0.1:1,b-c.example.org/llmgw/prod", ("10.0.0.1:1", "b-c.example.org:2379"), "/llmgw/prod/"),
        ("etcd://[::1]:5/a/", ("[::1]:5",), "/a/"),
        ("etcd://[fe80::1]", ("[fe80::1]:2379",), "/llmgw/default/"),
    ],
)
def test_an_address_names_endpoints_and_a_prefix(url: str, targets: tuple[str, ...], prefix: str) -> None:
    assert read_address(url, {}) == Address(targets=targets, prefix=prefix)


@pytest.mark.parametrize(
    "url",
    [
        "", "box:2379", "http://box", "etcd:box", "etcd://", "etcd://,a", "etcd://a,", "etcd://a:0", "etcd://a:65536",
        "etcd://a:b", "etcd://a b", "etcd://::1", "etcd:///prefix",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        read_address(url, {})


def test_a_password_in_the_address_is_refused_without_being_quoted() -> None:
    with pytest.raises(UsageError, match="LLMGW_ETCD_PASSWORD") as caught:
        read_address("etcd://me:hush@box", {})
    assert "hush" not in str(caught.value)


def test_user_and_password_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    given = {"LLMGW_ETCD_USER": "u", "LLMGW_ETCD_PASSWORD": "hush", "LLMGW_ETCD_PASSWORD_FILE": str(secret)}
    address = read_address("etcd://box", given)
    assert (address.user, address.password) == ("u", "hush")
    assert "hush" not in f"{address} {address!r}"
    del given["LLMGW_ETCD_PASSWORD"]
    assert read_address("etcd://box", given).password == "from a file"
    with pytest.raises(UsageError, match="must be too"):
        read_address("etcd://box", {"LLMGW_ETCD_USER": "u"})
    with pytest.raises(UsageError, match="cannot be read"):
        read_address("etcd://box", {**given, "LLMGW_ETCD_PASSWORD_FILE": str(tmp_path / "absent")})
    secret.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="UTF-8"):
        read_address("etcd://box", given)


def test_tls_files_are_read_for_etcds_alone(tmp_path: Path) -> None:
    names = {"LLMGW_ETCD_CA": "ca", "LLMGW_ETCD_CERT": "cert", "LLMGW_ETCD_KEY": "key"}
    given = {name: str(tmp_path / file) for name, file in names.items()}
    for file in names.values():
        (tmp_path / file).write_text(f"the {file}")
    address = read_address("etcds://box", given)
    assert address.tls == Tls(ca=b"the ca", cert=b"the cert", key=b"the key")
    assert "the key" not in repr(address)
    assert str(address) == "etcds://box:2379/llmgw/default/"
    assert read_address("etcd://box", given).tls is None
    assert read_address("etcds://box", {}).tls == Tls()
    del given["LLMGW_ETCD_KEY"]
    with pytest.raises(UsageError, match="belong together"):
        read_address("etcds://box", given)
