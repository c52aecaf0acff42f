"""Listings across records: changes between two times, handles under a prefix, homed prefixes; for the log see `log`.

Listing the handles of a namespace requires LIST_HANDLES on its prefix handle, or a policy that opens it
(`who_may_list`). With the permission, users see handles in every state and who changed them. Through the policy alone,
they see what the public sees of each single record: history only where the policy shows it, and no reserved or
unpublished handles. Lists of handles include those that they can read: owners see what they reserved. The
installation's own records (`0.SITE/…`), handles of prefixes that are no longer hosted here, and copies of handles that
belong to another server of the site (`Snapshot.is_misplaced`), are visible to server administrators only.

Pages cost the same wherever they start: invisible entries are skipped, a limited number per page, so a page can be
short or empty although there are more. The next one starts where this one ended. Cursors are entry numbers, so that
they do not reveal handles.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from perseid.ledger.log.entry import Action, Entry, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import key_range
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle, fold
from perseid.registry.access import permissions
from perseid.registry.access.authorization import MAX_GROUP_LOOKUPS
from perseid.registry.access.permissions import Requirement, display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.commands.namespaces import homed_prefixes
from perseid.registry.context import Context, not_hosted
from perseid.registry.identity import Identity, LocalIdentity
from perseid.registry.partition import MisplacedCount
from perseid.registry.policy import case_rules
from perseid.registry.policy.policy import Audience, Policy
from perseid.registry.results import InvalidQuery, InvalidRequest, Refused
from perseid.registry.snapshot import SITE_PREFIX, Snapshot, StoredRecord
from perseid.schema.common import HandleState
from perseid.wire.codes import OpCode, ResponseCode

from .history import SEE_ALL, can_read, installation_record, is_allowed, is_public, public_action
from .paging import DEFAULT_PAGE, Page, page_size

MAX_SCANNED: Final = 1_000
"""Entries or handles examined per page. Skipped ones cost as much as shown ones."""

MAX_PAGE_LOOKUPS: Final = MAX_GROUP_LOOKUPS // 2
"""References that one page follows for authorization before it ends: nothing is denied for lack of them."""

MAX_PREFIXES: Final = 100
"""Prefixes whose visibility is decided per page; each can require many group lookups."""

_MAX_COUNTS: Final = 1_000  # numbers of copies that are cached: those of a few hundred namespaces
_MIN_BATCH: Final = 50  # handles per read, so that a page of one does not skip hidden ones one by one
_MAX_VERSIONS_BACK: Final = 32  # versions examined to find out what was public; a deletion is one of them


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the log, as the caller can see it."""

    seq: int
    at: int
    """In microseconds since 1970."""
    action: Action
    handle: str
    state: State
    interface: str | None = None
    actor: str | None = None
    """Who made the change; None if withheld or redacted."""
    note: str | None = None

    @property
    def size(self) -> int:
        """Its size on a page."""
        return len(self.handle) + len(self.actor or "") + len(self.note or "")


