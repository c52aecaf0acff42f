"""Errors of the ledger."""

from typing import TypeAlias


class LedgerError(Exception):
    """Base class of the ledger's errors."""


class ClockError(LedgerError):
    """The system clock is wrong, so nothing is written."""


class NewerFormat(LedgerError):
    """The ledger was written by a newer version of the program."""


class OutdatedProgram(NewerFormat):
    """Another node has upgraded the tables, and this program can no longer write them."""


class PreconditionFailed(LedgerError):
    """A record that the decision was based on has changed since; decide again."""

    def __init__(self, key: bytes, expected: int, actual: int) -> None:
        name = key.decode("utf-8", "replace")
        super().__init__(f"{name} has changed: expected entry {expected}, found entry {actual}")
        self.key = key
        self.expected = expected
        self.actual = actual


class StorageFull(LedgerError):
    """There is no space to write, or to open the database. It works again when there is space."""


class TooBusy(LedgerError):
    """The queue of changes is full. Nothing was written; retry later."""


class OutcomeUnknown(LedgerError):
    """The connection was lost, so it is unknown whether the transaction was committed; its token settles it."""


class Contention(LedgerError):
    """Another transaction held or needed the same locks; nothing was written."""


class JobEnded(LedgerError):
    """The job accepts no more steps."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} was completed, canceled or undone meanwhile")


class AnswersUnavailable(LedgerError):
    """The answers view cannot be used at the moment, or for this record; use the records."""


class LeaseClosed(LedgerError):
    """The position of a counter is unknown after a restore; the operator must set it."""

    def __init__(self, scope: bytes, last: int) -> None:
        name = scope.decode("utf-8", "replace")
        super().__init__(f"the counter {name!r} is closed after a restore from a backup that ends at {last}")
        self.scope = scope
        self.last = last


class StoreUnavailable(LedgerError):
    """The database cannot be used; the message is the database's own."""


class LostEntries(StoreUnavailable):
    """The database lacks entries that were acknowledged: a standby took over that had not received them."""

    @classmethod
    def after(cls, seq: int, size: int) -> "LostEntries":
        """The error for a database with `size` entries that does not have entry `seq` as this node knows it."""
        entries = f"the entries {size + 1} to {seq}" if size + 1 < seq else f"entry {seq}"
        lost = f"has lost {entries}" if size < seq else f"has another entry {seq}"
        return cls(
            f"the database {lost}, which this node has seen. Let a database server take over that has what is missing; "
            "if there is none, accept the loss on every node: perseid rebuild answers"
        )


class ReadOnlyMode(LedgerError):
    """An administrator has made the ledger read-only; the message is for everybody, with the reason."""


WriteProblem: TypeAlias = (
    StorageFull | ClockError | StoreUnavailable | LostEntries | ReadOnlyMode | OutdatedProgram | Contention
)
"""Why changes are refused until an operator does something."""


class ReadOnlyStore(LedgerError):
    """The store is read-only for this process; the message names a command that works."""


class CorruptData(LedgerError):
    """Stored data is not what was written; the message names the entry."""


class CorruptView(CorruptData):
    """A view does not match the ledger, from which it can be rebuilt."""

    def __init__(self, message: str, view: str = "") -> None:
        super().__init__(f"{message}. Run: perseid rebuild {view}".rstrip())


class LongEntry(Exception):
    """An entry is longer than the caller accepts."""
