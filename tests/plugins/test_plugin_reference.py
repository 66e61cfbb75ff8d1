"""docs/plugin-api.md says what the plugin API is."""

import inspect

import api_reference

import llmgw.engine
from llmgw.engine import API_VERSION, Engine, WeightSource, hookspecs
from llmgw.engine.loading import SUPPORTED


def test_the_committed_reference_is_the_codes() -> None:
    committed = api_reference.PAGE.read_text("utf-8")
    assert committed == api_reference.page_with(api_reference.reference()), "run python tests/plugins/api_reference.py"


def test_every_hook_and_every_method_says_what_it_is_for() -> None:
    methods = [
        each
        for kind in (Engine, WeightSource)
        for name, each in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    ]
    hooks = [each for _, each in inspect.getmembers(hookspecs, inspect.isfunction) if hasattr(each, "llmgw_spec")]
    assert methods
    assert hooks
    assert [each.__qualname__ for each in (*methods, *hooks) if not each.__doc__] == []


def test_everything_a_plugin_may_import_from_the_seam_is_in_the_reference() -> None:
    text = api_reference.reference()
    for name in set(llmgw.engine.__all__) - {"hookimpl"}:
        assert f"### {name}\n" in text or f"`{name}" in text, name


def test_the_version_table_ends_with_the_version_in_force() -> None:
    page = api_reference.PAGE.read_text("utf-8")
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ") and "0." in line]
    assert [row for row in rows if row.isdigit()] == [str(API_VERSION)]
    assert API_VERSION in SUPPORTED
