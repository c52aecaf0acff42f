"""The ledger: every change, once, in order, and provable; and the views that are derived from it.

`Ledger` is what the rest of the program uses: it appends, reads and resolves. `verification` checks proofs anywhere.
What is written is specified in docs/reference/ledger-format.md and docs/reference/answers-format.md.
"""

from typing import TYPE_CHECKING

from perseid._lazy import lazily

if TYPE_CHECKING:
    from .answers import Answers
    from .answers_reader import AnswersReader, Unavailable
    from .checkpoint import Signer
    from .clock import CheckedClock
    from .entry import Action, Draft, Entry, Slot, State
    from .errors import Damaged, LeaseClosed, LedgerError, Moved, NewerFormat, StorageFull, TooBusy, WrongClock
    from .ledger import Ledger
    from .loading import Loaded, NameTaken
    from .log import Log
    from .reading import Difference, Reading
    from .requests import Append, Appended, Failed, Lease, Leased, Lender, Mint, Minted, Outcome, Request
    from .store import Store
    from .writer import Writer
else:
    __getattr__ = lazily(
        __name__,
        {
            "answers": ("Answers",),
            "answers_reader": ("AnswersReader", "Unavailable"),
            "checkpoint": ("Signer",),
            "clock": ("CheckedClock",),
            "entry": ("Action", "Draft", "Entry", "Slot", "State"),
            "errors": (
                "Damaged",
                "LeaseClosed",
                "LedgerError",
                "Moved",
                "NewerFormat",
                "StorageFull",
                "TooBusy",
                "WrongClock",
            ),
            "ledger": ("Ledger",),
            "loading": ("Loaded", "NameTaken"),
            "log": ("Log",),
            "reading": ("Difference", "Reading"),
            "requests": (
                "Append",
                "Appended",
                "Failed",
                "Lease",
                "Leased",
                "Lender",
                "Mint",
                "Minted",
                "Outcome",
                "Request",
            ),
            "store": ("Store",),
            "writer": ("Writer",),
        },
    )

__all__ = [
    "Action",
    "Answers",
    "AnswersReader",
    "Append",
    "Appended",
    "CheckedClock",
    "Damaged",
    "Difference",
    "Draft",
    "Entry",
    "Failed",
    "Lease",
    "LeaseClosed",
    "Leased",
    "Ledger",
    "LedgerError",
    "Lender",
    "Loaded",
    "Log",
    "Mint",
    "Minted",
    "Moved",
    "NameTaken",
    "NewerFormat",
    "Outcome",
    "Reading",
    "Request",
    "Signer",
    "Slot",
    "State",
    "StorageFull",
    "Store",
    "TooBusy",
    "Unavailable",
    "Writer",
    "WrongClock",
]
