"""The history of one record, as far as the caller can see it.

Everybody can read the history of a handle that they can name. The public sees:

- values that were public then and have not been hidden since (`HistoryFilter`);
- nothing from the time when the handle was reserved or unpublished, not even that there was such a time; and nothing at
  all while it is so today;
- that a deleted handle existed, unless the policy says `show_past = false`;
- with that line in the policy, only the present version;
- who made a change only where the policy says `show_actors = true`, and never why: a note can contain anything.

Administrators of the record (READ_VALUE) or of the server see every version, who made it and why; private values
require READ_VALUE. Today's permissions and policy apply to every version.

Removing PUBLIC_READ from a value also hides its history, unless the change keeps it (`keep_history_note`). Comparing
with the present record is not enough: what was hidden and then removed, moved or redacted stays hidden.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from perseid.ledger.log.entry import Action, Entry, State
from perseid.ledger.log.record_keys import record_key
from perseid.names.handle import Handle, fold
from perseid.records.record import Permission, Value, ValueRef, ascending, select
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize
from perseid.registry.access.permissions import Differences, HasRole, RequiredScope, Requirement, Role, display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context, not_found, not_public
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.policy import case_rules, resolution
from perseid.registry.results import Deleted, InvalidQuery, NotYetCreated, Refused, Resolution
from perseid.registry.snapshot import SITE_PREFIX, Snapshot, StoredRecord
from perseid.schema.namespaces import Scope
from perseid.wire.codes import ResponseCode

from .paging import DEFAULT_PAGE, MAX_PAGE, PageBudget, page_size, values_size
from .resolve import Query, resolve, resolve_by_template, values_not_found

if TYPE_CHECKING:  # resolution needs no SQL
    from perseid.ledger.log.reader import LogReader

MAX_VERSIONS_SCANNED: Final = 20_000
"""Versions and values examined to find what was hidden since: a quarter of a second of work. Anybody can ask, and a
publicly writable value can have any number of versions. Older versions are not shown."""

MAX_GAPS: Final = 100
"""Gaps left by redaction that are tracked; beyond that, everything older is hidden."""

KEEP_HISTORY: Final = "past stays public"
"""First line of the note of an entry that hides values, or a record, without hiding their history."""

_PUBLIC_STATES: Final = (State.NORMAL, State.TOMBSTONE)
_INDEXES_END: Final = 1 << 31
_Content: TypeAlias = tuple[str, bytes, tuple[ValueRef, ...]]


class SearchBudget:
    """Amount of history examined for one request, across all records."""

    def __init__(self) -> None:
        self.count = 0


class HistoryFilter:
    """Removes from earlier versions what the public may no longer see. Feed it versions from the newest back.

    Hidden are the earlier versions of everything that has lost PUBLIC_READ:

    - values at an index that is private in a later version, even if it was empty in between;
    - values with the data of a value that is private in a later version, at any index and of any type;
    - values with the index or the data of a value hidden by these rules: they are its history too;
    - everything before the record was unpublished;
    - values that may be earlier versions of a redacted one, of which only the position is known.

    What became public again later is not hidden, and what was only removed or replaced never was. An entry whose note
    starts with `KEEP_HISTORY` hides nothing before it, unless that note was redacted.
    """

    def __init__(self, search_budget: SearchBudget | None = None) -> None:
        self.ended = False
        """Whether the limit was reached, so nothing older is shown."""
        self._later: Entry | None = None
        self._private: list[Value] = []  # of the later version
        self._indexes: set[int] = set()
        self._data: set[bytes] = set()
        self._gaps: set[tuple[int, int]] = set()
        self._everything = False
        self._public: set[_Content] = set()
        self._search_budget = SearchBudget() if search_budget is None else search_budget

    def visible_values(self, entry: Entry) -> tuple[Value, ...]:
        """Return the values of the next older version that are still public."""
        self._search_budget.count += 1 + len(entry.values)
        self.ended = self.ended or self._search_budget.count > MAX_VERSIONS_SCANNED
        if self.ended:
            return ()
        values = entry.record()
        public = [value for value in values if value.is_public]
        private = [value for value in values if not value.is_public]
        if self._later is not None:
            self._hide_earlier(self._later, entry, public, private)
        self._later, self._private = entry, private
        if not is_public(entry.state):
            return ()
        # First by index, then by data: what hides one value of this version hides its copies in it.
        self._data.update([value.data for value in public if self._is_hidden(value)])
        hidden = {value.index for value in public if self._is_hidden(value)}
        self._indexes |= hidden
        visible = [value for value in public if value.index not in hidden]
        self._public.update(map(_content, visible))
        return ascending(visible)

    def _hide_earlier(self, later: Entry, entry: Entry, public: list[Value], private: list[Value]) -> None:
        """Record what the later version hides of this one and of everything before it."""
        self._gaps.update(_gaps(later, {slot.commitment for slot in entry.values}))
        self._everything = self._everything or len(self._gaps) > MAX_GAPS
        if (later.why or "").partition("\n")[0] == KEEP_HISTORY:
            return
        # What was private before too was hidden then, by an entry that may have kept its history public.
        self._indexes |= {value.index for value in self._private} - {value.index for value in private}
        hidden_before = {value.data for value in private} - {value.data for value in public}
        self._data |= {value.data for value in self._private} - hidden_before
        if later.state is not State.ABSENT and not is_public(later.state) and is_public(entry.state):
            self._everything = True

    def _is_hidden(self, value: Value) -> bool:
        if _content(value) in self._public:
            return False
        if self._everything or value.index in self._indexes or value.data in self._data:
            return True
        return any(low < value.index < high for low, high in self._gaps)


def is_public(state: State) -> bool:
    """Whether a record in this state is public."""
    return state in _PUBLIC_STATES


def keep_history_note(note: str) -> str:
    """Return the note for a change that hides values, or unpublishes, but keeps the history public."""
    return f"{KEEP_HISTORY}\n{note}" if note else KEEP_HISTORY


def _content(value: Value) -> _Content:
    return value.type, value.data, value.references


def _gaps(entry: Entry, before: set[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the index ranges where redacted values of an entry were: values are stored by ascending index.

    A redacted value that the version before has too, by its commitment, has its earlier versions further back, if any.
    """
    low, redacted = -1, False
    for slot in entry.values:
        if slot.content is None:
            redacted = redacted or slot.commitment not in before
            continue
        index = int.from_bytes(slot.content[:4], "big", signed=True)
        if redacted:
            yield low, index
        low, redacted = index, False
    if redacted:
        yield low, _INDEXES_END


