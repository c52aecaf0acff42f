"""Names across handles: the log, what changed between two moments, the names under a prefix, the homed prefixes.

To see the names of a namespace together takes LIST_HANDLES on its prefix handle, or a policy that opens it
(`who_may_list`). Whoever has the permission administers the namespace, and sees its names in every state and who
changed them. Whom only the policy admits sees what the public may know of each single name: nothing of names that are
reserved or unpublished, and of the past only where the policy shows it. The installation's own records (`0.SITE/…`)
are for server administrators, and so are names that this server does not answer for, as after their prefix was unhomed.

Pages cost the same wherever they begin: what may not be seen is passed over, so much of it at a time, and a page may
be short, or empty, although there are more. The next one begins where this one ended. Names are passed over by number,
so that a page's end does not give away a name.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from perseid.ledger.log.entry import Action, Entry, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import record_key
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize
from perseid.registry.access.permissions import Requirement, display_name
from perseid.registry.commands.namespaces import homed_prefixes
from perseid.registry.identity import Identity, LocalIdentity
from perseid.registry.policy import case_rules
from perseid.registry.policy.keys import Audience
from perseid.registry.policy.policy import Policy
from perseid.registry.results import InvalidQuery, Refused
from perseid.registry.snapshot import SITE_PREFIX, Snapshot, StoredRecord
from perseid.wire.codes import OpCode, ResponseCode

from .history import DEFAULT_PAGE, SEE_ALL, installation_record, is_allowed, is_public, page_size, public_action
from .paging import PageBudget

MAX_SCANNED: Final = 1_000
"""How many entries or names one page looks at. What is not shown costs as much as what is."""

MAX_PREFIXES: Final = 100
"""For how many prefixes one page decides whether they may be seen; each may lead through many groups."""

_MIN_BATCH: Final = 50  # names at a time, so that a page of one is not read one by one past those not shown
_MAX_VERSIONS_BACK: Final = 32  # back in a record's history, to tell what the public knew of it: a deletion is one step

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """Some of many, in order."""

    items: tuple[T_co, ...]
    last: int
    """The entry at which the page ended: the next one begins behind it."""
    more: bool
    """Whether there may be a next one."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the log, as somebody may see it."""

    seq: int
    at: int
    """In microseconds since 1970."""
    action: Action
    handle: str
    state: State
    door: str | None = None
    actor: str | None = None
    """Who did it; None if that may not be seen, or was erased."""
    note: str | None = None

    @property
    def octets(self) -> int:
        """What it takes on a page."""
        return len(self.handle) + len(self.actor or "") + len(self.note or "")


