"""`hf://`: files and whole repositories of the Hugging Face Hub, or of a hub that speaks like it.

huggingface_hub tells what a repository holds at a commit: sizes and checksums before the first byte. The bytes come
through llmgw's own downloads, which share the node's bandwidth, are resumed and verified.
"""

import threading
from dataclasses import replace

from llmgw.catalog.hosts import is_loopback
from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.weights import hubapi, hubnames, web
from llmgw.weights.api import Description, Fetched, RemoteFile, WeightSource, Work
from llmgw.weights.choosing import Choice, choose
from llmgw.weights.http import STALL_TIMEOUT, Who
from llmgw.weights.hubapi import Repository
from llmgw.weights.hubnames import HubSource
from llmgw.weights.sources import in_thread


class Hub(WeightSource):
    schemes = frozenset({hubnames.SCHEME})
    resumes = True
    knows_sha256 = True

    def __init__(self, *, stall: float = STALL_TIMEOUT, first_wait: float = web.FIRST_WAIT) -> None:
        self._stall = stall
        self._first_wait = first_wait

    def canonical(self, text: str) -> str:
        return str(hubnames.parse(text))

    def is_moving(self, source: str) -> bool:
        return not hubnames.parse(source).is_pinned

    async def describe(self, spec: WeightsSpec) -> Description:
        source = _parse(spec)
        repository = await _look(spec, source, _who(spec))
        choice = _choice(spec, source, repository)
        files = tuple(replace(file, path=_place(choice, file)) for file in choice.files)
        return Description(files=files, resolved=str(source.at(repository.commit)), folder=choice.folder)

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        source, who, endpoint = _parse(spec), _who(spec), hubapi.endpoint_of(spec)
        repository = await _look(spec, source, who, to_fetch=True)
        choice, pinned = _choice(spec, source, repository), source.at(repository.commit)
        remotes = [
            web.Remote(
                url=hubapi.url_of(endpoint, pinned, file.path),
                path=_place(choice, file),
                size=file.size,
                sha256=file.sha256,
            )
            for file in choice.files
        ]
        files = await web.bring(who, remotes, work, stall=self._stall, first_wait=self._first_wait)
        for remote, file in zip(remotes, files, strict=True):
            if file.size != (remote.size or file.size) or file.sha256 != (remote.sha256 or file.sha256):
                raise WeightsUnavailable(
                    f"{spec.source}: {remote.path} arrived with {file.size} bytes and sha256 {file.sha256}, the hub "
                    f"tells of {remote.size} and {remote.sha256}: it is fetched anew at the next try"
                )
        return Fetched(files=files, licence=repository.licence, folder=choice.folder)


async def _look(spec: WeightsSpec, source: HubSource, who: Who, *, to_fetch: bool = False) -> Repository:
    endpoint = hubapi.endpoint_of(spec)

    def ask(stop: threading.Event) -> Repository:
        return hubapi.look(spec, source, endpoint=endpoint, token=who.token, to_fetch=to_fetch)

    return await in_thread(ask)  # bounded by its time-out


def _place(choice: Choice, file: RemoteFile) -> str:
    """Where it goes below the entry's files: a folder keeps its shape."""
    return file.path if choice.folder is not None else file.path.rpartition("/")[2]


def _parse(spec: WeightsSpec) -> HubSource:
    try:
        return hubnames.parse(spec.source)
    except ValueError as error:
        raise WeightsRefused(str(error)) from error


def _who(spec: WeightsSpec) -> Who:
    """Raises WeightsRefused where the hub would be asked in a way that anybody could listen to, or alter."""
    endpoint = hubapi.endpoint_of(spec)
    if not endpoint.startswith("https://") and not is_loopback(endpoint) and not spec.insecure:
        raise WeightsRefused(
            f"{spec.source}: the hub {endpoint} is not encrypted, so anybody on the way may change what it sends: "
            "write https://, or `insecure: true` beside the source if that is meant"
        )
    token = hubapi.token_of(spec)
    if token is not None and not endpoint.startswith("https://") and not is_loopback(endpoint):
        raise WeightsRefused(f"{spec.source}: its token would travel unencrypted to {endpoint}: write https://")
    return Who(spec.source, token, spec.insecure)


def _choice(spec: WeightsSpec, source: HubSource, repository: Repository) -> Choice:
    """Raises WeightsRefused."""
    try:
        found = choose(repository.files, source.path, allow=source.allow, ignore=source.ignore)
    except ValueError as error:
        raise WeightsRefused(f"{spec.source}: {error}: correct the source") from error
    declared = spec.sha256.lower() if spec.sha256 is not None else None
    if declared is None:
        return found
    if found.folder is not None or len(found.files) > 1:
        raise WeightsRefused(f"{spec.source} is several files, and a checksum is one file's: leave `sha256` out")
    (file,) = found.files
    if file.sha256 not in (None, declared):
        raise WeightsRefused(
            f"{spec.source} has sha256 {file.sha256}, {declared} is declared: correct `sha256` (or --checksum), or "
            "name the revision that is meant"
        )
    return replace(found, files=(replace(file, sha256=declared),))
