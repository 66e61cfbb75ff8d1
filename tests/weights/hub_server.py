"""A hub on loopback that huggingface_hub can be pointed at: repositories with commits, branches, LFS, gates, a CDN.

As the public one answers (https://huggingface.co/docs/hub/api): large files are redirected to a signed address on
another port, which knows no tokens; errors are told in the headers X-Error-Code and X-Error-Message.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from servers import Asked, Handler, Server, Site

LARGE = 1000
"""Bytes from which on a file lies in LFS."""


@dataclass
class Repo:
    """`commits`: what each holds; `refs`: where branches and tags point."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: str | bool = False
    private: bool = False
    readers: set[str] = field(default_factory=set)  #: tokens that may read it
    licence: str | None = "apache-2.0"
    sizes: dict[str, int] = field(default_factory=dict)  #: told of, in place of the true ones

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        """A new commit that `ref` points to from now on."""
        told = repr((sorted(files.items()), len(self.commits))).encode()
        name = hashlib.sha1(told).hexdigest()
        self.commits[name] = dict(files)
        self.refs[ref] = name
        return name

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.refs.get(revision)


@dataclass
class Hub:
    site: Site  #: of the API and of small files
    cdn: Site
    repos: dict[str, Repo] = field(default_factory=dict)
    wrong_lfs: bool = False  #: it tells of other checksums than its files have

    @property
    def url(self) -> str:
        return self.site.url

    def repo(self, name: str) -> Repo:
        return self.repos.setdefault(name, Repo())

    @property
    def asked(self) -> list[str]:
        return [asked.path for asked in self.site.asked]


class HubHandler(Handler):
    hub: Hub

    def answer(self, *, body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        if self.site.statuses or self.site.answer_always is not None:
            super().answer(body=body)
            return
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self.told(*found.groups())
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/auth-check", path):
            self.checked(found[1])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.sent(*found.groups(), body=body)
        else:
            self.refused(404, "EntryNotFound")

    def told(self, name: str, revision: str) -> None:
        self.note()
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not self.may_read(repo)):
            self.refused(401, "RepoNotFound")
            return
        commit = repo.resolve(revision)
        if commit is None:
            self.refused(404, "RevisionNotFound")
            return
        siblings = [
            self.sibling(path, content) | {"size": repo.sizes.get(path, len(content))}
            for path, content in sorted(repo.commits[commit].items())
        ]
        card = {"license": repo.licence} if repo.licence else None
        about = {"id": name, "modelId": name, "sha": commit, "gated": repo.gated, "private": repo.private}
        self.json({**about, "siblings": siblings, "cardData": card, "tags": [], "downloads": 0, "likes": 0})

    def sibling(self, path: str, content: bytes) -> dict[str, object]:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        about: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": blob}
        if len(content) >= LARGE:
            digest = hashlib.sha256(b"other" if self.hub.wrong_lfs else content).hexdigest()
            about["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
        return about

    def checked(self, name: str) -> None:
        self.note()
        repo = self.hub.repos[name]
        if repo.gated and not self.may_read(repo):
            self.refused(403 if self.token else 401, "GatedRepo")
        else:
            self.json({})

    def sent(self, name: str, revision: str, path: str, *, body: bool) -> None:
        repo = self.hub.repos.get(name)
        if repo is None or ((repo.private or repo.gated) and not self.may_read(repo)):
            self.note()
            self.refused(401, "GatedRepo" if repo is not None and repo.gated else "RepoNotFound")
            return
        content = repo.commits.get(revision, {}).get(path)
        if content is None:
            self.note()
            self.refused(404, "EntryNotFound")
        elif len(content) < LARGE:
            self.site.files[self.path.partition("?")[0]] = content
            super().answer(body=body)
        else:
            self.note()
            address = f"/blobs/{hashlib.sha256(content).hexdigest()}"
            self.hub.cdn.files[address] = content
            self.bare(302, {"Location": f"{self.hub.cdn.url}{address}?signature=secret"})

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def may_read(self, repo: Repo) -> bool:
        return self.token in repo.readers

    def note(self) -> None:
        self.site.asked.append(Asked(self.command, self.path, dict(self.headers)))

    def refused(self, status: int, code: str) -> None:
        self.bare(status, {"X-Error-Code": code, "X-Error-Message": f"no: {code}"})

    def json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serve_hub() -> Iterator[Hub]:
    hub = Hub(site=Site(), cdn=Site())
    with (
        _running(hub.site, type("OwnHub", (HubHandler,), {"site": hub.site, "hub": hub})),
        _running(hub.cdn, type("OwnCdn", (Handler,), {"site": hub.cdn})),
    ):
        yield hub


@contextmanager
def _running(site: Site, handler: type[Handler]) -> Iterator[None]:
    server = Server(("127.0.0.1", 0), handler)
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        site.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
