"""Snapshots of the ledger for decisions, and the cache that most decisions use instead.

A snapshot applies the rules of names: a handle is found under the case rule of its namespace, a namespace has its
policy, a prefix is homed here or not. Each record is read once per decision, and noted with the number of its latest
entry; the ledger checks at commit that nothing of it has changed.

The cache saves a database transaction for most changes. Policies, homed prefixes, prefix handles and creators hardly
ever change, and a handle to create is nearly always new. So a command is first decided on cached entries, and on a
handle being new that the answers view does not have. The commit checks every precondition, cached or not; if one fails
the command is decided again from the ledger. Without a commit nothing is checked, so refusals and results without a
change that depend on the cache are decided again too.

An entry is cached with its leaf hash, which the commit compares: when an older state of the ledger is restored under a
running process, sequence numbers are reused for other entries.

The public part of the current state is in the answers view, where a read takes a microsecond and never waits. Public
queries run on it by the same rules (`PublicSnapshot`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from perseid.ledger.errors import LongEntry, PreconditionFailed
from perseid.ledger.log.entry import MICROSECONDS_PER_SECOND, Action, Entry, Kind, LastUpdate, Slot, State
from perseid.ledger.log.record_keys import homed_name, policy_name, record_key
from perseid.ledger.views.answers_format import HandleItem, is_local
from perseid.ledger.views.answers_reader import AnswersSnapshot
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle, ancestor_prefixes, fold
from perseid.names.uri import Resolver
from perseid.records.record import Value
from perseid.records.types import DELEGATION_TYPES, URL_SCHEMES, has_type
from perseid.registry.access.authorization import SearchUsage, Settings
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.wire.codes import ResponseCode

from .advice import AdviceKind
from .results import Refused

if TYPE_CHECKING:  # resolution needs no SQL, and few installations have a partition
    from perseid.ledger.log.reader import LogReader

    from .partition import Partition

POLICY_TYPE: Final = "PERSEID_POLICY"
"""The type of the value that contains a policy."""

POLICY_INDEX: Final = 1

SITE_PREFIX: Final = "0.SITE"
"""The prefix of the installation's own records. No interface writes them, and they are not handles."""

MIN_PREFETCHED: Final = 100
"""Handles from which one query for all takes less time than one for each."""

MAX_ANCESTORS: Final = 32
"""How many parent prefixes are checked: real prefixes have two or three, and a request may name a thousand."""

_LAST_ENTRY: Final = (1 << 63) - 1
_MAX_CACHED_POLICIES: Final = 1_024  # enough for the namespaces that one installation works with at a time


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decisions depend on."""

    administration: Settings = field(default_factory=Settings)
    default_policy: Policy = PROFILES["free"]
    """For a homed prefix without a policy."""
    listing_allowed: bool = True
    template_delimiter: str = ""
    """What separates a base handle from its extension where no namespace sets it; empty for none."""
    resolvers: tuple[Resolver, ...] = ()
    """The resolvers of this server, whose URLs are read as handles like those of `KNOWN_RESOLVERS`."""
    url_schemes: tuple[str, ...] = URL_SCHEMES
    """The schemes of URLs that the web resolver redirects to."""
    partition: "Partition | None" = None
    """The servers of this site, if it has several: each is responsible for its share of the handles."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The record of a handle in the ledger."""

    requested: Handle
    """The handle as requested."""
    handle: Handle
    """The handle of the record: as registered, or as it would be registered."""
    key: bytes
    exact: bool
    """Whether the suffix is case-sensitive."""
    policy: Policy
    entry: Entry | None
    """The latest entry; None if there never was one."""
    values: tuple[Value, ...]
    query: str | None = None
    fragment: str | None = None

    @property
    def state(self) -> State:
        """The state of the handle."""
        return State.ABSENT if self.entry is None else self.entry.state

    @property
    def exists(self) -> bool:
        """Whether there is a record, public or not."""
        return self.entry is not None and self.entry.state is not State.ABSENT

    @property
    def is_public(self) -> bool:
        """Whether everybody can know that the handle exists."""
        return self.state in (State.NORMAL, State.TOMBSTONE)

    @property
    def seq(self) -> int:
        """The number of the latest entry; 0 if there is none."""
        return 0 if self.entry is None else self.entry.seq


