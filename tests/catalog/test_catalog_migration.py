"""Documents of an earlier version become the newest, and nothing else about them changes."""

from typing import Any

from catalog_texts import model

from llmgw.catalog.kinds import API_VERSION
from llmgw.catalog.migration import STEPS, Migrated, Step, migrate

OLD = """\
# yaml-language-server: $schema=x.json
apiVersion: llmgw/v0   # the first
kind: Model
# what it is called
name: "one"
replicas: 2            # how many
labels: {team: 'search', n: "1"}
profiles:
  - name: cpu
    engine: cpu
    weights: {source: /a}   # here
"""
NEW = """\
# yaml-language-server: $schema=x.json
apiVersion: llmgw/v2   # the first
kind: Model
# what it is called
name: "one"
labels: {team: 'search', n: "1"}
profiles:
  - name: cpu
    engine: cpu
    weights: {source: /a}   # here
scaling:
  min: 2
"""


def _scaling(document: Any) -> None:
    document["scaling"] = {"min": document.pop("replicas")}


def _nothing(_: Any) -> None:
    pass


TWO = (Step("llmgw/v0", "llmgw/v1", _scaling), Step("llmgw/v1", "llmgw/v2", _nothing))


def test_every_step_on_the_way_to_the_newest_version_is_taken_and_comments_stay() -> None:
    done = migrate("a.yaml", OLD.encode(), TWO, "llmgw/v2")
    assert done == Migrated(text=NEW, documents=("a.yaml:2:13: llmgw/v0 -> llmgw/v2",))


def test_documents_of_a_file_are_migrated_each_by_its_own_version() -> None:
    text = OLD + "---\n" + model("other")
    done = migrate("a.yaml", text.encode(), TWO[:1], "llmgw/v1")
    assert done.text is not None
    assert done.text.endswith("---\n" + model("other"))
    assert done.documents == ("a.yaml:2:13: llmgw/v0 -> llmgw/v1",)


def test_what_is_of_the_newest_version_or_of_none_is_left_as_it_is() -> None:
    for text in (model(), "a: 1\n", "apiVersion: other/v1\n", "a: [", "", "- 1\n", "apiVersion: [x]\n"):
        assert migrate("a.yaml", text.encode(), TWO[:1], "llmgw/v1") == Migrated()
    assert migrate("a.yaml", b"\xff", TWO) == Migrated()


def test_a_file_that_would_come_out_otherwise_is_left_alone_and_told() -> None:
    def clumsy(document: Any) -> None:
        document["seen"] = type(document).__name__  # another on the round trip than on the plain value

    done = migrate("a.yaml", OLD.encode(), (Step("llmgw/v0", "llmgw/v1", clumsy),), "llmgw/v1")
    assert (done.text, done.documents) == (None, ("a.yaml:2:13: llmgw/v0 -> llmgw/v1",))
    assert done.refused is not None


def test_steps_that_go_in_circles_lead_nowhere() -> None:
    circle = (Step("llmgw/v0", "llmgw/v1", _nothing), Step("llmgw/v1", "llmgw/v0", _nothing))
    assert migrate("a.yaml", OLD.encode(), circle, "llmgw/v9") == Migrated()


def test_the_steps_there_are_lead_to_the_version_that_is_read() -> None:
    assert not STEPS or STEPS[-1].after == API_VERSION