@dataclass(frozen=True, slots=True)
class ChangedRecord:
    """A name whose record differs between two moments."""

    handle: str
    before: int
    """Its entry at the earlier moment; 0 if there was none that may be seen."""
    after: int
    """Its entry at the later moment."""
    state_before: State
    state_after: State
    at: int
    """When it became what it was at the later moment, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class ListedHandle:
    """A name under a prefix."""

    handle: str
    state: State
    seq: int
    """Its latest entry."""


def list_log(snapshot: Snapshot, identity: Identity, after: int = 0, limit: int = DEFAULT_PAGE) -> Page[LogEntry]:
    """The entries behind one, in order. Raises `Refused`."""
    visibility = Visibility(snapshot, identity)
    budget = PageBudget(page_size(limit))
    found: list[LogEntry] = []
    last, size = after, snapshot.reading.size
    for entry in snapshot.reading.log(after, after + MAX_SCANNED):
        right = visibility.right(entry.handle)
        if right is None:
            break
        if visibility.shows(entry, right):
            logged = visibility.logged(entry, right)
            if not budget.take(logged.octets):
                break
            found.append(logged)
        last = entry.seq
        if budget.is_full:
            break
    return Page(tuple(found), last, last < size)


def list_changes(
    snapshot: Snapshot,
    identity: Identity,
    earlier: int,
    later: int,
    after: int | None = None,
    limit: int = DEFAULT_PAGE,
) -> Page[ChangedRecord]:
    """The names whose records changed between two moments (see `past.moment`), in the order of their first change.

    `after` is where the page before ended. Raises `Refused`.
    """
    visibility = Visibility(snapshot, identity)
    limit = page_size(limit)
    found: list[ChangedRecord] = []
    last = max(earlier, after or 0)
    for entry in snapshot.reading.log(last, min(later, last + MAX_SCANNED)):
        right = visibility.right(entry.handle)
        if right is None:
            break
        last = entry.seq
        if right.lists and (altered := visibility.altered(entry, right, earlier, later)) is not None:
            found.append(altered)
        if len(found) == limit:
            break
    return Page(tuple(found), last, last < min(later, snapshot.reading.size))


def list_handles(
    snapshot: Snapshot,
    identity: Identity,
    name: str,
    after: int = 0,
    limit: int = DEFAULT_PAGE,
    *,
    deleted: bool = False,
) -> Page[ListedHandle]:
    """The names under a prefix, in the order of their keys, behind that of an entry (§16.7). Raises `Refused`.

    `name` is a prefix, or its prefix handle; for `0.NA/0.NA/P` the handles of the prefixes derived from P are listed.
    Those who administer the namespace may also ask for names that were `deleted`.
    """
    first, end, administers = _check_listing(snapshot, identity, name)
    limit = page_size(limit)
    is_exact = snapshot.policy(first.decode().partition("/")[0]).case is CaseRule.SENSITIVE
    first = _key_after(snapshot.reading, after, first, end)
    found: list[ListedHandle] = []
    last, more, scanned = after, True, 0
    while more and len(found) < limit and scanned < MAX_SCANNED:
        wanted = max(limit - len(found), _MIN_BATCH)
        entries, more = snapshot.reading.names_page(first, end, wanted)
        scanned += len(entries)
        for place, entry in enumerate(entries, 1):
            last, first = entry.seq, entry.key + b"\0"
            # An absent one with the other rule ends a key of another era.
            is_one = entry.state is not State.ABSENT or (deleted and entry.exact == is_exact)
            if is_public(entry.state) or (administers and is_one):
                found.append(ListedHandle(entry.handle, entry.state, entry.seq))
            if len(found) == limit:
                more = more or place < len(entries)
                break
    return Page(tuple(found), last, more)


def list_by_offset(
    snapshot: Snapshot, identity: Identity, name: str, skip: int, limit: int = DEFAULT_PAGE
) -> tuple[ListedHandle, ...]:
    """The names that `list_handles` shows on all its pages, without so many of the first. Raises `Refused`.

    This is for clients that count pages. It costs what is skipped, and names that are made meanwhile move the others.
    """
    first, end, administers = _check_listing(snapshot, identity, name)
    states, limit = _visible_states(administers=administers), page_size(limit)
    found: list[ListedHandle] = []
    more = True
    while more and len(found) < limit:
        entries, more = snapshot.reading.names_in_states(first, end, states, limit - len(found), skip)
        found += [ListedHandle(entry.handle, entry.state, entry.seq) for entry in entries]
        first, skip = entries[-1].key + b"\0" if entries else first, 0
    return tuple(found)


def count_handles(snapshot: Snapshot, identity: Identity, name: str) -> int:
    """How many names `list_handles` shows on all its pages. Raises `Refused`."""
    first, end, administers = _check_listing(snapshot, identity, name)
    return snapshot.reading.count_names(first, end, _visible_states(administers=administers))


def list_homed(snapshot: Snapshot, identity: Identity) -> tuple[str, ...]:
    """The table of homed prefixes, as its entries are written (§16.7). Raises `Refused`."""
    decision = authorize(
        identity,
        permissions.server_operation(OpCode.LIST_HOMED_NAS),
        snapshot,
        snapshot.rules.administration,
        snapshot.usage,
    )
    if not decision.allowed:
        raise Refused.from_decision(decision)
    return tuple(homed_prefixes(snapshot.reading))


@dataclass(frozen=True, slots=True)
class PrefixAccess:
    """What somebody may see of the names of one prefix."""

    lists: bool = False
    administers: bool = False
    shows_actors: bool = False
    shows_past: bool = False


class Visibility:
    """What somebody may see of the names of all prefixes; decided for each prefix when it is met."""

    def __init__(self, snapshot: Snapshot, identity: Identity) -> None:
        self._snapshot = snapshot
        self._identity = identity
        self._rights: dict[str, PrefixAccess] = {}
        self._can_see_all = is_allowed(snapshot, identity, SEE_ALL)
        if not (snapshot.rules.listing_allowed or self._can_see_all):
            raise listing_disabled()

    def right(self, handle: str) -> PrefixAccess | None:
        """What may be seen of a name's namespace; None if that would be one prefix too many for a page."""
        if self._can_see_all:
            return PrefixAccess(True, True, True, True)
        prefix = fold(handle.partition("/")[0])
        if prefix not in self._rights:
            if len(self._rights) == MAX_PREFIXES:
                return None
            self._rights[prefix] = self._decide(prefix, handle)
        right = self._rights[prefix]
        # Handles of prefixes may be here one by one.
        is_visible = not right.lists or prefix != PREFIX_OF_PREFIXES or self._is_served(handle)
        return right if is_visible else PrefixAccess()

    def _is_served(self, handle: str) -> bool:
        return self._snapshot.is_responsible(Handle.parse_lenient(handle))

    def _decide(self, prefix: str, handle: str) -> PrefixAccess:
        """What may be seen of the names of a prefix, of which this is one."""
        if prefix == SITE_PREFIX or (prefix != PREFIX_OF_PREFIXES and not self._is_served(handle)):
            return PrefixAccess()
        try:
            policy = self._snapshot.policy(prefix)
        except Refused:
            return PrefixAccess()  # a policy that cannot be read opens nothing
        if not is_allowed(self._snapshot, self._identity, listing_requirement(prefix, policy)):
            return PrefixAccess()
        administers = is_allowed(self._snapshot, self._identity, listing_requirement(prefix))
        return PrefixAccess(True, administers, administers or policy.show_actors, administers or policy.show_past)

    def shows(self, entry: Entry, right: PrefixAccess) -> bool:
        """Whether an entry may be seen in the log."""
        if not right.lists or right.administers:
            return right.lists
        is_visible = not case_rules.ends_key(self._snapshot, entry)
        return is_visible and self._known(entry, right) and self._is_known_today(entry, right)

    def logged(self, entry: Entry, right: PrefixAccess) -> LogEntry:
        """An entry as it may be told."""
        door, actor = (entry.identity if right.shows_actors else None) or (None, None)
        action = entry.action
        if not right.administers:
            action = public_action(entry, follows=not right.shows_past or self._follows(entry))
        note = entry.why if self._can_see_all else None
        return LogEntry(entry.seq, entry.at, action, entry.handle, entry.state, door, actor, note)

    def altered(self, entry: Entry, right: PrefixAccess, earlier: int, later: int) -> ChangedRecord | None:
        """The record of an entry, if this is its first change between the moments and what it became may be seen."""
        if case_rules.ends_key(self._snapshot, entry):
            return None
        stored = self._held(entry)
        before = case_rules.as_of(self._snapshot, stored, entry.seq - 1)
        if before is not None and before.seq > earlier:
            return None  # told already, with the record's first change
        after = case_rules.as_of(self._snapshot, stored, later) or entry
        if not self.shows(after, right):
            return None
        if before is not None and not (right.administers or (right.shows_past and self._known(before, right))):
            before = None
        seq, state = (0, State.ABSENT) if before is None else (before.seq, before.state)
        if state is State.ABSENT and after.state is State.ABSENT and not right.administers:
            return None
        return ChangedRecord(after.handle, seq, after.seq, state, after.state, after.at)

    def _held(self, entry: Entry) -> StoredRecord:
        """The record of an entry, as it is today."""
        name = Handle.parse_lenient(entry.handle)
        if fold(name.prefix) == SITE_PREFIX:
            return installation_record(self._snapshot, name)
        try:
            return self._snapshot.stored(name)
        except Refused:  # its policy cannot be read; who runs the server sees it all the same
            return replace(installation_record(self._snapshot, name), key=entry.key, exact=entry.exact)

    # What the public knows

    def _known(self, entry: Entry, right: PrefixAccess) -> bool:
        """Whether the public could see what an entry made of its name."""
        if entry.state is not State.ABSENT:
            return is_public(entry.state)
        if not right.shows_past:
            return False
        steps = self._steps_back(entry)
        return is_public(next((step.state for step in steps if step.state is not State.ABSENT), State.RESERVED))

    def _is_known_today(self, entry: Entry, right: PrefixAccess) -> bool:
        """Whether the public may still be told of an entry."""
        latest = self._held(entry).entry or entry
        return (right.shows_past or latest.seq == entry.seq) and self._known(latest, right)

    def _follows(self, entry: Entry) -> bool:
        """Whether the public knew of the name before an entry."""
        return any(is_public(step.state) for step in self._steps_back(entry))

    def _steps_back(self, entry: Entry) -> Iterator[Entry]:
        """A few versions of the record before an entry, newest first."""
        steps = case_rules.history(self._snapshot, self._held(entry), entry.seq - 1)
        return (step for step, _ in zip(steps, range(_MAX_VERSIONS_BACK), strict=False))


