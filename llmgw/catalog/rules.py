"""What must hold beyond the shape of one document: across files, and against the engines that are installed. Pure.

Documents whose shape is at fault take part as far as they can be read, so that all problems come at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmgw.catalog.build import build_profile
from llmgw.catalog.schemas import BROKEN_SCHEMA, check_options, did_you_mean, to_seconds
from llmgw.catalog.spec import ProfileSpec, RecoverySettings
from llmgw.catalog.yamldoc import Document, Path, as_list, as_mapping, quoted
from llmgw.errors import Problem

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


def check_all(
    models: Sequence[Document], clusters: Sequence[Document], known: Known, *, is_shapely: Callable[[Document], bool]
) -> list[Problem]:
    """Every rule over every document. `is_shapely`: whether a document is of its kind's shape: else engines do not
    see its profiles."""
    problems = [*_unique_names(models), *_one_cluster(clusters)]
    for document in models:
        for index, profile in enumerate(as_list(as_mapping(document.value).get("profiles"))):
            path = ("profiles", index)
            found = list(_profile(document, path, as_mapping(profile), known))
            if not found and is_shapely(document):
                found += _asked_engine(document, path, profile, known)
            problems += found
    for document in clusters:
        problems.extend(_recovery(document))
    return problems


def doubts(models: Sequence[Document], known: Known) -> Iterator[Problem]:
    """What is accepted and will not work as things stand: warnings, over every Model document."""
    for document in models:
        for index, profile in enumerate(as_list(as_mapping(document.value).get("profiles"))):
            engine = as_mapping(profile).get("engine")
            rules = known.engines.get(engine) if isinstance(engine, str) else None
            if rules is not None and rules.lost is not None:
                at = ("profiles", index, "engine")
                yield document.problem(at, f"{rules.lost}; the options are not checked, and it is not started")


def _unique_names(models: Sequence[Document]) -> Iterator[Problem]:
    """Names and aliases share one space, since clients ask for either."""
    first: dict[str, str] = {}
    for document, path, name in _names(models):
        if not name.isprintable() or any(map(str.isspace, name)):  # the schema's pattern knows ASCII's spaces only
            yield document.problem(path, "expected printable characters without spaces")
        elif name in first:
            yield document.problem(path, f"{quoted(name)} is already the name or an alias at {first[name]}")
        else:
            first[name] = document.where(path)


def _names(models: Sequence[Document]) -> Iterator[tuple[Document, Path, str]]:
    """Names before aliases: an alias that takes another model's name is the one at fault."""
    for document in models:
        name = as_mapping(document.value).get("name")
        if isinstance(name, str):
            yield document, ("name",), name
    for document in models:
        for index, alias in enumerate(as_list(as_mapping(document.value).get("aliases"))):
            if isinstance(alias, str):
                yield document, ("aliases", index), alias


def _one_cluster(clusters: Sequence[Document]) -> Iterator[Problem]:
    for document in clusters[1:]:
        yield document.problem((), f"a second Cluster document: the first is at {clusters[0].where(())}")


def _profile(document: Document, path: Path, profile: Mapping[str, Any], known: Known) -> Iterator[Problem]:
    engine = profile.get("engine")
    if isinstance(engine, str):
        yield from _engine(document, path, engine, profile, known)
    for at, spec in _files(profile):
        yield from _source(document, (*path, *at), as_mapping(spec), known)
    for name in as_mapping(profile.get("env")):
        if name.startswith(OWN_VARIABLES):
            message = f"variables that start with {OWN_VARIABLES} are llmgw's own: choose another name"
            yield document.problem((*path, "env", name), message, at_key=True)


def _engine(document: Document, path: Path, engine: str, profile: Mapping[str, Any], known: Known) -> Iterator[Problem]:
    if engine not in known.engines:
        installed = ", ".join(sorted(name for name, its in known.engines.items() if its.lost is None)) or "none"
        hint = did_you_mean(engine, known.engines)
        yield document.problem((*path, "engine"), f"no engine {quoted(engine)}{hint} (installed: {installed})")
        return
    rules = known.engines[engine]
    if rules.needs_weights and "weights" not in profile:
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
        yield from check_options(document, at, options, rules.options_schema)
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
        if role in profile:
            yield (role,), profile[role]
    for role, spec in as_mapping(profile.get("files")).items():
        yield ("files", role), spec


def _source(document: Document, path: Path, spec: Mapping[str, Any], known: Known) -> Iterator[Problem]:
    source = spec.get("source")
    if not isinstance(source, str):
        return
    try:
        known.canonical(source)
    except ValueError as error:
        yield document.problem((*path, "source"), str(error))


def _recovery(document: Document) -> Iterator[Problem]:
    recovery = as_mapping(as_mapping(document.value).get("recovery"))
    default = RecoverySettings()
    backoff = to_seconds(recovery.get("backoff", default.backoff))
    cap = to_seconds(recovery.get("backoff_cap", default.backoff_cap))
    if backoff is not None and cap is not None and cap < backoff:
        key = "backoff_cap" if "backoff_cap" in recovery else "backoff"
        yield document.problem(("recovery", key), "backoff_cap must not be less than backoff")
