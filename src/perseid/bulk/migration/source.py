"""What a migration reads: the records and hosted prefixes of another server."""

from collections.abc import Iterator
from typing import Final, Protocol, TypeAlias

from perseid.records.errors import InvalidData
from perseid.records.record import Value
from perseid.registry.jobs.migration import MigrationProblem, Outcome, SourceRecord

MAX_PREFIXES: Final = 100_000
"""Hosted prefixes of one server: more than any has."""

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
        """What it is called in notes, jobs and reports; without secrets."""

    @property
    def is_complete(self) -> bool:
        """Whether `records` yields every record of the prefixes, so that others were deleted there."""

    def prefixes(self) -> list[str]:
        """Return the prefixes that the server hosts, as it stores them. Raises `SourceError`."""

    def records(self) -> Iterator[SourceItem]:
        """Yield all records. Raises `SourceError`."""

    def close(self) -> None:
        """Release the connection or file."""


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
