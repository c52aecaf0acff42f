"""What callers ask of the log, and what they are answered.

A request is decided before it is handed in, and by then the world may have moved. So it names the records on which
its decision rested, with the entry at which it saw each; the commit checks them all while the head is locked.

A request that may come again, because whoever sent it heard nothing, carries a key of its own (`Once`). The commit that
carries it out keeps the key, what was done and what was answered, so that it is carried out once: see `answered`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from perseid.ledger.errors import LeaseClosed, PreconditionFailed

from .entry import Draft

Preconditions = Mapping[bytes, int]
"""The records that a decision read, by key, each with the number of its latest entry; 0 if there was none."""

LeafHashes = Mapping[bytes, bytes]
"""The leaf hashes of latest entries, by the keys of their records. Numbers begin again where an older state of the
ledger was put back, so whoever remembers entries for long says by their leaves which ones they were."""

Redactions = Mapping[int, frozenset[bytes]]
"""Commitments whose content is erased, by the entries that hold them."""


KEY_LIFETIME: Final = 24 * 3_600 * 1_000_000
"""Microseconds for which the key of a request is kept: a day, in which every client has long given up trying again."""

CALLER_LENGTH: Final = 32
"""Octets that stand for the identity whose key it is."""

OWNER_LENGTH: Final = 16
"""So many of them, the first, stand for whoever all of somebody's keys are counted for, so that who has many tokens has
no more room. Each half is long enough that nobody finds a second identity with the same one."""

MAX_BODY: Final = 64 << 10
"""Octets of the longest answer that is kept. Of a longer one only what was done is kept, from which it can be told."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What was answered to a request, in the words of the door through which it came."""

    status: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """What is kept of a request that was carried out."""

    digest: bytes
    """By what it is told from another request with the same key."""
    at: int
    """When it was carried out, in microseconds since 1970."""
    seq: int
    """The first entry that it made; 0 if it made none."""
    count: int
    """How many it made, from `seq` on."""
    status: int
    body: bytes | None = field(repr=False)
    """What was answered; None if that is not kept: it was long, or something in it may have been erased since."""


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """That a request is carried out once, however often it comes."""

    caller: bytes
    """Whose key it is: `CALLER_LENGTH` octets that stand for an identity, the first of them for its owner."""
    key: bytes
    """The key, as the caller gave it."""
    digest: bytes
    """32 octets that stand for what is asked."""
    answer: Callable[[int], StoredResponse]
    """What is answered, given the number of the first entry. It is asked before anything is changed, while the head is
    held; what it raises is the answer to this request alone."""


@dataclass(frozen=True, slots=True)
class Append:
    """A request to append an entry."""

    draft: Draft
    """What to append."""
    preconditions: Preconditions = field(default_factory=dict)
    """What the decision read."""
    redactions: Redactions = field(default_factory=dict)
    """What is erased from earlier entries of the record."""
    operation: str = ""
    """The operation that it is a step of; see `operations`."""
    expected_leaves: LeafHashes = field(default_factory=dict)
    """What of that was not read for this decision, but long before."""
    once: IdempotentRequest | None = None
    """The key that it carries."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A request for numbers that nobody else gets, ever (P6)."""

    scope: bytes
    """Where they must be unique: a namespace and a scheme."""
    count: int
    """How many, one after the other; 0 looks which one comes next, and takes none."""
    now: int
    """None of them is below this: the clock, on the scale of the numbers, or 0 for numbers without a clock."""


class LeaseProvider(Protocol):
    """What making new names needs to know and to take, while nobody else can write."""

    def lease(self, scope: bytes, count: int, now: int) -> int:
        """The first of so many numbers that nobody else gets; see `Lease`."""

    def exists(self, key: bytes) -> bool:
        """Whether a name has, or ever had, an entry."""

    def any_between(self, first: bytes, end: bytes) -> bool:
        """Whether any key from `first` up to, not including, `end` has, or ever had, an entry."""


@dataclass(frozen=True, slots=True)
class Mint:
    """A request to make new names and to append an entry for each, in one commit."""

    make: Callable[[LeaseProvider], Sequence[Draft]]
    """Leases numbers, and answers with an entry for each new name. It runs while the head is held, and again if the
    commit must be repeated; what it raises is the answer to this request alone. Numbers leased by then are lost."""
    preconditions: Preconditions = field(default_factory=dict)
    """What the decision read."""
    operation: str = ""
    """The operation that it is a step of; see `operations`."""
    redactions: Redactions = field(default_factory=dict)
    """What is erased from earlier entries of the records that get entries."""
    expected_leaves: LeafHashes = field(default_factory=dict)
    """What the decision rests on that was not read for it, but long before."""
    once: IdempotentRequest | None = None
    """The key that it carries."""


@dataclass(frozen=True, slots=True)
class Appended:
    """An entry was appended."""

    seq: int
    at: int


@dataclass(frozen=True, slots=True)
class Leased:
    """Numbers were leased: `count` of them, from `first` on."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Minted:
    """Names were made, and their entries appended from `seq` on."""

    handles: tuple[str, ...]
    seq: int
    at: int


@dataclass(frozen=True, slots=True)
class RepeatedRequest:
    """A request with the same key was carried out before; this one was not."""

    kept: IdempotencyRecord


@dataclass(frozen=True, slots=True)
class Failed:
    """The request itself cannot be carried out: what it asks for has no stored form, or no name could be made."""

    error: Exception


Request = Append | Lease | Mint
Outcome = Appended | Leased | Minted | PreconditionFailed | LeaseClosed | RepeatedRequest | Failed
