"""What the public may no longer see of a record's past: values that were public once and have been hidden since.

Taking PUBLIC_READ from a value hides its past as well, unless whoever does it says otherwise (`keeping_past`). It is
not enough to look at the record of today: what was hidden and then removed, moved or erased is hidden all the same.

The past of one name, as far as whoever asks may see it.

Everybody may read the history of a name that they can name. What the public sees of it:

- a value that was public then and has not been hidden since (`Veil` says what that means);
- nothing of the time when the name was reserved or unpublished, not even that there was such a time; and nothing at
  all while it is so today;
- of a name that was deleted, that it existed, unless the policy says `show_past = false`;
- with that line in the policy, nothing but what is there today;
- who made a change only where the policy says `show_actors = true`, and never why: a note may hold anything.

Whoever administers the record (READ_VALUE) or the server sees every version, who made it and why; private values take
READ_VALUE. Rights, and what the policy shows, are those of today: who was an administrator once is none any more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from perseid.ledger.log.entry import Action, Entry, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import record_key
from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.record import ascending, select
from perseid.records.value import Permission, Value, ValueRef
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize, authorize_read
from perseid.registry.access.permissions import Differences, HasRole, Requirement, Role, display_name
from perseid.registry.access.scopes import RequiredScope, Scope
from perseid.registry.context import Context, not_found
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.policy import case_rules, templates
from perseid.registry.results import InvalidQuery, Refused, Resolution
from perseid.registry.snapshot import SITE_PREFIX, Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

from .paging import PageBudget, values_size
from .resolve import Query, resolve_by_template, values_not_found

MAX_VERSIONS_SCANNED: Final = 20_000
"""How many versions and values are looked at to find what was hidden since: a quarter of a second of work. Everybody
may ask, and a value that everybody may write can be given any number of versions. What is further back is not shown."""

MAX_GAPS: Final = 100
"""How many gaps that redaction left are told apart; beyond, everything further back counts as hidden."""

KEEP_HISTORY: Final = "past stays public"
"""The first line of the note of an entry that hides values, or a whole record, from then on only."""

_PUBLIC_STATES: Final = (State.NORMAL, State.TOMBSTONE)
_INDEXES_END: Final = 1 << 31
_Content: TypeAlias = tuple[str, bytes, tuple[ValueRef, ...]]


class SearchBudget:
    """How much was looked at so far, for one request: it may have to look at the past of many names."""

    def __init__(self) -> None:
        self.count = 0


class HistoryFilter:
    """What the public may no longer see of a record's past; it is shown the versions from today's back.

    Hidden are the earlier versions of whatever has lost PUBLIC_READ:

    - values at an index that is private in a later version, also if it was empty in between;
    - values with the data of a value that is private in a later version, at whichever index and of whichever type;
    - what was at the index, or had the data, of a value hidden so: that is its past too;
    - everything before the record was unpublished;
    - values that may be earlier versions of one that was redacted, of which only its place is known.

    What was public again afterwards is not hidden, and what was merely removed or replaced never was. An entry whose
    note begins with `PAST_STAYS` hides nothing before it; if that note was redacted, it does.
    """

    def __init__(self, search_budget: SearchBudget | None = None) -> None:
        self.ended = False
        """Whether too much was looked at, so that nothing further back is shown."""
        self._later: Entry | None = None
        self._private: list[Value] = []  # of the later version
        self._indexes: set[int] = set()
        self._data: set[bytes] = set()
        self._gaps: set[tuple[int, int]] = set()
        self._everything = False
        self._public: set[_Content] = set()
        self._search_budget = SearchBudget() if search_budget is None else search_budget

    def visible_values(self, entry: Entry) -> tuple[Value, ...]:
        """The values that are public still, of the version before the one shown last."""
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
        # First by place, then by data: what hides one value of this version hides its copies in it.
        self._data.update([value.data for value in public if self._is_hidden(value)])
        hidden = {value.index for value in public if self._is_hidden(value)}
        self._indexes |= hidden
        found = [value for value in public if value.index not in hidden]
        self._public.update(map(_content, found))
        return ascending(found)

    def _hide_earlier(self, later: Entry, entry: Entry, public: list[Value], private: list[Value]) -> None:
        """Note what the later version hides of this one, whose values are given, and of all before it."""
        self._gaps.update(_gaps(later, {slot.commitment for slot in entry.values}))
        self._everything = self._everything or len(self._gaps) > MAX_GAPS
        if (later.why or "").partition("\n")[0] == KEEP_HISTORY:
            return
        # What was private before as well was hidden then, by an entry that may have left its past as it is.
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
    """Whether everybody may know of a name in this state."""
    return state in _PUBLIC_STATES


def keep_history_note(note: str) -> str:
    """The note for a change that takes PUBLIC_READ from values, or unpublishes, and leaves the past as it is."""
    return f"{KEEP_HISTORY}\n{note}" if note else KEEP_HISTORY


def _content(value: Value) -> _Content:
    return value.type, value.data, value.references


def _gaps(entry: Entry, before: set[bytes]) -> Iterator[tuple[int, int]]:
    """Between which indexes the redacted values of an entry stood: values are kept by ascending index.

    One that the version before has too, by its commitment, has its earlier versions further back, if any.
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
"""Numbers below it are entries, and from it on microseconds since 1970. No ledger will have a hundred million million
entries, and none is as old as this instant, which lies in March 1973."""

