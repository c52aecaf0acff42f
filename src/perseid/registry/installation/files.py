"""Making a directory whole or not at all.

What belongs in it is made in a folder of its own and put into place when it is complete. Where the directory is not
there yet, that folder stands beside it and becomes it, in one step. Where it exists and is empty, a folder beside it
may be impossible to make or to exchange (it may be a volume of a container, or the one place where a service may
write), so the folder stands inside, and what is in it moves up.

Also what holds for single files of it: who may read them, and how one takes the place of another.
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

OTHERS_WRITE: Final = 0o022
OTHERS_READ: Final = 0o077
"""Rights that others must not have, for `check_rights`."""

_MAX_LISTED = 3  # of the files that are in the way
_TEMPORARY_SUFFIX = ".new"


class InstallationError(LedgerError):
    """An installation cannot be made or opened; the message says what to do."""


@contextmanager
def staging_directory(directory: Path, mark: str) -> Iterator[Path]:
    """A folder to make things in, on the same disk as the directory; what is left of it in the end is removed.

    A directory that has something in it is refused, as one that is made already if it holds the file `mark`.
    """
    exists = os.path.lexists(directory)
    if exists:
        prepare(directory)
        _check_empty(directory, mark)
    parent = directory if exists else directory.parent
    try:
        work = Path(tempfile.mkdtemp(prefix=".perseid-", dir=parent))
    except FileNotFoundError:
        raise UnsuitableDirectory(f"{parent} does not exist; make it first") from None
    except OSError as error:
        raise UnsuitableDirectory(f"nothing can be made in {parent}: {error.strerror}") from error
    try:
        prepare(work)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def place(work: Path, directory: Path, first: str, last: str) -> list[Path]:
    """Put what was made into its place; answers what is there now, which `remove` takes away again.

    Where things move one by one, `first` must be a folder with something in it: that fails if another process was
    faster. `last` is what makes the directory complete.
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
        raise UnsuitableDirectory(f"nothing can be put into {directory}: {error.strerror}") from error
    return placed


def remove_files(placed: list[Path]) -> None:
    """Take away what was put into place, the last thing first."""
    for path in reversed(placed):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def write_file(path: Path, data: bytes) -> None:
    """Make a file for its owner's eyes only; it is on the disk when this returns."""
    with open_new(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Put a file into the place of another, or where none was: whoever looks finds the old one or the new one, whole.

    It is on the disk when this returns. What an interrupted attempt has left is written over.
    """
    unfinished = path.with_name(path.name + _TEMPORARY_SUFFIX)
    unfinished.unlink(missing_ok=True)
    write_file(unfinished, data)
    unfinished.replace(path)
    sync_directory(path.parent)


def check_mode(path: Path, forbidden: int) -> None:
    """Refuse a file that others may write, or read."""
    mode = path.stat().st_mode & 0o777
    if mode & forbidden:
        doing = "write to" if mode & OTHERS_WRITE else "read"
        raise InstallationError(f"others may {doing} {path} (mode {mode:04o}); close it with: chmod 0600 {path}")


def _check_empty(directory: Path, mark: str) -> None:
    found = sorted(path.name for path in directory.iterdir())
    if mark in found:
        raise UnsuitableDirectory(f"there is an installation in {directory} already; name another directory")
    if found:
        names = ", ".join(quote_text(name) for name in found[:_MAX_LISTED])
        more = ", …" if len(found) > _MAX_LISTED else ""
        raise UnsuitableDirectory(f"{directory} is not empty ({names}{more}); name an empty directory, or a new one")
