"""Requests to the log and their outcomes.

A request is decided before it is submitted, and records may change in between. So it names the records that the
decision read, with the entry of each; the commit checks them while the head is locked.

A request that must be decided on the state of the commit itself, such as minting, carries the decision (`Execute`).
Nothing changes between that decision and its commit.

A request that a client may repeat because it got no response carries an idempotency key (`IdempotentRequest`). The
commit stores the key with the result and the response, so the request is executed once (see `store.idempotency`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from perseid.ledger.errors import LeaseClosed, PreconditionFailed

from .entry import Draft

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from .commit import CommitReader

Preconditions = Mapping[bytes, int]
"""The records that a decision read: the latest entry by record key; 0 if there was none."""

LeafHashes = Mapping[bytes, bytes]
"""Leaf hashes of latest entries, by record key. Entry numbers are reused after an older state of the ledger was
restored, so entries that are remembered for long are identified by leaf hash."""

Redactions = Mapping[int, frozenset[bytes]]
"""Commitments to redact, by entry."""


KEY_LIFETIME: Final = 24 * 3_600 * 1_000_000
"""Microseconds that an idempotency key is kept: one day, longer than any client retries."""

CALLER_LENGTH: Final = 32
"""Bytes that identify the caller."""

OWNER_LENGTH: Final = 16
"""The first bytes of them, which identify the owner: the limit on keys applies to all tokens of an owner together. Each
half is long enough to be collision-free."""

MAX_BODY: Final = 64 << 10
"""Bytes of the longest response that is stored. A longer one is composed again from the stored result."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response in the form of its interface."""

    status: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """The stored result of a request."""

    digest: bytes
    """Distinguishes the request from another one with the same key."""
    at: int
    """The commit time in microseconds since 1970."""
    seq: int
    """The first entry; 0 if there is none."""
    count: int
    """The number of entries from `seq` on."""
    status: int
    body: bytes | None = field(repr=False)
    """None if not stored: it was too long, or may have contained data that was redacted since."""


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """The idempotency key of a request."""

    caller: bytes
    """`CALLER_LENGTH` bytes that identify the caller; the first `OWNER_LENGTH` identify the owner."""
    key: bytes
    """The key as the caller sent it."""
    digest: bytes
    """32 bytes that identify the content of the request."""
    status: int
    """The status of the response."""
    body: bytes | None = field(default=None, repr=False)
    """The response; None to store the result of an executed command."""


@dataclass(frozen=True, slots=True)
class Append:
    """A request to append entries, all or none."""

    draft: Draft
    """The first entry."""
    preconditions: Preconditions = field(default_factory=dict)
    """What the decision read."""
    redactions: Redactions = field(default_factory=dict)
    """What to redact from earlier entries of the same records."""
    job: str = ""
    """The id of the job that this is a step of."""
    expected_leaves: LeafHashes = field(default_factory=dict)
    """Preconditions that were read long before this decision."""
    once: IdempotentRequest | None = None
    """The idempotency key."""
    more: tuple[Draft, ...] = ()
    """The other entries."""
    message: bytes | None = field(default=None, compare=False, repr=False)
    """The same as bytes, if a process that sends it to another one has prepared it."""

    @property
    def drafts(self) -> tuple[Draft, ...]:
        """All entries."""
        return self.draft, *self.more


@dataclass(frozen=True, slots=True)
class Lease:
    """A request for numbers that are never leased again (P6)."""

    scope: bytes
    """Where the numbers are unique: a namespace and a scheme."""
    count: int
    """How many consecutive numbers; 0 returns the next one without leasing it."""
    now: int
    """The minimum: the clock on the scale of the numbers, or 0 for a plain counter."""


class LeaseProvider(Protocol):
    """What minting needs while the head is locked."""

    def lease(self, scope: bytes, count: int, now: int) -> int:
        """Return the first of `count` new numbers; see `Lease`."""

    def exists(self, key: bytes) -> bool:
        """Whether a handle has, or ever had, an entry."""

    def any_between(self, first: bytes, end: bytes) -> bool:
        """Whether any key from `first` up to, not including, `end` has, or ever had, an entry."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided inside a commit."""

    drafts: tuple[Draft, ...]
    """The entries, all or none."""
    result: Callable[[int], object]
    """Return the result. The argument is the number of the first entry; 0 if there is none."""
    redactions: Redactions = field(default_factory=dict)
    """What to redact from earlier entries of the same records."""


@dataclass(frozen=True, slots=True)
class Execute:
    """A request that is decided inside the commit, where nobody else can write."""

    decide: Callable[["CommitReader"], Decision]
    """Decides on the state of the commit. Runs again if the commit is retried; an exception fails this request alone.
    Numbers leased by then are lost."""
    command: object = None
    """The same as data, for a process that sends it to another one."""
    preconditions: Preconditions = field(default_factory=dict)
    """What was read before."""
    job: str = ""
    """The id of the job that this is a step of."""
    expected_leaves: LeafHashes = field(default_factory=dict)
    """Preconditions that were read long before."""
    once: IdempotentRequest | None = None
    """The idempotency key. If it has no body, the encoded result is stored."""
    encode: Callable[[object], bytes] | None = None
    """Encodes the result for the idempotency key."""


@dataclass(frozen=True, slots=True)
class Remember:
    """A request to store an idempotency key alone, with the response to what was done before."""

    once: IdempotentRequest


class StateChange(ABC):
    """A request to change state that is not derived from entries, such as a job.

    It is data, and changes nothing more if it is repeated: a client repeats it if its outcome was lost.
    """

    __slots__ = ()

    @abstractmethod
    def apply(self, connection: "Connection", head: int, at: int) -> object:
        """Make the change in the transaction of a commit, and return the result.

        `head` is the last entry, and `at` the time of the commit in microseconds since 1970.
        """


@dataclass(frozen=True, slots=True)
class Remembered:
    """The key was stored."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Entries were appended, from `seq` on."""

    seq: int
    at: int


@dataclass(frozen=True, slots=True)
class Leased:
    """`count` numbers were leased, from `first` on."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Executed:
    """A request was decided and its entries were appended, from `seq` on."""

    result: object
    seq: int
    """The first entry; 0 if there is none."""
    changed: tuple[bytes, ...] = ()
    """The keys of the changed records."""
    erased: bool = False
    """Whether data was redacted."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A `StateChange` was made."""

    result: object


@dataclass(frozen=True, slots=True)
class RepeatedRequest:
    """A request with the same key was executed before; this one was not."""

    record: IdempotencyRecord


@dataclass(frozen=True, slots=True)
class Failed:
    """The request is invalid: it has no stored form, or was refused when it was decided."""

    error: Exception


Request = Append | Lease | Execute | Remember | StateChange
Outcome = (
    Appended | Leased | Executed | Remembered | Changed | PreconditionFailed | LeaseClosed | RepeatedRequest | Failed
)


def changed_result(outcome: Outcome) -> object:
    """Return the result of a `StateChange`; raises what it failed with."""
    if isinstance(outcome, Changed):
        return outcome.result
    if isinstance(outcome, Failed):
        raise outcome.error
    raise TypeError(f"unexpected outcome of a change of state: {outcome!r}")