MAX_PAGE: Final = 1_000
"""The most items on a page: what somebody can be sent at once, and what one request may cost."""

DEFAULT_PAGE: Final = 100

SEE_ALL: Final = Requirement(
    "see the whole ledger", ((HasRole((Role.SERVER,)),),), required_scope=RequiredScope.for_server(Scope.ADMIN)
)
"""Who runs the server may see every name and who changed it; private values take more."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_DIGITS: Final = 19  # of a number of 64 bits


@dataclass(frozen=True, slots=True)
class Version:
    """What a name was after one entry, as somebody may see it."""

    seq: int
    at: int
    """When it became so, in microseconds since 1970."""
    action: Action
    """What was done. To the public, publishing is creating or updating: it does not see what was there before."""
    state: State
    values: tuple[Value, ...]
    """The values that may be seen, by ascending index."""
    changed: Differences | None
    """How they differ from those of the version before that may be seen; None if that is not shown."""
    redacted: int
    """How many of the record's values have been erased for good."""
    door: str | None = None
    actor: str | None = None
    """Who did it; None if that may not be seen, or was erased."""
    note: str | None = None

    @property
    def octets(self) -> int:
        """What it takes on a page, with its differences from the version before."""
        changed = () if self.changed is None else (*self.changed.added, *self.changed.removed)
        modified = () if self.changed is None else self.changed.modified
        octets = values_size((*self.values, *changed)) + sum([values_size(pair) for pair in modified])
        return octets + len(self.actor or "") + len(self.note or "")


@dataclass(frozen=True, slots=True)
class History:
    """Versions of one name, newest first."""

    handle: Handle
    """The name as it is registered."""
    versions: tuple[Version, ...]
    before: int | None
    """Where the next page begins: the versions before this entry; None if this is the last page."""
    complete: bool
    """Whether everything is told that there is. Otherwise the policy, or the depth of the past, kept some back."""


@dataclass(frozen=True, slots=True)
class HistoricalResult:
    """What a name stood for at a moment."""

    moment: int
    """The last entry of the ledger at that moment: cite it, and the answer stays the same for ever."""
    resolved: Resolution


@dataclass(frozen=True, slots=True)
class VisibleVersion:
    """An entry of a name, and those of its values that may be seen."""

    entry: Entry
    values: tuple[Value, ...]


def moment(reading: LogReader, when: str | int, now: int) -> int:
    """The last entry of the ledger at a moment: 0 if there was none yet.

    A moment is a number of an entry, microseconds since 1970, or an ISO 8601 time (UTC if it names no zone). `now` is
    the clock in microseconds: what will be is not known.
    """
    number = when if isinstance(when, int) else _parse_number(when)
    if number is None:
        number = _parse_time(str(when))
    elif number < MIN_TIMESTAMP:
        if not 0 <= number <= reading.size:
            reason = f"there is no entry {number}; the last one is {reading.size}"
            raise InvalidQuery(reason, "name an entry of this ledger, or a time")
        return number
    if number > now:
        raise InvalidQuery("that moment is in the future", "ask for one that has passed")
    return reading.seq_at(number)


def get_history(
    snapshot: Snapshot, identity: Identity, handle: Handle, before: int | None = None, limit: int = DEFAULT_PAGE
) -> History:
    """The versions of a name, newest first, those before an entry, as far as a page takes them. Raises `Refused`.

    What has been hidden since is found by walking back from today, so a page further back costs more, up to
    `MAX_SEARCHED`; administrators with READ_VALUE pay for their page only.
    """
    past = RecordHistory(snapshot, identity, handle)
    budget = PageBudget(page_size(limit))
    versions: list[Version] = []
    newer: VisibleVersion | None = None  # it is told when it is known what was before it
    known = more = False
    for seen in past.versions(before):
        known = True
        if before is not None and seen.entry.seq >= before:
            continue
        if newer is not None:
            more = not _add_version(budget, versions, past.version(newer, seen, first=False)) or budget.is_full
        if more:
            break
        newer = seen
    if not known and (before is None or not past.administers or past.stored.entry is None):
        raise not_found(past.stored)
    if newer is not None and not more:
        more = not _add_version(budget, versions, past.version(newer, None, first=not past.truncated))
    return History(past.stored.handle, tuple(versions), versions[-1].seq if more else None, not past.truncated)


