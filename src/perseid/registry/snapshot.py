"""Snapshot of the ledger for one decision, which records what it read.

The ledger checks at commit that nothing of it has changed. The snapshot applies the rules of names: a handle is found
under the case rule of its namespace, a namespace has its policy, a prefix is homed here or not. Each record is read
once per decision, and noted with the number of its latest entry.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Final

from perseid.ledger.errors import PreconditionFailed
from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import homed_name, policy_name, record_key
from perseid.names import prefixes
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle
from perseid.records.types import DELEGATION_TYPES, has_type
from perseid.records.value import Value
from perseid.registry.access.authorization import SearchUsage, Settings
from perseid.registry.advice import AdviceKind
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.wire.codes import ResponseCode

from .results import Refused

POLICY_TYPE: Final = "PERSEID_POLICY"
"""The type of the value that contains a policy."""

POLICY_INDEX: Final = 1

SITE_PREFIX: Final = "0.SITE"
"""The prefix of the installation's own records. No interface writes them, and they are not handles."""

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
        return self.state is not State.ABSENT

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

    def __init__(self, reader: LogReader | None, rules: Rules) -> None:
        self._reader = reader
        self.rules = rules
        self._entries: dict[bytes, Entry | None] = {}
        self._assumed: dict[str, Policy] = {}
        self._case_rule_periods: dict[str, list[CaseRulePeriod]] = {}
        self.expected_leaves: dict[bytes, bytes] = {}
        """The leaf hashes of cached entries: see `decision_cache`."""
        self.usage = SearchUsage()
        """How much was searched for permissions."""

    @property
    def reader(self) -> LogReader:
        """The state of the ledger itself, for what is not looked up by handle."""
        assert self._reader is not None  # noqa: S101 - CachedSnapshot opens it on first use
        return self._reader

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
            self._entries[key] = self.reader.record(key)
        return self._entries[key]

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

    def policy(self, prefix: str) -> Policy:
        """The policy of a namespace. One that cannot be read raises `Refused`: it allows nothing."""
        if (assumed := self._assumed.get(fold(prefix))) is not None:
            return assumed
        if fold(prefix) == PREFIX_OF_PREFIXES:
            return PROFILES["free"]
        entry = self.entry(record_key(policy_name(prefix)))
        if entry is not None and entry.state is State.NORMAL:
            for value in entry.record():
                if value.type == POLICY_TYPE:
                    return _parse_policy(value.data)
        return self.rules.default_policy

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
        """All values of a record, also private ones, for authorization; None if there is no such record here."""
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

    # Prefixes

    def is_homed(self, name: str) -> bool:
        """Whether the table of homed prefixes has this entry."""
        entry = self.entry(record_key(homed_name(name)))
        return entry is not None and entry.state is State.NORMAL

    def is_responsible(self, handle: Handle) -> bool:
        """Whether this server is responsible for a handle (§12.1 of the protocol)."""
        if self.is_homed(f"{PREFIX_OF_PREFIXES}/{handle.prefix}") or self.is_homed(handle.prefix):
            return True
        if not handle.is_prefix_handle:
            return False
        markers = (f"{PREFIX_OF_PREFIXES}/{PREFIX_OF_PREFIXES}/{above}" for above in _ancestors(handle.suffix))
        return any(self.is_homed(marker) for marker in markers)

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


def _ancestors(prefix: str) -> Iterator[str]:
    return islice(prefixes.ancestors(prefix), MAX_ANCESTORS)


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
