"""What must hold beyond the shape of one document: across files, and against the engines that are installed. Pure.

Documents whose shape is at fault take part as far as they can be read, so that all problems come at once.
"""

import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from llmgw.catalog import notify_rules, references, scaling_rules, size_rules, windows
from llmgw.catalog.build import build_profile
from llmgw.catalog.document import Document, Path, as_list, as_mapping, json_path, quoted
from llmgw.catalog.files import source_text
from llmgw.catalog.hosts import fault_of, is_loopback
from llmgw.catalog.levels import LEVELS
from llmgw.catalog.member import Member
from llmgw.catalog.schemas import BROKEN_SCHEMA, check_options, did_you_mean, to_bytes, to_seconds
from llmgw.catalog.spec import ProfileSpec, RecoverySettings
from llmgw.errors import Problem

_OF_PLACING: Final = (
    "profiles", "fallback", "scaling", "placement", "groups", "priority", "pinned", "suspend",
)  # fmt: skip
"""What only a model that llmgw runs has a use for."""

OWN_VARIABLES: Final = "LLMGW_"
"""Environment variables with this prefix are set by llmgw itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One thing wrong in a profile. `path`: to it within the profile, such as `("options", "command", 3)`."""

    path: Path
    message: str  #: says what was expected, and repeats no value: it may be a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """What an engine demands of a profile. `roles`: the files it can use; None: any. `check`: what no schema can say.

    `lost`: why no node can use it now, its plugin being broken, say. Its models are accepted unchecked, and wait.
    """

    options_schema: Mapping[str, Any]
    needs_weights: bool = False
    roles: frozenset[str] | None = frozenset({"weights"})
    lost: str | None = None
    check: Callable[[ProfileSpec], Iterable[Complaint]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What documents are checked against: values, so that nothing here looks anything up."""

    engines: Mapping[str, EngineRules]  #: by engine name
    canonical: Callable[[str], str]  #: a source's one spelling; raises ValueError with advice


class Extent(StrEnum):
    """How much of a profile can be judged."""

    SHAPELY = "shapely"  #: all: its engine is asked as well
    MISSHAPEN = "misshapen"  #: all but what its engine says: that sees well-formed ones only
    PART = "part"  #: only what it gives: the rest was to come from a template that is not there


def check_model(document: Document, known: Known, extents: Sequence[Extent]) -> list[Problem]:
    """The rules of one Model document, its levels' blocks made whole. `extents`: of each profile."""
    problems = [*_run_elsewhere(document), *_unique_profiles(document)]
    profiles = as_list(as_mapping(document.value).get("profiles"))
    for index, (profile, extent) in enumerate(zip(profiles, extents, strict=True)):
        problems += _profile_and_levels(document, index, as_mapping(profile), known, extent)
    return [*problems, *scaling_rules.check(document)]


def extents_of(document: Document, misshapen: Sequence[Problem], *, whole: bool) -> list[Extent]:
    """`misshapen`: what is wrong with the document's shape; where that is not within a profile, the profile is well
    formed. `whole` false: something of the document was to come from elsewhere."""
    count = len(as_list(as_mapping(document.value).get("profiles")))
    if not whole:
        return [Extent.PART] * count
    at_fault = [problem.path for problem in misshapen]
    if json_path(("profiles",)) in at_fault:
        return [Extent.MISSHAPEN] * count
    return [
        Extent.MISSHAPEN
        if any(path.startswith(json_path(("profiles", index))) for path in at_fault)
        else Extent.SHAPELY
        for index in range(count)
    ]


def check_together(models: Sequence[Member], clusters: Sequence[Document], *, complete: bool) -> list[Problem]:
    """What must hold of all documents together. `complete`: no document is missing for being unreadable."""
    problems = [*_unique_names(models), *_one_cluster(clusters)]
    problems += references.check(models, clusters, complete=complete)
    for document in clusters:
        problems += [*_recovery(document), *_time_zone(document), *_marks(document), *notify_rules.check(document)]
    return problems


