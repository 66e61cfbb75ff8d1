"""What a kind of weights source is: the base class, and what it is given and gives back."""

import abc
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Protocol

from llmgw.catalog.spec import WeightsSpec
from llmgw.weights.manifest import ManifestFile

API_VERSION: Final = 1
"""Of the plugin API: engines and sources have one together. The policy stands in docs/plugin-api.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a source. `size` in bytes; None: it is known only once the file is here."""

    path: str  #: relative, where it lies in the entry
    size: int | None = None
    sha256: str | None = None  #: as the source itself has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a source holds now. An engine is given the first of `files`, or the directory `folder` of them ("": that
    in which all lie)."""

    files: tuple[RemoteFile, ...]
    resolved: str | None = None
    """The source as it is called at the revision that it has now; None: it has no revisions. It ends in `@REVISION`."""
    folder: str | None = None

    @property
    def size(self) -> int | None:
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Files that lie where they were asked for, durably; paths relative to the entry, the main one first. `folder`:
    as in Description, below `files`."""

    files: tuple[ManifestFile, ...]
    licence: str | None = None
    folder: str | None = None


class Work(Protocol):
    """What a fetch is given: where to write, and who to tell. Every method may be called from any thread."""

    @property
    def directory(self) -> Path:
        """Room of its own. With `resumable` set it is kept when the fetch fails, and given to the next one."""

    @property
    def files(self) -> Path:
        """The entry's directory for files: exists."""

    def resumable(self) -> None:
        """From now on, what is in `directory` is worth keeping when this fetch ends early."""

    def expect(self, size: int, *, here: int = 0) -> None:
        """The size is known; `here` bytes of it are on the disk already. Raises WeightsRefused when it is not the
        declared one, WeightsUnavailable when there is no room."""

    def tell(self, done: int | None, total: int | None) -> None:
        """Bytes so far (None: what lies in `directory` tells), and of how many; call it often.

        Raises WeightsUnavailable when the disk is down to its reserve.
        """

    def portion(self, most: int) -> int:
        """How many bytes to take from the network at once, `most` at most: few where the bandwidth is low."""

    def pace(self, count: int, stop: threading.Event) -> None:
        """Wait until `count` more bytes may be taken from the network."""


class WeightSource(abc.ABC):
    """One kind of source. An object of it holds no state between fetches."""

    schemes: ClassVar[frozenset[str]]  #: of the sources that it serves, in lower case
    peak: ClassVar[int] = 1  #: disk taken at the peak, per byte of weights
    resumes: ClassVar[bool] = False  #: a fetch goes on from what an earlier one left; else it is given an empty place
    knows_sha256: ClassVar[bool] = False  #: `describe` tells checksums
    in_place: ClassVar[bool] = False  #: what it names is here and is used where it lies; only `describe` is asked
    api_version: ClassVar[int] = API_VERSION  #: of the plugin API that it is written for

    @abc.abstractmethod
    def canonical(self, text: str) -> str:
        """The one spelling of a source; its own result comes back unchanged. Raises ValueError with advice. Pure."""

    def is_moving(self, source: str) -> bool:
        """Whether a canonical source may hold other bytes tomorrow, and `describe` tells what it is called today. Pure.
        What is resolved moves no more."""
        return False

    @abc.abstractmethod
    async def describe(self, spec: WeightsSpec) -> Description:
        """Ask the source what it holds. Raises WeightsUnavailable (may pass), WeightsRefused (will not)."""

    @abc.abstractmethod
    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        """Bring the files into `work.files`, fsynced. Cancellable. Raises as `describe` does, and OSError."""
