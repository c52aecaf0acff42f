"""Changes of many records as one unit: it has a name, is done in steps, can be watched, gone on with and undone.

Each step is a commit of at most `CHUNK` records, so nobody else waits for long, and says which unit it belongs to
(`perseid.ledger.store.jobs`). What was interrupted stays as far as it came, and `resume` does the rest; `undoing` takes
back what was done, by new entries.

Whoever runs the server sees all units, everybody else those that they began themselves, or that were begun with a token
of theirs, however they spell their handle. With a token one sees what was begun with that very token.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Final, Self, TypeVar

import msgspec

from perseid.ledger.log.entry import Draft
from perseid.ledger.store import jobs
from perseid.ledger.store.jobs import Job, JobOwner, JobSteps, UndoJob
from perseid.registry.access.authorization import MAX_GROUP_LOOKUPS, MAX_GROUP_MEMBERS, Decision, SearchUsage
from perseid.registry.access.permissions import Requirement, display_name
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous, Identity, KeyIdentity, LocalIdentity, effective_identity, handle_key
from perseid.registry.policy import case_rules
from perseid.registry.queries.history import SEE_ALL, is_allowed
from perseid.registry.queries.paging import PageBudget
from perseid.registry.registry import Registry, check_text
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

CHUNK_SIZE: Final = 250
"""Records changed in one commit: some twenty milliseconds of work in which others cannot write."""

CHUNK_BYTES: Final = 1 << 20
"""Octets of values beyond which a commit takes no more records: some twenty milliseconds again."""

MAX_CHUNK_LOOKUPS: Final = MAX_GROUP_LOOKUPS // 2
MAX_CHUNK_MEMBERS: Final = MAX_GROUP_MEMBERS // 2
"""References, and members of groups, that one commit follows to decide who may change what, and then takes no more
records. The limits are for each record; many of them must not be denied together what each alone is allowed. `Chunk`
ends before a record for which there is too little left all the same."""

LAST: Final = "last"
"""Means the unit that began last, of those that somebody sees."""

_ID_BYTES: Final = 8  # more units than one installation will ever have

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a unit has come; so far is durable."""

    operation: str
    done: int
    """Entries that it has made, those from before an interruption included."""
    total: int
    """Records that it is about, as counted beforehand; 0 if that is not known."""


def new_job_id() -> str:
    """A name for a unit that nobody has."""
    return secrets.token_hex(_ID_BYTES)


def start_job(  # noqa: PLR0913 - what is written down
    registry: Registry,
    kind: str,
    asked: dict[str, object],
    identity: Identity,
    interface: str,
    note: str = "",
    *,
    total: int = 0,
    undoes: str = "",
) -> Job:
    """Write down that a unit begins. Nobody in particular cannot begin one: nobody could go on with it.

    One that `undoes` another ends that; if there is such a unit already which has not ended, it is the answer.
    """
    if isinstance(identity, Anonymous):
        reason = "who changes many records at once has to be known"
        raise Refused(ResponseCode.AUTHENTICATION_NEEDED, reason, "answer a challenge, or use a session")
    check_text(note)
    text = msgspec.json.encode(asked).decode()
    made = Job(
        new_job_id(),
        kind,
        text,
        undoes,
        interface,
        str(identity),
        note,
        total=total,
        maker=_owner_name(effective_identity(identity)),
    )
    return jobs.start(registry.ledger.log, made)


def complete_job(registry: Registry, operation: Job) -> None:
    """Write down that nothing of a unit is left to do."""
    jobs.finish(registry.ledger.log, operation.id)


def complete_or_discard(registry: Registry, operation: Job) -> None:
    """The same for a unit that cannot be gone on with, however it ended; if nothing was done it is forgotten."""
    complete_job(registry, operation)
    jobs.discard(registry.ledger.log, operation.id)


def load_parameters(operation: Job) -> dict[str, object]:
    """What somebody asked for."""
    return msgspec.json.decode(operation.asked, type=dict[str, object])


class DeferToNextChunk(Exception):
    """Of a record it cannot be decided in this commit whether somebody has a right: it is for the next one."""