@dataclass(frozen=True, slots=True)
class CaseRulePeriod:
    """A period in which one case rule applied to the suffixes of a namespace (H5)."""

    first: int
    """Its first entry."""
    last: int
    """Its last entry."""
    exact: bool
    """Whether suffixes were case-sensitive."""


class Snapshot:
    """One state of the ledger, and what was read of it."""

    def __init__(self, reader: "LogReader | None", rules: Rules) -> None:
        self._reader = reader
        self.rules = rules
        self._entries: dict[bytes, Entry | None] = {}
        self._new: frozenset[bytes] | set[bytes] = frozenset()
        """Records without entries that `prefetch` has found."""
        self._assumed: dict[str, Policy] = {}
        self._policies: dict[str, Policy] = {}  # by prefix as spelled
        self._values: dict[str, tuple[Value, ...] | None] = {}  # for authorization, by handle as spelled
        self._case_rule_periods: dict[str, list[CaseRulePeriod]] = {}
        self.expected_leaves: dict[bytes, bytes] = {}
        """The leaf hashes of cached entries: see `CachedSnapshot`."""
        self.usage = SearchUsage()
        """How much was searched for permissions."""

    @property
    def reader(self) -> "LogReader":
        """The state of the ledger itself, for what is not looked up by handle."""
        assert self._reader is not None  # noqa: S101 - CachedSnapshot opens it on first use
        return self._reader

    @property
    def stamp(self) -> tuple[int, int] | None:
        """The state of the answers view that is read: equal stamps mean equal content; None if it is the ledger."""
        return None

    @property
    def seen(self) -> Mapping[bytes, Entry | None]:
        """The latest entries of all records that were read."""
        return self._entries

    @property
    def preconditions(self) -> dict[bytes, int]:
        """Every record that was read, with the number of its latest entry."""
        return {key: 0 if entry is None else entry.seq for key, entry in self._entries.items()}

    def latest(self, key: bytes) -> int:
        """The number of the latest entry of a record; 0 if there is none."""
        entry = self.entry(key)
        return 0 if entry is None else entry.seq

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:  # noqa: ARG002 - used by CachedSnapshot
        """The latest entry of a record. `new` means that none is expected; the result does not depend on it."""
        if key not in self._entries:
            self._entries[key] = None if key in self._new else self.reader.record(key)
        return self._entries[key]

    def prefetch(self, names: Iterable[str]) -> None:
        """Find out which of many handles are new, in one query; the results of reads do not depend on it."""
        reader = self.reader  # before the policies: a decision does not mix cached entries with those of the ledger
        keys = set()
        for name in names:
            with suppress(Refused):  # the policy of the namespace cannot be read
                if name.isascii():
                    prefix = name.partition("/")[0]
                    exact = self.policy(prefix).case is CaseRule.SENSITIVE and fold(prefix) != PREFIX_OF_PREFIXES
                    keys.add(record_key(name, exact=exact))
        if len(keys) >= MIN_PREFETCHED:
            self._new = {key for key, seq in reader.latest_of(keys).items() if not seq}

    def track(self, entry: Entry) -> None:
        """Note that a decision depends on an entry that was not looked up by handle.

        Raises `PreconditionFailed` if it already depends on another entry of the record.
        """
        known = self._entries.setdefault(entry.key, entry)
        if known is None or known.seq != entry.seq:
            raise PreconditionFailed(entry.key, 0 if known is None else known.seq, entry.seq)

    def assume(self, prefix: str, policy: Policy) -> None:
        """Decide as if a namespace already had this policy."""
        self._assumed[fold(prefix)] = policy
        self._values.clear()
        self._policies.clear()

    def policy(self, prefix: str) -> Policy:
        """The policy of a namespace. One that cannot be read raises `Refused`: it allows nothing."""
        policy = self._policies.get(prefix)
        if policy is None:
            policy = self._policies[prefix] = self._find_policy(prefix)
        return policy

    def _find_policy(self, prefix: str) -> Policy:
        if (assumed := self._assumed.get(fold(prefix))) is not None:
            return assumed
        if fold(prefix) == PREFIX_OF_PREFIXES:
            return PROFILES["free"]
        entry = self.policy_entry(prefix)
        for value in () if entry is None else entry.record():
            if value.type == POLICY_TYPE:
                return _parse_policy(value.data)
        return self.rules.default_policy

    def policy_entry(self, prefix: str) -> Entry | None:
        """The entry of the policy of a namespace; None if none is stored, or no longer: the namespace was removed."""
        entry = self.entry(_policy_key(prefix))
        return entry if entry is not None and entry.state is State.NORMAL else None

    def last_version(self, stored: StoredRecord) -> tuple[int, int] | None:  # noqa: ARG002 - used by PublicSnapshot
        """Entry and time of the last version of a deleted record, zeros if that was not public or never existed.

        None if the history must tell.
        """
        return None

    def require_deletions(self, stored: StoredRecord) -> None:
        """Raise `LedgerNeeded` if only the ledger knows whether a handle without an entry was deleted."""

    def last_update(self, stored: StoredRecord) -> tuple[int | None] | None:  # noqa: ARG002 - used by PublicSnapshot
        """When the values of a record last changed, as `resolve.last_change` says; None if the history must tell."""
        return None

    def last_readable_policy(self, prefix: str) -> Policy | None:
        """The latest readable policy of a namespace; None if there never was one."""
        policies = map(stored_policy, self.reader.history(record_key(policy_name(prefix))))
        return next((policy for policy in policies if policy is not None), None)

    def case_rule_periods(self, prefix: str) -> list[CaseRulePeriod]:
        """The periods with one case rule in a namespace, latest first; mostly one."""
        if fold(prefix) not in self._case_rule_periods:
            self._case_rule_periods[fold(prefix)] = self._find_case_rule_periods(prefix)
        return self._case_rule_periods[fold(prefix)]

    def _find_case_rule_periods(self, prefix: str) -> list[CaseRulePeriod]:
        periods: list[CaseRulePeriod] = []
        exact: bool | None = None
        since, last = 0, _LAST_ENTRY
        for entry in self.reader.history(record_key(policy_name(prefix))):
            policy = stored_policy(entry)
            if policy is None:
                continue  # a policy that cannot be read has changed nothing
            was_exact = policy.case is CaseRule.SENSITIVE
            if exact is not None and was_exact != exact:
                periods.append(CaseRulePeriod(since, last, exact))
                last = since - 1
            exact, since = was_exact, entry.seq
        if exact is None:
            exact = self.rules.default_policy.case is CaseRule.SENSITIVE
        return [*periods, CaseRulePeriod(0, last, exact)]

    def stored(self, requested: Handle, *, new: bool = False) -> StoredRecord:
        """The record of a handle, by the rules of its namespace; `new` means that none is expected."""
        policy = self.policy(requested.prefix)
        bare, query, fragment = policy.lookup_form(requested)
        exact = policy.case is CaseRule.SENSITIVE and not bare.is_prefix_handle
        key = record_key(str(bare), exact=exact)
        entry = self.entry(key, new=new)
        # An entry written under the other case rule belongs to another handle: see `policy.case_rules`.
        is_of_name = entry is not None and entry.exact == exact
        handle = Handle.parse_lenient(entry.handle) if entry is not None and is_of_name else policy.normalize(bare)
        values = () if entry is None else entry.record()
        return StoredRecord(requested, handle, key, exact, policy, entry, values, query, fragment)

    def values(self, handle: str) -> tuple[Value, ...] | None:
        """All values of a record, also private ones, for authorization; None if there is no such record here.

        One decision needs the same few several times: for the caller's key, for administrators and for groups.
        """
        if handle not in self._values:
            self._values[handle] = self._find_values(handle)
        return self._values[handle]

    def _find_values(self, handle: str) -> tuple[Value, ...] | None:
        name = Handle.for_lookup(handle)
        if name is None or fold(name.prefix) == SITE_PREFIX:
            return None
        try:
            stored = self.stored(name)
        except Refused:
            return None  # the policy of the namespace cannot be read
        return stored.values if stored.exists else None

    def group(self, handle: str) -> tuple[Value, ...] | None:
        """The same for a record that may contain a group; None if its prefix is no longer hosted here."""
        name = Handle.for_lookup(handle)
        if name is None or not (name.is_prefix_handle or self.is_responsible(name)):
            return None
        return self.values(handle)

    def is_same_record(self, one: str, other: str) -> bool:
        """Whether two spellings name one record, by the case rule of its namespace.

        The holder of a key in it can authenticate with each of them, although they are different administrators.
        """
        if fold(one) != fold(other) or one == other:
            return one == other
        first, second = Handle.for_lookup(one), Handle.for_lookup(other)
        try:
            return first is not None and second is not None and self.stored(first).key == self.stored(second).key
        except Refused:  # the policy of the namespace cannot be read
            return False

    # Prefixes

    def is_homed(self, name: str) -> bool:
        """Whether the table of homed prefixes has this entry."""
        entry = self.entry(_homed_key(name))
        return entry is not None and entry.state is State.NORMAL

    def hosts_prefix(self, prefix: str) -> bool:
        """Whether this server hosts a prefix: all of its handles, or its share of them."""
        return self.is_homed(f"{PREFIX_OF_PREFIXES}/{prefix}") or self.is_homed(prefix)

    def is_responsible(self, handle: Handle) -> bool:
        """Whether this server is responsible for a handle (§12.1 of the protocol)."""
        partition = self.rules.partition
        if partition is not None and partition.find_other(handle) is not None:
            return False
        if self.hosts_prefix(handle.prefix):
            return True
        if not handle.is_prefix_handle:
            return False
        markers = (f"{PREFIX_OF_PREFIXES}/{PREFIX_OF_PREFIXES}/{above}" for above in _ancestors(handle.suffix))
        return any(self.is_homed(marker) for marker in markers)

    def is_misplaced(self, handle: str) -> bool:
        """Whether a record here is a copy that was left when the site was divided: its handle has another server."""
        partition = self.rules.partition
        return partition is not None and partition.find_other(Handle.parse_lenient(handle)) is not None

    def referral(self, handle: Handle) -> tuple[Value, ...]:
        """The values that refer to the service of a derived prefix handle that is not here; empty if there are none."""
        if not handle.is_prefix_handle:
            return ()
        for above in _ancestors(handle.suffix):
            stored = self.stored(Handle(PREFIX_OF_PREFIXES, above))
            if stored.is_public:
                delegation = [value for value in stored.values if value.is_public and value.type in DELEGATION_TYPES]
                if delegation:
                    return tuple(delegation)
        return ()


