"""One Model document by itself: merged, expanded, judged and built. What comes of it depends on nothing but the
document and its context, and is kept while both stay as they are."""

from collections.abc import Callable
from dataclasses import dataclass

from llmgw.catalog import levels, rules, schemas
from llmgw.catalog.build import build_model
from llmgw.catalog.document import Document
from llmgw.catalog.macros import Macros
from llmgw.catalog.member import Member
from llmgw.catalog.node import Node
from llmgw.catalog.spec import ModelSpec, model_json
from llmgw.catalog.templates import Templates
from llmgw.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What of other documents, and of what is installed, a Model document is judged by."""

    known: rules.Known
    macros: Macros
    templates: Templates


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Problems by stage: of a place that an earlier one found fault with, a later one is not heard. `spec` and
    `encoded`, its canonical JSON, where there are none. `spent`: characters that its macros came to."""

    member: Member
    misused: tuple[Problem, ...] = ()
    misshapen: tuple[Problem, ...] = ()
    broken: tuple[Problem, ...] = ()
    doubts: tuple[Problem, ...] = ()
    spec: ModelSpec | None = None
    encoded: bytes = b""
    spent: int = 0


def judge(document: Document, context: Context, reread: Callable[[], Node]) -> Judged:
    """`reread` reads the document once more, so that what no problem needs can be forgotten."""
    merged = context.templates.merge(document)
    expanded = context.macros.expand(merged.document)
    misshapen = schemas.check(expanded.document, "Model" if merged.whole else schemas.PART)
    whole = levels.expand(expanded.document)
    broken = rules.check_model(whole, context.known, rules.extents_of(whole, misshapen, whole=merged.whole))
    if expanded.problems or misshapen or broken or not merged.found:
        return Judged(
            member=Member.of(whole),
            misused=expanded.problems,
            misshapen=tuple(misshapen),
            broken=tuple(broken),
            spent=expanded.spent,
        )
    spec = build_model(whole.value, context.known.canonical)
    judged = Judged(
        member=Member.of(whole),
        doubts=(*rules.doubts_of_model(whole, context.known), *context.macros.doubts(expanded.document)),
        spec=spec,
        encoded=model_json(spec),
        spent=expanded.spent,
    )
    document.forget(reread)
    if whole is not document:
        whole.forget(lambda: _whole(document, context).root)
    return judged


def _whole(document: Document, context: Context) -> Document:
    """As when it was judged: it had no problem then."""
    merged = context.templates.merge(document)
    return levels.expand(context.macros.expand(merged.document).document)
