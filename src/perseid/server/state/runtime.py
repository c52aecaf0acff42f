"""The runtime directory of a server, which holds its shared state.

It is in memory if possible: in `$RUNTIME_DIRECTORY` (systemd), in the user's runtime directory or in shared memory,
else inside the installation. The supervisor creates it, and removes it when it stops. A lock, which all processes of
the server inherit, tells a directory in use from one that a killed server left behind, which the next server of the
same user removes. The link `writer` in the installation leads to it.

Only one server at a time serves an installation: its supervisor locks the installation. If the supervisor is killed,
the next one can start at once, while other processes of the last one end.

The supervisor loads this module, so it imports little.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

MIN_FREE_BYTES: Final = 32 << 20
"""Free bytes that a file system must have: the state of a busy server. Containers often have little shared memory."""

MAX_SERVERS: Final = 64
"""Servers of one installation whose processes still run, each with a directory of its own: seldom more than one."""

MAX_PATH: Final = 100
"""Bytes of the directory's path: the address of a socket in it (`writer`) has at most 107 on Linux (unix(7))."""

MODE: Final = 0o700
"""Only the server's user may read sessions."""

SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - `_lock` refuses what others created there
"""Where Linux has a file system in memory for everybody."""

CONTROL_NAME: Final = "control"
"""File with numbers that all processes share; the first is the id of the process that made the last change."""

DETAILS_NAME: Final = "server.json"
"""File with what the server prints at its start with `--json`, for whoever tries to start a second one."""

WRITER_LINK: Final = "writer"
"""A link in the installation to the socket of the writer, in the runtime directory, while a server is running."""

_NAME = re.compile("perseid-[0-9a-f]{16}(-[0-9]+)?")
_LOCK_NAME = "lock"


class NoRuntimeDirectory(Exception):
    """No directory for the shared state can be created."""


class RuntimeDirectory:
    """A locked directory of this process."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        """A descriptor: the directory is in use as long as any process has it open."""

    @classmethod
    def create(cls, installation: Path, environ: Mapping[str, str] = os.environ) -> Self:
        """Create the directory for the server of an installation, empty."""
        name = _directory_name(installation)
        problems = []
        for base in _candidates(installation, environ):
            try:
                if (free := _free_bytes(base)) < MIN_FREE_BYTES:
                    problems.append(f"{base}: {free >> 20} MiB are free, {MIN_FREE_BYTES >> 20} MiB are needed")
                    continue
                _remove_unused(base)
                for each in _numbered(name):
                    path = base / each
                    if len(os.fsencode(path)) > MAX_PATH:
                        problems.append(f"{path}: the path has more than {MAX_PATH} bytes")
                        break
                    if (lock := _lock(path)) is not None:
                        return cls(path, lock)
            except OSError as error:
                problems.append(f"{base}: {error.strerror or error}")
        raise NoRuntimeDirectory(f"Cannot create a runtime directory ({'; '.join(problems)})")

    def last_writer(self) -> int:
        """Return the id of the process that made the last change: if all others wait for it, it is inside one."""
        try:
            return int.from_bytes((self.path / CONTROL_NAME).read_bytes()[:8], sys.byteorder)
        except OSError:
            return 0

    def write_details(self, details: Mapping[str, Any]) -> None:
        """Say what runs."""
        with suppress(OSError):  # a full disk; it is for a message only
            (self.path / DETAILS_NAME).write_text(json.dumps(details))

    def remove(self) -> None:
        """Remove the directory with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def lock_installation(directory: Path) -> int | None:
    """Lock an installation for a server or an upgrade, until the descriptor is closed; None if another one has it."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def read_details(installation: Path) -> dict[str, Any] | None:
    """Return what the running server of an installation wrote with `write_details`; None if it is unknown."""
    try:
        details: dict[str, Any] = json.loads((_find_last(installation) / DETAILS_NAME).read_bytes())
        os.kill(details["pid"], 0)  # it runs
    except (OSError, ValueError):
        return None
    return details


def is_last_ending(installation: Path) -> bool:
    """Whether processes of the last server of an installation still run, although its supervisor does not."""
    try:
        return _is_used(_find_last(installation))
    except OSError:
        return False


def find_users(installation: Path, environ: Mapping[str, str] = os.environ) -> list[int] | None:
    """Return the processes of all servers of an installation that still run; None if there are none.

    Those of a killed server can outlive it, and also the next server. Processes of other users have no id here.
    """
    name = _directory_name(installation)
    paths = [base / each for base in _candidates(installation, environ) for each in _numbered(name)]
    with suppress(OSError):
        paths.append(_find_last(installation))
    used = [path for path in dict.fromkeys(paths) if _is_used(path)]
    return sorted({process for path in used for process in _find_holders(path)}) if used else None


def _is_used(path: Path) -> bool:
    """Whether any process of the server of a runtime directory runs."""
    try:
        with (path / _LOCK_NAME).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _find_holders(path: Path) -> Iterator[int]:
    """The processes that have the lock of a runtime directory open; none without `/proc`."""
    lock = (path / _LOCK_NAME).resolve()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if any(each.readlink() == lock for each in (process / "fd").iterdir()):
                yield int(process.name)


def _find_last(installation: Path) -> Path:
    """The runtime directory of the last server."""
    return (installation / WRITER_LINK).readlink().parent


def _directory_name(installation: Path) -> str:
    return f"perseid-{hashlib.sha256(os.fsencode(installation.resolve())).hexdigest()[:16]}"


def _numbered(name: str) -> list[str]:
    """The names of the runtime directories of an installation."""
    return [name, *[f"{name}-{number}" for number in range(1, MAX_SERVERS)]]


def _candidates(installation: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    user = os.getuid()
    given = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]  # systemd separates several by colons
    yield from (Path(path) for path in (given, f"/run/user/{user}", SHARED_MEMORY) if path)
    yield installation


def _free_bytes(base: Path) -> int:
    status = os.statvfs(base)
    return status.f_bavail * status.f_frsize


def _remove_unused(base: Path) -> None:
    """Remove the directories of servers of this user that were killed."""
    for path in base.iterdir():
        if not _NAME.fullmatch(path.name) or not (path / _LOCK_NAME).exists():
            continue
        with suppress(OSError):  # somebody else's
            if (lock := _lock(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _lock(path: Path) -> int | None:
    """Create a directory, or empty one that is left over; None if a server uses it.

    Others can write to the directory of shared memory, so one that is not ours alone is refused.
    """
    with suppress(FileExistsError):
        path.mkdir(MODE)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != MODE:
        raise PermissionError(f"{path} exists and is not a directory of this user with mode {MODE:o}; remove it")
    try:
        lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:  # another server has just removed it as unused
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:  # else the server that had it has just removed it
            for entry in path.iterdir():
                if entry.name != _LOCK_NAME:
                    entry.unlink()
            return lock
    except BlockingIOError:
        pass
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None