@lru_cache(_MAX_CACHED_POLICIES)
def _policy_key(prefix: str) -> bytes:
    return record_key(policy_name(prefix))


@lru_cache(_MAX_CACHED_POLICIES)
def _homed_key(name: str) -> bytes:
    return record_key(homed_name(name))


def _ancestors(prefix: str) -> Iterator[str]:
    return islice(ancestor_prefixes(prefix), MAX_ANCESTORS)


def stored_policy(entry: Entry) -> Policy | None:
    """The policy in an entry of a policy record; None if it cannot be read."""
    for value in entry.record():
        if value.type == POLICY_TYPE:
            try:
                return _parse_policy(value.data)
            except Refused:
                return None
    return None


@lru_cache(_MAX_CACHED_POLICIES)
def _parse_policy(text: bytes) -> Policy:
    try:
        return Policy.from_stored(text.decode("utf-8"))
    except (InvalidPolicy, UnicodeDecodeError) as problem:
        reason = f"The stored policy is invalid: {problem}"
        raise Refused(ResponseCode.ERROR, reason, AdviceKind.SET_POLICY()) from problem


def values_of_type(values: tuple[Value, ...], base: str) -> tuple[Value, ...]:
    """The values of a type and its subtypes."""
    return tuple([value for value in values if has_type(value.type, base)])


