"""`llmgw init`"""

import os
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import typer

from llmgw.cli.options import State, state_root
from llmgw.errors import TerminalError, UsageError

MARK: Final = (
    "# Written by `llmgw init --bare`, which replaces this file. Without this line it is yours, and left alone."
)
HOOKS: Final = ("pre-receive", "post-receive")


def init(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", readable=False, help="Where. It is made if need be.")
    ] = Path(),
    bare: Annotated[bool, typer.Option("--bare", help="A bare repository that serves what is pushed to it.")] = False,
    branch: Annotated[
        str | None,
        typer.Option("--branch", metavar="NAME", help="With --bare: the branch that is served. Default: main."),
    ] = None,
    within: Annotated[
        str | None, typer.Option("--path", metavar="DIRECTORY", help="With --bare: the catalog's directory in it.")
    ] = None,
    state: State = None,
) -> None:
    """Begin a catalog, or a repository to push one to.

    A directory gets a model to start from. With --bare, pushes are checked: invalid ones are refused with the reasons,
    of valid ones the plan is shown, and the daemon of --state takes them in. Given again it renews the hooks, and
    keeps what --path and --state were.

    \b
    Example:
      llmgw init ./catalog
      llmgw init --bare /srv/git/catalog.git
    """
    from llmgw.catalog.origin import RefKind, read_inside, read_ref
    from llmgw.cli.printing import print_line

    root = path.expanduser().absolute()
    if not bare:
        if branch is not None or within is not None:
            raise UsageError("--branch and --path go with --bare")
        for line in begin_catalog(root):
            print_line(line)
        return
    name = None if branch is None else read_ref(RefKind.BRANCH, branch).name
    earlier_state, earlier_path = _given_before(root)
    below = earlier_path if within is None else read_inside(within)
    for line in begin_bare(root, name, below, state_root(state if state is not None else earlier_state)):
        print_line(line)


def begin_catalog(root: Path) -> list[str]:
    """Write the starting files, in a git repository where git is there. Returns what was done and comes next.

    Raises TerminalError where a file of theirs exists.
    """
    from importlib.resources import files

    template = files("llmgw.cli") / "catalog_template"
    wanted = {name: (template / f"{name}.tmpl").read_text(encoding="utf-8") for name in ("models.yaml", "cluster.yaml")}
    there = [name for name in wanted if (root / name).exists()]
    if there:
        raise TerminalError(f"{root} has a {' and a '.join(there)} already: nothing was written")
    root.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (root / name).write_text(text, encoding="utf-8")
    place = shlex.quote(str(root))
    done = [f"wrote {', '.join(wanted)} in {root}"]
    if _begin_repository(root):
        done.append(f"made {root} a git repository: nothing is committed yet")
    return [*done, f"next: `llmgw validate {place}`, then `llmgw up {place}`"]


def _begin_repository(root: Path) -> bool:
    """Whether there is one now that was not."""
    from llmgw.catalog import git

    try:
        if git.find(root.resolve()) is None:
            _git(root, "init", "--quiet", "--initial-branch=main")
            return True
    except FileNotFoundError:  # git is not installed: a catalog can do without
        pass
    return False


def begin_bare(root: Path, branch: str | None, below: str, state: Path) -> list[str]:
    """Make the repository, or take one that is there, and write its hooks. Returns what was done and comes next.

    Raises TerminalError where PATH is something else, or a hook is the user's own.
    """
    from llmgw.catalog import git

    try:
        new = not git.is_bare(root)
        if new and root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise TerminalError(f"{root} is there, and no bare repository: name another place")
        _refuse_foreign_hooks(root, state, below)
        if new:
            root.mkdir(parents=True, exist_ok=True)
            _git(root, "init", "--quiet", "--bare", f"--initial-branch={branch or 'main'}", "--template=")
        elif branch is not None:
            _git(root, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
        # A user's own core.hooksPath would have the push pass unchecked. The log shows what a forced push replaced.
        _git(root, "config", "core.hooksPath", "hooks")
        _git(root, "config", "core.logAllRefUpdates", "true")
    except FileNotFoundError as error:
        raise TerminalError("this takes git, which is not installed") from error
    replaced = [_write_hook(root, hook, state, below) for hook in HOOKS]
    place, served = shlex.quote(str(root)), (root / "HEAD").read_text().strip().removeprefix("ref: refs/heads/")
    up = f"llmgw up {place}" + (f" --path {shlex.quote(below)}" if below else "")
    return [
        f"{'made' if new else 'found'} the bare repository {root}, of which {served} is served",
        f"{'replaced' if any(replaced) else 'wrote'} its hooks {' and '.join(HOOKS)} (daemon: --state {state})",
        f"next: `{up}` here; in a checkout `git remote add llmgw {place}` and `git push llmgw {served}`",
    ]


def _given_before(root: Path) -> tuple[Path | None, str]:
    """--state and --path as the hooks of an earlier `init --bare` have them: renewing hooks must not forget what is
    served, or pushes would be checked against another directory."""
    path = root / "hooks" / HOOKS[0]
    if not _is_ours(path):
        return None, ""
    try:
        words = shlex.split(path.read_text(encoding="utf-8").splitlines()[-1])
    except (ValueError, IndexError):  # changed by hand beyond reading
        return None, ""
    options = dict(pairwise(words))
    state = options.get("--state")
    return None if state is None else Path(state), options.get("--below", "")


def hook_text(hook: str, state: Path, below: str) -> str:
    """A shell script that runs this very llmgw. git starts hooks in the repository, which is no place to import from:
    hence -P. Whether it is there at all is asked first: what a shell or Python says of that tells nobody what to do."""
    python = shlex.quote(sys.executable)
    there = f"{python} -P -c 'import llmgw.cli.githook'"
    again = shlex.quote(
        f"llmgw: {sys.executable} runs no llmgw any more: have one that is there do `llmgw init --bare` here again"
    )
    return f"""\
#!/bin/sh
{MARK}
why=$({there} 2>&1) || {{ printf '%s\\n' "$why" | tail -n 1 >&2; echo {again} >&2; exit 1; }}
exec {_command(hook, state, below)}
"""


def _command(hook: str, state: Path, below: str) -> str:
    words = [sys.executable, "-P", "-m", "llmgw.cli.githook", hook, "--state", str(state)]
    return shlex.join([*words, "--below", below] if below else words)


def _refuse_foreign_hooks(root: Path, state: Path, below: str) -> None:
    for hook in HOOKS:
        path = root / "hooks" / hook
        if os.path.lexists(path) and not _is_ours(path):
            raise TerminalError(
                f"{path} is not llmgw's, and stays as it is: to have both, put this into it, with the hook's input, "
                f"and let it fail where this does: {_command(hook, state, below)}"
            )


def _is_ours(path: Path) -> bool:
    try:
        return not path.is_symlink() and MARK in path.read_text(errors="replace")
    except OSError:
        return False


def _write_hook(root: Path, hook: str, state: Path, below: str) -> bool:
    """Whether there was one of ours before."""
    from llmgw.statedir import write_atomic

    path = root / "hooks" / hook
    before = path.exists()
    write_atomic(path, hook_text(hook, state, below).encode(), mode=0o755)
    return before


def _git(root: Path, *arguments: str) -> None:
    """Raises TerminalError, FileNotFoundError without a git."""
    from llmgw.catalog import git, gitrun

    done = gitrun.run(gitrun.command(root, *arguments), where=root, timeout=git.TIMEOUT)
    if done.returncode != 0:
        raise TerminalError(f"git {arguments[0]} failed in {root}: {gitrun.last_line(done.stderr)}")
