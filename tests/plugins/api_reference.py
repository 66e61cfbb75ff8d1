"""The reference part of docs/plugin-api.md, made from the docstrings and `#:` comments of what plugins import.

`python tests/plugins/api_reference.py` writes it anew; a test fails when the page and the code differ.
"""

import ast
import dataclasses
import enum
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

import llmgw.engine
from llmgw.engine import Engine, WeightSource, Work, api, hookspecs

PAGE: Final = Path(__file__).parents[2] / "docs" / "plugin-api.md"
BEGIN: Final = "<!-- made by tests/plugins/api_reference.py from here -->\n"
END: Final = "<!-- to here -->\n"


def reference() -> str:
    """Markdown: the hooks, the base classes, then every type in alphabetical order."""
    parts = [
        "### Hooks\n",
        *_hooks(),
        "### Engine\n",
        _base_class(Engine),
        "### WeightSource\n",
        _base_class(WeightSource),
        "### Types\n",
        *_types(),
        "### Functions and constants\n",
    ]
    return "\n".join([*parts, *_others()])


def _hooks() -> Iterator[str]:
    for name, hook in inspect.getmembers(hookspecs, inspect.isfunction):
        if hasattr(hook, "llmgw_spec"):
            yield f"`{name}{_signature(hook)}`\n\n{_doc(hook)}\n"


def _base_class(kind: type) -> str:
    lines = [_doc(kind), "", "| class attribute | type | meaning |", "|---|---|---|"]
    for field, text in _attributes(kind, _node(kind)):
        lines.append(f"| `{field.target.id}`{_default(field)} | {_code(ast.unparse(field.annotation))} | {text} |")
    return "\n".join([*lines, "", "Methods: those marked * must be implemented.", "", *_methods(kind)])


def _methods(kind: type) -> Iterator[str]:
    abstract: frozenset[str] = getattr(kind, "__abstractmethods__", frozenset())
    for item in _node(kind).body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_"):
            method = getattr(kind, item.name)
            is_value = isinstance(method, property)
            name = item.name if is_value else f"{item.name}{_signature(method)}"
            before = "async " if isinstance(item, ast.AsyncFunctionDef) else ""
            returned = f": {ast.unparse(item.returns)}" if is_value and item.returns is not None else ""
            yield from (f"`{before}{name}{returned}`{' *' if item.name in abstract else ''}", "", _doc(method), "")


def _types() -> Iterator[str]:
    for name in sorted(llmgw.engine.__all__):
        kind = getattr(llmgw.engine, name)
        if not isinstance(kind, type) or kind in (Engine, WeightSource):
            continue
        yield f"#### {name}\n"
        if text := _own_doc(kind):
            yield f"{text}\n"
        if issubclass(kind, enum.Enum):
            yield _table(("value", "meaning"), ([f"`{m.name}`", text] for m, text in _members(kind)))
        elif kind is Work:
            yield "\n".join(_methods(kind))
        elif dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct):
            fields = (
                [f"`{f.target.id}`{_default(f)}", _code(ast.unparse(f.annotation)), t]
                for f, t in _attributes(kind, _node(kind))
            )
            yield _table(("field", "type", "meaning"), fields)


def _others() -> Iterator[str]:
    yield f"`API_VERSION` = {api.API_VERSION}\n"
    yield f"`llmgw.engine.api.KEY_VARIABLE` = `{api.KEY_VARIABLE}`\n\n{_constant_doc(api, 'KEY_VARIABLE')}\n"
    for name in sorted(llmgw.engine.__all__):
        thing = getattr(llmgw.engine, name)
        if inspect.isfunction(thing):
            yield f"`{name}{_signature(thing)}`\n\n{_doc(thing)}\n"


def _table(header: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (header, *rows)]
    lines.insert(1, "|---" * len(header) + "|")
    return "\n".join(lines) + "\n"


def _attributes(kind: type, node: ast.ClassDef) -> Iterator[tuple[Any, str]]:
    """Each annotated attribute with what is said of it: a `#:` comment on its line, or a string below it."""
    source = textwrap.dedent(inspect.getsource(kind)).splitlines()
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        comment = re.search(r"#: (.*)", source[(item.end_lineno or item.lineno) - 1])
        below = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            below = " ".join(str(after.value.value).split())
        yield item, (comment[1] if comment else below).replace("|", "\\|")


def _members(kind: type[enum.Enum]) -> Iterator[tuple[enum.Enum, str]]:
    source = inspect.getsource(kind)
    for member in kind:
        comment = re.search(rf"^\s+{member.name} = .*?#:? (.*)$", source, re.MULTILINE)
        yield member, comment[1] if comment else ""


def _node(kind: type) -> ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


def _default(field: ast.AnnAssign) -> str:
    """` = 1`; long ones and those made for each object are left out."""
    text = "" if field.value is None else ast.unparse(field.value)
    made = re.fullmatch(r"field\(default_factory=(\w+)\)", text)
    text = {"dict": "{}", "list": "[]"}.get(made[1], "") if made else text
    return f" = `{text}`" if text and len(text) <= 40 else ""


def _signature(function: Any) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"({ast.unparse(node.args)}){returns}"


def _constant_doc(module: Any, name: str) -> str:
    body = ast.parse(inspect.getsource(module)).body
    for item, after in itertools.pairwise(body):
        named = isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == name
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return str(after.value.value)
    return ""


def _doc(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _own_doc(kind: type) -> str:
    """Without the one that a dataclass gets by itself, or an enum inherits."""
    return ast.get_docstring(_node(kind)) or ""


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def page_with(text: str) -> str:
    """The page as committed, with this reference in its place."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with(reference()), encoding="utf-8")
