"""How it is said to each kind: one POST. Pure.

Sources: the REST APIs of GitHub (create a commit status), GitLab (set the pipeline status of a commit) and Gitea
(create a commit status).
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote

import msgspec

from llmgw.catalog.spec import NotifyKind, NotifySpec, Occasion
from llmgw.notify.body import Notification
from llmgw.notify.occasions import Finding

PUBLIC: Final[Mapping[NotifyKind, str]] = {
    NotifyKind.GITHUB: "https://api.github.com",
    NotifyKind.GITLAB: "https://gitlab.com",
}
"""Where a forge is that no `url` was given of."""

MOST_TEXT: Final = 140
"""Characters that GitHub shows of a status' description; it refuses longer ones."""

_STATES: Final[Mapping[Occasion, str]] = {
    Occasion.APPLIED: "pending",
    Occasion.READY: "success",
    Occasion.INVALID: "failure",
    Occasion.HELD: "failure",
    Occasion.STALLED: "failure",
    Occasion.ROLLOUT_FAILED: "failure",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A POST, without what is secret of it."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def root(spec: NotifySpec) -> str:
    """Without a slash at its end."""
    return (spec.url or PUBLIC.get(spec.kind, "")).rstrip("/")


def request(spec: NotifySpec, finding: Finding, told: Notification) -> Request:
    base, commit = root(spec), finding.revision
    match spec.kind:
        case NotifyKind.GITHUB:
            headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
            url = f"{base}/repos/{spec.repository}/statuses/{commit}"
            return _json(url, status(finding, told.cluster), headers)
        case NotifyKind.GITEA:
            url = f"{base.removesuffix('/api/v1')}/api/v1/repos/{spec.repository}/statuses/{commit}"
            return _json(url, status(finding, told.cluster))
        case NotifyKind.GITLAB:
            project = quote(spec.repository or "", safe="")
            said = status(finding, told.cluster)
            state = "failed" if said["state"] == "failure" else said["state"]
            return Request(
                url=f"{base.removesuffix('/api/v4')}/api/v4/projects/{project}/statuses/{commit}",
                params={"state": state, "name": said["context"], "description": said["description"]},
            )
        case NotifyKind.WEBHOOK:
            headers = {"Content-Type": "application/json", "X-Llmgw-Event": finding.occasion}
            return Request(url=spec.url or "", headers=headers, body=msgspec.json.encode(told))


def status(finding: Finding, cluster: str) -> dict[str, str]:
    """As GitHub and Gitea take it. Clusters that follow one repository each have a status of their own."""
    state = "pending" if finding.expected else _STATES[finding.occasion]
    context = "llmgw" if cluster in ("", "default") else f"llmgw/{cluster}"
    return {"state": state, "context": context, "description": shorten(finding.message)}


def shorten(text: str) -> str:
    """On one line, as long as is taken."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_TEXT else f"{line[: MOST_TEXT - 3]}..."


def signed(spec: NotifySpec, made: Request, token: str | None, secret: str | None) -> Request:
    """With what proves who sends it."""
    headers = dict(made.headers)
    if token is not None:
        match spec.kind:
            case NotifyKind.GITLAB:
                headers["PRIVATE-TOKEN"] = token
            case NotifyKind.GITEA:
                headers["Authorization"] = f"token {token}"
            case NotifyKind.GITHUB | NotifyKind.WEBHOOK:
                headers["Authorization"] = f"Bearer {token}"
    if secret is not None:
        digest = hmac.new(secret.encode(), made.body, hashlib.sha256).hexdigest()
        headers["X-Llmgw-Signature-256"] = f"sha256={digest}"
    return replace(made, headers=headers)


def _json(url: str, value: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Request:
    return Request(
        url=url, headers={"Content-Type": "application/json", **(headers or {})}, body=msgspec.json.encode(value)
    )
