"""Finds the installed engine plugins. One that cannot be loaded is reported; every other one works."""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

import structlog

from llmgw.catalog.rules import EngineRules
from llmgw.engine import vetting
from llmgw.engine.api import Engine
from llmgw.engine.guarded import guarded, guarded_source
from llmgw.engine.loading import Brought, load_plugin, summary
from llmgw.engine.vetting import VET_TIMEOUT, Vetting
from llmgw.ids import EngineName, is_name
from llmgw.weights.api import WeightSource
from llmgw.weights.registry import Lost, canonical_by, own_sources

log = structlog.get_logger("llmgw.engine")

GROUP: Final = "llmgw"
OWN: Final = "llmgw"
"""The distribution whose plugins are llmgw's own: imported as any part of it is."""

DISABLE: Final = "LLMGW_DISABLE_PLUGINS"
_ALL: Final = frozenset({"1", "all", "true", "yes", "on"})
_NONE: Final = frozenset({"", "0", "none", "false", "no", "off"})


class PluginState(StrEnum):
    OK = "ok"
    CLASH = "clash"  #: an engine or a source of its is left out: another plugin brings one of that name
    BROKEN = "broken"
    DISABLED = "disabled"  #: turned off by LLMGW_DISABLE_PLUGINS; not imported


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFact:
    """One installed plugin. `engines`, `sources` (by scheme): those it brings, or where it is not loaded those it is
    known to bring."""

    name: str  #: of its entry point
    distribution: str
    version: str
    state: PluginState
    own: bool = False  #: it comes with llmgw
    api_version: int | None = None
    engines: tuple[EngineName, ...] = ()
    sources: tuple[str, ...] = ()
    reason: str = ""  #: one line: why it is not `ok`
    failure: str = ""  #: the traceback, or what else there is to tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What was found. `broken`: plugin name -> traceback or reason. `lost`: engines that cannot be used because
    their plugin is broken or turned off -> which, and why. `sources`: of weights, by scheme; one that cannot be used is
    `registry.Lost`."""

    by_name: Mapping[EngineName, Engine] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[EngineName, str] = field(default_factory=dict)
    plugins: tuple[PluginFact, ...] = ()
    sources: Mapping[str, WeightSource] = field(default_factory=own_sources)

    @property
    def canonical(self) -> Callable[[str], str]:
        """What gives a source of weights its one spelling; ValueError with advice where it is none."""
        return canonical_by(self.sources)

    def rules(self) -> dict[str, EngineRules]:
        """What each engine demands of a profile, for the catalog's rules. A lost one demands nothing: its models
        wait, and the rest of the catalog is served."""
        lost: dict[str, EngineRules] = {
            name: EngineRules(options_schema={}, needs_weights=False, roles=None, lost=why)
            for name, why in self.lost.items()
        }
        return lost | {
            name: EngineRules(
                options_schema=engine.options_schema,
                needs_weights=engine.needs_weights,
                roles=engine.roles,
                check=engine.check,
            )
            for name, engine in self.by_name.items()
        }


def find_engines(
    found: Iterable[EntryPoint] | None = None,
    *,
    cache: Path | None = None,
    timeout: float = VET_TIMEOUT,
    afresh: bool = False,
) -> Engines:
    """Load the plugins of the entry-point group `llmgw` (or those given) and collect what they bring. Blocking.

    A third party's plugin is tried in a child process first (`timeout` seconds; verdicts are kept in the file
    `cache`, by default the user's), and imported only when it came through. `afresh`: the failed are tried again.
    LLMGW_DISABLE_PLUGINS turns third parties' plugins off, all or those named, before any import.
    """
    cache = cache or vetting.default_cache()
    points = entry_points(group=GROUP) if found is None else found
    plugins = [_Found(point) for point in sorted(points, key=_order)]
    _tell_apart(plugins)
    off = _Switch(os.environ.get(DISABLE, ""))
    for name in sorted(off.unknown(plugins)):
        log.warning("no_such_plugin", variable=DISABLE, name=name)
    tried = [plugin for plugin in plugins if not off.covers(plugin) and not plugin.own]
    verdicts = vetting.vet_all([plugin.point for plugin in tried], cache=cache, timeout=timeout, afresh=afresh)
    vetted = {plugin.name: verdict for plugin, verdict in zip(tried, verdicts, strict=True)}
    taken = _Taken()
    facts = []
    for plugin in plugins:
        if off.covers(plugin):
            known, why = vetting.remembered(plugin.point, cache), f"it is turned off by {DISABLE}"
            off_now = Vetting(ok=False, engines=known.engines, sources=known.sources, reason=why)
            facts.append(plugin.fact(PluginState.DISABLED, off_now))
            continue
        fact, brought = _load(plugin, vetted.get(plugin.name))
        facts.append(taken.take(fact, brought))
    return Engines(
        by_name=taken.engines,
        broken={fact.name: fact.failure for fact in facts if fact.state in (PluginState.BROKEN, PluginState.CLASH)},
        lost=_lost(facts, taken.engines),
        plugins=tuple(facts),
        sources=_with_lost(facts, {**own_sources(), **taken.sources}),
    )


class _Taken:
    """What the plugins bring, each name once: the first that brings it has it."""

    def __init__(self) -> None:
        self.engines: dict[EngineName, Engine] = {}
        self.sources: dict[str, WeightSource] = {}
        own = dict.fromkeys(own_sources(), OWN)
        self._owner = {"engine": dict[str, str](), "source": own}

    def take(self, fact: PluginFact, brought: Brought) -> PluginFact:
        """The fact, with what was left out."""
        for engine in brought.engines:
            if (owner := self._owner["engine"].setdefault(engine.name, fact.name)) == fact.name:
                self.engines[engine.name] = engine if fact.own else guarded(engine)
            else:
                fact = _clashing(fact, "engine", engine.name, owner)
        for source in brought.sources:
            for scheme in sorted(source.schemes):
                owner = self._owner["source"].setdefault(scheme, fact.name)
                if owner == fact.name or (owner == OWN and fact.own):
                    self.sources[scheme] = source if fact.own else guarded_source(source)
                else:
                    fact = _clashing(fact, "source", scheme, owner)
        return fact


def vetted_fact(point: EntryPoint, *, timeout: float = VET_TIMEOUT) -> PluginFact:
    """Try one plugin in a child process now, llmgw's own too. It is not imported here."""
    plugin, found = _Found(point), vetting.vet(point, timeout=timeout)
    return plugin.fact(PluginState.OK if found.ok else PluginState.BROKEN, found)