class Chunk:
    """What becomes of the records of one commit, and how many it takes.

    Rights are asked for through its `context`. The records share what a request may search for them, and a search that
    had only what others left over tells nothing. So the commit ends before a record for which a right was not found
    with that. For the first one it is searched again, with all of it; there the next commit would come no further.
    """

    def __init__(self, context: Context) -> None:
        """`context` is under which circumstances they are decided."""
        identity, interface, now, note, reasons = (
            context.identity,
            context.interface,
            context.now,
            context.note,
            context.reasons,
        )
        self.context: Context = _ChunkContext(context.snapshot, identity, interface, now, note, reasons, chunk=self)
        self.drafts: list[Draft] = []
        self.processed = 0
        """How many records, or entries, it was about."""
        self._size = 0

    def take(self, items: Iterable[T], decide: Callable[[T], Iterable[Draft]]) -> bool:
        """Decide what becomes of some, one after the other; whether it took all. The first one it always takes."""
        for item in items:
            if self.processed and self.is_full:
                return False
            self.processed += 1
            try:
                drafts = tuple(decide(item))
            except DeferToNextChunk:
                self.processed -= 1
                return False
            self.drafts += drafts
            self._size += sum([len(value.data) for draft in drafts for value in draft.values])
        return True

    @property
    def is_full(self) -> bool:
        """Whether it takes no more: they are large, or it takes much to find out whether they may be changed."""
        usage = self.context.snapshot.usage
        return self._size >= CHUNK_BYTES or usage.lookups > MAX_CHUNK_LOOKUPS or usage.members > MAX_CHUNK_MEMBERS


@dataclass(frozen=True, slots=True)
class _ChunkContext(Context):
    """Under which circumstances the records of a chunk are decided."""

    chunk: Chunk = field(kw_only=True)

    def check(self, require: Requirement) -> Decision:
        """Whether somebody meets a demand. Raises `Later`."""
        usage = self.snapshot.usage
        was_fresh = usage == SearchUsage()
        decision = Context.check(self, require)
        if decision.allowed or was_fresh or not usage.is_exhausted:
            return decision
        if self.chunk.processed > 1:
            raise DeferToNextChunk
        usage.lookups = usage.members = 0
        return Context.check(self, require)


def skip_unchanged(pieces: Iterable[Progress]) -> Iterator[Progress]:
    """The progress of those pieces of a unit that changed something; the first piece only says where it begins."""
    done = -1
    for piece in pieces:
        if 0 <= done < piece.done:
            yield piece
        done = piece.done


def entry_note(operation: Job) -> str:
    """The note of the unit's entries, for people who read the log."""
    return f"{operation.kind} {operation.id}" + (f": {operation.note}" if operation.note else "")


