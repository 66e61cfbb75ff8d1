"""What a plugin's methods returned or raised, held against what they promise. Pure.

It goes on into reports and assignments, which are read as a whole: one figure of another type in there would cost every
model of the cluster. So it is found here, where it is known whose it is. All raise TypeError, for the plugin's author.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from traceback import TracebackException
from typing import Any, Final, TypeVar

import msgspec

from llmgw.catalog.rules import Complaint
from llmgw.catalog.spec import ProfileSpec
from llmgw.engine.api import HttpRequest, LaunchSpec, Readiness, Verdict
from llmgw.facts import EngineLoad, Footprint
from llmgw.weights.api import Description, Fetched

T = TypeVar("T")

_REASON: Final = 1000  #: characters of a verdict's: tables show it, and every report has it


def said(error: BaseException) -> str:
    """`TypeError: what it says`, on one line; also of an exception that raises when it is asked for its text."""
    text, kind = one_line(str(TracebackException.from_exception(error, limit=0))), type(error).__name__
    return f"{kind}: {text}" if text else kind


def one_line(text: str, most: int = 300) -> str:
    return " ".join(text.split())[:most]


def shown(value: object) -> str:
    """As a message quotes it."""
    try:
        return one_line(repr(value), 80)
    except Exception:  # noqa: BLE001 - a plugin's own object, whose __repr__ may do anything
        return f"a {type(value).__name__}"


def typed(value: object, kind: type[T]) -> T:
    """The value as whoever gets it will read it."""
    if not isinstance(value, kind):
        raise TypeError(f"it returned {shown(value)}: {_a(kind)} was expected")
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"it returned {_a(kind)} that cannot be read: {one_line(str(error))}") from error


def footprint(value: object) -> Footprint | None:
    found = None if value is None else typed(value, Footprint)
    if found is not None and min(found.host, found.device) < 0:
        raise TypeError(f"it returned less than 0 bytes: {shown(found)}")
    return found


def profile(value: object) -> ProfileSpec | None:
    return None if value is None else typed(value, ProfileSpec)


def load(value: object) -> EngineLoad | None:
    found = None if value is None else typed(value, EngineLoad)
    if found is not None and min(found.running, found.waiting) < 0:
        raise TypeError(f"it returned less than 0 requests: {shown(found)}")
    return found


def load_request(value: object) -> HttpRequest | None:
    return None if value is None else request(value)


def readiness(value: object) -> Readiness:
    if not isinstance(value, Readiness):
        raise TypeError(f"it returned {shown(value)}: a Readiness was expected")
    return value


def verdict(value: object) -> Verdict:
    found = typed(value, Verdict)
    return replace(found, reason=one_line(found.reason, _REASON))


def request(value: object) -> HttpRequest:
    found = typed(value, HttpRequest)
    if isinstance(value, HttpRequest) and not isinstance(value.body, bytes | None):
        raise TypeError(f"it returned a request with the body {shown(value.body)}: bytes were expected")
    if not found.path.startswith("/"):
        raise TypeError(f"it returned a request for {shown(found.path)}: a path begins with a slash")
    return found


def requests(value: object) -> tuple[HttpRequest, ...]:
    return tuple(request(each) for each in _several(value, "HttpRequest"))


def complaints(value: object) -> tuple[Complaint, ...]:
    found = _several(value, "Complaint")
    for each in found:
        if not isinstance(each, Complaint):
            raise TypeError(f"it returned {shown(each)}: a Complaint was expected")
        if isinstance(each.path, str) or not isinstance(each.path, Sequence):
            raise TypeError(f"it returned a Complaint whose path is {shown(each.path)}: write ('options', 'threads')")
    return found


def surfaces(value: object) -> frozenset[str]:
    found = frozenset(_several(value, "path"))
    for each in found:
        if not isinstance(each, str) or not each or each.startswith(("/", "v1/")):
            raise TypeError(f"it returned {shown(each)}: a path under /v1/ was expected, such as 'embeddings'")
    return found


def slots(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise TypeError(f"it returned {shown(value)}: a number of requests was expected, or None")
    return value


def description(value: object) -> Description:
    found = typed(value, Description)
    if not found.files or min(file.size or 0 for file in found.files) < 0:
        raise TypeError(f"it returned {shown(found)}: files with sizes from 0 on were expected, at least one")
    return found


def fetched(value: object) -> Fetched:
    found = typed(value, Fetched)
    if not found.files:
        raise TypeError(f"it returned {shown(found)}: at least one file was expected")
    return found


def launch_spec(value: object) -> LaunchSpec:
    """With text alone in its command lines and its environment."""
    if not isinstance(value, LaunchSpec):
        raise TypeError(f"it returned {shown(value)}: a LaunchSpec was expected")
    if not isinstance(value.url, str) or not value.url.startswith("http://"):
        raise TypeError(f"its url is {shown(value.url)}: write http://HOST:PORT, those of the slot")
    if not isinstance(value.key_file, Path | None):
        raise TypeError(f"its key_file is {shown(value.key_file)}: a Path in the slot's directory was expected")
    if not isinstance(value.env, Mapping):
        raise TypeError(f"its env is {shown(value.env)}: a mapping of text to text was expected")
    return replace(
        value,
        argv=_words("argv", value.argv),
        env={_word("env", name): _word(f"env {shown(name)}", each) for name, each in value.env.items()},
        key_variables=_words("key_variables", value.key_variables) if value.key_variables else (),
        stop_argv=None if value.stop_argv is None else _words("stop_argv", value.stop_argv),
    )


def _words(what: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        raise TypeError(f"its {what} is {shown(value)}: a list of text was expected, which no shell reads")
    return tuple(_word(f"{what}[{number}]", each) for number, each in enumerate(value))


def _word(what: str, value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"its {what} is {shown(value)}: text was expected")
    return value


def _several(value: object, kind: str) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"it returned {shown(value)}: a sequence of {kind}s was expected")
    return tuple(value)


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
