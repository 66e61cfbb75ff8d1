"""What is read from a directory, and what git says about it, without the repository running anything."""

import os
import threading
import time
from pathlib import Path

import pytest
from catalog_texts import MODEL, commit_all, git, model

from llmgw.catalog import looking
from llmgw.catalog.git import facts
from llmgw.catalog.load import revision_of
from llmgw.catalog.looking import COARSE, MAX_FILE, look_at
from llmgw.catalog.source import Checkout, Settling, Source, read_source
from llmgw.errors import CatalogUnreadable


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A checkout with one committed model."""
    directory = tmp_path / "catalog"
    directory.mkdir()
    git(directory, "init", "-q")
    (directory / "a.yaml").write_text(MODEL)
    commit_all(directory)
    return directory


def wait_free(path: Path) -> Source:
    """Read, failing rather than waiting where the directory does not settle at once."""
    settling, waited = Settling(path), 0.0
    while (wait := settling.step()) is not None:
        waited += wait
        assert waited < 3, "does not settle"
        time.sleep(wait)
    return settling.source


def messages(source: Source) -> list[str]:
    return [f"{problem.file}: {problem.message}" for problem in source.problems]


# Which files


def test_yaml_files_are_read_recursively_and_nothing_else(tmp_path: Path) -> None:
    for name in ("a.yaml", "sub/b.yml", "sub/deep/c.yaml", "README.md", "x.yaml.bak", ".hidden.yaml", ".git2/d.yaml",
                 "sub/.e/f.yaml", "Y.YAML"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = read_source(tmp_path)
    assert found == Source(
        files={"a.yaml": b"a.yaml", "sub/b.yml": b"sub/b.yml", "sub/deep/c.yaml": b"sub/deep/c.yaml"}
    )


def test_ignore_patterns_mean_what_they_mean_in_gitignore(tmp_path: Path) -> None:
    (tmp_path / ".llmgwignore").write_text("# drafts\ndrafts/\n*.tmp.yaml\n/top.yaml\n!keep.tmp.yaml\n")
    for name in ("a.yaml", "top.yaml", "sub/top.yaml", "drafts/b.yaml", "c.tmp.yaml", "keep.tmp.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert sorted(read_source(tmp_path).files) == ["a.yaml", "keep.tmp.yaml", "sub/top.yaml"]


def test_a_file_name_that_is_no_utf8_is_read_and_shown_escaped(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.yaml")).write_text("x")
    (tmp_path / "new\nline.yaml").write_text("x")
    assert sorted(read_source(tmp_path).files) == ["caf\\xe9.yaml", "new\\nline.yaml"]


def test_a_link_that_leaves_the_directory_is_refused_by_name(tmp_path: Path) -> None:
    root, outside = tmp_path / "catalog", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "x.yaml").write_text("x")
    (tmp_path / "catalog-evil").mkdir()
    (tmp_path / "catalog-evil" / "y.yaml").write_text("y")
    (root / "absolute.yaml").symlink_to(outside / "x.yaml")
    (root / "dots.yaml").symlink_to("../outside/x.yaml")
    (root / "twice.yaml").symlink_to("dots.yaml")
    (root / "folder").symlink_to(outside)
    (root / "prefix.yaml").symlink_to("../catalog-evil/y.yaml")
    (root / "readme.txt").symlink_to("/etc/passwd")
    found = read_source(root)
    assert not found.files
    assert [problem.file for problem in found.problems] == [
        "absolute.yaml", "dots.yaml", "folder", "prefix.yaml", "twice.yaml",
    ]  # fmt: skip
    assert all("leaves the catalog" in problem.message for problem in found.problems)


def test_a_link_inside_is_read_and_a_dangling_one_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "a.yaml").write_text("mounted")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    (tmp_path / "b.yaml").symlink_to("gone")
    found = read_source(tmp_path)
    assert found.files == {"a.yaml": b"mounted"}
    assert messages(found) == ["b.yaml: a symbolic link to what is no file (gone): correct or remove it"]


def test_a_link_to_a_directory_inside_is_read_once_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.yaml").write_text("x")
    (tmp_path / "again").symlink_to("real")
    (tmp_path / "real" / "loop").symlink_to("..")
    assert list(read_source(tmp_path).files) == ["real/a.yaml"]


def test_a_pipe_named_like_a_catalog_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").mkdir()
    assert messages(read_source(tmp_path)) == ["a.yaml: not a regular file: remove it, or ignore it"]


def test_a_file_too_large_is_a_problem_and_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"#" * (MAX_FILE + 1))
    (tmp_path / "b.yaml").write_bytes(b"#" * MAX_FILE)
    found = read_source(tmp_path)
    assert list(found.files) == ["b.yaml"]
    assert messages(found) == ["a.yaml: too large: 1.0 MiB; a catalog file has at most 1.0 MiB"]


def test_too_many_or_too_much_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(looking.MAX_FILES + 1):
        (tmp_path / "many" / f"{number}.yaml").touch()
    (found,) = messages(read_source(tmp_path / "many"))
    assert "more than 10,000 catalog files" in found
    (tmp_path / "much").mkdir()
    (tmp_path / "much" / "0.yaml").write_bytes(b"#" * MAX_FILE)
    for number in range(1, 66):
        (tmp_path / "much" / f"{number}.yaml").hardlink_to(tmp_path / "much" / "0.yaml")
    found_much = read_source(tmp_path / "much")
    assert messages(found_much) == [".: more than 64.0 MiB of catalog files"]
    assert not found_much.files


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.write_text("x"), "is a file: name the directory that holds the catalog"),
        (lambda path: path.symlink_to(path), "cannot read"),
        (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
    ],
)
def test_what_cannot_be_read_now_says_why(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path / "catalog")  # type: ignore[operator]
    with pytest.raises(CatalogUnreadable, match=message):
        read_source(tmp_path / "catalog")


# Git


def test_outside_git_there_is_no_commit(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MODEL)
    found = read_source(tmp_path)
    assert (found.commit, found.dirty, found.note) == (None, False, None)


def test_a_clean_checkout_has_the_commit_and_a_changed_one_is_dirty(repo: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    assert read_source(repo) == Source(files={"a.yaml": MODEL.encode()}, commit=head)
    (repo / "a.yaml").write_text(model(extra="priority: 1\n"))
    assert read_source(repo).dirty
    (repo / "a.yaml").write_text(MODEL)
    assert not read_source(repo).dirty


@pytest.mark.parametrize("change", ["untracked", "removed", "ignored by git", "ignore file", "staged"])
def test_every_difference_of_catalog_files_from_head_is_dirty(repo: Path, change: str) -> None:
    match change:
        case "untracked":
            (repo / "b.yaml").write_text("x")
        case "removed":
            (repo / "a.yaml").unlink()
        case "ignored by git":
            (repo / ".gitignore").write_text("b.yaml\n")
            (repo / "b.yaml").write_text("x")
        case "ignore file":
            (repo / ".llmgwignore").write_text("b.yaml\n")
        case "staged":
            (repo / "a.yaml").write_text("x")
            git(repo, "add", "a.yaml")
    assert read_source(repo).dirty


def test_other_files_make_nothing_dirty(repo: Path) -> None:
    (repo / "README.md").write_text("x")
    (repo / ".hidden.yaml").write_text("x")
    assert not read_source(repo).dirty


def test_a_file_that_is_ignored_by_a_committed_pattern_counts_neither_way(repo: Path) -> None:
    (repo / ".llmgwignore").write_text("drafts/\n")
    (repo / "drafts").mkdir()
    (repo / "drafts" / "x.yaml").write_text("x")
    commit_all(repo)
    (repo / "drafts" / "x.yaml").write_text("y")
    found = read_source(repo)
    assert (list(found.files), found.dirty) == (["a.yaml"], False)


def test_a_subdirectory_of_a_checkout_is_judged_by_itself(repo: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub" / "b.yaml").write_text("x")
    head = commit_all(repo)
    (repo / "a.yaml").write_text("changed")
    found = read_source(repo / "sub")
    assert (list(found.files), found.commit, found.dirty) == (["b.yaml"], head, False)
    assert read_source(repo).dirty


def test_a_detached_head_a_shallow_clone_and_a_worktree_have_their_commit(repo: Path, tmp_path: Path) -> None:
    first = git(repo, "rev-parse", "HEAD")
    (repo / "a.yaml").write_text(model("b"))
    second = commit_all(repo)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "shallow")
    assert read_source(tmp_path / "shallow").commit == second
    git(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"), first)
    found = read_source(tmp_path / "tree")
    assert (found.commit, found.dirty) == (first, False)
    git(repo, "checkout", "-q", "--detach", first)
    found = read_source(repo)
    assert (found.commit, found.dirty) == (first, False)


def test_rewritten_history_and_a_deleted_branch_are_just_another_head(repo: Path) -> None:
    (repo / "a.yaml").write_text(model("b"))
    git(repo, "commit", "-q", "-a", "--amend", "-m", "rewritten")
    found = read_source(repo)
    assert (found.commit, found.dirty) == (git(repo, "rev-parse", "HEAD"), False)
    git(repo, "update-ref", "-d", "refs/heads/main")
    found = read_source(repo)
    assert (found.commit, found.dirty) == (None, False)
    assert len(revision_of(found)) == 64


def test_packed_refs_are_followed(repo: Path) -> None:
    git(repo, "pack-refs", "--all")
    assert read_source(repo).commit == git(repo, "rev-parse", "HEAD")


def test_a_repository_without_a_commit_is_like_no_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.yaml").write_text(MODEL)
    found = read_source(tmp_path)
    assert (found.commit, found.dirty) == (None, False)


def test_an_empty_git_directory_is_like_no_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.yaml").write_text(MODEL)
    assert read_source(tmp_path).commit is None
    (tmp_path / ".git").rmdir()
    (tmp_path / ".git").write_text("gitdir: /nowhere/at/all\n")
    assert read_source(tmp_path).commit is None


def test_sha256_repositories_are_compared_by_their_own_hash(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256")
    (tmp_path / "a.yaml").write_text(MODEL)
    head = commit_all(tmp_path)
    found = read_source(tmp_path)
    assert (len(head), found.commit, found.dirty) == (64, head, False)
    (tmp_path / "a.yaml").write_text("x")
    assert read_source(tmp_path).dirty


def test_a_submodule_counts_as_clean_at_its_recorded_commit_only(repo: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", str(repo), "models")
    commit_all(outer)
    found = read_source(outer)
    assert (list(found.files), found.dirty) == (["models/a.yaml"], False)
    assert not read_source(outer / "models").dirty
    (outer / "models" / "a.yaml").write_text("x")
    assert read_source(outer).dirty
    git(outer / "models", "commit", "-q", "-a", "-m", "ahead")
    assert read_source(outer).dirty
    commit_all(outer)
    assert not read_source(outer).dirty


def test_a_committed_link_is_compared_by_its_text_and_its_target(repo: Path) -> None:
    (repo / "templates").mkdir()
    (repo / "templates" / "b.txt").write_text("x")
    (repo / "b.yaml").symlink_to("templates/b.txt")
    commit_all(repo)
    found = read_source(repo)
    assert (found.files["b.yaml"], found.dirty) == (b"x", False)
    (repo / "templates" / "b.txt").write_text("y")
    assert read_source(repo).dirty


def test_line_ends_that_git_converted_are_no_change(repo: Path) -> None:
    (repo / "a.yaml").write_bytes(MODEL.replace("\n", "\r\n").encode())
    assert not read_source(repo).dirty


def test_names_that_git_would_quote_are_compared_as_they_are(repo: Path) -> None:
    for name in ("é.yaml", 'quo"te.yaml', "tab\t.yaml", "-dash.yaml", os.fsdecode(b"\xe9.yaml")):
        (repo / name).write_text("x")
    commit_all(repo)
    assert not read_source(repo).dirty


def test_the_repositorys_configuration_runs_nothing(repo: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\necho $0 >> {ran}\ncat\n")
    program.chmod(0o755)
    (repo / ".gitattributes").write_text("*.yaml filter=evil diff=evil\n")
    commit_all(repo)
    keys = """core.fsmonitor filter.evil.clean filter.evil.smudge filter.evil.process diff.evil.textconv
        diff.external core.sshCommand core.pager core.editor credential.helper core.askPass
        uploadpack.packObjectsHook core.alternateRefsCommand pager.ls-tree"""
    for key in keys.split():
        git(repo, "config", key, str(program))
    hooks = repo / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "reference-transaction", "post-checkout", "pre-auto-gc", "fsmonitor-watchman"):
        (hooks / hook).symlink_to(program)
    (repo / "a.yaml").write_text(model("b"))
    assert read_source(repo).dirty
    assert not ran.exists(), ran.read_text()


def test_a_partial_clone_fetches_nothing_on_our_behalf(repo: Path, tmp_path: Path) -> None:
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=tree:0", f"file://{repo}", "partial")
    program, ran = tmp_path / "evil", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    git(tmp_path / "partial", "config", "remote.origin.uploadpack", str(program))
    with pytest.raises(CatalogUnreadable, match="git cannot list"):
        read_source(tmp_path / "partial")
    assert not ran.exists()


def test_git_variables_of_our_own_environment_do_not_lead_elsewhere(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert read_source(repo).commit is not None


def test_without_git_a_checkout_is_read_as_a_directory(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    found = read_source(repo)
    assert (list(found.files), found.commit) == (["a.yaml"], None)
    assert found.note == "git is not installed: revisions are digests, not commits"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a checkout to another user")
def test_another_users_checkout_says_how_to_allow_it(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (repo, repo / ".git"):
        os.chown(path, 12345, 12345)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CatalogUnreadable, match=r"git config --global --add safe\.directory"):
        read_source(repo)
    git(repo, "config", "--global", "safe.directory", str(repo))
    assert read_source(repo).commit is not None


def test_a_git_that_hangs_is_given_up(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(CatalogUnreadable, match="git did not answer"):
        facts(repo, timeout=0.2)


def test_a_broken_repository_is_unreadable_with_gits_own_reason(repo: Path) -> None:
    (repo / ".git" / "config").write_text("[core\n")
    with pytest.raises(CatalogUnreadable, match=r"git cannot read .*config"):
        read_source(repo)


def test_a_bare_repository_is_no_directory_of_files(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "x.git")
    with pytest.raises(CatalogUnreadable, match="bare git repository, which has no files"):
        read_source(tmp_path / "x.git")


# Settling


def test_two_looks_that_differ_are_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("1")
    settling = Settling(tmp_path)
    assert settling.step() == pytest.approx(0.1)
    (tmp_path / "a.yaml").write_text("2")
    assert settling.step() == pytest.approx(0.1)
    wait = settling.step()
    assert wait is not None
    assert 0 < wait <= 0.1
    time.sleep(wait)
    assert settling.step() is None
    assert settling.source.files == {"a.yaml": b"2"}


def test_a_commit_between_the_looks_starts_them_anew(repo: Path) -> None:
    settling = Settling(repo)
    settling.step()
    (repo / "b.txt").write_text("x")
    head = commit_all(repo)
    while (wait := settling.step()) is not None:
        time.sleep(wait)
    assert settling.source.commit == head


def test_a_git_command_under_way_holds_loading_until_it_ends(repo: Path) -> None:
    lock = repo / ".git" / "index.lock"
    lock.touch()
    settling = Settling(repo)
    for _ in range(4):
        assert settling.step() is not None
        time.sleep(0.11)
    threading.Timer(0.2, lock.unlink).start()
    assert wait_free(repo).note is None


def test_a_lock_left_by_a_crash_no_longer_holds_after_10_s_and_is_left_alone(repo: Path) -> None:
    lock = repo / ".git" / "index.lock"
    lock.touch()
    os.utime(lock, (time.time() - 11, time.time() - 11))
    found = wait_free(repo)
    assert found.commit is not None
    assert found.note is not None
    assert "index.lock has not changed for 10 s" in found.note
    assert lock.exists()


def test_a_checkout_without_a_commit_says_why_its_revision_is_a_digest(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.yaml").write_text(MODEL)
    found = read_source(tmp_path)
    assert (found.commit, found.dirty) == (None, False)
    assert found.note is not None
    assert "no commit in this checkout" in found.note
    commit_all(tmp_path)
    assert read_source(tmp_path).note is None


def test_a_file_that_was_just_written_is_read_by_each_look_and_an_old_one_by_the_first(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1\n")
    first = look_at(tmp_path, contents=True)
    again = look_at(tmp_path, contents=True, known=first)
    assert again == first
    assert again.data["a.yaml"] is not first.data["a.yaml"]
    first.at += 2 * COARSE  # as if it had begun long after the file was written
    again = look_at(tmp_path, contents=True, known=first)
    assert again == first
    assert again.data["a.yaml"] is first.data["a.yaml"]


def test_a_file_that_is_another_is_read_though_it_was_known(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\n")
    first = look_at(tmp_path, contents=True)
    first.at += 2 * COARSE
    file.write_text("a: 22\n")
    assert look_at(tmp_path, contents=True, known=first).data["a.yaml"] == b"a: 22\n"


def test_a_file_written_twice_within_what_its_times_can_tell_is_read_again_until_they_can(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\n")
    first = look_at(tmp_path, contents=True)
    file.write_text("a: 2\n")
    # As on a file system of whole seconds: the second writing left size and times as they were.
    first.found = look_at(tmp_path).found
    again = look_at(tmp_path, contents=True, known=first)
    assert again.data == {"a.yaml": b"a: 2\n"}
    assert again != first


def test_a_file_of_the_future_is_read_by_each_look(tmp_path: Path) -> None:
    """As after the clock was set back."""
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\n")
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    first = look_at(tmp_path, contents=True)
    first.at += 2 * COARSE
    again = look_at(tmp_path, contents=True, known=first)
    assert again.data["a.yaml"] is not first.data["a.yaml"]


def test_a_file_replaced_by_an_older_one_of_its_size_and_time_is_read(tmp_path: Path) -> None:
    """As `cp -p`, `mv` and `rsync -t` leave them."""
    file, other = tmp_path / "a.yaml", tmp_path / "other"
    file.write_text("a: 1\n")
    other.write_text("a: 2\n")
    for each in (file, other):
        os.utime(each, (1_000_000_000, 1_000_000_000))
    first = look_at(tmp_path, contents=True)
    first.at += 2 * COARSE
    other.replace(file)
    moved = look_at(tmp_path, contents=True, known=first)
    assert moved.data == {"a.yaml": b"a: 2\n"}
    moved.at += 2 * COARSE
    with file.open("r+") as opened:
        opened.write("a: 3\n")
    os.utime(file, (1_000_000_000, 1_000_000_000))
    assert look_at(tmp_path, contents=True, known=moved).data == {"a.yaml": b"a: 3\n"}


def test_a_link_that_leads_elsewhere_is_read_though_all_its_targets_are_alike(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
        os.utime(tmp_path / name / "a.txt", (1_000_000_000, 1_000_000_000))
    (tmp_path / "current").symlink_to("one")
    (tmp_path / "a.yaml").symlink_to("current/a.txt")
    first = look_at(tmp_path, contents=True)
    first.at += 2 * COARSE
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("two")
    assert look_at(tmp_path, contents=True, known=first).data == {"a.yaml": b"two"}


def test_what_was_known_of_another_directory_counts_for_nothing(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "a.yaml").write_text("a: 1\n")
    os.link(tmp_path / "one" / "a.yaml", tmp_path / "two" / "a.yaml")
    first = look_at(tmp_path / "one", contents=True)
    first.at += 2 * COARSE
    again = look_at(tmp_path / "two", contents=True, known=first)
    assert again.data["a.yaml"] is not first.data["a.yaml"]
    assert again.found[0].path == str(tmp_path / "two" / "a.yaml")


def test_git_is_asked_for_a_commits_files_once(repo: Path) -> None:
    first = facts(repo)
    assert first is not None
    assert facts(repo, known=first) is first
    (repo / "b.yaml").write_text(model("b"))
    head = commit_all(repo)
    again = facts(repo, known=first)
    assert again is not None
    assert (again.commit, sorted(again.tree)) == (head, ["a.yaml", "b.yaml"])


def test_what_a_checkout_was_found_to_be_holds_for_that_content_alone(repo: Path) -> None:
    checkout = Checkout()

    def dirty() -> bool:
        settling = Settling(repo, checkout=checkout)
        while (wait := settling.step()) is not None:
            time.sleep(wait)
        return settling.source.dirty

    assert not dirty()
    (repo / "a.yaml").write_text(model("b"))
    assert dirty()
    commit_all(repo)
    assert not dirty()
    git(repo, "checkout", "-q", "HEAD~1")
    assert not dirty()
    git(repo, "update-ref", "--no-deref", "HEAD", "main")
    assert dirty()