def _add_version(budget: PageBudget, versions: list[Version], version: Version) -> bool:
    """Whether a version has room on a page, to which it is added then."""
    is_taken = budget.take(version.octets)
    if is_taken:
        versions.append(version)
    return is_taken


def as_of(snapshot: Snapshot, identity: Identity, query: Query, seq: int) -> HistoricalResult:
    """What a name stood for after an entry of the ledger (see `moment`). Raises `Refused`.

    Who answers for the name, and who may see what, is decided by the state of today.
    """
    search_budget = SearchBudget()  # a template may rest on dozens of records, each of which may have a long past
    asking = Anonymous() if query.public_only else identity
    past = RecordHistory(snapshot, asking, query.handle, refer=query.refer, search_budget=search_budget)
    seen = past.existing_at(seq)
    if seen is None:
        by_template = resolve_by_template(
            query,
            identity,
            snapshot,
            past.stored,
            lambda *name: public_record_at(snapshot, seq, search_budget, *name),
            seq,
        )
        return HistoricalResult(seq, by_template)
    entry = seen.entry
    wanted = select(entry.record(), query.indexes, query.types)
    if not query.public_only and wanted:
        decision = authorize_read(
            identity, past.stored.handle, wanted, snapshot, snapshot.rules.administration, snapshot.usage
        )
        if not decision.allowed:
            raise Refused.from_decision(decision)
    found = select(seen.values, query.indexes, query.types)
    if not found:
        raise values_not_found(query, "had")
    stored = past.stored
    registered = Handle.parse_lenient(entry.handle)
    resolved = Resolution(
        stored.requested, registered, entry.state, found, entry.seq, entry.at, stored.query, stored.fragment
    )
    return HistoricalResult(seq, resolved)


def public_record_at(
    snapshot: Snapshot, seq: int, search_budget: SearchBudget, handle: Handle, holding: str | None
) -> templates.PublicRecord | None:
    """A record as everybody sees it after an entry of the ledger; it need not be one that this server answers for."""
    stored = snapshot.stored(handle)
    entry = case_rules.as_of(snapshot, stored, seq)
    if entry is None or not templates.contains_type(entry.record(), holding):
        return None
    seen = RecordHistory(snapshot, Anonymous(), handle, stored=stored, search_budget=search_budget).existing_at(seq)
    return None if seen is None else templates.PublicRecord(seen.entry, seen.values)


def page_size(limit: int) -> int:
    """How many items a page has, for somebody who asks for so many."""
    if limit < 1:
        raise InvalidQuery(f"a page of {limit} items holds nothing", "ask for at least one")
    return min(limit, MAX_PAGE)


def is_allowed(snapshot: Snapshot, identity: Identity, requirement: Requirement) -> bool:
    """Whether somebody meets a demand today."""
    return authorize(identity, requirement, snapshot, snapshot.rules.administration, snapshot.usage).allowed


