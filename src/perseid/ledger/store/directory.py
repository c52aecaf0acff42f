"""The directory of an installation: whose it is, who may look into it, and on what kind of disk it lies.

It belongs to one system user. Where two users wrote to it, one of them would leave files that the other cannot open,
and the service would stand still; that goes for root as well, whose files nobody else can write. So a process of
another user is refused before it makes anything, and told the command that works.

It lies on a local disk. SQLite's write-ahead log and LMDB share memory between processes through their files, and rely
on locks that hold; over a network neither is so, and what is lost is lost silently.

Files are made with the mode 0600 from the beginning, by those who make them. The process's umask is left alone: it
belongs to all threads at once.
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
"""Where Linux says what is mounted where (proc_pid_mountinfo(5))."""

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "davfs"),
        # Several machines on one disk or one cluster of disks: locks may hold, shared memory does not.
        *("ceph", "glusterfs", "lustre", "beegfs", "ocfs2", "gfs2", "gpfs", "orangefs", "pvfs2", "panfs"),
        # Folders of the machine on which this virtual one runs.
        *("9p", "vboxsf", "vmhgfs", "prl_fs", "fuse.vmhgfs-fuse"),
        # The same again, and stores of objects, through programs.
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.davfs", "fuse.curlftpfs"),
        *("fuse.s3fs", "fuse.goofys", "fuse.rclone", "fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2"),
        *("fuse.mountpoint-s3", "fuse.juicefs", "fuse.seaweedfs", "fuse.mfs", "fuse.lizardfs", "fuse.hdfs"),
    }
)
"""The names by which the kernel calls file systems that reach beyond this machine."""

_OCTAL = re.compile(r"\\([0-7]{3})")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnsuitableDirectory(LedgerError):
    """An installation cannot live there; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system at its place in the tree of folders."""

    number: int
    parent: int
    point: Path
    """Where it is mounted."""
    kind: str
    """What the kernel calls the file system: `ext4`, `nfs4`, `fuse.sshfs`."""


def prepare(path: Path, mounts: Path = MOUNT_TABLE) -> None:
    """Make the directory of an installation, or see that an existing one can be written to safely.

    Its parents are left as they are, and must exist.
    """
    path = path.resolve()
    _check_file_system(path, mounts)
    try:
        path.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise UnsuitableDirectory(f"{path.parent} does not exist; make it first") from None
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise UnsuitableDirectory(f"{path} is not a directory; name another one")
    if found.st_uid != os.geteuid():
        raise ReadOnlyStore(
            f"{path} belongs to {_user_name(found.st_uid)}, and this process runs as {_user_name(os.geteuid())}; "
            f"run it as the owner: {_sudo_command(found.st_uid)}"
        )
    if found.st_mode & _OTHERS_WRITE:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise UnsuitableDirectory(f"others may write to {path} (mode {mode}); close it with: chmod 0700 {path}")


def open_new(path: Path) -> BinaryIO:
    """A new file that only its owner may read; refused with FileExistsError if there is one, or a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def sync_directory(path: Path) -> None:
    """See that what was made, renamed or removed in a directory is on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_mount(path: Path, mounts: Path = MOUNT_TABLE) -> Mount | None:
    """The mount that holds a path without links in it; None where the kernel does not say.

    The mounts are a tree: each stands on another one. Going down the path from the root, the first one met is entered,
    and only what stands on it counts from there on; so what was mounted over hides all that was there before.
    """
    try:
        known = _read_mounts(mounts)
    except OSError:
        return None  # no /proc, as in some sandboxes
    numbers = {mount.number for mount in known}
    found: Mount | None = None
    standing = [mount for mount in known if mount.parent not in numbers or mount.parent == mount.number]
    while holding := [mount for mount in standing if mount != found and path.is_relative_to(mount.point)]:
        found = min(reversed(holding), key=lambda mount: len(mount.point.parts))
        standing = [mount for mount in known if mount.parent == found.number]
    return found


def _check_file_system(path: Path, mounts: Path) -> None:
    mount = find_mount(path, mounts)
    if mount is not None and mount.kind in NETWORK_FILE_SYSTEMS:
        raise UnsuitableDirectory(
            f"{path} is on a network file system ({mount.kind}, mounted at {mount.point}), where data is lost when "
            "two processes write; use a directory on a local disk, or keep the ledger in PostgreSQL"
        )


def _read_mounts(mounts: Path) -> list[Mount]:
    found = []
    for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n").split("\n"):
        # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        place, _, device = line.partition(" - ")
        number, parent, _, _, point, *_ = place.split(" ")
        found.append(Mount(int(number), int(parent), Path(_unescape(point)), device.split(" ")[0]))
    return found


def _unescape(text: str) -> str:
    """Blanks, tabs, line ends and backslashes stand there as octal numbers."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _sudo_command(user: int) -> str:
    """How to run the program as somebody else."""
    try:
        return f"sudo -u {pwd.getpwuid(user).pw_name} perseid …"
    except KeyError:
        return f"sudo -u '#{user}' perseid …"
