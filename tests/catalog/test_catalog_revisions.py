"""A catalog at a commit, from a real repository's objects."""

from pathlib import Path

import pytest
from catalog_texts import ENGINES, commit_all, git, model

from llmgw.catalog.load import load_catalog
from llmgw.catalog.looking import MAX_FILE
from llmgw.catalog.revisions import Read, read_revision
from llmgw.catalog.source import read_source
from llmgw.errors import CatalogUnreadable


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A catalog in a sub-directory of a checkout with one commit."""
    root = tmp_path / "repo"
    (root / "catalog" / "more").mkdir(parents=True)
    git(root, "init", "-q")
    (root / "outside.yaml").write_text(model("outside"))
    (root / "catalog" / "a.yaml").write_text(model("a"))
    (root / "catalog" / "more" / "b.yml").write_text(model("b"))
    commit_all(root)
    return root / "catalog"


def names(source_files: object) -> list[str]:
    assert isinstance(source_files, dict)
    return sorted(source_files)


def test_a_revision_is_what_was_committed_whatever_lies_in_the_working_tree(catalog: Path) -> None:
    first = git(catalog, "rev-parse", "HEAD")
    (catalog / "a.yaml").write_text(model("a", extra="priority: 1\n"))
    (catalog / "c.yaml").write_text(model("c"))
    read = read_revision(catalog, "HEAD")
    assert names(dict(read.files)) == ["a.yaml", "more/b.yml"]
    assert read.files["a.yaml"] == model("a").encode()
    assert (read.commit, read.dirty, read.problems, read.note) == (first, False, (), None)


def test_a_clean_checkout_and_its_commit_are_one_catalog(catalog: Path) -> None:
    tree, commit = read_source(catalog), read_revision(catalog, "main")
    assert dict(tree.files) == dict(commit.files)
    assert load_catalog(tree, ENGINES).catalog == load_catalog(commit, ENGINES).catalog


def test_any_name_that_git_has_for_a_commit_will_do(catalog: Path) -> None:
    (catalog / "a.yaml").unlink()
    second = commit_all(catalog)
    git(catalog, "tag", "-a", "v2", "-m", "two")
    for name in "v2", "HEAD", second[:10], "main@{0}":
        assert names(dict(read_revision(catalog, name).files)) == ["more/b.yml"], name
    assert names(dict(read_revision(catalog, "HEAD~1").files)) == ["a.yaml", "more/b.yml"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("refs/heads/mian", "no branch 'mian' in the repository of {}; did you mean 'main'?"),
        ("refs/heads/nope", "no branch 'nope' in the repository of {}: `git branch` lists them"),
        ("refs/tags/v9", "no tag 'v9' in the repository of {}: `git tag` lists them"),
        ("relase-1", "no revision 'relase-1' in the repository of {}; did you mean 'release-1'?"),
    ],
)
def test_a_branch_or_tag_that_is_misspelt_is_told_which_one_is_meant(catalog: Path, name: str, told: str) -> None:
    git(catalog, "tag", "release-1")
    with pytest.raises(CatalogUnreadable) as raised:
        read_revision(catalog, name)
    assert str(raised.value) == told.format(catalog)


@pytest.mark.parametrize(
    "name", ["nope", "HEAD~9", "--output=/tmp/x", "-h", "HEAD:catalog", "", "a\nb", "a\0b", "é" * 200_000]
)
def test_what_is_no_commit_is_told(catalog: Path, name: str) -> None:
    with pytest.raises(CatalogUnreadable, match="no revision"):
        read_revision(catalog, name)


def test_a_directory_without_git_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(CatalogUnreadable, match=r"in no git checkout, so there is no revision 'HEAD' of it"):
        read_revision(tmp_path, "HEAD")
    with pytest.raises(CatalogUnreadable, match="name the directory"):
        read_revision(tmp_path / "gone", "HEAD")


def test_ignored_files_and_dot_names_are_left_out_by_what_that_commit_ignores(catalog: Path) -> None:
    (catalog / ".llmgwignore").write_text("more/\n")
    (catalog / ".hidden.yaml").write_text("x: [")
    commit_all(catalog)
    (catalog / ".llmgwignore").write_text("a.yaml\n")
    assert names(dict(read_revision(catalog, "HEAD").files)) == ["a.yaml"]
    assert names(dict(read_revision(catalog, "HEAD~1").files)) == ["a.yaml", "more/b.yml"]


def test_a_link_within_is_read_like_the_file_and_one_that_leaves_is_a_problem(catalog: Path) -> None:
    (catalog / "more" / "link.yaml").symlink_to("../a.yaml")
    (catalog / "again.yaml").symlink_to("more/link.yaml")
    (catalog / "out.yaml").symlink_to("../outside.yaml")
    (catalog / "gone.yaml").symlink_to("nowhere.yaml")
    (catalog / "round.yaml").symlink_to("round.yaml")
    commit_all(catalog)
    read = read_revision(catalog, "HEAD")
    assert read.files["again.yaml"] == read.files["more/link.yaml"] == model("a").encode()
    assert [str(problem).partition(":")[0] for problem in read.problems] == ["gone.yaml", "out.yaml", "round.yaml"]
    assert b"outside" not in b"".join(read.files.values())


def test_links_are_followed_through_links_to_directories_as_in_a_checkout(catalog: Path) -> None:
    (catalog / "deep" / "er").mkdir(parents=True)
    (catalog / "deep" / "er" / "d.yaml").write_text(model("d"))
    (catalog / "short").symlink_to("deep/er")
    (catalog / "by.yaml").symlink_to("short/d.yaml")
    (catalog / "up.yaml").symlink_to("short/../e.yaml")
    (catalog / "deep" / "e.yaml").write_text(model("e"))
    (catalog / "deep" / "away").symlink_to("../../elsewhere")
    (catalog / "away.yaml").symlink_to("deep/away/x.yaml")
    (catalog / "nofile.yaml").symlink_to("short")
    commit_all(catalog)
    committed, there = read_revision(catalog, "HEAD"), read_source(catalog)
    assert committed.files == there.files
    assert committed.files["by.yaml"] == model("d").encode()
    assert committed.files["up.yaml"] == model("e").encode()
    assert [str(problem) for problem in committed.problems] == [str(problem) for problem in there.problems]
    assert [problem.file for problem in committed.problems] == ["away.yaml", "nofile.yaml"]


def test_a_file_that_is_too_large_is_a_problem_and_is_not_read(catalog: Path) -> None:
    (catalog / "large.yaml").write_bytes(b"# " + b"x" * MAX_FILE)
    commit_all(catalog)
    read = read_revision(catalog, "HEAD")
    assert "large.yaml" not in read.files
    assert [problem.file for problem in read.problems] == ["large.yaml"]


def test_names_and_contents_with_odd_bytes_arrive(catalog: Path) -> None:
    (catalog / "two words\n.yaml").write_bytes(b"\0\xff\n\n")
    commit_all(catalog)
    assert read_revision(catalog, "HEAD").files["two words\\n.yaml"] == b"\0\xff\n\n"


def test_a_submodule_is_named_as_not_read(catalog: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "m.yaml").write_text(model("m"))
    commit_all(other)
    git(catalog, "submodule", "--quiet", "add", str(other), "module")
    commit_all(catalog)
    read = read_revision(catalog, "HEAD")
    assert names(dict(read.files)) == ["a.yaml", "more/b.yml"]
    assert read.note == "submodules are not read at a revision: module"


def test_of_a_further_revision_only_what_it_alone_has_is_asked_for(catalog: Path) -> None:
    known = Read()
    first = read_revision(catalog, "HEAD", known=known)
    (catalog / "a.yaml").write_text(model("other"))
    second_commit = commit_all(catalog)
    second = read_revision(catalog, "HEAD", known=known)
    assert second == read_revision(catalog, "HEAD")
    assert second.commit == second_commit
    assert second.files["more/b.yml"] is first.files["more/b.yml"]
    assert read_revision(catalog, "HEAD~1", known=known) == first


def test_what_was_read_of_one_directory_is_not_taken_for_anothers(catalog: Path) -> None:
    known = Read()
    whole = read_revision(catalog.parent, "HEAD", known=known)
    assert names(dict(whole.files)) == ["catalog/a.yaml", "catalog/more/b.yml", "outside.yaml"]
    assert names(dict(read_revision(catalog, "HEAD", known=known).files)) == ["a.yaml", "more/b.yml"]
    below = read_revision(catalog, "HEAD", below="more", known=known)
    assert names(dict(below.files)) == ["b.yml"]
    assert read_revision(catalog.parent, "HEAD", known=known) == whole


def test_what_git_tells_of_many_objects_is_taken_apart_where_one_ends(catalog: Path) -> None:
    texts = {f"m{number}.yaml": "\n" * number + "a: 1" + "\nblob 4\n" * (number % 3) for number in range(40)}
    for name, text in texts.items():
        (catalog / name).write_text(text)
    commit_all(catalog)
    read = read_revision(catalog, "HEAD").files
    assert {name: read[name].decode() for name in texts} == texts
