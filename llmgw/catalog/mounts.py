"""File systems on which a change made elsewhere raises no event here: there only looking finds it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import psutil

SILENT: Final = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "9p", "drvfs", "virtiofs", "vboxsf"),
        *("prl_fs", "vmhgfs", "ceph", "lustre", "gfs2", "ocfs2", "glusterfs", "beegfs", "gpfs", "orangefs", "coda"),
    }
)

_FUSE: Final = ("fuse.", "fuseblk.")
_FUSE_LOCAL: Final = frozenset({"fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.encfs", "fuse.bindfs", "fuse.mergerfs"})


class Mount(Protocol):
    @property
    def mountpoint(self) -> str: ...

    @property
    def fstype(self) -> str: ...


Mounts = Callable[[], Sequence[Mount]]


def _all_mounts() -> Sequence[Mount]:
    return psutil.disk_partitions(all=True)


def why_silent(path: Path, mounts: Mounts = _all_mounts) -> str | None:
    """Why events are not to be relied on for the directory; None: they are, as far as is known. Blocks."""
    try:
        at = os.path.realpath(path)
        found = [mount for mount in mounts() if _holds(mount.mountpoint, at)]
    except OSError:
        return None
    # Of several on one place the last one mounted is seen.
    kind = max(enumerate(found), key=lambda each: (len(each[1].mountpoint), each[0]))[1].fstype if found else ""
    if kind in SILENT or (kind.startswith(_FUSE) and kind not in _FUSE_LOCAL):
        return f"{path} lies on {kind}, which does not tell of changes made elsewhere"
    return None


def _holds(mountpoint: str, path: str) -> bool:
    return mountpoint == "/" or path == mountpoint or path.startswith(f"{mountpoint}/")