def listing_requirement(prefix: str, policy: Policy | None = None) -> Requirement:
    """What it takes to list the names of a prefix; without a policy, to see them as one who administers them."""
    requirement = permissions.list_handles(prefix)
    opened = Audience.ADMINISTRATORS if policy is None else policy.who_may_list
    if opened is Audience.PUBLIC:
        return replace(requirement, alternatives=(), public=True)
    if opened is Audience.AUTHENTICATED:
        return replace(requirement, alternatives=((),))
    by_permission = requirement.alternatives if opened is Audience.ADMINISTRATORS else ()
    return replace(requirement, alternatives=(*SEE_ALL.alternatives, *by_permission))


def listing_disabled() -> Refused:
    """Names are not listed here."""
    reason = "this server does not list names"
    return Refused(ResponseCode.OPERATION_NOT_SUPPORTED, reason, "its setting for listing is off")


def _check_listing(snapshot: Snapshot, identity: Identity, name: str) -> tuple[bytes, bytes, bool]:
    """From which key, and up to which, the names of a prefix stand, and whether whoever asks may see all of them.

    Raises `Refused` if they may see none.
    """
    if not snapshot.rules.listing_allowed and not isinstance(identity, LocalIdentity):  # it is about the network
        raise listing_disabled()
    prefix, first, end, homed = _key_range(name)
    if not any(snapshot.is_homed(each) for each in homed):
        raise Refused(ResponseCode.SERVER_NOT_RESP, "that prefix doesn't live here", "ask the service of the prefix")
    decision = authorize(
        identity,
        listing_requirement(prefix, snapshot.policy(prefix)),
        snapshot,
        snapshot.rules.administration,
        snapshot.usage,
    )
    if not decision.allowed:
        raise Refused.from_decision(decision)
    return first, end, is_allowed(snapshot, identity, listing_requirement(prefix))


