"""Judge a source: every problem at once, or one immutable `Catalog`.

Text first (yamldoc), then macros, then each document's shape (schemas), then the rules that hold across files and
for each engine (rules). All of it is computing: run it in a thread where an event loop must not wait.
"""

import difflib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmgw.catalog import levels, macros, rules, schemas, yamldoc
from llmgw.catalog.build import build_cluster, build_model
from llmgw.catalog.files import from_hub
from llmgw.catalog.source import IGNORE_FILE, Source
from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, canonical_json
from llmgw.catalog.yamldoc import Document, quoted
from llmgw.errors import CatalogInvalid, Problem
from llmgw.ids import Digest, Revision

API_VERSION: Final = "llmgw/v1"
KINDS: Final = ("Cluster", "Model")
KINDS_THAT_WAIT: Final = ("Template",)
KINDS_ELSEWHERE: Final = ("Fleet", "Scenario")
"""Of files for `llmgw plan` and `llmgw simulate`."""
MAX_PROBLEMS: Final = 200  #: shown of one catalog; a file that is no catalog at all could yield thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """`warnings`: what is allowed and probably not meant."""

    catalog: Catalog
    warnings: tuple[Problem, ...] = ()


def load_catalog(
    source: Source,
    engines: Mapping[str, rules.EngineRules],
    *,
    canonical: Callable[[str], str] = str,
    partial: bool = False,
) -> Loaded:
    """The catalog that `source` holds.

    `engines` are what the installed engines demand, by engine name. `canonical` gives a weights source its one
    spelling (ValueError: its text becomes the problem). `partial`: these are some files of a catalog, so that a name
    which is not among them is no fault. Raises CatalogInvalid with every problem.
    """
    documents, faults = _documents(source)
    sorted_out = {kind: [document for document, its in documents if its == kind] for kind in KINDS}
    sorted_out["Model"], misused = macros.expand(sorted_out["Model"], sorted_out["Cluster"])
    known = rules.Known(engines=engines, canonical=canonical)
    misshapen = [problem for document in sorted_out["Cluster"] for problem in schemas.check(document, "Cluster")]
    models, faulty = [], set()
    for document in sorted_out["Model"]:
        found = schemas.check(document, "Model")
        models.append(levels.expand(document))
        misshapen += found
        if found:
            faulty.add(id(models[-1]))
    broken = rules.check_all(
        models,
        sorted_out["Cluster"],
        known,
        is_shapely=lambda document: id(document) not in faulty,
        complete=not faults and not partial,
    )
    if problems := _presentable(faults, misused, misshapen, broken):
        raise CatalogInvalid(problems)
    cluster = build_cluster(sorted_out["Cluster"][0].value) if sorted_out["Cluster"] else ClusterSpec()
    unsorted = (from_hub(build_model(document.value, canonical), cluster) for document in models)
    built = sorted(unsorted, key=lambda model: model.name)
    digest = _digest(built, cluster)
    catalog = Catalog(
        revision=revision_of(source, digest), digest=digest, models={m.name: m for m in built}, cluster=cluster
    )
    if partial:
        return Loaded(catalog=catalog)
    doubts = rules.doubts(models, sorted_out["Cluster"], known)
    return Loaded(catalog=catalog, warnings=(*_warnings(catalog), *doubts))


def revision_of(source: Source, digest: Digest | None = None) -> Revision:
    """The commit, `commit+dirty:digest` where files differ from it, or the digest outside git.

    `digest` is the loaded catalog's. Without one, since the source is invalid say, the files' bytes are digested.
    """
    if source.commit is not None and not source.dirty:
        return Revision(source.commit)
    content = digest if digest is not None else _digest_of_bytes(source)
    return Revision(f"{source.commit}+dirty:{content[:12]}" if source.commit is not None else content)


def _digest(models: Iterable[ModelSpec], cluster: ClusterSpec) -> Digest:
    """Of what the documents mean: file names, comments and order do not count."""
    return Digest(hashlib.sha256(canonical_json([list(models), cluster])).hexdigest())


def _digest_of_bytes(source: Source) -> Digest:
    whole = hashlib.sha256()
    for name, data in sorted(source.files.items()):
        for part in (name.encode("utf-8", "surrogateescape"), data):
            whole.update(len(part).to_bytes(8, "big") + part)
    for problem in source.problems:
        whole.update(str(problem).encode("utf-8", "surrogateescape"))
    return Digest(whole.hexdigest())