class _Found:
    """An entry point and where it comes from."""

    def __init__(self, point: EntryPoint) -> None:
        self.point = point
        self.name = point.name
        self.distribution = point.dist.name if point.dist is not None else ""
        self.version = point.dist.version if point.dist is not None else ""
        self.own = _plain(self.distribution) == OWN

    def fact(self, state: PluginState, found: Vetting) -> PluginFact:
        return PluginFact(
            name=self.name,
            distribution=self.distribution,
            version=self.version,
            state=state,
            own=self.own,
            api_version=found.api_version,
            engines=tuple(found.engines),
            sources=tuple(found.sources),
            reason=found.reason,
            failure=found.failure,
        )


class _Switch:
    """LLMGW_DISABLE_PLUGINS: `1` or `all`, or names of plugins or distributions with commas between them."""

    def __init__(self, text: str) -> None:
        self._all = text.strip().lower() in _ALL
        names = [] if self._all or text.strip().lower() in _NONE else text.split(",")
        self._names = {_plain(name.strip()) for name in names}

    def covers(self, plugin: _Found) -> bool:
        """llmgw's own can be named; `all` leaves them on."""
        return not plugin.own if self._all else not self._names.isdisjoint(_names(plugin))

    def unknown(self, plugins: Iterable[_Found]) -> set[str]:
        """What it names and nothing is called: a slip, most likely."""
        return self._names - {name for plugin in plugins for name in _names(plugin)} - {""}


