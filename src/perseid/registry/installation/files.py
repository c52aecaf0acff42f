"""Atomic creation of a directory, and safe writing of its files.

Contents are created in a staging directory and moved into place when complete. If the target does not exist, the
staging directory is next to it and renamed in one step. If it exists and is empty, a sibling may be impossible to
create or exchange (a container volume, or the only writable place of a service), so the staging directory is inside and
its contents move up.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from perseid.ledger.errors import LedgerError
from perseid.ledger.store.directory import DIRECTORY_MODE, UnsuitableDirectory, open_new, prepare, sync_directory
from perseid.names.errors import quote_text
from perseid.records.binary import Reader
from perseid.records.errors import InvalidData

KEYS_NAME: Final = "keys"
SITE_BINARY: Final = "siteinfo.bin"
SITE_JSON: Final = "siteinfo.json"
SITE_NAMES: Final = (SITE_BINARY, SITE_JSON)
"""The folder and the files of `site`, for modules that do not load keys."""

OTHERS_WRITE: Final = 0o022
OTHERS_READ: Final = 0o077
"""Permission bits that others must not have, for `check_mode`."""

_LOST_AND_FOUND = "lost+found"  # in the first directory of a file system, such as a volume
_MAX_LISTED = 3  # files named in an error
_TEMPORARY_SUFFIX = ".new"
_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"


class InstallationError(LedgerError):
    """An installation cannot be created or opened; the message says what to do."""


@contextmanager
def staging_directory(directory: Path, mark: str = "") -> Iterator[Path]:
    """Provide a staging directory on the same disk as the directory; it is removed at the end.

    A non-empty directory is refused; one with the file `mark` is reported as an existing installation.
    """
    exists = os.path.lexists(directory)
    if exists:
        prepare(directory)
        _check_empty(directory, mark)
    parent = directory if exists else directory.parent
    try:
        work = Path(tempfile.mkdtemp(prefix=".perseid-", dir=parent))
    except FileNotFoundError:
        raise UnsuitableDirectory(f"{parent} does not exist; create it first") from None
    except OSError as error:
        raise UnsuitableDirectory(f"cannot create files in {parent}: {error.strerror}") from error
    try:
        prepare(work)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def place(work: Path, directory: Path, first: str, last: str) -> list[Path]:
    """Move staged files into place; return the new paths, for `remove_files`.

    If files move one by one, `first` must be a non-empty folder: its move fails if another process was faster. `last`
    completes the directory.
    """
    placed: list[Path] = []
    try:
        if work.parent == directory:
            directory.chmod(DIRECTORY_MODE)
            for path in sorted(work.iterdir(), key=lambda path: (path.name == last, path.name != first)):
                path.rename(directory / path.name)
                placed.append(directory / path.name)
        else:
            sync_directory(work)
            work.rename(directory)
            placed.append(directory)
            sync_directory(directory.parent)
        sync_directory(directory)
    except OSError as error:
        remove_files(placed)
        raise UnsuitableDirectory(f"cannot write to {directory}: {error.strerror}") from error
    return placed


def remove_files(placed: list[Path]) -> None:
    """Remove files that were moved into place, last one first."""
    for path in reversed(placed):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def write_file(path: Path, data: bytes) -> None:
    """Create a file that only its owner can read, synced to disk."""
    with open_new(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace or create a file atomically, synced to disk: readers see the old or the new contents.

    Several processes may do so at the same time, such as the workers of a server; the last one wins.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY_SUFFIX}")
    temporary.unlink(missing_ok=True)
    write_file(temporary, data)
    temporary.replace(path)
    sync_directory(path.parent)


def read_file(path: Path, max_bytes: int, advice: str, error: type[InstallationError]) -> bytes:
    """Return the contents of a file; raise the error, with the advice, if it is unreadable or too large."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as problem:
        raise error(f"Cannot read {path}: {problem.strerror}; {advice}") from None
    if len(data) > max_bytes:
        raise error(f"{path} is too large: at most {max_bytes:,} bytes; {advice}")
    return data


def check_mode(path: Path, forbidden: int) -> None:
    """Refuse a file that others can write, or read."""
    mode = path.stat().st_mode & 0o777
    if mode & forbidden:
        access = "write to" if mode & OTHERS_WRITE else "read"
        raise InstallationError(f"other users can {access} {path} (mode {mode:04o}); run: chmod 0600 {path}")


def _check_empty(directory: Path, mark: str) -> None:
    existing = sorted(path.name for path in directory.iterdir() if path.name != _LOST_AND_FOUND)
    if mark in existing:
        raise UnsuitableDirectory(f"directory {directory} already contains an installation; choose another directory")
    if existing:
        names = ", ".join(quote_text(name) for name in existing[:_MAX_LISTED])
        more = ", …" if len(existing) > _MAX_LISTED else ""
        raise UnsuitableDirectory(
            f"directory {directory} is not empty ({names}{more}); choose an empty or new directory"
        )


def has_several_servers(directory: Path) -> bool:
    """Whether some site information in a directory describes several servers. It is quick: every command asks."""
    for folder in (directory / KEYS_NAME, directory):
        for name in SITE_NAMES:
            try:
                data = (folder / name).read_bytes()
            except OSError:
                continue
            if _count_servers(data) > 1:
                return True
    return False


def _count_servers(data: bytes) -> int:
    if data.lstrip(_BEFORE_JSON).startswith(b"{"):
        return data.count(b'erverId"')
    reader = Reader(data)
    try:
        reader.raw(8)
        reader.bytes_()
        for _ in range(reader.count(8)):
            reader.bytes_()
            reader.bytes_()
        return reader.i32()
    except InvalidData:
        return 0
