"""What must hold in a Cluster's `notify` beyond its shape. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from llmgw.catalog.document import Document, Path, as_list, as_mapping, quoted
from llmgw.catalog.hosts import is_loopback
from llmgw.catalog.spec import NotifyKind
from llmgw.errors import Problem

_NO_PUBLIC_ONE: Final = (NotifyKind.GITEA, NotifyKind.WEBHOOK)
_FORGES: Final = (NotifyKind.GITHUB, NotifyKind.GITLAB, NotifyKind.GITEA)


def check(document: Document) -> Iterator[Problem]:
    """The rules of one Cluster document. What is not of its shape is passed over."""
    first: dict[str, Path] = {}
    for index, each in enumerate(as_list(as_mapping(document.value).get("notify"))):
        path, target = ("notify", index), as_mapping(each)
        name = target.get("name")
        if isinstance(name, str):
            if name in first:
                where = document.where(first[name])
                yield document.problem((*path, "name"), f"{quoted(name)} is already the name of the one at {where}")
            first.setdefault(name, (*path, "name"))
        yield from _of_its_kind(document, path, target)
        yield from _encrypted(document, path, target)


def _of_its_kind(document: Document, path: Path, target: Mapping[str, Any]) -> Iterator[Problem]:
    kind = target.get("kind")
    if kind in _NO_PUBLIC_ONE and "url" not in target:
        yield document.problem(path, f"`url` is missing: where {_called(kind)} is")
    if kind in _FORGES:
        for key, what in ("repository", "OWNER/NAME, whose commits get the status"), ("token", "a forge asks for one"):
            if key not in target:
                yield document.problem(path, f"`{key}` is missing: {what}")
        if "secret" in target:
            message = "signs what a webhook gets; a forge takes a `token` alone: remove it"
            yield document.problem((*path, "secret"), message, at_key=True)
    if kind == NotifyKind.WEBHOOK and "repository" in target:
        yield document.problem((*path, "repository"), "says nothing of a webhook: remove it", at_key=True)


def _called(kind: object) -> str:
    return "the webhook" if kind == NotifyKind.WEBHOOK else "the forge"


def _encrypted(document: Document, path: Path, target: Mapping[str, Any]) -> Iterator[Problem]:
    url = target.get("url")
    if not isinstance(url, str) or not url.startswith("http://") or is_loopback(url):
        return
    if "token" in target:
        yield document.problem((*path, "url"), "the token would travel unencrypted: write https://")
    elif target.get("insecure") is not True:
        message = (
            "http:// is not encrypted, so anybody on the way may read and change it: write https://, or add "
            "`insecure: true`"
        )
        yield document.problem((*path, "url"), message)
