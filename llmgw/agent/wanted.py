"""What the catalog in force wants of a node, as the store tells it key by key."""

from collections.abc import Iterable
from typing import Final

from llmgw.catalog.spec import FetchLimits, ModelSpec, ProfileSpec, SupervisionSettings, WeightsSpec
from llmgw.ids import Digest
from llmgw.plan import Rollout
from llmgw.store import codec, keys
from llmgw.store.contents import keys_of
from llmgw.store.values import Applied, CatalogPart

_OF_MODELS: Final = (keys.PARTS, keys.SPECS, keys.MODELS)


class Wanted:
    """The weights that the catalog in force wants, and its settings for nodes.

    Models come one by one, before the catalog that they belong to is in force; only one that is whole counts, and until
    it is, the last that was.
    """

    def __init__(self) -> None:
        self.limits: FetchLimits | None = None  #: of downloads, as it says; None: not heard of any yet
        self.supervision: SupervisionSettings | None = None
        self._named: Applied | None = None  #: in force, whole or not
        self._parts: dict[str, tuple[str, ...]] = {}  # by key, the keys of its models
        self._models: dict[str, tuple[WeightsSpec, ...]] = {}  # by key
        self._rollouts: dict[str, tuple[WeightsSpec, ...]] = {}
        self._whole: tuple[Digest | None, tuple[WeightsSpec, ...]] = (None, ())
        self._is_news = False  #: it may be another than `_whole`
        self._specs: tuple[WeightsSpec, ...] | None = ()

    def changed(self, key: str, value: bytes | None) -> None:
        """One key under `catalog/`. Raises what `codec.decode` raises."""
        if key == keys.APPLIED:
            self._named = applied = None if value is None else codec.decode(value, Applied, where=key)
            self._is_news = True
            self.limits = self.limits if applied is None else applied.weights.limits
            self.supervision = self.supervision if applied is None else applied.supervision
        elif key.startswith(_OF_MODELS):
            self._is_news |= value is not None
            self._content(key, value)
        elif key.startswith(keys.ROLLOUTS):  # what a model may return to has to be known, and kept
            self._specs = None
            self._rollouts.pop(key, None)
            if value is not None:
                self._rollouts[key] = _files(codec.decode(value, Rollout, where=key).good)

    def _content(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._parts.pop(key, None)
            self._models.pop(key, None)
        elif key.startswith(keys.PARTS):
            self._parts[key] = keys_of(codec.decode(value, CatalogPart, where=key))
        else:
            self._models[key] = _files(codec.decode(value, ModelSpec, where=key).profiles)

    @property
    def applied(self) -> Digest | None:
        """The catalog in force, once all its models are known; until then the one before."""
        if self._is_news:
            self._is_news = False
            if (found := self._found()) is not None and found != self._whole:
                self._whole, self._specs = found, None
        return self._whole[0]

    def specs(self) -> tuple[WeightsSpec, ...]:
        """The same object, while they are the same."""
        _ = self.applied
        if self._specs is None:
            self._specs = (*self._whole[1], *(spec for specs in self._rollouts.values() for spec in specs))
        return self._specs

    def _found(self) -> tuple[Digest | None, tuple[WeightsSpec, ...]] | None:
        """What is in force, with its files; None: not all of it is known."""
        applied = self._named
        if applied is None:
            return None, ()
        if applied.parts is None:  # of an earlier llmgw
            prefix = f"{keys.MODELS}{applied.digest}/"
            names: Iterable[str] = [key for key in self._models if key.startswith(prefix)]
        else:
            parts = [self._parts.get(keys.part(content)) for content in applied.parts]
            if None in parts:
                return None
            names = [key for part in parts for key in part or ()]
            if not all(key in self._models for key in names):
                return None
        return applied.digest, tuple(spec for key in names for spec in self._models[key])


def _files(profiles: Iterable[ProfileSpec]) -> tuple[WeightsSpec, ...]:
    return tuple(spec for profile in profiles for spec in profile.every_file)
