"""The files of models: how a document names them, and changing each of them alike. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from llmgw.catalog.spec import ModelSpec, ProfileSpec, WeightsSpec

_SINGLE: Final = ("http://", "https://", "pypi://", "file://", "/")
"""How the sources begin that name one file, or one directory as it is."""


def source_text(value: Mapping[str, Any]) -> str:
    """The source that a document's file names, with its `allow` and `ignore`: other files, another source.

    Raises ValueError where there is nothing to choose among.
    """
    text: str = value["source"]
    patterns = [(key, pattern) for key in ("allow", "ignore") for pattern in value.get(key, ())]
    if not patterns:
        return text
    if text.lower().startswith(_SINGLE):
        raise ValueError("`allow` and `ignore` choose among the files of a repository, and this is a single source")
    query = "&".join(f"{key}={quote(pattern, safe='*/')}" for key, pattern in patterns)
    return f"{text}{'&' if '?' in text else '?'}{query}"


def from_hub(model: ModelSpec, endpoint: str) -> ModelSpec:
    """With a hub of the cluster's own for its `hf://` files."""
    return each_file(model, lambda spec: replace(spec, endpoint=endpoint) if spec.source.startswith("hf://") else spec)


def each_file(model: ModelSpec, change: Callable[[WeightsSpec], WeightsSpec]) -> ModelSpec:
    """With every file of every profile and level changed; the same object where nothing changes."""
    profiles = tuple(_changed(profile, change) for profile in model.profiles)
    return model if profiles == model.profiles else replace(model, profiles=profiles)


def _changed(profile: ProfileSpec, change: Callable[[WeightsSpec], WeightsSpec]) -> ProfileSpec:
    def level(shrunk: ProfileSpec | None) -> ProfileSpec | None:
        return None if shrunk is None else _changed(shrunk, change)

    return replace(
        profile,
        weights=None if profile.weights is None else change(profile.weights),
        draft=None if profile.draft is None else change(profile.draft),
        files={role: change(spec) for role, spec in profile.files.items()},
        degraded=level(profile.degraded),
        minimal=level(profile.minimal),
    )
