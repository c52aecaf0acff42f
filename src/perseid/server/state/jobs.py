"""Running jobs in the state that all processes of a server share: their limits, their credentials, and failures.

A worker reserves a slot, starts the job in the ledger and claims the slot for it, with the credentials of the caller.
It runs the first steps; then it hands the slot over to the process of jobs, which does the rest. If a process is
killed, the jobs that it was running are taken over in the same way: all that is needed is here, and in the ledger.
"""

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec

from perseid.ledger.log.requests import Failed
from perseid.registry.codec import decode_identity, decode_outcome, encode_identity, encode_outcome
from perseid.registry.identity import Identity, quota_key
from perseid.registry.results import Refused
from perseid.server.native.authentication import Guard, ProvenIdentity

from .state import Entry, SharedState, StateFull, is_running, read_entry

SLOT_SECONDS: Final = 7_200
"""Seconds after which a slot that is not renewed ends: longer than any listener stays. Without credentials, the slots
of a killed process are void at once, unless its id is in use again."""

MAX_RUNNING: Final = 8
"""Jobs that run at the same time. There is one writer, so more would not be faster."""

MAX_RUNNING_PER_IDENTITY: Final = 2
"""Running jobs of one identity, all its tokens together."""

EXTRA_FOR_UNDO: Final = 2
"""Additional jobs for undo, so that a user at the limit can still undo."""

MAX_FAILURES: Final = 1_000
"""Failures that are kept; the oldest is dropped."""

FAILURE_SECONDS: Final = 7 * 24 * 3_600
"""Seconds for which a failure is kept: a week, in which the user asks for the job again."""

_SLOTS_NAME, _FAILURES_NAME, _VERSION = "running_jobs", "job_failures", 2  # of the tables
_FAILURE_BYTES = 4 << 10  # of a failure in the table; most are far shorter
_SLOTS_KEY = b"slots"
_SLOTS_BYTES = 256 << 10  # several times what all listeners, or all jobs with very long handles, take
_OWNER_BYTES = 16  # of the hash of an owner
_ID_BYTES = 16
_NO_PROCESS = 0  # of a job that was handed over


class LimitReached(Exception):
    """A limit is reached; the message says which."""


class Credentials(msgspec.Struct, array_like=True, frozen=True):
    """What a job needs to run for its user, who may be gone by then; a part of the slots."""

    interface: str
    _identity: bytes
    _proved: ProvenIdentity | None
    _session: bool

    @classmethod
    def of(cls, identity: Identity, guard: Guard | None, interface: str) -> "Credentials":
        proved, session = (None, False) if guard is None else (guard.proved, guard.session)
        return cls(interface, encode_identity(identity), proved, session)

    @property
    def identity(self) -> Identity:
        return decode_identity(self._identity)

    @property
    def guard(self) -> Guard | None:
        return None if self._proved is None else Guard(self._proved, self._session)


class StoredSlot(msgspec.Struct, array_like=True, frozen=True):
    """A slot; a change of the fields is a new version of the tables."""

    id: bytes
    owner: bytes
    process: int
    expires: float
    job: str = ""
    credentials: Credentials | None = None
    starts: int = 0
    """How many processes of jobs have ended in their first step of it, since a step was completed."""

    @property
    def is_waiting(self) -> bool:
        """Whether it is for the process of jobs: it was handed over, or the process that had it was killed."""
        return self.credentials is not None and (self.process == _NO_PROCESS or not is_running(self.process))


_decode_slots = msgspec.msgpack.Decoder(list[StoredSlot]).decode


class SharedSlots:
    """The slots of all processes, in one entry of the shared state: there are few, and limits apply to all together."""

    def __init__(self, state: SharedState, name: str) -> None:
        self._table = state.table(name, version=_VERSION, max_entries=1, max_bytes=_SLOTS_BYTES)

    def all(self) -> list[StoredSlot]:
        """Return the slots in use."""
        now = monotonic()
        return _load_slots(self._table.get(_SLOTS_KEY, now), now)

    def acquire(self, owner: str, check: Callable[[int, int], None]) -> bytes:
        """Add a slot and return its id; `check` gets the number of all slots and of the owner's, and may raise."""
        slot = StoredSlot(secrets.token_bytes(_ID_BYTES), _hash_owner(owner), os.getpid(), monotonic() + SLOT_SECONDS)

        def add(slots: list[StoredSlot]) -> list[StoredSlot]:
            check(len(slots), sum(each.owner == slot.owner for each in slots))
            return [*slots, slot]

        if not self.change(add):
            raise LimitReached("The server is busy")
        return slot.id

    def release(self, slot_id: bytes) -> None:
        """Remove a slot."""
        self.change(lambda slots: [each for each in slots if each.id != slot_id])

    def renew(self, slot_id: bytes, **fields: object) -> bool:
        """Use a slot for longer, with other fields; return whether there was room."""
        fields["expires"] = monotonic() + SLOT_SECONDS
        return self.change(
            lambda slots: [msgspec.structs.replace(each, **fields) if each.id == slot_id else each for each in slots]
        )

    def change(self, change: Callable[[list[StoredSlot]], list[StoredSlot] | None]) -> bool:
        """Replace all slots in one transaction; None leaves them. Return whether they were replaced."""
        now = monotonic()

        def run(old: bytes | None) -> Entry | None:
            slots = change(_load_slots(old, now))
            return None if slots is None else Entry(msgspec.msgpack.encode(slots), now + SLOT_SECONDS)

        return self._table.update(_SLOTS_KEY, now, run, _SLOTS_BYTES)


