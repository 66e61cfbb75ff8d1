"""Write a new plugin's package from the template."""

import keyword
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from llmgw import __version__
from llmgw.errors import TerminalError, UsageError
from llmgw.ids import is_name

_SUFFIX: Final = ".tmpl"
"""Of the template's files, so that no tool takes them for this package's own."""


def write_plugin(name: str, directory: Path | None) -> Path:
    """The package of the engine `name`, in `directory` (default: named as the distribution, here).

    Raises UsageError for a name that cannot be, TerminalError when the directory has something in it already.
    """
    words = _words(name)
    root = directory or Path(words["DIST"])
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise TerminalError(f"{root} is not empty: name another place with --dir")
    for path, template in _templates(files("llmgw.cli") / "plugin_template"):
        target = root / re.sub(r"^package/", f"{words['PACKAGE']}/", path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], template), encoding="utf-8")
    return root


def _words(name: str) -> dict[str, str]:
    """What stands for what in the template."""
    bare = re.sub(r"^llmgw[-_]", "", name)
    if not is_name(bare) or keyword.iskeyword(bare):
        raise UsageError(f"{name!r} cannot name an engine: up to 63 lower-case letters, digits and ._-")
    if any(point.name == bare for point in entry_points(group="llmgw")):
        raise UsageError(f"{bare!r} is taken by a plugin that is installed here (`llmgw plugins list`)")
    parts = [part for part in re.split(r"[^a-z0-9]+", bare) if part]
    camel = "".join(part.capitalize() for part in parts)
    return {
        "NAME": bare,
        "ENTRY": bare if re.fullmatch(r"[a-z0-9_-]+", bare) else f'"{bare}"',  # a dot would nest, in TOML
        "DIST": "llmgw-" + "-".join(parts),
        "PACKAGE": "llmgw_" + "_".join(parts),
        "CLASS": f"{camel}Engine" if camel[0].isalpha() else f"Engine{camel}",
        "LLMGW": __version__,
    }


def _templates(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _templates(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            name = entry.name.removesuffix(_SUFFIX)
            yield prefix + (".gitignore" if name == "gitignore" else name), entry.read_text(encoding="utf-8")