MAX_ENTRIES: Final = 1_024
"""How many entries are cached: enough for the namespaces that one process works with at a time."""

MAX_VALUES: Final = 50
"""Entries with more values are not cached: they are large, and rare among policies and prefix handles."""

MAX_BYTES: Final = 8_192
"""Entries with more data are not cached, so that the cache takes a few megabytes at most."""


class CachedEntry(NamedTuple):
    """An entry and its leaf hash."""

    entry: Entry
    leaf: bytes


class EntryCache:
    """The latest entries of records, as decisions of this process have seen them. Thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[bytes, CachedEntry] = {}
        self._changed = 0  # the last entry that changed a record
        self._lock = threading.Lock()  # for writers

    def get(self, key: bytes) -> CachedEntry | None:
        """The cached entry of a record; None if there is none."""
        return self._entries.get(key)

    def note(self, seen: Mapping[bytes, Entry | None], changed: Iterable[bytes], seq: int, *, erased: bool) -> None:
        """Cache what a committed decision has read, except what it changed or redacted.

        Other threads may have read the old entries before and arrive here later, so nothing is cached from decisions
        older than the last change.
        """
        with self._lock:
            if erased:
                self._entries.clear()
            gone = {key for key in changed if seen.get(key) is not None or key in self._entries}
            for key in gone:
                self._entries.pop(key, None)
            if seq < self._changed:
                return
            if gone or erased:
                self._changed = seq
            for key, entry in seen.items():
                if entry is not None and key not in gone and not self._has(key, entry) and _is_small(entry):
                    if len(self._entries) >= MAX_ENTRIES:
                        self._entries.clear()  # the few that matter are back at once
                    self._entries[key] = CachedEntry(entry, entry.leaf_hash())

    def _has(self, key: bytes, entry: Entry) -> bool:
        known = self._entries.get(key)
        return known is not None and known.entry is entry

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop entries that may have changed."""
        for key in keys:
            self._entries.pop(key, None)


