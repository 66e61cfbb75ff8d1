"""Judge a source: every problem at once, or one immutable `Catalog`.

Text first (yamldoc); then each Model document by itself (judging): templates, macros, its shape (schemas), levels, and
the rules of its engines; then the rules that hold across files (rules). All of it is computing: run it in a thread
where an event loop must not wait.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial as bound
from typing import Final

from llmgw.catalog import rules, schemas, yamldoc
from llmgw.catalog.build import build_cluster
from llmgw.catalog.document import EXTENDING, Document, as_mapping, json_path
from llmgw.catalog.files import from_hub
from llmgw.catalog.judging import Context, Judged, judge
from llmgw.catalog.kinds import headed
from llmgw.catalog.macros import MAX_TEXT, Macros, too_much
from llmgw.catalog.node import Node
from llmgw.catalog.source import Source
from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, canonical_json, model_json
from llmgw.catalog.templates import Templates
from llmgw.errors import CatalogInvalid, Problem
from llmgw.ids import Digest, ModelName, Revision
from llmgw.memo import Kept

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
    """The catalog that `source` holds: `Loader.load`, once."""
    return Loader().load(source, engines, canonical=canonical, partial=partial)


@dataclass(slots=True, kw_only=True)
class _Read:
    """A file as it was read, and what came of its Model documents, by their number, in `context`. `faults`: of its
    YAML; `headless`: of its documents' heads. `complete`: each of its documents is known for what it is."""

    name: str
    data: bytes
    documents: list[tuple[Document, str]]
    faults: list[Problem]
    headless: list[Problem]
    complete: bool
    context: Context | None = None
    judged: dict[int, Judged] = field(default_factory=dict)

    def of_kind(self, kind: str) -> Iterator[Document]:
        return (document for document, its in self.documents if its == kind)

    def judge(self, context: Context) -> Iterator[Judged]:
        if self.context is not context:
            self.context, self.judged = context, {}
        for number, (document, kind) in enumerate(self.documents):
            if kind != "Model":
                continue
            if number not in self.judged:
                self.judged[number] = judge(document, context, bound(_reread, self.name, self.data, number))
            yield self.judged[number]


class Loader:
    """Loads revision after revision of one catalog: what did not change is not judged again.

    A file is known by its bytes, a Model document besides by what it was judged in: the macros, the templates and the
    engines. Rules that hold across files are asked each time.
    """

    def __init__(self) -> None:
        self._reads: dict[str, _Read] = {}
        self._context: Context | None = None
        self._context_of: tuple[object, ...] = ()
        self._placed: Kept[ModelName, tuple[ModelSpec, bytes]] = Kept(_in_cluster)

    def load(
        self,
        source: Source,
        engines: Mapping[str, rules.EngineRules],
        *,
        canonical: Callable[[str], str] = str,
        partial: bool = False,
    ) -> Loaded:
        """The catalog that `source` holds.

        `engines` are what the installed engines demand, by engine name. `canonical` gives a weights source its one
        spelling (ValueError: its text becomes the problem). `partial`: these are some files of a catalog, so that a
        name which is not among them is no fault. Raises CatalogInvalid with every problem.
        """
        reads = self._read_all(source)
        faults = [*source.problems, *(fault for read in reads for fault in read.faults), *_nothing(source)]
        complete = not source.problems and all(read.complete for read in reads) and not partial
        clusters = [document for read in reads for document in read.of_kind("Cluster")]
        macros = Macros(clusters[0] if clusters else None)
        templates = Templates([each for read in reads for each in read.of_kind("Template")], complete=complete)
        context = self._in_context(
            Context(known=rules.Known(engines=engines, canonical=canonical), macros=macros, templates=templates),
            clusters,
        )
        judged, excess = _judge_all(reads, context)
        members = [each.member for each in judged]
        misused = (problem for each in judged for problem in each.misused)
        together = rules.check_together(members, clusters, complete=complete and not excess)
        if problems := _presentable(
            faults,
            [*(fault for read in reads for fault in read.headless), *templates.problems],
            [*macros.problems, *misused, *excess, *templates.missing(members)],
            [
                *(problem for document in clusters for problem in schemas.check(document, "Cluster")),
                *(problem for each in judged for problem in each.misshapen),
            ],
            [*(problem for each in judged for problem in each.broken), *together],
        ):
            raise CatalogInvalid(problems)
        catalog = self._catalog(source, judged, clusters)
        if partial:
            return Loaded(catalog=catalog)
        doubts = [
            *(doubt for each in judged for doubt in each.doubts),
            *rules.doubts_together(members, clusters),
            *templates.unused(members),
        ]
        return Loaded(catalog=catalog, warnings=(*_warnings(catalog, source), *_collapsed(doubts)))

    def _read_all(self, source: Source) -> list[_Read]:
        """Every file, in the order of their names. Files that are gone are forgotten."""
        before, self._reads = self._reads, {}
        for name, data in sorted(source.files.items()):
            known = before.get(name)
            self._reads[name] = known if known is not None and known.data == data else _read(name, data)
        return list(self._reads.values())

    def _catalog(self, source: Source, judged: Sequence[Judged], clusters: Sequence[Document]) -> Catalog:
        cluster = build_cluster(clusters[0].value) if clusters else ClusterSpec()
        models: dict[ModelName, ModelSpec] = {}
        parts: list[bytes] = []
        built = sorted((each.spec.name, each.spec, each.encoded) for each in judged if each.spec is not None)
        for name, spec, encoded in built:
            if cluster.weights.hub_endpoint is not None:
                spec, encoded = self._placed.of(name, spec, encoded, cluster.weights.hub_endpoint)
            models[name] = spec
            parts.append(encoded)
        digest = _digest(parts, cluster)
        return Catalog(revision=revision_of(source, digest), digest=digest, models=models, cluster=cluster)

    def _in_context(self, context: Context, clusters: Sequence[Document]) -> Context:
        """The context of last time where this one is the same: what was judged in it still holds."""
        of = (
            as_mapping(clusters[0].value).get("macros") if clusters else None,
            context.macros.plain,
            tuple(map(id, context.templates.documents)),  # kept in the reads, or in the context: no id is used again
            context.templates.complete,
            dict(context.known.engines),
            context.known.canonical,
        )
        if self._context is None or of != self._context_of:
            self._context, self._context_of = context, of
        return self._context


