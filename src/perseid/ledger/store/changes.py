"""Entries in the form that views use, and the source they read from."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from perseid.ledger.log.entry import State


@dataclass(slots=True)  # a frozen one takes three times as long to create, and there is one per entry
class Change:
    """An entry as views use it: the record after it."""

    seq: int
    """The entry's number."""
    leaf: bytes
    """The leaf hash, by which a view recognizes its ledger."""
    key: bytes
    """The record's key."""
    handle: str
    """The handle as spelled."""
    exact: bool
    """Whether the suffix is case-sensitive."""
    state: State
    """The handle's state after the entry."""
    contents: list[bytes] = field(repr=False)
    """The encoded values, by ascending index, without redacted ones."""


class Source(Protocol):
    """One consistent state of a ledger, from which a view is updated or rebuilt."""

    @property
    def ledger_id(self) -> bytes:
        """The ledger's id."""

    @property
    def size(self) -> int:
        """The number of the last entry."""

    def leaf(self, seq: int) -> bytes:
        """Return the leaf hash of an entry."""

    def changes(self, after: int, limit: int) -> list[Change]:
        """Return up to `limit` entries after `after`, in order."""

    def current(self) -> Iterator[Change]:
        """Yield the latest entry of every record, by ascending key."""