def _is_small(entry: Entry) -> bool:
    if len(entry.values) > MAX_VALUES:
        return False
    return sum([len(slot.content) for slot in entry.slots() if slot.content is not None]) <= MAX_BYTES


class CachedSnapshot(Snapshot):
    """A snapshot from the cache; reads only what is not cached from the ledger."""

    def __init__(
        self,
        read: "Callable[[], AbstractContextManager[LogReader]]",
        rules: Rules,
        cache: EntryCache,
        seems_new: Callable[[bytes], bool],
    ) -> None:
        """`seems_new` tells cheaply whether a record probably has no entries."""
        super().__init__(None, rules)
        self._read = read
        self._seems_new = seems_new
        self._entry_cache = cache
        self._entered: AbstractContextManager[LogReader] | None = None
        self.is_certain = True
        """Whether everything so far was read from one state of the ledger."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the ledger's snapshot, if one was opened. It was only read, so errors do not matter."""
        if self._entered is not None:
            self._entered.__exit__(None, None, None)

    @property
    def reader(self) -> "LogReader":
        """The ledger's snapshot, opened on first use."""
        if self._reader is None:
            self._entered = self._read()
            self._reader = self._entered.__enter__()
        return self._reader

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:
        """The latest known entry of a record; one that is `new`, or seems to be, has none.

        Once the ledger's snapshot is open, entries are read from it: a cached entry may be newer, and a decision must
        not mix it with the history that ends before it.
        """
        if key in self._entries:
            return self._entries[key]
        cached = None if self._reader is not None else self._entry_cache.get(key)
        if cached is None:
            if self._reader is not None or not (new or self._seems_new(key)):
                return super().entry(key)
            self._entries[key] = None
        else:
            self._entries[key] = cached.entry
            self.expected_leaves[key] = cached.leaf
        self.is_certain = False
        return self._entries[key]


MAX_SHORT_BYTES: Final = 16_384
"""Bytes of a record up to which queries run in an event loop: nothing else runs meanwhile. Those of its public values
in the answers view, of the whole entry in the ledger."""


class LedgerNeeded(Exception):
    """The answers view cannot tell; only the ledger can."""


class LongRecord(LedgerNeeded):
    """The record is too long for an event loop."""


class ShortSnapshot(Snapshot):
    """One state of the ledger, for an event loop: a record that is long raises `LongRecord`."""

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:  # noqa: ARG002 - as in `Snapshot`
        """The latest entry of a record."""
        if key not in self._entries:
            try:
                self._entries[key] = self.reader.short_record(key, MAX_SHORT_BYTES)
            except LongEntry:
                raise LongRecord from None
        return self._entries[key]