def _documents(source: Source) -> tuple[list[tuple[Document, str]], list[Problem]]:
    """Every document with its kind. A document without a usable kind is a problem and goes no further."""
    documents: list[tuple[Document, str]] = []
    problems = list(source.problems)
    for name, data in sorted(source.files.items()):
        parsed, faults = yamldoc.parse(name, data)
        problems.extend(faults)
        for document in parsed:
            kind, faults = _kind(document)
            problems.extend(faults)
            if kind is not None:
                documents.append((document, kind))
    if not source.files and not problems:
        message = "no catalog files (*.yaml, *.yml) here; a catalog that is to serve nothing holds a Cluster document"
        problems.append(Problem(".", 0, 0, "$", message))
    return documents, problems


def _kind(document: Document) -> tuple[str | None, list[Problem]]:
    """Choose the branch by `kind` before any schema is asked: a union would blame the wrong branch."""
    value = document.value
    if value is None:
        return None, [document.problem((), "empty document: write one after the ---, or remove the ---")]
    if not isinstance(value, dict):
        message = f"a document is a mapping that starts with `apiVersion: {API_VERSION}`, found {schemas.found(value)}"
        return None, [document.problem((), message)]
    faults = [*_api_version(document, value), *_kind_faults(document, value)]
    return (None if faults else value["kind"]), faults


def _api_version(document: Document, value: Mapping[str, Any]) -> list[Problem]:
    version = value.get("apiVersion")
    if version == API_VERSION:
        return []
    if "apiVersion" not in value:
        close = _renamed(value, "apiVersion")
        # Another tool's file, most likely: compose files and pipelines live in repositories too.
        stray = "" if close or "kind" in value else f", or name the file in {IGNORE_FILE} if it is none of llmgw's"
        return [
            document.problem((), f"no apiVersion{close}: start the document with `apiVersion: {API_VERSION}`{stray}")
        ]
    if not isinstance(version, str):
        message = f"apiVersion must be {API_VERSION}, found {schemas.found(version)}"
    else:
        message = f"unknown apiVersion {quoted(version)}; this llmgw reads {API_VERSION}"
    return [document.problem(("apiVersion",), message)]


def _kind_faults(document: Document, value: Mapping[str, Any]) -> list[Problem]:
    kind = value.get("kind")
    choices = " or ".join(KINDS)
    if "kind" not in value:
        return [document.problem((), f"no kind{_renamed(value, 'kind')}: write `kind: {choices}`")]
    if not isinstance(kind, str):
        return [document.problem(("kind",), f"kind must be {choices}, found {schemas.found(kind)}")]
    if kind in KINDS_THAT_WAIT:
        return [document.problem(("kind",), f"not supported yet: kind {kind}")]
    if kind in KINDS_ELSEWHERE:
        message = f"a {kind} is no part of a catalog: keep it elsewhere, or name the file in {IGNORE_FILE}"
        return [document.problem(("kind",), message)]
    if kind not in KINDS:
        hint = schemas.did_you_mean(kind.capitalize(), KINDS)
        return [document.problem(("kind",), f"unknown kind {quoted(kind)}{hint}")]
    return []


def _renamed(value: Mapping[str, Any], key: str) -> str:
    near = difflib.get_close_matches(key.lower(), [other.lower() for other in value if len(other) < 40], n=1)
    meant = [other for other in value if near and other.lower() == near[0]]
    return f" (found {quoted(meant[0])})" if meant else ""


def _presentable(*stages: Iterable[Problem]) -> list[Problem]:
    """Sorted and bounded. A place that an earlier stage found fault with is not blamed again by a later one."""
    result: list[Problem] = []
    for stage in stages:
        told = {(problem.file, problem.line, problem.column) for problem in result if problem.line}
        result += {problem for problem in stage if (problem.file, problem.line, problem.column) not in told}
    result.sort()
    if len(result) > MAX_PROBLEMS:
        last, more = result[MAX_PROBLEMS - 1], len(result) - MAX_PROBLEMS
        return [*result[:MAX_PROBLEMS], Problem(last.file, last.line, last.column, "$", f"… and {more} more problems")]
    return result


def _warnings(catalog: Catalog) -> Iterable[Problem]:
    if not catalog.models:
        yield Problem(".", 0, 0, "$", "no Model document: nothing will be served")
