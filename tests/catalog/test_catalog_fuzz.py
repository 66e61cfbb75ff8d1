"""Whatever a document holds, loading ends in a catalog or in problems with a place, never in another error."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from catalog_texts import ENGINES, source
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.catalog.diff import diff
from llmgw.catalog.load import load_catalog
from llmgw.errors import CatalogInvalid

WHOLE: list[dict[str, Any]] = [
    {
        "apiVersion": "llmgw/v1", "kind": "Model", "name": "one", "aliases": ["x"], "fallback": "two",
        "groups": ["g"], "suspend": False, "labels": {"a": "b"},
        "placement": {"pools": ["gpu"], "nodes": ["box"], "labels": {"d": "e"}, "spread": True},
        "scaling": {
            "min": 1, "max": 2, "on_demand": False, "idle_timeout": "5m",
            "schedule": [{"days": ["mon"], "from": "08:00", "to": "24:00", "min": 2, "max": 3}],
        },
        "profiles": [
            {
                "name": "p", "engine": "cpu", "weights": {"source": "/a"}, "devices": 1, "exclusive": True,
                "options": {"threads": 2}, "env": {"A": "x", "B": {"from_env": "Y"}}, "weight": 1, "tier": 0,
                "degraded": {"context": 2048}, "minimal": {"devices": 0, "options": {"threads": 1}},
            },
            {
                "name": "q", "engine": "command", "options": {"command": ["${M}", "{port}"]}, "args": ["a"],
                "draft": {"model": "two"}, "files": {"f": {"source": "/f"}},
                "minimal": {"engine": "cpu", "weights": {"source": "/b"}},
            },
        ],
    },
    {
        "apiVersion": "llmgw/v1", "kind": "Model", "name": "two",
        "profiles": [{"name": "p", "engine": "cpu", "weights": {"source": "/a"}}],
    },
    {
        "apiVersion": "llmgw/v1", "kind": "Model", "name": "three", "groups": ["g"],
        "profiles": [{"name": "p", "engine": "cpu", "weights": {"source": "/a"}}],
    },
    {
        "apiVersion": "llmgw/v1", "kind": "Cluster", "time_zone": "Europe/Berlin", "macros": {"M": "m"},
        "scaling": {"up_waiting": 1.5, "up_after": "1s"}, "defaults": {"idle_timeout": "1m"},
        "nodes": {"box": {"pool": "gpu", "labels": {"d": "e"}, "budget": {"device": "1GiB"}, "reserve": {"device": 5}}},
    },
]  # fmt: skip

words = st.sampled_from([
    "", "one", "two", "x", "cpu", "command", "mon", "08:00", "24:00", "5m", "1GiB", "${M}", "${", "degraded", "minimal",
    "options", "draft", "model", "source", "engine", "context", "devices", "days", "from", "to", "min", "max", "name",
])  # fmt: skip
scalars = st.none() | st.booleans() | st.integers(-1, 3) | st.floats(allow_nan=False, allow_infinity=False) | words
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=5
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in `value` but itself."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


PLACES = list(places(WHOLE))


@st.composite
def catalogs(draw: st.DrawFn) -> bytes:
    """The documents above, with a few parts replaced, removed or moved elsewhere."""
    documents = copy.deepcopy(WHOLE)
    for path in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        holder: Any = documents
        try:
            for step in path[:-1]:
                holder = holder[step]
            match draw(st.sampled_from(["replace", "remove", "add"])):
                case "replace":
                    holder[path[-1]] = draw(junk)
                case "remove":
                    del holder[path[-1]]
                case _ if isinstance(holder, dict):
                    holder[draw(words)] = draw(junk)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    return "\n---\n".join(map(json.dumps, documents)).encode()


def test_the_documents_that_are_spoilt_are_valid() -> None:
    loaded = load_catalog(source({"a.yaml": "\n---\n".join(map(json.dumps, WHOLE))}), ENGINES)
    assert {str(warning.message)[:30] for warning in loaded.warnings} == {
        "has no effect without `on_dema",
        "is 5 bytes: write a unit if mo",
    }


@given(catalogs())
@settings(max_examples=300, deadline=None)
def test_a_spoilt_catalog_loads_or_is_told_to_be_invalid(data: bytes) -> None:
    try:
        catalog = load_catalog(source({"a.yaml": data}), ENGINES).catalog
    except CatalogInvalid:
        return
    assert diff(catalog, catalog) == ()