def _load_slots(data: bytes | None, now: float) -> list[StoredSlot]:
    slots = [] if data is None else _decode_slots(data)
    return [each for each in slots if each.expires > now and (each.credentials or is_running(each.process))]


def _hash_owner(owner: str) -> bytes:
    return hashlib.blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=_OWNER_BYTES).digest()


class JobFailure(msgspec.Struct, array_like=True, frozen=True):
    """Why a job failed."""

    actor: str
    """Who ran it, and may see the reason: it can reveal permissions."""
    _error: bytes

    @classmethod
    def of(cls, identity: Identity, reason: Refused) -> "JobFailure":
        return cls(str(identity), encode_outcome(Failed(reason)))

    @property
    def reason(self) -> Exception:
        failed = decode_outcome(self._error)
        assert isinstance(failed, Failed)  # noqa: S101 - as it was encoded
        return failed.error


def _load_failure(data: bytes | None) -> JobFailure | None:
    return None if data is None else msgspec.msgpack.decode(data, type=JobFailure)


def read_running(runtime: Path) -> frozenset[str]:
    """Return the ids of the jobs that a server runs, in a process without its state."""
    now = monotonic()
    slots = _load_slots(read_entry(runtime, _SLOTS_NAME, _VERSION, _SLOTS_KEY, now), now)
    return frozenset(each.job for each in slots if each.job)


def read_failure(runtime: Path, job: str) -> JobFailure | None:
    """Return why a job failed on a server, in a process without its state."""
    return _load_failure(read_entry(runtime, _FAILURES_NAME, _VERSION, job.encode(), monotonic()))


@dataclass(slots=True, eq=False)
class Slot:
    """A slot that a worker has reserved."""

    id: bytes
    is_handed_over: bool = False


class RunningJobs:
    """The running jobs of a server, and why others failed. Safe in any thread."""

    def __init__(self, state: SharedState | None = None, wake: Callable[[], object] = lambda: None) -> None:
        """`state` is that of all processes; without, only this process counts. `wake` starts the process of jobs."""
        state = SharedState.private() if state is None else state
        self.stopping = False
        """Whether the server is shutting down."""
        self._wake = wake
        self.slots = SharedSlots(state, _SLOTS_NAME)
        self._failures = state.table(
            _FAILURES_NAME, version=_VERSION, max_entries=MAX_FAILURES, max_bytes=MAX_FAILURES * _FAILURE_BYTES
        )

    def is_running(self, job: str) -> bool:
        """Return whether a process of the server runs a job, or will."""
        return any(each.job == job for each in self.slots.all())

    def waiting(self) -> list[StoredSlot]:
        """Return the jobs for the process of jobs."""
        return [each for each in self.slots.all() if each.is_waiting]

    def failure(self, job: str) -> JobFailure | None:
        """Return why a job failed."""
        return _load_failure(self._failures.get(job.encode(), monotonic()))

    def record_failure(self, job: str, failure: JobFailure) -> None:
        """Remember why a job failed."""
        entry = Entry(msgspec.msgpack.encode(failure), monotonic() + FAILURE_SECONDS)
        self._failures.put(job.encode(), entry)

    @contextmanager
    def reserve(self, identity: Identity, *, undoes: bool = False) -> Iterator[Slot]:
        """Reserve a slot, or raise `LimitReached`. It is released at the end unless it was handed over."""
        extra = EXTRA_FOR_UNDO if undoes else 0
        if self.stopping:
            raise LimitReached("The server is shutting down")

        def check(total: int, of_owner: int) -> None:
            if total >= MAX_RUNNING + extra:
                raise LimitReached(f"Limit of {MAX_RUNNING + extra} running jobs reached")
            if of_owner >= MAX_RUNNING_PER_IDENTITY + extra:
                raise LimitReached(f"Limit of {MAX_RUNNING_PER_IDENTITY + extra} running jobs per user reached")

        slot = Slot(self.slots.acquire(quota_key(identity), check))
        try:
            yield slot
        finally:
            if not slot.is_handed_over:
                self.slots.release(slot.id)

    def claim(self, slot: Slot, job: str, credentials: Credentials) -> bool:
        """Use a slot for a job; return False if another request or process runs it.

        Raises `LimitReached` if there is no room for the credentials.
        """
        is_running = False

        def use(slots: list[StoredSlot]) -> list[StoredSlot] | None:
            nonlocal is_running
            is_running = any(each.job == job for each in slots)
            if is_running:
                return None
            fields = {"job": job, "credentials": credentials}
            return [msgspec.structs.replace(each, **fields) if each.id == slot.id else each for each in slots]

        if not self.slots.change(use):
            if is_running:
                return False
            raise LimitReached("The server is busy")
        with suppress(StateFull):
            self._failures.delete(job.encode())
        return True

    def hand_over(self, slot: Slot) -> bool:
        """Let the process of jobs do the rest of a claimed job; return whether there was room."""
        slot.is_handed_over = self.slots.renew(slot.id, process=_NO_PROCESS)
        if slot.is_handed_over:
            self._wake()
        return slot.is_handed_over