@dataclass(frozen=True, slots=True)
class ChangedRecord:
    """A record that differs between two times."""

    handle: str
    before: int
    """Its entry at the earlier time; 0 if there was no visible one."""
    after: int
    """Its entry at the later time."""
    state_before: State
    state_after: State
    at: int
    """Time of the later entry, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class ListedHandle:
    """A handle under a prefix."""

    handle: str
    state: State
    seq: int
    """Its latest entry."""


def list_changes(
    snapshot: Snapshot,
    identity: Identity,
    earlier: int,
    later: int,
    after: int | None = None,
    limit: int = DEFAULT_PAGE,
) -> Page[ChangedRecord]:
    """Return a page of records that changed between two entries (see `history.seq_at_time`), by first change.

    `after` is the cursor. Raises `Refused`.
    """
    visibility = Visibility(snapshot, identity)
    limit = page_size(limit)
    items: list[ChangedRecord] = []
    last = max(earlier, after or 0)
    for entry in snapshot.reader.log(last, min(later, last + MAX_SCANNED)):
        access = visibility.access(entry.handle)
        if access is None:
            break
        last = entry.seq
        if access.lists and (change := visibility.find_change(entry, access, earlier, later)) is not None:
            items.append(change)
        if len(items) == limit:
            break
    return Page(tuple(items), last, last < min(later, snapshot.reader.size))


def list_handles(  # noqa: PLR0913 - filters
    snapshot: Snapshot,
    identity: Identity,
    name: str,
    after: int = 0,
    limit: int = DEFAULT_PAGE,
    *,
    state: HandleState | None = None,
    deleted: bool = False,
    owned: bool = True,
    starts_with: str = "",
) -> Page[ListedHandle]:
    """Return a page of handles under a prefix, in key order, after that of an entry (§16.7). Raises `Refused`.

    `name` is a prefix or its prefix handle; `0.NA/0.NA/P` lists the handles of the prefixes derived from P. With
    `state`, only handles in this state are listed, with `starts_with` those whose suffix starts with this text.
    Administrators of the namespace can include `deleted` handles. Without `owned`, other users see public handles only.
    """
    limit = page_size(limit)
    filters = (state, starts_with)
    page = _list_page(snapshot, identity, name, after, limit, filters, deleted=deleted, owned=owned)
    if not page.more or len(page.items) < limit:
        return page
    # A full page continues only if more is visible: an empty page would reveal hidden handles.
    rest = _list_page(snapshot, identity, name, page.last, 1, filters, deleted=deleted, owned=owned)
    return page if rest.items or rest.more else replace(page, more=False)


def _list_page(  # noqa: PLR0913 - filters
    snapshot: Snapshot,
    identity: Identity,
    name: str,
    after: int,
    limit: int,
    filters: tuple[HandleState | None, str],
    *,
    deleted: bool,
    owned: bool,
) -> Page[ListedHandle]:
    first, end, administers = _check_listing(snapshot, identity, name)
    (state, starts_with), namespace = filters, first.decode()
    hides_misplaced = _hides_misplaced(snapshot, identity)

    def is_visible(entry: Entry) -> bool:
        return administers or (owned and can_read(snapshot, identity, Handle.parse_lenient(entry.handle)))

    is_exact = snapshot.policy(namespace.partition("/")[0]).case is CaseRule.SENSITIVE
    if starts_with:
        first, end = key_range(namespace + starts_with, exact=is_exact)
    first = _key_after(snapshot.reader, after, first, end)
    items: list[ListedHandle] = []
    last, more, scanned = after, True, 0
    is_spent = False
    while more and len(items) < limit and scanned < MAX_SCANNED and not is_spent:
        batch_size = max(limit - len(items), _MIN_BATCH)
        entries, more = snapshot.reader.names_page(first, end, batch_size)
        scanned += len(entries)
        for number, entry in enumerate(entries, 1):
            is_spent = last != after and snapshot.usage.lookups > MAX_PAGE_LOOKUPS
            if is_spent:
                more = True
                break
            last, first = entry.seq, entry.key + b"\0"
            # A deletion under the other case rule only closes an old key.
            is_listed = entry.state is not State.ABSENT or (deleted and entry.exact == is_exact)
            is_wanted = state is None or entry.state.label == state
            is_wanted = is_wanted and not (hides_misplaced and snapshot.is_misplaced(entry.handle))
            if is_wanted and (is_public(entry.state) or (is_listed and is_visible(entry))):
                items.append(ListedHandle(entry.handle, entry.state, entry.seq))
            if len(items) == limit:
                more = more or number < len(entries)
                break
    return Page(tuple(items), last, more)


def list_by_offset(
    snapshot: Snapshot, identity: Identity, name: str, skip: int, limit: int = DEFAULT_PAGE
) -> tuple[ListedHandle, ...] | None:
    """Return the handles of all pages of `list_handles` without `owned`, from the one after `skip`. Raises `Refused`.

    For clients that count pages. The database skips, and handles created meanwhile shift the others. None if copies of
    handles of other servers are hidden from the caller, which the database cannot skip: use `list_handles`.
    """
    first, end, administers = _check_listing(snapshot, identity, name)
    states, limit = _visible_states(administers=administers), page_size(limit)
    if _hides_misplaced(snapshot, identity):
        return None
    items: list[ListedHandle] = []
    more = True
    while more and len(items) < limit:
        entries, more = snapshot.reader.names_in_states(first, end, states, limit - len(items), skip)
        items += [ListedHandle(entry.handle, entry.state, entry.seq) for entry in entries]
        first, skip = entries[-1].key + b"\0" if entries else first, 0
    return tuple(items)


def count_handles(snapshot: Snapshot, identity: Identity, name: str) -> int | None:
    """Return the number of handles on all pages of `list_handles` without `owned`. Raises `Refused`.

    Copies of handles of other servers of the site are counted for those who see them. None while it is not known how
    many there are for the others: each call examines some, and the next one continues.
    """
    first, end, administers = _check_listing(snapshot, identity, name)
    states = _visible_states(administers=administers)
    count, partition = snapshot.reader.count_names(first, end, states), snapshot.rules.partition
    if partition is None or not _hides_misplaced(snapshot, identity):
        return count
    misplaced = _count_misplaced(snapshot, partition.misplaced, first, end, states)
    return None if misplaced is None else count - misplaced


def _count_misplaced(
    snapshot: Snapshot, known: dict[object, MisplacedCount], first: bytes, end: bytes, states: tuple[State, ...]
) -> int | None:
    """Count copies of handles of other servers; None if there is more to examine than `MAX_SCANNED`.

    They only change if an administrator deletes some. Then they are counted again.
    """
    reader = snapshot.reader
    key, size = (reader.ledger_id, first, end, states), reader.size
    counted = known.get(key)
    is_newer = counted is not None and counted.seq > size  # than this snapshot, or a restored ledger
    if counted is None or is_newer:
        counted = MisplacedCount(size, first, 0)
    seq = min(size, counted.seq + MAX_SCANNED)
    if any(snapshot.is_misplaced(change.handle) for change in reader.transitions(counted.seq, seq)):
        counted = MisplacedCount(size, first, 0)
    else:
        counted = replace(counted, seq=seq)
    if counted.seq == size and counted.first < end:
        entries, more = reader.names_in_states(counted.first, end, states, MAX_SCANNED)
        count = counted.count + sum(snapshot.is_misplaced(entry.handle) for entry in entries)
        counted = MisplacedCount(size, entries[-1].key + b"\0" if more else end, count)
    if not is_newer:
        if len(known) >= _MAX_COUNTS:
            known.clear()
        known[key] = counted
    return counted.count if (counted.seq, counted.first) == (size, end) else None


def list_homed(snapshot: Snapshot, identity: Identity) -> tuple[str, ...]:
    """Return the table of homed prefixes, as its entries are written (§16.7). Raises `Refused`."""
    Context(snapshot, identity, "read", 0).require(permissions.server_operation(OpCode.LIST_HOMED_NAS))
    return tuple(homed_prefixes(snapshot.reader))


@dataclass(frozen=True, slots=True)
class PrefixAccess:
    """What the caller can see of the records of one prefix."""

    lists: bool = False
    administers: bool = False
    shows_actors: bool = False
    shows_past: bool = False


class Visibility:
    """What the caller can see of the records of all prefixes; decided per prefix on first use."""

    def __init__(self, snapshot: Snapshot, identity: Identity) -> None:
        self._snapshot = snapshot
        self._identity = identity
        self._access: dict[str, PrefixAccess] = {}
        self._can_see_all = is_allowed(snapshot, identity, SEE_ALL)
        if not (snapshot.rules.listing_allowed or self._can_see_all):
            raise listing_disabled()

    def access(self, handle: str) -> PrefixAccess | None:
        """Return the access to a handle's namespace; None if that exceeds the prefixes of a page."""
        if self._can_see_all:
            return PrefixAccess(True, True, True, True)
        if self._snapshot.is_misplaced(handle):
            return PrefixAccess()
        prefix = fold(handle.partition("/")[0])
        if prefix not in self._access:
            if len(self._access) == MAX_PREFIXES:
                return None
            self._access[prefix] = self._decide(prefix)
        access = self._access[prefix]
        # Prefix handles can be hosted one by one.
        is_visible = not access.lists or prefix != PREFIX_OF_PREFIXES or self._is_served(handle)
        return access if is_visible else PrefixAccess()

    def _is_served(self, handle: str) -> bool:
        return self._snapshot.is_responsible(Handle.parse_lenient(handle))

    def _decide(self, prefix: str) -> PrefixAccess:
        """Decide the access to a prefix."""
        if prefix == SITE_PREFIX or (prefix != PREFIX_OF_PREFIXES and not self._snapshot.hosts_prefix(prefix)):
            return PrefixAccess()
        try:
            policy = self._snapshot.policy(prefix)
        except Refused:
            return PrefixAccess()  # an unreadable policy opens nothing
        if not is_allowed(self._snapshot, self._identity, listing_requirement(prefix, policy)):
            return PrefixAccess()
        administers = is_allowed(self._snapshot, self._identity, listing_requirement(prefix))
        return PrefixAccess(True, administers, administers or policy.show_actors, administers or policy.show_past)

    def shows(self, entry: Entry, access: PrefixAccess) -> bool:
        """Whether an entry is visible in the log."""
        if not access.lists or access.administers:
            return access.lists
        is_visible = not case_rules.ends_key(self._snapshot, entry)
        return is_visible and self._is_public_result(entry, access) and self._is_still_public(entry, access)

    def to_log_entry(self, entry: Entry, access: PrefixAccess) -> LogEntry:
        """Return the visible form of an entry."""
        interface, actor = (entry.origin if access.shows_actors else None) or (None, None)
        action = entry.action
        if not access.administers:
            action = public_action(entry, follows=not access.shows_past or self._was_public_before(entry))
        note = entry.why if self._can_see_all else None
        return LogEntry(entry.seq, entry.at, action, entry.handle, entry.state, interface, actor, note)

    def find_change(self, entry: Entry, access: PrefixAccess, earlier: int, later: int) -> ChangedRecord | None:
        """Return the change of an entry's record if this is its first change in the period and is visible."""
        if case_rules.ends_key(self._snapshot, entry):
            return None
        stored = self._stored(entry)
        before = case_rules.as_of(self._snapshot, stored, entry.seq - 1)
        if before is not None and before.seq > earlier:
            return None  # reported already, with the record's first change
        after = case_rules.as_of(self._snapshot, stored, later) or entry
        if not self.shows(after, access):
            return None
        if before is not None and not (
            access.administers or (access.shows_past and self._is_public_result(before, access))
        ):
            before = None
        seq, state = (0, State.ABSENT) if before is None else (before.seq, before.state)
        if state is State.ABSENT and after.state is State.ABSENT and not access.administers:
            return None
        return ChangedRecord(after.handle, seq, after.seq, state, after.state, after.at)

    def _stored(self, entry: Entry) -> StoredRecord:
        """Return an entry's record as it is today."""
        name = Handle.parse_lenient(entry.handle)
        if fold(name.prefix) == SITE_PREFIX:
            return installation_record(self._snapshot, name)
        try:
            return self._snapshot.stored(name)
        except Refused:  # unreadable policy; server administrators see the record anyway
            return replace(installation_record(self._snapshot, name), key=entry.key, exact=entry.exact)

    # Public knowledge

    def _is_public_result(self, entry: Entry, access: PrefixAccess) -> bool:
        """Whether the result of an entry was public."""
        if entry.state is not State.ABSENT:
            return is_public(entry.state)
        if not access.shows_past:
            return False
        steps = self._steps_back(entry)
        return is_public(next((step.state for step in steps if step.state is not State.ABSENT), State.RESERVED))

    def _is_still_public(self, entry: Entry, access: PrefixAccess) -> bool:
        """Whether an entry is still public."""
        latest = self._stored(entry).entry or entry
        return (access.shows_past or latest.seq == entry.seq) and self._is_public_result(latest, access)

    def _was_public_before(self, entry: Entry) -> bool:
        """Whether the record was public before an entry."""
        return any(is_public(step.state) for step in self._steps_back(entry))

    def _steps_back(self, entry: Entry) -> Iterator[Entry]:
        """Iterate over a few versions of the record before an entry, newest first."""
        steps = case_rules.history(self._snapshot, self._stored(entry), entry.seq - 1)
        return (step for step, _ in zip(steps, range(_MAX_VERSIONS_BACK), strict=False))