class PublicSnapshot(Snapshot):
    """The public part of the current state, from the answers view. Only for queries by anonymous callers.

    It has no history and no private values. What it does not have raises `LedgerNeeded`; with `short_only`, so does a
    record that is long.
    """

    def __init__(self, view: AnswersSnapshot, rules: Rules, *, short_only: bool = True) -> None:
        super().__init__(None, rules)
        self._view = view
        self._stamp = view.stamp
        self._short_only = short_only
        self._stored: dict[Handle, StoredRecord] = {}

    @property
    def stamp(self) -> tuple[int, int] | None:
        """The state of the view."""
        return self._stamp

    @property
    def last_entry(self) -> int:
        """The number of the last entry that the view has."""
        return self._view.position.seq

    @property
    def reader(self) -> "LogReader":
        """Raises `LedgerNeeded`."""
        raise LedgerNeeded

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:  # noqa: ARG002 - as in `Snapshot`
        """The latest entry of a handle, with its public values only."""
        if key not in self._entries:
            if is_local(key):
                raise LedgerNeeded
            item = self._view.find(key)
            if item is not None and self._short_only and sum(map(len, item.values)) > MAX_SHORT_BYTES:
                raise LongRecord
            self._entries[key] = None if item is None else _public_entry(item)
        return self._entries[key]

    def stored(self, requested: Handle, *, new: bool = False) -> StoredRecord:
        """The record of a handle, as far as it is public; pages need the same ones again and again."""
        stored = self._stored.get(requested)
        if stored is None:
            stored = self._stored[requested] = super().stored(requested, new=new)
        return stored

    def policy(self, prefix: str) -> Policy:
        """The policy of a namespace. One that cannot be read raises `Refused`."""
        if fold(prefix) == PREFIX_OF_PREFIXES:
            return PROFILES["free"]
        text = self._view.policy(prefix.encode())
        return self.rules.default_policy if text is None else _parse_policy(text)

    def is_homed(self, name: str) -> bool:
        """Whether the table of homed prefixes has this entry."""
        level, prefix = 0, name
        while fold(prefix).startswith(f"{PREFIX_OF_PREFIXES}/"):
            level, prefix = level + 1, prefix[len(PREFIX_OF_PREFIXES) + 1 :]
        if not prefix or "/" in prefix or level > _MARKER_LEVEL:
            raise LedgerNeeded  # the view has prefixes only
        item = self._view.prefix(prefix.encode())
        return (item.homed_bare, item.homed, item.marker)[level]

    def last_update(self, stored: StoredRecord) -> tuple[int | None] | None:
        """When the values of a record last changed; None if the history must tell."""
        item = self._view.find(stored.key)
        if item is None or item.last_update is LastUpdate.UNKNOWN:
            return None
        if item.last_update is LastUpdate.HERE:
            return (item.at // MICROSECONDS_PER_SECOND,)
        other = record_key(str(stored.handle), exact=not stored.exact)  # a handle that had another case rule
        return (None,) if self._view.deleted(other) is None else None

    def last_version(self, stored: StoredRecord) -> tuple[int, int] | None:
        """Entry and time of the last public version of a deleted record; None if the history must tell."""
        item = self._view.deleted(stored.key)
        if item is None:
            return 0, 0
        return item.last if item.exact == stored.exact else None  # else the case rule has changed

    def require_deletions(self, stored: StoredRecord) -> None:
        """Raise `LedgerNeeded` if the handle may have been deleted: the view has no entries of deletions."""
        if self.last_version(stored) != (0, 0):
            raise LedgerNeeded


_MARKER_LEVEL: Final = 2  # how often a marker for derived prefixes names the prefix of prefixes
_NOTHING: Final = Slot(Kind.NOTE, b"")


def _public_entry(item: HandleItem) -> Entry:
    """The entry of a record as far as the view knows it."""
    if item.state not in _KNOWN_STATES:
        raise LedgerNeeded
    values = tuple([Slot(Kind.VALUE, b"", b"", content) for content in item.values])
    name = item.spelling.decode("utf-8")
    return Entry(item.seq, item.at, Action.UPDATE, item.state, item.exact, name, b"", _NOTHING, _NOTHING, values)


_KNOWN_STATES: Final = frozenset(State)