def doubts_of_model(document: Document, known: Known) -> Iterator[Problem]:
    """What is accepted and will not work as things stand: warnings, of a valid Model document."""
    yield from _unencrypted(document)
    yield from _whole_path(document)
    for index, profile in enumerate(document.value.get("profiles", ())):
        path = ("profiles", index)
        for at, part in (path, profile), *(((*path, level), profile.get(level)) for level in LEVELS):
            if part is not None:
                yield from _lost_engine(document, at, part, known)
        for level in LEVELS:
            yield from _useless_level(document, path, level, profile)
    yield from scaling_rules.doubts(document)
    yield from size_rules.doubts_of_model(document)


def doubts_together(models: Sequence[Member], clusters: Sequence[Document]) -> Iterator[Problem]:
    """The same over all documents of a valid catalog."""
    yield from references.doubts(models, clusters)
    yield from scaling_rules.unzoned(models, clusters)
    for document in clusters:
        yield from size_rules.doubts_of_cluster(document)


def _lost_engine(document: Document, path: Path, profile: Mapping[str, Any], known: Known) -> Iterator[Problem]:
    rules = known.engines.get(profile["engine"])
    if rules is not None and rules.lost is not None and _gives(document, path, "engine"):
        at = (*path, "engine")
        yield document.problem(at, f"{rules.lost}; the options are not checked, and it is not started")


def _useless_level(document: Document, above: Path, level: str, profile: Mapping[str, Any]) -> Iterator[Problem]:
    """A level that takes no less memory than the profile is never used.

    A `memory` that it inherits says nothing of it: the engine's estimate counts where that is less.
    """
    path, block = (*above, level), profile.get(level)
    if block is None:
        return
    if block == {key: value for key, value in profile.items() if key not in LEVELS}:
        yield document.problem(path, "changes nothing of the profile, so it is no smaller and is passed over")
        return
    declares = {key for key in ("memory", "host_memory", "devices") if _gives(document, path, key)}
    if declares == {"memory"} and _bytes(block) >= _bytes(profile) > 0:
        message = "is no less than the profile's, so that the level is passed over"
        yield document.problem((*path, "memory"), message)


def _bytes(profile: Mapping[str, Any]) -> int:
    return to_bytes(profile.get("memory")) or 0


def _gives(document: Document, path: Path, key: str) -> bool:
    """Whether what stands at `path` gives that key itself: a level's block inherits others."""
    node = document.root
    for step in path:
        node = node.items[step]
    return key in node.keys


def _run_elsewhere(document: Document) -> Iterator[Problem]:
    """What says nothing of a model that others run, and an address that is none."""
    value = as_mapping(document.value)
    for key in _OF_PLACING if "external" in value else ():
        if key in value:
            remedy = "write one or the other" if key == "profiles" else "remove it, or write `profiles` for `external`"
            yield document.problem(
                (key,), f"says nothing of a model that is run elsewhere (`external`): {remedy}", at_key=True
            )
    url = as_mapping(value.get("external")).get("url")
    if isinstance(url, str) and (fault := fault_of(url)) is not None:
        yield document.problem(("external", "url"), f"nothing can be sent there: {fault}")


def _unencrypted(document: Document) -> Iterator[Problem]:
    external = document.value.get("external", {})
    if "api_key" in external and external["url"].startswith("http:") and not is_loopback(external["url"]):
        yield document.problem(("external", "url"), "the key travels unencrypted, for anybody on the way to read")


def _whole_path(document: Document) -> Iterator[Problem]:
    """What a request asks for comes after the address."""
    url = document.value.get("external", {}).get("url", "")
    for end in ("/chat/completions", "/completions", "/embeddings", "/responses", "/messages"):
        if url.rstrip("/").endswith(end):
            message = f"a request for /v1{end} goes to this address and {end}: leave that out here"
            yield document.problem(("external", "url"), message)
            return