class RecordHistory:
    """One name's past through the eyes of one who asks."""

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
        """With `held` it is not asked whether this server answers for the name."""
        self._snapshot = snapshot
        self._search_budget = search_budget
        runs_server = is_allowed(snapshot, identity, SEE_ALL)
        if fold(handle.prefix) == SITE_PREFIX and runs_server:
            self.stored = installation_record(snapshot, handle)
            self.can_read = True  # policies and homed prefixes are the server administrators' own
        else:
            self.stored = (
                Context(snapshot, identity, "read", 0).get_hosted(handle, refer=refer) if stored is None else stored
            )
            self.can_read = is_allowed(snapshot, identity, permissions.read(self.stored.handle))
        self.administers = self.can_read or runs_server
        self.shows_actors = self.administers or self.stored.policy.show_actors
        self.truncated = False
        """Whether something was kept back so far."""

    def versions(self, before: int | None = None) -> Iterator[VisibleVersion]:
        """The versions that may be seen, newest first. With `before`, later ones may be left out, where that saves
        anything.
        """
        if self.can_read:
            snapshot, stored = self._snapshot, self.stored
            entries = (
                case_rules.history(snapshot, stored)
                if before is None
                else case_rules.history(snapshot, stored, before - 1)
            )
            return (VisibleVersion(entry, _readable(entry)) for entry in entries)
        return self._filter_versions(case_rules.history(self._snapshot, self.stored))

    def version_at(self, seq: int) -> VisibleVersion:
        """The version after an entry of the ledger; refused if there was none, or none that may be seen."""
        entry = case_rules.as_of(self._snapshot, self.stored, seq)
        wanted = 0 if entry is None else entry.seq
        # Where the past is not shown, that there was nothing yet is not told either.
        for seen in self.versions(wanted + 1) if wanted or not self.stored.policy.show_past else ():
            if seen.entry.seq == wanted:
                return seen
            if seen.entry.seq < wanted:
                break
        if self.truncated and self.stored.is_public:
            policy = self.stored.policy
            reason = f"the past of {display_name(self.stored.requested)} is shown to its administrators only"
            if policy.show_past:
                reason = (
                    f"too much has happened to {display_name(self.stored.requested)} since to tell what has been hidden"
                )
            rule = "" if policy.show_past else policy.line("show_past")
            raise Refused(ResponseCode.INSUFFICIENT_PERMISSIONS, reason, "ask for what it is today", rule)
        raise not_found(self.stored)

    def existing_at(self, seq: int) -> VisibleVersion | None:
        """The same, or None if there was no record then, as far as may be known."""
        try:
            seen = self.version_at(seq)
        except Refused as refused:
            if refused.code is not ResponseCode.HANDLE_NOT_FOUND:
                raise
            return None
        return None if seen.entry.state is State.ABSENT else seen

    def version(self, seen: VisibleVersion, older: VisibleVersion | None, *, first: bool) -> Version:
        """A version as it may be told; `first` says that without an older one there is none."""
        entry = seen.entry
        known = older is not None or first
        door, actor = (entry.identity if self.shows_actors else None) or (None, None)
        return Version(
            seq=entry.seq,
            at=entry.at,
            action=entry.action if self.administers else public_action(entry, follows=older is not None or not first),
            state=entry.state,
            values=seen.values,
            changed=Differences.between(older.values if older else (), seen.values) if known else None,
            redacted=sum(slot.is_redacted for slot in entry.values),
            door=door,
            actor=actor,
            note=entry.why if self.administers else None,
        )

    def _filter_versions(self, entries: Iterator[Entry]) -> Iterator[VisibleVersion]:
        """What those see who may not read private values, found by walking back from today."""
        history_filter = HistoryFilter(self._search_budget)
        deleted: list[VisibleVersion] = []  # entries without a record; they are shown if the record before them was
        found = False
        for entry in entries:
            seen = VisibleVersion(entry, history_filter.visible_values(entry))
            self.truncated = history_filter.ended
            if self.administers:
                yield seen
                continue
            if self.truncated or (not is_public(entry.state) and entry.state is not State.ABSENT and not found):
                return
            if entry.state is State.ABSENT:
                if not found and not self.stored.policy.show_past:
                    return
                deleted.append(seen)
            elif is_public(entry.state):
                yield from deleted
                yield seen
                found = True
                deleted = []
                if not self.stored.policy.show_past:
                    self.truncated = True
                    return
            else:
                deleted = []


def public_action(entry: Entry, *, follows: bool) -> Action:
    """What the public is told was done: publishing tells of a time before, which it does not see.

    `follows` says that there was an earlier version which the public sees.
    """
    if entry.action is not Action.PUBLISH:
        return entry.action
    return Action.UPDATE if follows else Action.CREATE


def installation_record(snapshot: Snapshot, handle: Handle) -> StoredRecord:
    """A record of the installation itself."""
    key = record_key(str(handle))
    entry = snapshot.entry(key)
    values = () if entry is None else entry.record()
    return StoredRecord(handle, handle, key, False, snapshot.rules.default_policy, entry, values)


def _readable(entry: Entry) -> tuple[Value, ...]:
    """What administrators may read of an entry; some values nobody may."""
    found = [value for value in entry.record() if value.is_public or Permission.ADMIN_READ in value.permissions]
    return ascending(found)


def _parse_number(text: str) -> int | None:
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal()):
        return None
    if len(digits) > _MAX_DIGITS:
        raise _invalid_moment(text)
    return int(digits)


def _parse_time(text: str) -> int:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise _invalid_moment(text) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(microseconds=1)


def _invalid_moment(text: str) -> Refused:
    reason = f"{display_name(text)} is neither a time nor the number of an entry"
    return InvalidQuery(reason, "write 2026-11-15T10:00:00Z, or a number")
