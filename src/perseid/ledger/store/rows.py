"""What a view is told of an entry, and where views that live outside the ledger's store get it from.

Rows as the driver gives them: hot paths read them by position, so their order is said once, here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias, cast

from sqlalchemy.engine.interfaces import DBAPICursor

from perseid.ledger.errors import Damaged
from perseid.ledger.log.entry import Entry, State, skim
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import Kept


@dataclass(slots=True)  # frozen ones cost three times as much to make, and one is made for every entry
class Change:
    """An entry as views see it: which record is what from now on."""

    seq: int
    """The entry's number."""
    leaf: bytes
    """The hash of its leaf, by which a view recognises the ledger it belongs to."""
    key: bytes
    """Where the record is kept."""
    handle: str
    """The name as it is spelled."""
    exact: bool
    """Whether small and capital letters of the suffix are told apart."""
    state: State
    """What the name is now."""
    contents: list[bytes] = field(repr=False)
    """The record's values in their binary form, by ascending index; redacted ones are left out."""


class Source(Protocol):
    """One unchanging state of a ledger, as a view reads it to catch up or to be built anew."""

    @property
    def ledger_id(self) -> bytes:
        """Which ledger this is."""

    @property
    def size(self) -> int:
        """The number of the last entry."""

    def leaf(self, seq: int) -> bytes:
        """The leaf hash of an entry."""

    def changes(self, after: int, limit: int) -> list[Change]:
        """At most so many entries behind the given one, in order."""

    def current(self) -> Iterator[Change]:
        """The latest entry of every record, by ascending key."""


_KEPT_ENTRIES: Final = 1_024
_KEPT_OCTETS: Final = 8_192  # so that they take some megabytes at most

EntryRow: TypeAlias = tuple[int, int, int, int, int, bytes, bytes, bytes]
"""seq, at, previous, jump, nth, token, leaf, body: all columns of `entries`."""


def one_row(cursor: DBAPICursor) -> Any:
    """The one row that must be there."""
    row = cursor.fetchone()
    if row is None:
        raise Damaged("a row of the ledger is missing; verify it")
    return cast("Sequence[Any]", row)


def kept_of(row: Sequence[Any]) -> Kept:
    """What a row of `idempotency` says of a request."""
    _, _, _, digest, at, seq, count, status, body = row
    return Kept(bytes(digest), at, seq, count, status, None if body is None else bytes(body))


def entry_of(row: Sequence[Any]) -> Entry:
    """The entry in a row. Those that decisions read over and over (policies, prefix handles) are taken apart once."""
    body = row[7]
    return _kept(row[0], row[1], body) if len(body) <= _KEPT_OCTETS else Entry.from_body(row[0], row[1], body)


@lru_cache(_KEPT_ENTRIES)
def _kept(seq: int, at: int, body: bytes) -> Entry:
    return Entry.from_body(seq, at, body)


def forget_entries() -> None:
    """Keep no entries any more: something was erased, and one of them may still have it."""
    _kept.cache_clear()


def change_of(row: Sequence[Any]) -> Change:
    """What views are told of the entry in a row."""
    handle, exact, state, contents = skim(row[0], row[1], row[7])
    return Change(row[0], row[6], record_key(handle, exact=exact), handle, exact, state, contents)


def change_of_entry(entry: Entry) -> Change:
    """What views are told of an entry."""
    return Change(entry.seq, entry.leaf_hash(), entry.key, entry.handle, entry.exact, entry.state, entry.contents())
