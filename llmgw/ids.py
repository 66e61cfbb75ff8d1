"""Distinct names for distinct things. A NewType costs nothing and stops a node being passed for a model."""

import hashlib
import re
from typing import Final, NewType

ModelName = NewType("ModelName", str)
ProfileName = NewType("ProfileName", str)
NodeName = NewType("NodeName", str)
PoolName = NewType("PoolName", str)
EngineName = NewType("EngineName", str)
ReplicaId = NewType("ReplicaId", str)  #: random and opaque: never parsed, never reused
Revision = NewType("Revision", str)  #: "commit", "commit+dirty:digest", or "digest" outside git
Digest = NewType("Digest", str)  #: hex sha256 of a whole catalog's content
SpecDigest = NewType("SpecDigest", str)  #: of what a replica is launched from; equal = no restart
ContentId = NewType("ContentId", str)  #: of a stored value, made of its bytes: under it nothing ever changes

NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$(?!\n)"
"""Models, profiles, nodes, pools. `$(?!\\n)` reads alike in Python's and JavaScript's dialect."""

ALIAS_PATTERN: Final = r"^[^\x00-\x20\x7f-\xa0]{1,200}$(?!\n)"
"""Aliases: printable, no spaces, case-sensitive: `meta-llama/Llama-3.1-8B:free`."""

FEWEST_DIGITS: Final = 4
"""That a revision is named by."""


def is_name(text: str) -> bool:
    return re.match(NAME_PATTERN, text) is not None


def node_name(text: str) -> NodeName:
    """A node's name from any text, a host name say: lower-cased, other characters as `-`, at most 63 long."""
    name = re.sub(r"[^a-z0-9._-]", "-", text.lower())[:63].strip("._-")
    return NodeName(name or "node")


def is_named(revision: str, asked: str) -> bool:
    """Whether `asked` is the revision, or begins it; of a changed tree it has both parts, as `status` shows it, so that
    no commit is taken for one."""
    commit, _, rest = revision.partition("+")
    wanted, _, also = asked.partition("+")
    return len(wanted) >= FEWEST_DIGITS and commit.startswith(wanted) and rest == also


def shortened(revision: str) -> str:
    """For people: of a commit or a digest twelve digits, as git shows them."""
    commit, plus, rest = revision.partition("+")
    return f"{commit[:12]}{plus}{rest}"


def short_hash(text: str, length: int = 16) -> str:
    """The first `length` hex digits of the text's sha256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]
