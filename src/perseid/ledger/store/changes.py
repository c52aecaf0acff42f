"""What a view receives of each entry, and where views outside the SQL store read it from."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from perseid.ledger.log.entry import State


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
