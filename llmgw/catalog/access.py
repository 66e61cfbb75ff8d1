"""How git is let in at a repository elsewhere: by its environment. No secret is in its arguments or on our disk."""

import os
import re
import shlex
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from llmgw.catalog.gitrun import CONFIG
from llmgw.catalog.origin import Origin, hidden
from llmgw.catalog.spec import SecretRef
from llmgw.errors import CatalogUnreadable, LlmgwError
from llmgw.secretref import SecretMissing, read_secret, read_token
from llmgw.statedir import write_atomic

_KEPT: Final = (
    *("http_proxy", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "ALL_PROXY", "all_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "SSH_AUTH_SOCK", "USER", "LOGNAME"),
)
"""What of our environment decides how a server is reached."""

_SSH: Final = "ssh -oBatchMode=yes -oConnectTimeout=10 -oServerAliveInterval=10 -oServerAliveCountMax=3"
"""Never asks, and notices a server that is gone."""

_SLOW: Final = {"http.lowSpeedLimit": "1", "http.lowSpeedTime": "30"}
"""A transfer over HTTP of which nothing comes for 30 s is given up."""

_USER, _PASSWORD = "LLMGW_GIT_USER", "LLMGW_GIT_PASSWORD"

_HELPER: Final = (
    f"""!f() {{ test "$1" = get && printf 'username=%s\\npassword=%s\\n' "${_USER}" "${_PASSWORD}"; }}; f"""
)
"""What tells git of the token: a shell reads it from git's own environment."""

KEY_FILE: Final = "ssh-key"


def network_environment(origin: Origin, home: Path) -> dict[str, str]:
    """For one git command that reaches the origin. `home`: a directory of ours, for a key that ssh has to read.

    Raises CatalogUnreadable where a secret is not to be had (it may be there the next time).
    """
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    settings = dict(setting.split("=", 1) for setting in CONFIG)
    settings |= {
        f"protocol.{origin.scheme}.allow": "always",
        "gc.autoDetach": "false",
        "maintenance.autoDetach": "false",
        **_SLOW,
    }
    try:
        if origin.scheme in ("https", "http") and origin.access.token is not None:
            # git asks for credentials of the server that wants some: one that it was redirected to gets none. (A header
            # of ours would follow to it.) No other helper is asked in its place.
            settings |= {"credential.helper": "", f"credential.{_server(origin.where)}.helper": _HELPER}
            env[_PASSWORD] = read_token(origin.access.token, "the token for git")
            env[_USER] = origin.access.user or urlsplit(origin.where).username or "x-access-token"
        env["GIT_SSH_COMMAND"] = _ssh(origin, home)
    except LlmgwError as error:
        raise CatalogUnreadable(str(error)) from error
    env["GCM_INTERACTIVE"] = "never"
    env["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (key, value) in enumerate(settings.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


def _server(where: str) -> str:
    """Scheme, host and port: what a credential is for."""
    parts = urlsplit(where)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _ssh(origin: Origin, home: Path) -> str:
    words, access = _SSH, origin.access
    if access.ssh_key is not None:
        words += f" -oIdentitiesOnly=yes -i {shlex.quote(str(_key(access.ssh_key, home)))}"
    if access.known_hosts is not None:
        words += f" -oStrictHostKeyChecking=yes -oUserKnownHostsFile={shlex.quote(access.known_hosts)}"
    return words


def _key(ref: SecretRef, home: Path) -> Path:
    """A file that ssh takes: one that only we can read, ending in a line break."""
    if ref.from_file is not None:
        path = Path(ref.from_file).expanduser()
        if not os.access(path, os.R_OK):
            raise SecretMissing(f"the ssh key {path} cannot be read by the user that runs llmgw")
        return path
    path = home / KEY_FILE
    try:
        write_atomic(path, read_secret(ref, "the ssh key").encode() + b"\n", mode=0o600)
    except OSError as error:
        raise CatalogUnreadable(f"cannot write {path}: {error.strerror}") from error
    return path


_ADVICE: Final = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (
            "Host key verification failed",
            "its host key is not known here: compare it, and add it with `ssh-keyscan HOST >> FILE` and "
            "--ssh-known-hosts FILE",
        ),
        (
            "UNPROTECTED PRIVATE KEY",
            "ssh refuses a key that others can read: `chmod 600` it",
        ),
        (
            r"Permission denied \(",
            "it refuses the ssh key: name one that may read it with --ssh-key-file or --ssh-key-env",
        ),
        (
            "Authentication failed|could not read Username|could not read Password|HTTP Basic: Access denied|"
            "error: 401|error: 403",
            "it refuses the credentials, or wants some: name a token that may read it with --git-token-file or "
            "--git-token-env",
        ),
        (
            "Repository not found|repository '.*' not found|does not appear to be a git repository|does not exist|"
            "error: 404",
            "there is no such repository, or it is hidden from these credentials",
        ),
        ("Could not resolve host", "its name is not known (DNS)"),
        ("Connection refused|Failed to connect|Couldn't connect to server", "nobody answers there"),
        ("timed out|Operation too slow", "it does not answer"),
        ("SSL certificate|server certificate verification failed", "its certificate is not trusted here"),
        ("dubious ownership", "it belongs to another user: `git config --global --add safe.directory DIRECTORY`"),
        ("No space left on device", "the disk is full"),
    )
)


def advice(stderr: bytes) -> str | None:
    """What git's words come to where they are the other side's, or the credentials'."""
    said = stderr.decode("utf-8", "replace")
    return next((advice for pattern, advice in _ADVICE if pattern.search(said)), None)


def explained(stderr: bytes) -> str:
    """Why git could not, as one line, with advice where there is any; without secrets."""
    lines = [line.strip() for line in hidden(stderr.decode("utf-8", "replace")).splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:", "ssh:"))]
    return advice(stderr) or ((fatal or lines or ["git gave no reason"])[0])[:300]
