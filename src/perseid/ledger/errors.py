"""What can go wrong with the ledger. Each error says what to do about it."""


class LedgerError(Exception):
    """The common root of the ledger's errors."""


class ClockError(LedgerError):
    """The clock cannot be right, so nothing is written."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; set the clock, or accept it as it is after a look (serve --accept-clock)")


class NewerFormat(LedgerError):
    """The ledger was written by a newer version of the program."""


class PreconditionFailed(LedgerError):
    """A record on which the decision rested has changed since: decide again."""

    def __init__(self, key: bytes, seen: int, found: int) -> None:
        super().__init__(f"{key.decode('utf-8', 'replace')} was at entry {seen} and is at entry {found} now")
        self.key = key
        self.seen = seen
        self.found = found


class StorageFull(LedgerError):
    """There is no room to write; reading goes on, and writing resumes when there is."""


class TooBusy(LedgerError):
    """More changes wait than can be kept waiting; nothing was written, and a later try may succeed."""


class OutcomeUnknown(LedgerError):
    """The connection was lost: whether the transaction was committed is not known, and settled by its token."""


class Contention(LedgerError):
    """Others held what this transaction needed, or it stood in their way; nothing was written."""


class JobEnded(LedgerError):
    """An operation takes no more steps."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"{job_id} has ended, or is being undone: nothing more is done of it; begin anew")


class LeaseClosed(LedgerError):
    """After a restore nobody knows how far a counter had come; an operator must say."""

    def __init__(self, scope: bytes, last: int) -> None:
        name = scope.decode("utf-8", "replace")
        super().__init__(
            f"the ledger was restored from a backup, and names of {name} may have been given out after it was made; "
            f"say with which number to go on (the backup knows of {last})"
        )
        self.scope = scope
        self.last = last


class StoreUnavailable(LedgerError):
    """The database cannot be used; the message is what it objects to."""


class ReadOnlyStore(LedgerError):
    """Nothing may be written here by this process; the message names what works."""


class CorruptData(LedgerError):
    """What is stored is not what was written; the message names the entry."""