def listing_requirement(prefix: str, policy: Policy | None = None) -> Requirement:
    """Return what listing a prefix requires; without a policy, what seeing it as an administrator requires."""
    requirement = permissions.list_handles(prefix)
    audience = Audience.ADMINISTRATORS if policy is None else policy.who_may_list
    if audience is Audience.PUBLIC:
        return replace(requirement, alternatives=(), public=True)
    if audience is Audience.AUTHENTICATED:
        return replace(requirement, alternatives=((),))
    by_permission = requirement.alternatives if audience is Audience.ADMINISTRATORS else ()
    return replace(requirement, alternatives=(*SEE_ALL.alternatives, *by_permission))


def listing_disabled() -> Refused:
    """Return the refusal of a server that does not list handles."""
    reason = "Listing handles is disabled on this server"
    return Refused(ResponseCode.OPERATION_NOT_SUPPORTED, reason, AdviceKind.ENABLE_LISTING())


def _check_listing(snapshot: Snapshot, identity: Identity, name: str) -> tuple[bytes, bytes, bool]:
    """Return the first and last key of a prefix, and whether the caller administers it. Raises `Refused`."""
    # The setting concerns the network.
    if not snapshot.rules.listing_allowed and not isinstance(identity, LocalIdentity):
        raise listing_disabled()
    prefix, first, end, homed = _key_range(name)
    if not any(snapshot.is_homed(each) for each in homed):
        raise not_hosted(prefix)
    context = require_listing(snapshot, identity, prefix)
    return first, end, context.is_allowed(listing_requirement(prefix))