def _visible_states(*, administers: bool) -> tuple[State, ...]:
    """The states of names that are shown: all, or those that the public may know of."""
    known = (State.NORMAL, State.TOMBSTONE)
    return (*known, State.RESERVED, State.UNPUBLISHED) if administers else known


def _key_range(name: str) -> tuple[str, bytes, bytes, tuple[str, ...]]:
    """Which prefix a listing is about, the keys from and up to which its names stand, and what has to be homed."""
    marker = f"{PREFIX_OF_PREFIXES}/"
    folded = fold(name)
    prefix = folded.removeprefix(marker)
    derived = folded.startswith(marker + marker)
    if derived:
        prefix = prefix.removeprefix(marker)
    if "/" in prefix or Handle.for_lookup(marker + prefix) is None:
        raise Refused(
            ResponseCode.INVALID_HANDLE, f"{display_name(name)} is no prefix", "name a prefix, such as 12345", "H2"
        )
    if derived:
        first = record_key(f"{marker}{prefix}.")
        homed: tuple[str, ...] = (marker + PREFIX_OF_PREFIXES,)
    else:
        first = record_key(f"{prefix}/")
        homed = (marker + prefix, prefix)
    return prefix, first, first[:-1] + bytes((first[-1] + 1,)), homed


def _key_after(reading: LogReader, after: int, first: bytes, end: bytes) -> bytes:
    """The key with which a page begins that follows the record of an entry."""
    if not after:
        return first
    try:
        key = reading.entry(after).key
    except KeyError:
        key = b""
    if not first <= key < end:
        reason = f"entry {after} is not about a name of this prefix"
        raise InvalidQuery(reason, "begin at 0, and go on where the page ended")
    return key + b"\0"
