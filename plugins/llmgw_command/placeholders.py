"""What stands in braces in an argv, and what it is replaced with."""

import difflib
import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from llmgw.engine import Complaint, ProfileSpec, Slot
from llmgw.errors import EngineUnavailable

PLACEHOLDERS: Final = (
    "host", "port", "model", "replica", "context", "parallel", "devices", "weights", "draft", "files.NAME",
    "draft_url", "key_file",
)  # fmt: skip
"""`files.NAME`: of the file in that role. `devices`: the UUIDs of its accelerators, with commas between them."""

KEY_FILE: Final = "key_file"
DRAFT_URL: Final = "draft_url"
PATTERN: Final = (
    r"^([^{}]|\{\{|\}\}|\{("
    + "|".join(name for name in PLACEHOLDERS if name != "files.NAME")
    + r"|files\.[a-z][a-z0-9_]{0,62})\})*$"
)
EXPECTS: Final = (
    "text with no braces but " + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS) + "; {{ and }} stand for braces"
)
_OF_FILES: Final = re.compile(r"(weights|draft|files\..*)\Z")


def values_for(profile: ProfileSpec, slot: Slot) -> Mapping[str, str]:
    """What each placeholder is in this slot. Files that the profile does not have are left out."""
    files = {_name(role): str(path) for role, path in slot.files.items()}
    return {
        "host": slot.host,
        "port": str(slot.port),
        "model": slot.model,
        "replica": slot.replica,
        "context": str(profile.context),
        "parallel": str(profile.parallel),
        "devices": ",".join(slot.devices),
        KEY_FILE: str(slot.directory / "key"),
        **({} if slot.draft_url is None else {DRAFT_URL: slot.draft_url}),
        **files,
    }


def fill(argv: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """`argv` with its placeholders replaced. Raises EngineUnavailable, naming the one that has no value."""
    return tuple(_fill(argument, values) for argument in argv)


def names_in(argv: Sequence[str]) -> set[str]:
    """The placeholders of an argv; those of an argument that cannot be read are left out."""
    return {name for argument in argv for name in _names(argument) or ()}


def complaints(path: Sequence[str], argv: Sequence[str], profile: ProfileSpec) -> Iterator[Complaint]:
    """What is wrong with an argv at `path` of the profile."""
    known = {_name(role) for role in profile.roles} | {name for name in PLACEHOLDERS if not _OF_FILES.match(name)}
    if profile.draft_model is None:
        known.remove(DRAFT_URL)
    for index, argument in enumerate(argv):
        names = _names(argument)
        if names is None:
            yield Complaint(path=(*path, index), message=f"expected {EXPECTS}")
        for name in names or ():
            if name not in known:
                yield Complaint(path=(*path, index), message=_unknown(name, known))


def _unknown(name: str, known: Collection[str]) -> str:
    if _OF_FILES.fullmatch(name):
        key = name.partition(".")[0]
        message = f"{{{name}}} stands for a file, and the profile has no `{name.replace('files.', 'files: ')}`"
        near = difflib.get_close_matches(name, [each for each in known if key == "files" and each.startswith(key)], n=1)
    elif name == DRAFT_URL:
        message = f"{{{name}}} is where a companion answers, and the profile has no `draft: {{model: ...}}`"
        near = []
    else:
        message = f"{{{name[:60]}}} is no placeholder; {{{{ and }}}} stand for braces"
        near = difflib.get_close_matches(name, known, n=1)
    return f"{message}; did you mean {{{near[0]}}}?" if near else message


def _name(role: str) -> str:
    return role if role in ("weights", "draft") else f"files.{role}"


def _names(argument: str) -> list[str] | None:
    """None: its braces do not pair up, or hold more than a name."""
    try:
        parts = list(string.Formatter().parse(argument))
    except ValueError:
        return None
    if any(name is not None and (not name or spec or conversion) for _, name, spec, conversion in parts):
        return None
    return [name for _, name, _, _ in parts if name is not None]


def _fill(argument: str, values: Mapping[str, str]) -> str:
    names = _names(argument)
    if names is None:
        raise EngineUnavailable(f"{argument!r}: expected {EXPECTS}")
    for name in names:
        if name not in values:
            raise EngineUnavailable(f"{argument!r}: {_unknown(name, values)}")
    return "".join(
        literal + ("" if name is None else values[name]) for literal, name, _, _ in string.Formatter().parse(argument)
    )
