"""Asking a hub what a repository holds, through huggingface_hub: its tokens, proxies and ways of failing. Blocks."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsError, WeightsRefused, WeightsUnavailable
from llmgw.weights.api import RemoteFile
from llmgw.weights.http import read_token
from llmgw.weights.hubnames import MAIN, HubSource

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import ModelInfo

PUBLIC: Final = "https://huggingface.co"
TIMEOUT: Final = 20.0
"""Seconds for one answer."""

_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """At one commit. `files` by their paths in it."""

    commit: str
    files: tuple[RemoteFile, ...]
    licence: str | None


def endpoint_of(spec: WeightsSpec) -> str:
    """The hub that is asked: the catalog's, else the one that HF_ENDPOINT names here, else the public one."""
    return (spec.endpoint or os.environ.get("HF_ENDPOINT") or PUBLIC).rstrip("/")


def token_of(spec: WeightsSpec) -> str | None:
    """The source's own, else what huggingface_hub finds here (HF_TOKEN, `hf auth login`). Raises WeightsRefused."""
    from huggingface_hub import get_token

    return read_token(spec) if spec.token is not None else get_token()


def url_of(endpoint: str, source: HubSource, path: str) -> str:
    """Of one file, at the source's commit."""
    return f"{endpoint}/{source.repo}/resolve/{source.revision}/{quote(path)}"


def look(
    spec: WeightsSpec, source: HubSource, *, endpoint: str, token: str | None, to_fetch: bool = False
) -> Repository:
    """Raises WeightsUnavailable, WeightsRefused; both say what to do. `to_fetch`: also whether its gate is open; what a
    gated repository holds is told to everybody."""
    # Imported when a hub is asked: a third of a second that other commands are spared.
    from huggingface_hub import HfApi, errors

    api = HfApi(endpoint=endpoint, token=token or False, library_name="llmgw")
    try:
        info = api.model_info(source.repo, revision=source.revision or MAIN, files_metadata=True, timeout=TIMEOUT)
        if to_fetch and info.gated:
            api.auth_check(source.repo)
    except errors.HfHubHTTPError as error:
        raise _refusal(spec, source, error, endpoint=endpoint, token=token) from error
    except errors.OfflineModeIsEnabled as error:
        raise WeightsUnavailable(
            f"{spec.source}: HF_HUB_OFFLINE is set where llmgw runs, so that no hub is asked: unset it, or name a "
            "commit that is here"
        ) from error
    except (errors.HTTPError, OSError, ValueError) as error:  # type: ignore[attr-defined] # of the client it uses
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise WeightsUnavailable(
            f"cannot ask {endpoint} for {spec.source} ({said}): check the network, and the proxy that https_proxy names"
        ) from error
    return _repository(spec, info)


def _repository(spec: WeightsSpec, info: "ModelInfo") -> Repository:
    if not info.sha:
        raise WeightsUnavailable(f"the hub tells no commit of {spec.source}: is it one that huggingface_hub can use?")
    files = tuple(
        RemoteFile(path=each.rfilename, size=each.size, sha256=each.lfs.sha256 if each.lfs is not None else None)
        for each in info.siblings or ()
    )
    licence = getattr(info.card_data, "license", None)
    return Repository(commit=info.sha, files=files, licence=str(licence) if licence else None)


def _refusal(
    spec: WeightsSpec, source: HubSource, error: "HfHubHTTPError", *, endpoint: str, token: str | None
) -> WeightsError:
    from huggingface_hub import errors

    status, page = error.response.status_code, f"{endpoint}/{source.repo}"
    if isinstance(error, errors.GatedRepoError):
        return WeightsRefused(f"{spec.source} is gated ({status}): {gated_advice(page, token)}")
    if isinstance(error, errors.RevisionNotFoundError):
        return WeightsRefused(
            f"{spec.source}: {source.repo} has no revision {source.revision or MAIN}: correct what follows the '@'"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return WeightsRefused(
            f"{spec.source}: {endpoint} has no repository {source.repo}, or it is private ({status}): correct the "
            f"source, or {_token_advice(token)}"
        )
    if status in (401, 403):
        return WeightsRefused(f"{spec.source}: the hub denies it ({status}): {_token_advice(token)}")
    if status in _PASSING:
        return WeightsUnavailable(f"{spec.source}: {endpoint} answers {status}: it is tried again later")
    return WeightsRefused(f"{spec.source}: {endpoint} answers {status}: correct the source")


def gated_advice(page: str, token: str | None) -> str:
    if token is None:
        return f"accept its terms at {page}, then {_token_advice(token)}"
    return f"ask for access at {page} with the account of the token, or use another token"


def _token_advice(token: str | None) -> str:
    if token is None:
        return "set HF_TOKEN where llmgw runs, or name a token beside the source: `token: {from_env: NAME}`"
    return "use a token that may read it"
