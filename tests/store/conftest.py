"""An etcd that speaks TLS."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcds import Etcd


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, and server.pem and client.pem signed by it, each with a key."""
    root = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=root, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-days", "2", "-subj", "/CN=test ca", "-keyout", "ca.key", "-out", "ca.pem")
    (root / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        sign = ("x509", "-req", "-days", "2", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(*sign, "-extfile", "names", "-in", f"{name}.csr", "-out", f"{name}.pem")
    return root


@pytest.fixture
def tls_etcd(etcd_binary: str, tmp_path: Path, certificates: Path) -> Iterator[Etcd]:
    def file(name: str) -> str:
        return str(certificates / name)

    arguments = ["--cert-file", file("server.pem"), "--key-file", file("server.key"), "--client-cert-auth"]
    server = Etcd(etcd_binary, tmp_path / "etcd", arguments=[*arguments, "--trusted-ca-file", file("ca.pem")]).start()
    try:
        yield server
    finally:
        server.kill()
