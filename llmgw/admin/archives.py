"""What `llmgw weights export` and `import` answer."""

from dataclasses import dataclass
from typing import Final

from llmgw.admin.shapes import VERSION, Size


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRow:
    """One entry. `state`: `exported` or `imported`, or `there` where it was there already."""

    entry: str
    source: str
    size: Size
    files: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOutput:
    """`llmgw weights export` and `import`. `path`: of the archive; `cache`: the weights'; `size`: what was written."""

    version: int = VERSION
    action: str
    path: str
    cache: str
    size: Size
    entries: tuple[ArchivedRow, ...]


ARCHIVES: Final = {"archive": ArchiveOutput}
