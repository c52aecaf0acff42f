"""The ledger: every change, once, in order, and provable.

`Log` appends entries in groups, reads and proves them; `verification` checks such proofs anywhere. The format is
specified in docs/reference/ledger-format.md.
"""

from .checkpoint import Signer
from .clock import CheckedClock
from .entry import Action, Draft, Entry, Slot, State
from .errors import Damaged, LedgerError, Moved, NewerFormat, StorageFull, TooBusy, WrongClock
from .log import Append, Appended, Log, Outcome
from .store import Store
from .writer import Writer

__all__ = [
    "Action",
    "Append",
    "Appended",
    "CheckedClock",
    "Damaged",
    "Draft",
    "Entry",
    "LedgerError",
    "Log",
    "Moved",
    "NewerFormat",
    "Outcome",
    "Signer",
    "Slot",
    "State",
    "StorageFull",
    "Store",
    "TooBusy",
    "Writer",
    "WrongClock",
]
