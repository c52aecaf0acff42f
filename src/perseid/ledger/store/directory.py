"""The directory of an installation: its owner, its mode, and its file system.

It belongs to one system user. If two users (root included) wrote to it, one would leave files that the other cannot
open, and the service would stop. So a process of another user is refused before it creates anything, and told the
command that works.

It is on a local disk. SQLite's write-ahead log and LMDB share memory between processes through their files and rely on
locks; on a network file system neither works, and data is lost silently.

Files are created with mode 0600. The process's umask is left alone, because it belongs to all threads.
"""

import os
import pwd
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from perseid.ledger.errors import LedgerError, ReadOnlyStore

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

MOUNT_TABLE: Final = Path("/proc/self/mountinfo")
"""The mount table of Linux (proc_pid_mountinfo(5))."""

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "davfs"),
        # Cluster file systems: locks may work, shared memory does not.
        *("ceph", "glusterfs", "lustre", "beegfs", "ocfs2", "gfs2", "gpfs", "orangefs", "pvfs2", "panfs"),
        # Folders of the host of a virtual machine.
        *("9p", "vboxsf", "vmhgfs", "prl_fs", "fuse.vmhgfs-fuse"),
        # The same and object stores through FUSE.
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.davfs", "fuse.curlftpfs"),
        *("fuse.s3fs", "fuse.goofys", "fuse.rclone", "fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2"),
        *("fuse.mountpoint-s3", "fuse.juicefs", "fuse.seaweedfs", "fuse.mfs", "fuse.lizardfs", "fuse.hdfs"),
    }
)
"""Kernel names of file systems that extend beyond this machine."""

_OCTAL = re.compile(r"\\([0-7]{3})")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnsuitableDirectory(LedgerError):
    """The directory is unsuitable for an installation; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    number: int
    parent: int
    point: Path
    """The mount point."""
    kind: str
    """The kernel's name of the file system: `ext4`, `nfs4`, `fuse.sshfs`."""


def prepare(path: Path, mounts: Path = MOUNT_TABLE) -> None:
    """Create the directory of an installation, or check that an existing one can be used safely.

    Its parent must exist, and is left unchanged.
    """
    path = path.resolve()
    _check_file_system(path, mounts)
    try:
        path.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise UnsuitableDirectory(f"{path.parent} does not exist; create it first: mkdir -p {path.parent}") from None
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise UnsuitableDirectory(f"{path} is not a directory; choose another one")
    if status.st_uid != os.geteuid():
        raise ReadOnlyStore(
            f"{path} belongs to {_user_name(status.st_uid)}, but this process runs as {_user_name(os.geteuid())}; "
            f"run it as the owner: {_sudo_command(status.st_uid)}"
        )
    if status.st_mode & _OTHERS_WRITE:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise UnsuitableDirectory(f"{path} is writable by other users (mode {mode}); run: chmod 0700 {path}")


def open_new(path: Path) -> BinaryIO:
    """Create a file with mode 0600; FileExistsError if it exists or is a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def sync_directory(path: Path) -> None:
    """Sync a directory, so that created, renamed and removed files in it are durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_mount(path: Path, mounts: Path = MOUNT_TABLE) -> Mount | None:
    """Find the mount of a path without symbolic links; None if the kernel does not tell.

    Mounts form a tree. Starting at the root, the first mount on the path is entered, and from there only mounts on top
    of it
    are considered; so a mount hides everything that was mounted below it before.
    """
    try:
        known = _read_mounts(mounts)
    except OSError:
        return None  # no /proc, as in some sandboxes
    numbers = {mount.number for mount in known}
    current: Mount | None = None
    children = [mount for mount in known if mount.parent not in numbers or mount.parent == mount.number]
    while matching := [mount for mount in children if mount != current and path.is_relative_to(mount.point)]:
        current = min(reversed(matching), key=lambda mount: len(mount.point.parts))
        children = [mount for mount in known if mount.parent == current.number]
    return current


def _check_file_system(path: Path, mounts: Path) -> None:
    mount = find_mount(path, mounts)
    if mount is not None and mount.kind in NETWORK_FILE_SYSTEMS:
        raise UnsuitableDirectory(
            f"{path} is on a network file system ({mount.kind}, mounted at {mount.point}), where concurrent writes "
            "lose data; use a directory on a local disk, or store the ledger in PostgreSQL"
        )


def _read_mounts(mounts: Path) -> list[Mount]:
    table = []
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n").split("\n"):
        # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        mount, _, device = line.partition(" - ")
        number, parent, _, _, point, *_ = mount.split(" ")
        table.append(Mount(int(number), int(parent), Path(_unescape(point)), device.split(" ")[0]))
    return table


def _unescape(text: str) -> str:
    """Decode the octal escapes of spaces, tabs, line ends and backslashes."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _sudo_command(user: int) -> str:
    """Return the command that runs the program as another user."""
    try:
        return f"sudo -u {pwd.getpwuid(user).pw_name} perseid …"
    except KeyError:
        return f"sudo -u '#{user}' perseid …"