MIN_TIMESTAMP: Final = 10**14
"""Smaller numbers are entries, others are microseconds since 1970. No ledger will have 10^14 entries, and none is older
than this instant in March 1973."""

SEE_ALL: Final = Requirement(
    "see the whole ledger", ((HasRole((Role.SERVER,)),),), required_scope=RequiredScope.for_server(Scope.ADMIN)
)
"""Server administrators see every handle and who changed it; private values require more."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DATE: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAY: Final = timedelta(days=1) // timedelta(microseconds=1)
_MAX_DIGITS: Final = 19  # of a number of 64 bits


@dataclass(frozen=True, slots=True)
class Version:
    """A record after one entry, as the caller can see it."""

    seq: int
    at: int
    """In microseconds since 1970."""
    action: Action
    """The action; the public sees creation or update instead of publication, since the time before is hidden."""
    state: State
    values: tuple[Value, ...]
    """The visible values, by ascending index."""
    changed: Differences | None
    """Differences from the previous visible version; None if that is withheld."""
    redacted: int
    """Number of permanently redacted values."""
    interface: str | None = None
    actor: str | None = None
    """Who made the change; None if withheld or redacted."""
    note: str | None = None

    @property
    def size(self) -> int:
        """Its size on a page, including the differences."""
        changed = () if self.changed is None else (*self.changed.added, *self.changed.removed)
        modified = () if self.changed is None else self.changed.modified
        size = values_size((*self.values, *changed)) + sum([values_size(pair) for pair in modified])
        return size + len(self.actor or "") + len(self.note or "")


@dataclass(frozen=True, slots=True)
class History:
    """Versions of one record, newest first."""

    handle: Handle
    """The handle as registered."""
    versions: tuple[Version, ...]
    before: int | None
    """Cursor of the next page: versions before this entry; None if this is the last page."""
    complete: bool
    """Whether nothing is withheld by the policy or the scan limit."""


@dataclass(frozen=True, slots=True)
class HistoricalResult:
    """The result of resolving at a past time."""

    seq: int
    """The last entry of the ledger at that time: citing it gives the same result permanently."""
    resolved: Resolution


@dataclass(frozen=True, slots=True)
class VisibleVersion:
    """An entry of a record, with its visible values."""

    entry: Entry
    values: tuple[Value, ...]


def seq_at_time(reader: "LogReader", when: str | int, now: int) -> int:
    """Return the last entry of the ledger at a time; 0 if there was none yet.

    `when` is an entry number, microseconds since 1970, or an ISO 8601 time (UTC if it has no zone). `now` is the clock
    in microseconds; times in the future are refused.
    """
    number = when if isinstance(when, int) else _parse_number(when)
    if number is None:
        number = parse_time(str(when))
    elif number < MIN_TIMESTAMP:
        if not 0 <= number <= reader.size:
            reason = f"Entry {number} does not exist; the last entry is {reader.size}"
            raise InvalidQuery(reason, AdviceKind.GIVE_ENTRY())
        return number
    if number > now:
        raise InvalidQuery(f"Time {display_name(str(when))} is in the future", AdviceKind.GIVE_PAST_TIME())
    return reader.seq_at(number)


def seq_until(reader: "LogReader", when: str, now: int) -> int:
    """Return the last entry at a time, as `seq_at_time`; a date means its end, even if it is today."""
    if not _DATE.fullmatch(when.strip()):
        return seq_at_time(reader, when, now)
    start = parse_time(when)
    return seq_at_time(reader, when, now) if start > now else reader.seq_at(start + _DAY - 1)


def seqs_between(reader: "LogReader", earlier: str, later: str | None, now: int) -> tuple[int, int]:
    """Return the last entries at two times, as `seq_at_time`; `later` is the end of the ledger if it is None."""
    first = seq_at_time(reader, earlier, now)
    last = reader.size if later is None else seq_at_time(reader, later, now)
    if first > last:
        reason = f"The earlier time (entry {first}) is after the later one (entry {last})"
        raise InvalidQuery(reason, AdviceKind.SWAP_VERSIONS())
    return first, last


def get_history(
    snapshot: Snapshot, identity: Identity, handle: Handle, before: int | None = None, limit: int = DEFAULT_PAGE
) -> History:
    """Return a page of versions before an entry, newest first. Raises `Refused`.

    What has been hidden since is found by walking back from today, so older pages cost more, up to
    `MAX_VERSIONS_SCANNED`; administrators with READ_VALUE pay only for their page.
    """
    history = RecordHistory(snapshot, identity, handle)
    budget = PageBudget(page_size(limit))
    versions: list[Version] = []
    newer: VisibleVersion | None = None  # added once the version before it is known
    exists = more = False
    for version in history.versions(before):
        exists = True
        if before is not None and version.entry.seq >= before:
            continue
        if newer is not None:
            more = not _add_version(budget, versions, history.version(newer, version, first=False)) or budget.is_full
        if more:
            break
        newer = version
    if not exists:
        history.check_empty_page(before)
    if newer is not None and not more:
        more = not _add_version(budget, versions, history.version(newer, None, first=not history.truncated))
    return History(history.stored.handle, tuple(versions), versions[-1].seq if more else None, not history.truncated)


def _add_version(budget: PageBudget, versions: list[Version], version: Version) -> bool:
    """Add a version if it fits on the page; return whether it did."""
    is_taken = budget.take(version.size)
    if is_taken:
        versions.append(version)
    return is_taken


def as_of(snapshot: Snapshot, identity: Identity, query: Query, seq: int) -> HistoricalResult:
    """Resolve a handle as of an entry of the ledger (see `seq_at_time`). Raises `Refused`.

    Responsibility for the handle, and visibility, are decided by the present state.
    """
    search_budget = SearchBudget()  # a template can depend on dozens of records, each with a long history
    caller = Anonymous() if query.public_only else identity
    history = RecordHistory(snapshot, caller, query.handle, refer=query.refer, search_budget=search_budget)
    version = history.existing_at(seq)
    if version is None:
        by_template = resolve_by_template(
            query,
            identity,
            snapshot,
            history.stored,
            lambda *name: public_record_at(snapshot, seq, search_budget, *name),
            seq,
        )
        return HistoricalResult(seq, by_template)
    entry = version.entry
    selected = select(entry.record(), query.indexes, query.types)
    if not query.public_only and selected:
        Context(snapshot, identity, "read", 0).require_read(history.stored.handle, selected)
    values = select(version.values, query.indexes, query.types)
    if not values:
        raise values_not_found(query)
    stored = history.stored
    registered = Handle.parse_lenient(entry.handle)
    resolved = Resolution(
        stored.requested, registered, entry.state, values, entry.seq, entry.at, stored.query, stored.fragment
    )
    return HistoricalResult(seq, resolved)


def resolve_at(context: Context, query: Query, seq: int | None, at: str | None = None) -> Resolution:
    """Resolve a handle now, or as of an entry of the ledger: the last one `at` a time. Raises `Refused`.

    Callers who can read the record learn that it is not public, and those who can see its history that it was deleted;
    for others it does not exist.
    """
    snapshot, identity = context.snapshot, context.identity
    try:
        return resolve(query, context) if seq is None else as_of(snapshot, identity, query, seq).resolved
    except Refused as refused:
        if refused.code is not ResponseCode.HANDLE_NOT_FOUND:
            raise
        stored = snapshot.stored(query.handle)
        is_hidden = query.public_only and stored.exists and not stored.is_public
        if is_hidden and can_read(snapshot, identity, stored.handle):
            raise not_public(stored, earlier=seq is not None) from refused
        if deleted := _find_deletion(snapshot, identity, stored, seq):
            raise deleted from refused
        if seq is not None and (first := _find_first_version(snapshot, identity, stored)) and first.seq > seq:
            when = f"entry {seq}" if at is None or _parse_number(at) == seq else at
            raise NotYetCreated(stored.requested, when, first.seq, first.at) from refused
        raise


def _find_deletion(snapshot: Snapshot, identity: Identity, stored: StoredRecord, seq: int | None) -> Deleted | None:
    """The deletion of a handle without a record as of an entry; None if the caller cannot see it."""
    if stored.entry is None:
        snapshot.require_deletions(stored)
        return None
    deletion: Entry | None = None
    history = RecordHistory(snapshot, identity, stored.requested, stored=stored)
    for version in history.versions(None if seq is None else seq + 1):
        entry = version.entry
        if seq is not None and entry.seq > seq:
            continue
        if entry.state is not State.ABSENT:
            return None if deletion is None else Deleted(stored.requested, deletion.at, entry.seq)
        deletion = entry  # a redaction can follow it
    return None


def _find_first_version(snapshot: Snapshot, identity: Identity, stored: StoredRecord) -> Entry | None:
    """The first version of a record; None if it is too far back, or not visible."""
    history = RecordHistory(snapshot, identity, stored.requested, stored=stored)
    found = [version.entry for version in islice(history.versions(), MAX_PAGE)]
    is_complete = len(found) < MAX_PAGE and not history.truncated
    return next((entry for entry in reversed(found) if entry.state is not State.ABSENT), None) if is_complete else None


def public_record_at(
    snapshot: Snapshot, seq: int, search_budget: SearchBudget, handle: Handle, type_: str | None
) -> resolution.PublicRecord | None:
    """Return a public record as of an entry of the ledger; its prefix need not be hosted here."""
    stored = snapshot.stored(handle)
    entry = case_rules.as_of(snapshot, stored, seq)
    if entry is None or not resolution.contains_type(entry.record(), type_):
        return None
    version = RecordHistory(snapshot, Anonymous(), handle, stored=stored, search_budget=search_budget).existing_at(seq)
    return None if version is None else resolution.PublicRecord(version.entry, version.values)


def is_allowed(snapshot: Snapshot, identity: Identity, requirement: Requirement) -> bool:
    """Whether the caller meets a requirement today."""
    return authorize(identity, requirement, snapshot, snapshot.rules.administration, snapshot.usage).allowed


def can_read(snapshot: Snapshot, identity: Identity, handle: Handle) -> bool:
    """Whether the caller can read all of a record today, in every state, by its administrators."""
    return not isinstance(identity, Anonymous) and is_allowed(snapshot, identity, permissions.read(handle))


class RecordHistory:
    """The history of one record as one caller sees it."""

    def __init__(
        self,
        snapshot: Snapshot,
        identity: Identity,
        handle: Handle,
        *,
        refer: bool = False,
        stored: StoredRecord | None = None,
        search_budget: SearchBudget | None = None,
    ) -> None:
        """With `stored`, responsibility for the handle is not checked."""
        self._snapshot = snapshot
        self._search_budget = search_budget
        runs_server = is_allowed(snapshot, identity, SEE_ALL)
        if fold(handle.prefix) == SITE_PREFIX and runs_server:
            self.stored = installation_record(snapshot, handle)
            self.can_read = True  # policies and homed prefixes belong to server administrators
        else:
            self.stored = (
                Context(snapshot, identity, "read", 0).get_hosted(handle, refer=refer) if stored is None else stored
            )
            self.can_read = is_allowed(snapshot, identity, permissions.read(self.stored.handle))
        self.administers = self.can_read or runs_server
        self.shows_actors = self.administers or self.stored.policy.show_actors
        self.truncated = False
        """Whether something has been withheld so far."""

    def versions(self, before: int | None = None) -> Iterator[VisibleVersion]:
        """Iterate over visible versions, newest first. With `before`, later ones may be left out to save work."""
        if self.can_read:
            snapshot, stored = self._snapshot, self.stored
            entries = (
                case_rules.history(snapshot, stored)
                if before is None
                else case_rules.history(snapshot, stored, before - 1)
            )
            return (VisibleVersion(entry, _readable(entry)) for entry in entries)
        return self._filter_versions(case_rules.history(self._snapshot, self.stored))

    def check_empty_page(self, before: int | None) -> None:
        """Refuse a page without versions, unless an administrator asks for those before the first one."""
        if before is None or not self.administers or self.stored.entry is None:
            raise not_found(self.stored)

    def version_at(self, seq: int) -> VisibleVersion:
        """Return the version as of an entry of the ledger; refused if there is none that is visible."""
        entry = case_rules.as_of(self._snapshot, self.stored, seq)
        wanted_seq = 0 if entry is None else entry.seq
        # Where history is hidden, the absence of a record is hidden too.
        for version in self.versions(wanted_seq + 1) if wanted_seq or not self.stored.policy.show_past else ():
            if version.entry.seq == wanted_seq:
                return version
            if version.entry.seq < wanted_seq:
                break
        if self.truncated and self.stored.is_public:
            policy = self.stored.policy
            reason = f"Earlier versions of {display_name(self.stored.requested)} are visible to its administrators only"
            if policy.show_past:
                reason = f"{display_name(self.stored.requested)} has too many later versions to check for hidden values"
            rule = "" if policy.show_past else policy.line("show_past")
            raise Refused(ResponseCode.INSUFFICIENT_PERMISSIONS, reason, AdviceKind.USE_CURRENT_VERSION(), rule)
        raise not_found(self.stored)

    def existing_at(self, seq: int) -> VisibleVersion | None:
        """Return the version as of an entry; None if no record existed then, as far as visible."""
        try:
            version = self.version_at(seq)
        except Refused as refused:
            if refused.code is not ResponseCode.HANDLE_NOT_FOUND:
                raise
            return None
        return None if version.entry.state is State.ABSENT else version

    def version(self, visible: VisibleVersion, older: VisibleVersion | None, *, first: bool) -> Version:
        """Describe a version; `first` means that without an older version there is none."""
        entry = visible.entry
        known = older is not None or first
        interface, actor = (entry.origin if self.shows_actors else None) or (None, None)
        return Version(
            seq=entry.seq,
            at=entry.at,
            action=entry.action if self.administers else public_action(entry, follows=older is not None or not first),
            state=entry.state,
            values=visible.values,
            changed=Differences.between(older.values if older else (), visible.values) if known else None,
            redacted=sum(slot.is_redacted for slot in entry.values),
            interface=interface,
            actor=actor,
            note=entry.why if self.administers else None,
        )

    def _filter_versions(self, entries: Iterator[Entry]) -> Iterator[VisibleVersion]:
        """Yield what callers without access to private values see, walking back from today."""
        history_filter = HistoryFilter(self._search_budget)
        deleted: list[VisibleVersion] = []  # deletions; shown if the record before them is
        has_public = False
        for entry in entries:
            version = VisibleVersion(entry, history_filter.visible_values(entry))
            self.truncated = history_filter.ended
            if self.administers:
                yield version
                continue
            if self.truncated or (not is_public(entry.state) and entry.state is not State.ABSENT and not has_public):
                return
            if entry.state is State.ABSENT:
                if not has_public and not self.stored.policy.show_past:
                    return
                deleted.append(version)
            elif is_public(entry.state):
                yield from deleted
                yield version
                has_public = True
                deleted = []
                if not self.stored.policy.show_past:
                    self.truncated = True
                    return
            else:
                deleted = []


def public_action(entry: Entry, *, follows: bool) -> Action:
    """Return the action that the public sees: publication would reveal the time before it.

    `follows` means that there is an earlier public version.
    """
    if entry.action is not Action.PUBLISH:
        return entry.action
    return Action.UPDATE if follows else Action.CREATE


def installation_record(snapshot: Snapshot, handle: Handle) -> StoredRecord:
    """Return one of the installation's own records."""
    key = record_key(str(handle))
    entry = snapshot.entry(key)
    values = () if entry is None else entry.record()
    return StoredRecord(handle, handle, key, False, snapshot.rules.default_policy, entry, values)


def _readable(entry: Entry) -> tuple[Value, ...]:
    """Return the values that administrators can read; some values nobody can read."""
    readable = [value for value in entry.record() if value.is_public or Permission.ADMIN_READ in value.permissions]
    return ascending(readable)


def _parse_number(text: str) -> int | None:
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal()):
        return None
    if len(digits) > _MAX_DIGITS:
        raise _invalid_time(text)
    return int(digits)


def parse_time(text: str) -> int:
    """Parse a date or time in ISO 8601, in UTC if it has no zone; in microseconds since 1970. Raises `Refused`."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise _invalid_time(text) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(microseconds=1)


def _invalid_time(text: str) -> Refused:
    reason = f"Invalid time {display_name(text)}"
    return InvalidQuery(reason, AdviceKind.USE_ISO_TIME())