def _read(name: str, data: bytes) -> _Read:
    """A document without a usable kind is a problem and goes no further."""
    parsed, faults = yamldoc.parse(name, data)
    heads = [headed(document) for document in parsed]
    return _Read(
        name=name,
        data=data,
        documents=[(head.document, head.kind or "") for head in heads],
        faults=faults,
        headless=[fault for head in heads for fault in head.faults],
        complete=not faults and all(head.kind is not None for head in heads),
    )


def _reread(name: str, data: bytes, number: int) -> Node:
    return headed(yamldoc.parse(name, data)[0][number]).document.root


def _nothing(source: Source) -> Iterator[Problem]:
    if not source.files and not source.problems:
        message = "no catalog files (*.yaml, *.yml) here; a catalog that is to serve nothing holds a Cluster document"
        yield Problem(source.place, 0, 0, "$", message)


def _judge_all(reads: Iterable[_Read], context: Context) -> tuple[list[Judged], list[Problem]]:
    """Each Model document by itself; and the one with which macros came to too much, after which none is judged."""
    judged: list[Judged] = []
    spent = context.macros.spent
    for read in reads:
        for each in read.judge(context):
            judged.append(each)
            spent += each.spent
            if spent > MAX_TEXT:
                return judged, [too_much(each.member.document)]
    return judged, []


def _in_cluster(spec: ModelSpec, encoded: bytes, hub_endpoint: str) -> tuple[ModelSpec, bytes]:
    """As the cluster has it, whose files may come from a hub of its own; and as canonical JSON."""
    model = from_hub(spec, hub_endpoint)
    return model, encoded if model is spec else model_json(model)


def revision_of(source: Source, digest: Digest | None = None) -> Revision:
    """The commit, `commit+dirty:digest` where files differ from it, or the digest outside git.

    `digest` is the loaded catalog's. Without one, since the source is invalid say, the files' bytes are digested.
    """
    if source.commit is not None and not source.dirty:
        return Revision(source.commit)
    content = digest if digest is not None else _digest_of_bytes(source)
    return Revision(f"{source.commit}+dirty:{content[:12]}" if source.commit is not None else content)


def _digest(models: Iterable[bytes], cluster: ClusterSpec) -> Digest:
    """Of what the documents mean, as canonical JSON: file names, comments and order do not count."""
    whole = hashlib.sha256(b"[[")
    whole.update(b",".join(models))
    whole.update(b"],%b]" % canonical_json(cluster))
    return Digest(whole.hexdigest())


def _digest_of_bytes(source: Source) -> Digest:
    whole = hashlib.sha256()
    for name, data in sorted(source.files.items()):
        for part in (name.encode("utf-8", "surrogateescape"), data):
            whole.update(len(part).to_bytes(8, "big") + part)
    for problem in source.problems:
        whole.update(str(problem).encode("utf-8", "surrogateescape"))
    return Digest(whole.hexdigest())


def _presentable(*stages: Iterable[Problem]) -> list[Problem]:
    """Sorted and bounded. A place that an earlier stage found fault with is not blamed again by a later one; only that
    a document lacks something says nothing of what stands at its beginning. The first stage knows of no document."""
    result: list[Problem] = []
    told: set[tuple[str, int, int]] = set()
    for number, stage in enumerate(stages):
        fresh = {problem for problem in stage if _is_whole(problem) or _place(problem) not in told}
        told.update(_place(problem) for problem in fresh if problem.line and (number == 0 or not _is_whole(problem)))
        result += fresh
    result = _collapsed(sorted(result))
    if len(result) > MAX_PROBLEMS:
        last, more = result[MAX_PROBLEMS - 1], len(result) - MAX_PROBLEMS
        return [*result[:MAX_PROBLEMS], Problem(last.file, last.line, last.column, "$", f"… and {more} more problems")]
    return result


def _place(problem: Problem) -> tuple[str, int, int]:
    return problem.file, problem.line, problem.column


def _is_whole(problem: Problem) -> bool:
    """Whether it is of a document, or a file, as a whole."""
    return problem.path == json_path(())


def _collapsed(problems: Iterable[Problem]) -> list[Problem]:
    """What shows in many models for one place of a template, once: for the first of them, with how many more."""
    first: dict[tuple[object, ...], Problem] = {}
    more: dict[tuple[object, ...], int] = {}
    for problem in problems:
        message, extending, _ = problem.message.partition(EXTENDING)
        key = (
            problem.file,
            problem.line,
            problem.column,
            problem.path,
            message,
            None if extending else problem.message,
        )
        if extending and key in first:
            more[key] = more.get(key, 0) + 1
        else:
            first[key] = problem
    return [
        Problem(each.file, each.line, each.column, each.path, f"{each.message} and {more[key]} more")
        if key in more
        else each
        for key, each in first.items()
    ]


def _warnings(catalog: Catalog, source: Source) -> Iterable[Problem]:
    if not catalog.models:
        yield Problem(source.place, 0, 0, "$", "no Model document: nothing will be served")