def require_listing(snapshot: Snapshot, identity: Identity, prefix: str) -> Context:
    """Refuse a caller who cannot list a prefix, but can still find what they own there."""
    context = Context(snapshot, identity, "read", 0)
    decision = context.check(listing_requirement(prefix, snapshot.policy(prefix)))
    if decision.allowed:
        return context
    if decision.advice is not None and decision.advice.kind in (
        AdviceKind.ASK_ADMINISTRATOR,
        AdviceKind.ASK_WHO_HAS_ACCESS,
    ):
        decision = replace(decision, advice=AdviceKind.FIND_OWNED(prefix=prefix))
    raise Refused.from_decision(decision)


def _hides_misplaced(snapshot: Snapshot, identity: Identity) -> bool:
    """Whether copies of handles that belong to other servers are hidden from the caller, if there are any."""
    return snapshot.rules.partition is not None and not is_allowed(snapshot, identity, SEE_ALL)


def _visible_states(*, administers: bool) -> tuple[State, ...]:
    """Return the states that are shown: all, or the public ones."""
    public = (State.NORMAL, State.TOMBSTONE)
    return (*public, State.RESERVED, State.UNPUBLISHED) if administers else public


def _key_range(name: str) -> tuple[str, bytes, bytes, tuple[str, ...]]:
    """Return the prefix of a listing, its first and last key, and what must be homed."""
    marker = f"{PREFIX_OF_PREFIXES}/"
    folded = fold(name)
    prefix = folded.removeprefix(marker)
    derived = folded.startswith(marker + marker)
    if derived:
        prefix = prefix.removeprefix(marker)
    if "/" in prefix or Handle.for_lookup(marker + prefix) is None:
        reason = f"Invalid prefix {display_name(name)}"
        raise InvalidRequest(ResponseCode.INVALID_HANDLE, reason, AdviceKind.PREFIX_EXAMPLE(), "H2")
    if derived:
        first, end = key_range(f"{marker}{prefix}.")
        homed: tuple[str, ...] = (marker + PREFIX_OF_PREFIXES,)
    else:
        first, end = key_range(f"{prefix}/")
        homed = (marker + prefix, prefix)
    return prefix, first, end, homed


def _key_after(reader: LogReader, after: int, first: bytes, end: bytes) -> bytes:
    """Return the first key of a page that follows the record of an entry."""
    if not after:
        return first
    try:
        key = reader.entry(after).key
    except KeyError:
        key = b""
    if not first <= key < end:
        reason = f"Entry {after} does not belong to this prefix"
        raise InvalidQuery(reason, AdviceKind.START_AT_ENTRY())
    return key + b"\0"