def _names(plugin: _Found) -> set[str]:
    return {_plain(plugin.name)} if plugin.own else {_plain(plugin.name), _plain(plugin.distribution)}


def _order(point: EntryPoint) -> tuple[bool, str, str, str]:
    """llmgw's own first, so that no installed package takes one's place unseen; then by name."""
    distribution = point.dist.name if point.dist is not None else ""
    return _plain(distribution) != OWN, point.name, distribution, point.value


def _tell_apart(plugins: Iterable[_Found]) -> None:
    """Two distributions may use the same name for an entry point."""
    taken: set[str] = set()
    for plugin in plugins:
        base = name = plugin.name
        if name in taken:
            base = name = f"{plugin.name} of {plugin.distribution or plugin.point.value}"
        number = 2
        while name in taken:
            name, number = f"{base} ({number})", number + 1
        plugin.name = name
        taken.add(name)


def _load(plugin: _Found, vetted: Vetting | None) -> tuple[PluginFact, Brought]:
    """Import a plugin here, where its child came back whole (`vetted` None: it is llmgw's own)."""
    if vetted is not None and not vetted.ok:
        return plugin.fact(PluginState.BROKEN, vetted), Brought()
    try:
        with _stdout_kept_clean():
            brought = load_plugin(plugin.point)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin's failure, whatever it is, must stay its own
        trace = "".join(traceback.format_exception(error, limit=-4))
        known = vetted if vetted is not None else Vetting(ok=False)
        failed = replace(known, reason=summary(error), failure=trace, api_version=None)
        return plugin.fact(PluginState.BROKEN, failed), Brought()
    came = Vetting(ok=True, engines=brought.names, sources=brought.schemes, api_version=brought.api_version)
    return plugin.fact(PluginState.OK, came), brought


def _clashing(fact: PluginFact, what: str, name: str, owner: str) -> PluginFact:
    reason = f"its {what} {name!r} is left out: the plugin {owner!r} brings one of that name"
    reasons = "; ".join(filter(None, (fact.reason, reason)))
    return replace(
        fact,
        state=PluginState.CLASH,
        reason=reasons,
        failure=reasons,
        engines=tuple(each for each in fact.engines if (what, each) != ("engine", name)),
        sources=tuple(each for each in fact.sources if (what, each) != ("source", name)),
    )


def _lost(facts: Iterable[PluginFact], engines: Mapping[EngineName, Engine]) -> dict[EngineName, str]:
    """By engine. What a plugin brings that never worked, nobody knows: then its own name stands for its engine."""
    lost: dict[EngineName, str] = {}
    for fact in facts:
        if fact.state not in (PluginState.BROKEN, PluginState.DISABLED):
            continue
        guess = (EngineName(fact.name),) if is_name(fact.name) and not fact.sources else ()
        for name in fact.engines or guess:
            if name not in engines:
                lost.setdefault(name, _why_lost(fact))
    return lost


def _with_lost(facts: Iterable[PluginFact], sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
    """With stand-ins for those of plugins that are broken or turned off, as far as it is known what they bring."""
    lost: dict[str, WeightSource] = {}
    for fact in facts:
        if fact.state in (PluginState.BROKEN, PluginState.DISABLED):
            for scheme in fact.sources:
                lost.setdefault(scheme, Lost(scheme, _why_lost(fact)))
    return {**lost, **sources}


def _why_lost(fact: PluginFact) -> str:
    what = "is broken" if fact.state is PluginState.BROKEN else "is not loaded"
    return f"plugin {fact.name} {what}: {fact.reason}"


def _plain(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@contextlib.contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """What a plugin prints while it is loaded goes to stderr: stdout holds a command's answer alone."""
    with contextlib.ExitStack() as stack:
        if sys.stdout is not None:
            sys.stdout.flush()
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        with contextlib.suppress(OSError):  # closed, with some supervisors
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
        yield