def list_jobs(registry: Registry, identity: Identity) -> Iterator[Job]:
    """The units that somebody may see, the one that began last first."""
    return jobs.newest_first(registry.ledger.log, owner=_visible_jobs(registry, identity))


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some units, the one that began last first."""

    items: tuple[Job, ...]
    last: tuple[int, str] | None
    """Where the page ended: when the last one of it began, and its name; None if this is the last page."""


def jobs_page(registry: Registry, identity: Identity, before: tuple[int, str] | None, limit: int) -> JobPage:
    """A page of the units that somebody may see, behind where one ended."""
    budget = PageBudget(limit)
    items: list[Job] = []
    for operation in jobs.newest_first(registry.ledger.log, before, _visible_jobs(registry, identity), limit + 1):
        if not budget.take(len(operation.asked) + len(operation.actor) + len(operation.note)):
            return JobPage(tuple(items), (items[-1].begun, items[-1].id))
        items.append(operation)
    return JobPage(tuple(items), None)


def find_job(registry: Registry, identity: Identity, name: str) -> Job:
    """The unit of a name, if there is one that somebody may see. Raises `Refused`."""
    owner = _visible_jobs(registry, identity)
    if name == LAST:
        operation = next(jobs.newest_first(registry.ledger.log, owner=owner, at_once=1), None)
    else:
        operation = jobs.find(registry.ledger.log, name) if name.isascii() and name.isalnum() else None
    if operation is None or not (owner is None or owner.owns(operation)):
        reason = "there is no operation yet" if name == LAST else f"there is no operation {display_name(name)}"
        raise Refused(ResponseCode.HANDLE_NOT_FOUND, reason, "look at: perseid operations")
    return operation


def can_see_job(registry: Registry, identity: Identity, operation: Job) -> bool:
    """Whether somebody may see a unit."""
    owner = _visible_jobs(registry, identity)
    return owner is None or owner.owns(operation)


def is_own_job(operation: Job, identity: Identity) -> bool:
    """Whether somebody began a unit, themselves or with a token of theirs."""
    return JobOwner(str(identity), _owner_names(identity)).owns(operation)


def acts_for(identity: Identity, other: Identity) -> bool:
    """Whether somebody is another, or made the token that the other shows."""
    return str(identity) == str(other) or _owner_name(effective_identity(other)) in _owner_names(identity)


def last_changed_seq(snapshot: Snapshot, stored: StoredRecord, operation: Job, steps: JobSteps) -> int:
    """The last entry with which a unit has changed a record, whoever changed it afterwards; 0 if there is none."""
    for entry in case_rules.history(snapshot, stored) if stored.seq > operation.since else ():
        if entry.seq <= operation.since:
            return 0
        if entry.seq in steps:
            return entry.seq
    return 0


class UndoIndex:
    """Which units undo which, and whether that still counts: an undo may have been undone itself."""

    def __init__(self, undos: Iterable[UndoJob]) -> None:
        self._by: dict[str, list[UndoJob]] = {}
        for each in undos:
            self._by.setdefault(each.undoes, []).append(each)
        ids = {name: [each.id for each in found] for name, found in self._by.items()}
        self._is_effective: dict[str, bool] = {}
        for name in TopologicalSorter(ids).static_order():
            self._is_effective[name] = self.effective_undo(name) is None

    @classmethod
    def of(cls, registry: Registry, *names: str) -> Self:
        """What undoes some units, and what undoes that, and so on."""
        return cls(jobs.find_undos(registry.ledger.log, names) if names else ())

    @classmethod
    def all(cls, registry: Registry) -> Self:
        """All there are."""
        return cls(jobs.list_undos(registry.ledger.log))

    def effective_undo(self, name: str) -> str | None:
        """The unit that has undone this one, and was not undone itself."""
        return next((each.id for each in self._by.get(name, ()) if each.ended and self._is_effective[each.id]), None)

    def running(self, name: str) -> str | None:
        """The unit that is undoing this one."""
        return next((each.id for each in self._by.get(name, ()) if not each.ended), None)

    def ended(self, name: str) -> list[str]:
        """All units that undid this one, or one of these. If none stands, they have come to nothing together."""
        found: list[str] = []
        wanted = [name]
        while wanted:
            ids = [each.id for each in self._by.get(wanted.pop(), ()) if each.ended]
            found += ids
            wanted += ids
        return found


def _visible_jobs(registry: Registry, identity: Identity) -> JobOwner | None:
    """Which units somebody may see; None for all."""
    with registry.snapshot() as snapshot:
        if is_allowed(snapshot, identity, SEE_ALL):
            return None
    return JobOwner(str(identity), _owner_names(identity))


def _owner_name(identity: Anonymous | KeyIdentity | LocalIdentity) -> str:
    """The name under which a unit is somebody's: the same however they spell their handle."""
    if not isinstance(identity, KeyIdentity):
        return str(identity)
    index, _, handle = str(identity).partition(":")
    return f"{index}:{handle_key(handle)}"


def _owner_names(identity: Identity) -> tuple[str, ...]:
    """The names under which units are somebody's. With a token one has none: what was begun with it says so itself.

    Who names no key is known by the one that verified, and makes tokens as somebody who names none.
    """
    if isinstance(identity, KeyIdentity):
        return tuple({_owner_name(identity): None, f"{identity.index}:{handle_key(identity.reference.handle)}": None})
    return (str(identity),) if isinstance(identity, LocalIdentity) else ()