def _unique_names(models: Sequence[Member]) -> Iterator[Problem]:
    """Names, aliases and variants share one space, since clients ask for any."""
    first: dict[str, tuple[Document, Path]] = {}
    for document, path, name in _names(models):
        # The schema's pattern knows ASCII's spaces only. What is printable holds no other space.
        if not name.isprintable() or " " in name:
            yield document.problem(path, "expected printable characters without spaces")
        elif name in first:
            earlier, at = first[name]
            yield document.problem(path, f"{quoted(name)} is already a name, alias or variant at {earlier.where(at)}")
        else:
            first[name] = (document, path)


def _names(models: Sequence[Member]) -> Iterator[tuple[Document, Path, str]]:
    """Names before aliases: an alias that takes another model's name is the one at fault."""
    for member in models:
        if member.name is not None:
            yield member.document, ("name",), member.name
    for member in models:
        for path, alias in member.aliases:
            yield member.document, path, alias


def _unique_profiles(document: Document) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, profile in enumerate(as_list(as_mapping(document.value).get("profiles"))):
        name = as_mapping(profile).get("name")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            where = document.where(("profiles", first[name], "name"))
            yield document.problem(("profiles", index, "name"), f"{quoted(name)} is already the profile at {where}")


def _marks(document: Document) -> Iterator[Problem]:
    weights = as_mapping(as_mapping(document.value).get("weights"))
    above, below = weights.get("collect_above"), weights.get("collect_below")
    if below is None:
        return
    if above is None:
        yield document.problem(("weights", "collect_below"), "needs `collect_above`: without it nothing is collected")
    elif isinstance(above, int) and isinstance(below, int) and below >= above:
        yield document.problem(("weights", "collect_below"), f"must be less than `collect_above` ({above})")


def _one_cluster(clusters: Sequence[Document]) -> Iterator[Problem]:
    for document in clusters[1:]:
        yield document.problem((), f"a second Cluster document: the first is at {clusters[0].where(())}")


def _profile_and_levels(
    document: Document, index: int, profile: Mapping[str, Any], known: Known, extent: Extent
) -> Iterator[Problem]:
    path = ("profiles", index)
    found = list(_judged(document, path, profile, known, extent))
    yield from found
    told = {(problem.path.removeprefix(json_path(path)), problem.message) for problem in found}
    for level in LEVELS:
        at = (*path, level)
        for problem in _judged(document, at, profile[level], known, extent) if _is_map(profile.get(level)) else ():
            inherited = (problem.line, problem.column) == document.place(at)
            if not (inherited and (problem.path.removeprefix(json_path(at)), problem.message) in told):
                yield problem


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _judged(
    document: Document, path: Path, profile: Mapping[str, Any], known: Known, extent: Extent
) -> Iterator[Problem]:
    whole = extent is not Extent.PART
    found = list(_profile(document, path, profile, known, whole))
    yield from found if found or extent is not Extent.SHAPELY else _asked_engine(document, path, profile, known)


def _profile(
    document: Document, path: Path, profile: Mapping[str, Any], known: Known, whole: bool
) -> Iterator[Problem]:
    engine = profile.get("engine")
    if isinstance(engine, str):
        yield from _engine(document, path, engine, profile, known, whole)
    for at, spec in _files(profile):
        yield from _source(document, (*path, *at), as_mapping(spec), known)
    if profile.get("exclusive") is True and profile.get("devices", 0 if whole else None) == 0:
        message = "needs `devices` above 0: it keeps other replicas off them"
        yield document.problem((*path, "exclusive"), message)
    for name in as_mapping(profile.get("env")):
        if name.startswith(OWN_VARIABLES):
            message = f"variables that start with {OWN_VARIABLES} are llmgw's own: choose another name"
            yield document.problem((*path, "env", name), message, at_key=True)


