"""What a migration reads: the records and hosted prefixes of another server."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, Protocol, TypeAlias

from perseid.records.errors import InvalidData
from perseid.records.record import Value
from perseid.registry.jobs.migration import MigrationProblem, Outcome, SourceRecord

MAX_PREFIXES: Final = 100_000
"""Hosted prefixes of one server: more than any has."""

MAX_PREFIX_CHARACTERS: Final = 100 * MAX_PREFIXES
"""Characters of all these prefixes, which are in memory."""

MIN_FREE_BYTES: Final = 256 << 20
"""Bytes on the disk of the installation that a source leaves free: a running server needs them for its ledger."""

_CHECK_BYTES: Final = 16 << 20  # written between two looks at the disk

SourceItem: TypeAlias = SourceRecord | MigrationProblem
"""A record, or one that could not be read."""


class SourceError(Exception):
    """A source cannot be used. The arguments are the reason and advice."""

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def advice(self) -> str:
        """What to do about it; empty if that is not known."""
        return str(self.args[1]) if len(self.args) > 1 else ""


class SourceUnreachable(SourceError):
    """The server or database does not respond."""


class Source(Protocol):
    """Another server, its database, or a file that it has written."""

    @property
    def label(self) -> str:
        """What it is called in reports; without secrets."""

    @property
    def origin(self) -> str:
        """What it is called in notes and jobs, unlike any other source: only its own records are deleted."""

    @property
    def is_complete(self) -> bool:
        """Whether `records` yields every record of the prefixes, so that others were deleted there."""

    @property
    def lists_prefixes(self) -> bool:
        """Whether `prefixes` are all that the server hosts, and not only those that somebody named."""

    def prefixes(self) -> list[str]:
        """Return the prefixes that the server hosts, as it stores them. Raises `SourceError`."""

    def records(self) -> Iterator[SourceItem]:
        """Yield all records. Raises `SourceError`."""

    def close(self) -> None:
        """Release the connection or file."""


def collect_prefixes(label: str, names: Iterable[str]) -> list[str]:
    """Return the prefixes of a source. Raises `SourceError` if there are more than any server has."""
    found = PrefixList(label)
    for name in names:
        found.add(name)
    return found.names


class PrefixList:
    """The prefixes of a source, which are in memory."""

    def __init__(self, label: str) -> None:
        """`label` is that of the source."""
        self._label = label
        self._size = 0
        self.names: list[str] = []

    def add(self, name: str) -> None:
        """Add a prefix. Raises `SourceError` if there are more than any server has."""
        self.names.append(name)
        self._size += len(name)
        if len(self.names) > MAX_PREFIXES or self._size > MAX_PREFIX_CHARACTERS:
            raise SourceError(f"{self._label} hosts more than {MAX_PREFIXES:,} prefixes, or some of extreme length")


class Spool:
    """A temporary file for what a source lists: of any length, but it never fills the disk."""

    def __init__(self, folder: Path) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - see `close`
        self._folder = folder
        self._unchecked = _CHECK_BYTES

    def write(self, data: bytes) -> None:
        """Append to the file. Raises `SourceError` if the disk is almost full."""
        self._unchecked += len(data)
        if self._unchecked >= _CHECK_BYTES:
            self._unchecked = 0
            status = os.statvfs(self._folder)
            if status.f_bavail * status.f_frsize < MIN_FREE_BYTES:
                reason = f"What the source lists does not fit on the disk of {self._folder}"
                raise SourceError(reason, f"Free disk space: {MIN_FREE_BYTES >> 20} MiB stay free for the ledger")
        self.file.write(data)

    def close(self) -> None:
        """Delete the file."""
        self.file.close()


def unreadable(handle: str, problem: InvalidData | str) -> MigrationProblem:
    """The problem of a record that the source has and that cannot be read."""
    return MigrationProblem(handle, Outcome.REJECTED, str(problem))


def decode_name(raw: bytes) -> str:
    """Decode the name of a handle; bytes that are not UTF-8 are escaped, so that the name is not legal any more."""
    return raw.decode("utf-8", "backslashreplace") if not _is_utf8(raw) else raw.decode()


def decode_record(raw: bytes, values: list[bytes], now: int) -> SourceItem:
    """Decode a record with encoded values."""
    try:
        name = raw.decode()
        return SourceRecord(name, tuple([Value.from_bytes(value, now) for value in values]))
    except UnicodeDecodeError:
        return unreadable(decode_name(raw), "the handle is not UTF-8")
    except InvalidData as problem:
        return unreadable(decode_name(raw), problem)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
