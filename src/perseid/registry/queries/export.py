"""Export of records in the order of their keys, as far as the caller can see them.

An export is consistent: it shows every record as of one entry of the ledger, although it is read in slices, each in a
transaction of its own. Records never leave the view, so a slice finds each record by its key, and a record that has
changed since by its chain of entries. A slice ends after some records, bytes or steps; the next one starts at its
position. So the memory of an export does not grow, and it can be interrupted and resumed.

What an export contains:

- The local server administrator gets every record, with every value. The installation's own records (`0.SITE/…`) are
  not handles; backups have them.
- Others get public records of the namespaces that they can list (see `listing`), with public values. Of records that
  they can read (READ_VALUE), they get every state and the private values that administrators can read.
- Today's permissions apply to every version, and what was hidden since stays hidden (see `history`). Where the policy
  hides earlier versions, a record that has changed since is exported as it is now, or left out if the caller asked for
  an earlier time.
- Deleted records are only in the history.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from perseid.ledger.log.entry import MICROSECONDS_PER_SECOND, Action, Change, Entry, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import LOCAL, key_range
from perseid.names.handle import Handle
from perseid.records.record import PERMISSIONS_OFFSET, TYPE_OFFSET, Permission, Value
from perseid.records.types import HS_ADMIN
from perseid.registry.context import not_hosted
from perseid.registry.identity import Anonymous, Identity, LocalIdentity
from perseid.registry.policy import case_rules
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

from .find import PreparedSearch, Search
from .history import (
    MAX_VERSIONS_SCANNED,
    RecordHistory,
    SearchBudget,
    VisibleVersion,
    can_read,
    is_public,
    public_action,
    seq_at_time,
)
from .listing import MAX_PAGE_LOOKUPS, Visibility, require_listing

MAX_RECORDS: Final = 1_000
"""Records, or versions, in a slice: some tens of milliseconds of work."""

MAX_BYTES: Final = 1 << 22
"""Bytes of values in a slice. A larger single record is a slice of its own."""

MAX_SCANNED: Final = 5_000
"""Records examined in a slice. Skipped ones cost as much as exported ones."""

_BATCH: Final = 500  # records per read
_FIRST_KEY: Final = b"\0"
_LAST_KEY: Final = b"\xff"  # no handle starts with this byte: it is not UTF-8
_OWN_RECORDS: Final = key_range(LOCAL)
_ADMIN: Final = HS_ADMIN.encode()
_PUBLIC: Final = int(Permission.PUBLIC_READ)
_READABLE: Final = int(Permission.PUBLIC_READ | Permission.ADMIN_READ)


@dataclass(frozen=True, slots=True)
class Selection:
    """What to export."""

    search: Search = field(default_factory=Search)
    """Criteria; without any, everything. They apply to the record as of the time of the export."""
    history: bool = False
    """Whether to export every version, newest first, and deleted records."""


class Position(NamedTuple):
    """Where an export continues."""

    key: bytes
    """The last key that was examined."""
    before: int = 0
    """In a history: only the versions of that record before this entry are left; 0 if none is."""


@dataclass(frozen=True, slots=True)
class AsOf:
    """The entry of the ledger as of which records are exported."""

    seq: int
    is_past: bool = False
    """Whether the caller asked for an earlier time, and not for the present."""


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """How a version came about, as far as the caller can see it."""

    action: Action
    interface: str | None = None
    actor: str | None = None
    note: str | None = None


@dataclass(slots=True)  # a frozen one takes three times as long to create, and there is one per record
class ExportedRecord:
    """A record, or a version of it, as the caller can see it."""

    handle: str
    state: State
    contents: list[bytes] = field(repr=False)
    """The encoded values, by ascending index."""
    seq: int
    """Its entry."""
    at: int
    """Time of that entry, in microseconds since 1970."""
    version: VersionInfo | None = None
    """In a history."""

    @property
    def values(self) -> tuple[Value, ...]:
        """The values, by ascending index."""
        now = self.at // MICROSECONDS_PER_SECOND
        return tuple([Value.from_bytes(content, now) for content in self.contents])


@dataclass(frozen=True, slots=True)
class ExportSlice:
    """A part of an export."""

    records: list[ExportedRecord]
    position: Position | None
    """Where the next slice starts; None if this is the last one."""


def find_as_of(reader: LogReader, at: str | None, now: int) -> AsOf:
    """Return the entry for the time of an export, as `seq_at_time` reads it; the last one without a time."""
    return AsOf(reader.size) if at is None else AsOf(seq_at_time(reader, at, now), is_past=True)


def check_export(snapshot: Snapshot, identity: Identity, selection: Selection) -> None:
    """Refuse an export that the caller cannot make, or that makes no sense. Raises `Refused`."""
    prepared = _prepare(selection.search)
    if not isinstance(identity, LocalIdentity):
        Visibility(snapshot, identity)  # refused if the server lists nothing
    prefix = None if prepared is None else prepared.search.prefix
    if prefix is None:
        return
    is_local = isinstance(identity, LocalIdentity)
    is_hosted = snapshot.hosts_prefix(prefix)
    # The local administrator can also export the records of a prefix that was hosted here before.
    if not is_hosted and not (is_local and snapshot.reader.any_between(*key_range(f"{prefix}/"))):
        raise not_hosted(prefix)
    if not is_local and (selection.search.owner is None or isinstance(identity, Anonymous)):
        require_listing(snapshot, identity, prefix)


def read_slice(
    snapshot: Snapshot, identity: Identity, selection: Selection, as_of: AsOf, after: Position | None = None
) -> ExportSlice:
    """Return the next slice of an export. Raises `Refused`.

    `as_of` is the same for all slices (`find_as_of`), and `check_export` comes before the first one.
    """
    return _SliceReader(snapshot, identity, selection, as_of).read(after)


def _prepare(search: Search) -> PreparedSearch | None:
    return None if search == Search() else search.prepare()


class _SliceFull(Exception):
    """The slice has no budget left to decide whether a record is visible."""


class _SliceReader:
    """Reads one slice in one snapshot."""

    def __init__(self, snapshot: Snapshot, identity: Identity, selection: Selection, as_of: AsOf) -> None:
        self._snapshot = snapshot
        self._identity = identity
        self._history = selection.history
        self._as_of = as_of
        self._prefix = selection.search.prefix
        self._prepared = _prepare(replace(selection.search, prefix=None))  # the range of keys selects the prefix
        self._sees_all = isinstance(identity, LocalIdentity)
        self._visibility = None if self._sees_all else Visibility(snapshot, identity)
        self._readable: dict[tuple[str, tuple[bytes, ...]], bool] = {}
        self._records: list[ExportedRecord] = []
        self._bytes = 0
        self._search = SearchBudget()  # of the last history
        self._searched = 0  # versions and values examined in those before it

    def read(self, after: Position | None) -> ExportSlice:
        first, end = _FIRST_KEY, _LAST_KEY
        if self._prefix is not None:
            first, end = key_range(f"{self._prefix}/")
        before = 0
        if after is not None:
            key, before = after
            first = max(first, key if before else key + b"\0")
        last: Position | None = after
        scanned = 0
        while True:
            changes, more = self._read_batch(first, end)
            for change in changes:
                try:
                    rest = self._add(change, before if after is not None and change.key == after.key else 0)
                except _SliceFull:
                    return ExportSlice(self._records, last)
                last = Position(change.key, rest)
                if rest or self._is_full or self._searched + self._search.count >= MAX_VERSIONS_SCANNED:
                    return ExportSlice(self._records, last)
            scanned += len(changes)
            if not more:
                return ExportSlice(self._records, None)
            first = changes[-1].key + b"\0" if changes else end
            if scanned >= MAX_SCANNED:
                return ExportSlice(self._records, last)

    @property
    def _is_full(self) -> bool:
        return len(self._records) >= MAX_RECORDS or self._bytes >= MAX_BYTES

    def _read_batch(self, first: bytes, end: bytes) -> tuple[list[Change], bool]:
        """Read the next records, without the installation's own."""
        if _OWN_RECORDS[0] <= first < _OWN_RECORDS[1]:
            first = _OWN_RECORDS[1]
        if first >= end:
            return [], False
        is_before = first < _OWN_RECORDS[0] < end
        changes, more = self._snapshot.reader.changes_by_key(first, _OWN_RECORDS[0] if is_before else end, _BATCH)
        if changes or more or not is_before:
            return changes, more or is_before
        return self._snapshot.reader.changes_by_key(_OWN_RECORDS[1], end, _BATCH)

    def _add(self, change: Change, before: int) -> int:
        """Add what is visible of a record, given its latest entry; return where its history continues, or 0."""
        if self._history:
            return self._add_versions(change, before)
        exported = self._find_version(change)
        if exported is not None:
            self._take(exported)
        return 0

    def _take(self, exported: ExportedRecord) -> None:
        self._records.append(exported)
        self._bytes += sum(map(len, exported.contents))

    # The present version

    def _find_version(self, latest: Change) -> ExportedRecord | None:
        """Return the visible version of a record as of the time of the export."""
        is_changed = latest.seq > self._as_of.seq
        if self._sees_all:
            change = self._snapshot.reader.change_as_of(latest.seq, self._as_of.seq) if is_changed else latest
            if change is None or change.state == State.ABSENT:
                return None
            if self._prepared is not None and not self._matches(change, change.contents):
                return None
            return ExportedRecord(change.handle, change.state, change.contents, change.seq, change.at)
        found = self._find_earlier(latest) if is_changed else self._find_current(latest)
        if found is None or (self._prepared is not None and not self._matches(found, found.contents)):
            return None
        return found

    def _find_current(self, change: Change) -> ExportedRecord | None:
        """Return what the caller sees of a record that has not changed since."""
        if change.state == State.ABSENT:
            return None
        is_listed = self._is_listed(change.handle) and is_public(change.state)
        permissions = [content[PERMISSIONS_OFFSET] for content in change.contents]
        has_private = any(not bits & _PUBLIC and bits & _READABLE for bits in permissions)
        allowed = _PUBLIC
        if (has_private or not is_listed) and self._can_read(change):
            allowed, is_listed = _READABLE, True
        if not is_listed:
            return None
        contents = [content for content, bits in zip(change.contents, permissions, strict=True) if bits & allowed]
        return ExportedRecord(change.handle, change.state, contents, change.seq, change.at)

    def _find_earlier(self, latest: Change) -> ExportedRecord | None:
        """Return what the caller sees of an earlier version of a record that has changed since."""
        history = self._open_history(latest)
        if history is None:
            return None
        try:
            version = history.existing_at(self._as_of.seq)
        except Refused as refused:
            if refused.code is not ResponseCode.INSUFFICIENT_PERMISSIONS:
                raise
            # The policy hides earlier versions.
            return None if self._as_of.is_past else self._find_current(latest)
        if version is None or not (history.can_read or is_public(version.entry.state)):
            return None
        # After a change of the case rule a record has another key, and its history is found from both.
        return _to_exported(version) if version.entry.key == latest.key else None

    # Histories

    def _add_versions(self, latest: Change, before: int) -> int:
        """Add versions, newest first, until the slice is full; return where to continue, or 0 at the end."""
        until = self._as_of.seq if not before else min(self._as_of.seq, before - 1)
        if self._prepared is not None and not before:
            chosen = self._find_version(latest)
            if chosen is None:
                return 0
        for exported in self._versions(latest, until):
            self._take(exported)
            if self._is_full:
                return exported.seq
        return 0

    def _versions(self, latest: Change, until: int) -> Iterator[ExportedRecord]:
        """Yield the visible versions of a record up to an entry, newest first."""
        if self._ends_key(latest):
            return  # the record has another key now
        if self._sees_all:
            for entry in self._entries(latest, until):
                interface, actor = entry.origin or (None, None)
                info = VersionInfo(entry.action, interface, actor, entry.why)
                yield ExportedRecord(entry.handle, entry.state, entry.contents(), entry.seq, entry.at, info)
            return
        history = self._open_history(latest)
        if history is None:
            return
        visible = (version for version in history.versions(until + 1) if version.entry.seq <= until)
        newer: VisibleVersion | None = None
        for version in visible:
            if newer is not None:
                yield _to_version(history, newer, follows=True)
            newer = version
        if newer is not None:
            yield _to_version(history, newer, follows=history.truncated)

    def _entries(self, latest: Change, until: int) -> Iterable[Entry]:
        stored = self._stored(latest)
        reader = self._snapshot.reader
        return (
            reader.history(latest.key, until) if stored is None else case_rules.history(self._snapshot, stored, until)
        )

    # Visibility

    def _is_listed(self, handle: str) -> bool:
        assert self._visibility is not None  # noqa: S101 - the caller does not see all
        access = self._visibility.access(handle)
        if access is None:
            raise _SliceFull
        return access.lists

    def _can_read(self, change: Change) -> bool:
        """Whether the caller can read a record today. Records with the same administrators have the same answer.

        Without contents the record is deleted or has another key, and its administrators are unknown here.
        """
        if isinstance(self._identity, Anonymous) or self._snapshot.is_misplaced(change.handle):
            return False  # the server of a handle depends on its suffix
        administrators = tuple([each[PERMISSIONS_OFFSET:] for each in change.contents if _is_admin(each)])
        key = (change.handle if change.state == State.ABSENT else change.handle.partition("/")[0], administrators)
        if key not in self._readable:
            # Lookups are limited per snapshot. What a nearly spent budget denies is decided in the next slice.
            usage, was_used = self._snapshot.usage, bool(self._records or self._readable)
            name = Handle.parse_lenient(change.handle)
            is_served = self._snapshot.is_responsible(name)
            is_readable = is_served and can_read(self._snapshot, self._identity, name)
            if not is_readable and was_used and (usage.is_exhausted or usage.lookups > MAX_PAGE_LOOKUPS):
                raise _SliceFull
            self._readable[key] = is_readable
        return self._readable[key]

    def _open_history(self, latest: Change) -> RecordHistory | None:
        """Return the history of a record if the caller may see any of it."""
        stored = self._stored(latest)
        if stored is None:
            return None
        is_listed = self._is_listed(latest.handle)
        if not is_listed and not self._can_read(latest):
            return None
        self._searched += self._search.count
        self._search = SearchBudget()
        return RecordHistory(
            self._snapshot, self._identity, stored.requested, stored=stored, search_budget=self._search
        )

    def _stored(self, change: Change) -> StoredRecord | None:
        """Return a record as it is today; None if the policy of its namespace cannot be read."""
        try:
            return self._snapshot.stored(Handle.parse_lenient(change.handle))
        except Refused:
            return None

    def _ends_key(self, latest: Change) -> bool:
        if latest.state != State.ABSENT:
            return False
        try:
            return case_rules.ends_key(self._snapshot, self._snapshot.reader.entry(latest.seq))
        except Refused:
            return False

    def _matches(self, record: Change | ExportedRecord, contents: list[bytes]) -> bool:
        """Whether a record meets the criteria, by the values that the caller can see."""
        assert self._prepared is not None  # noqa: S101 - checked by the caller
        if not self._prepared.may_match(record):
            return False
        now = record.at // MICROSECONDS_PER_SECOND
        try:
            policy = self._snapshot.policy(record.handle.partition("/")[0])
        except Refused:
            return False
        values = [(content, Value.from_bytes(content, now)) for content in contents]
        return self._prepared.meets(policy, record, values) is not None


def _is_admin(content: bytes) -> bool:
    return content[TYPE_OFFSET : TYPE_OFFSET + len(_ADMIN)].upper() == _ADMIN


def _to_exported(version: VisibleVersion, info: VersionInfo | None = None) -> ExportedRecord:
    entry = version.entry
    contents = [value.to_bytes() for value in version.values]
    return ExportedRecord(entry.handle, entry.state, contents, entry.seq, entry.at, info)


def _to_version(history: RecordHistory, version: VisibleVersion, *, follows: bool) -> ExportedRecord:
    entry = version.entry
    interface, actor = (entry.origin if history.shows_actors else None) or (None, None)
    action = entry.action if history.administers else public_action(entry, follows=follows)
    note = entry.why if history.administers else None
    return _to_exported(version, VersionInfo(action, interface, actor, note))