def _engine(
    document: Document, path: Path, engine: str, profile: Mapping[str, Any], known: Known, whole: bool
) -> Iterator[Problem]:
    if engine not in known.engines:
        installed = ", ".join(sorted(name for name, its in known.engines.items() if its.lost is None)) or "none"
        hint = did_you_mean(engine, known.engines)
        yield document.problem((*path, "engine"), f"no engine {quoted(engine)}{hint} (installed: {installed})")
        return
    rules = known.engines[engine]
    if whole and rules.needs_weights and "weights" not in profile:
        yield document.problem(path, f"missing key 'weights': the engine {engine} loads a file")
    for file, _ in _files(profile):
        if rules.roles is not None and file[-1] not in rules.roles:
            hint = did_you_mean(file[-1], rules.roles) or f" (it uses: {', '.join(sorted(rules.roles))})"
            yield document.problem(
                (*path, *file), f"the engine {engine} has no use for {quoted(file[-1])}{hint}", at_key=True
            )
    options = profile.get("options", {})
    if not isinstance(options, dict):
        return  # its shape is already at fault
    at = (*path, "options") if "options" in profile else path
    try:
        yield from check_options(document, at, options, rules.options_schema, whole=whole)
    except BROKEN_SCHEMA as error:
        message = f"the engine plugin {engine} has a faulty options schema ({type(error).__name__}): update the plugin"
        yield document.problem(at, message)


def _asked_engine(document: Document, path: Path, profile: Mapping[str, Any], known: Known) -> Iterator[Problem]:
    """What the engine itself says of a profile that nothing else is wrong with."""
    check = known.engines[profile["engine"]].check
    if check is None:
        return
    spec = build_profile(profile, known.canonical)
    try:
        complaints = [(tuple(each.path), str(each.message)) for each in check(spec)]
    except Exception as error:  # noqa: BLE001 - a plugin's fault must not end the daemon
        message = (
            f"the engine plugin {spec.engine} cannot check this profile ({type(error).__name__}): update the plugin"
        )
        yield document.problem(path, message)
        return
    for at, message in complaints:
        yield document.problem((*path, *at), message)


def _files(profile: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every file of a profile: its path within it, the role last, and what is said of it."""
    for role in ("weights", "draft"):
        if role in profile and "model" not in as_mapping(profile[role]):
            yield (role,), profile[role]
    for role, spec in as_mapping(profile.get("files")).items():
        yield ("files", role), spec


def _source(document: Document, path: Path, spec: Mapping[str, Any], known: Known) -> Iterator[Problem]:
    source = spec.get("source")
    if not isinstance(source, str):
        return
    try:
        canonical = known.canonical(source_text(spec))
    except ValueError as error:
        key = next((key for key in ("allow", "ignore") if key in spec and f"`{key}`" in str(error)), "source")
        yield document.problem((*path, key), str(error))
        return
    if canonical.startswith("http://") and spec.get("insecure") is not True and not is_loopback(canonical):
        message = (
            "http:// is not encrypted, so anybody on the way may change the file: write https://, or add "
            "`insecure: true`"
        )
        yield document.problem((*path, "source"), message)


def _recovery(document: Document) -> Iterator[Problem]:
    recovery = as_mapping(as_mapping(document.value).get("recovery"))
    default = RecoverySettings()
    backoff = to_seconds(recovery.get("backoff", default.backoff))
    cap = to_seconds(recovery.get("backoff_cap", default.backoff_cap))
    if backoff is not None and cap is not None and cap < backoff:
        key = "backoff_cap" if "backoff_cap" in recovery else "backoff"
        yield document.problem(("recovery", key), "backoff_cap must not be less than backoff")


def _time_zone(document: Document) -> Iterator[Problem]:
    name = as_mapping(document.value).get("time_zone")
    if not isinstance(name, str):
        return
    try:
        windows.zone(name)
    except ValueError:
        hint = did_you_mean(name, zoneinfo.available_timezones()) or " (a name of the IANA database: Europe/Berlin)"
        yield document.problem(("time_zone",), f"no time zone {quoted(name)}{hint}")
