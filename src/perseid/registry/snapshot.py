"""What a decision reads, and that it was read: the ledger checks at commit that none of it has moved.

`Facts` is one state of the ledger seen through the rules of names: a handle is found under its namespace's case rule,
a namespace has its policy, a prefix is homed here or not. Each record is read once a decision, and noted with the
number of its latest entry.
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
from perseid.registry.policy.policy import PROFILES, Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.wire.codes import ResponseCode

from .results import Refused

POLICY_TYPE: Final = "PERSEID_POLICY"
"""The type of the value that holds a policy."""

POLICY_INDEX: Final = 1

SITE_PREFIX: Final = "0.SITE"
"""The prefix of the installation's own records: no door writes them, and they are no handles."""

MAX_ANCESTORS: Final = 32
"""How many prefixes above one are looked at: real ones have two or three, and anybody may ask about a thousand."""

_LAST_ENTRY: Final = (1 << 63) - 1
_MAX_CACHED_POLICIES: Final = 1_024  # as many namespaces as one installation may work with at a time


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says that decisions depend on."""

    administration: Settings = field(default_factory=Settings)
    default_policy: Policy = PROFILES["free"]
    """For a prefix that is homed without a policy."""
    listing_allowed: bool = True
    template_delimiter: str = ""
    """What separates a base name from its extension where no namespace says so; empty for nothing."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """What the ledger has under a name."""

    requested: Handle
    """The name as it was asked for."""
    handle: Handle
    """The name of the record: as it is registered, or as it would be."""
    key: bytes
    exact: bool
    """Whether small and capital letters of the suffix are told apart."""
    policy: Policy
    entry: Entry | None
    """The latest entry; None if there never was one."""
    values: tuple[Value, ...]
    query: str | None = None
    fragment: str | None = None

    @property
    def state(self) -> State:
        """What the name is."""
        return State.ABSENT if self.entry is None else self.entry.state

    @property
    def exists(self) -> bool:
        """Whether there is a record, whoever may see it."""
        return self.state is not State.ABSENT

    @property
    def is_public(self) -> bool:
        """Whether the public may know that the name exists."""
        return self.state in (State.NORMAL, State.TOMBSTONE)

    @property
    def seq(self) -> int:
        """The number of the latest entry; 0 if there is none."""
        return 0 if self.entry is None else self.entry.seq


@dataclass(frozen=True, slots=True)
class CaseRulePeriod:
    """A time in which the names of a namespace were told apart by one rule (H5)."""

    first: int
    """The entry with which it begins."""
    last: int
    """The entry with which it ends."""
    exact: bool
    """Whether small and capital letters of a suffix were told apart."""


class Snapshot:
    """One state of the ledger, and what was read of it."""

    def __init__(self, reading: LogReader | None, rules: Rules) -> None:
        self._reading = reading
        self.rules = rules
        self._entries: dict[bytes, Entry | None] = {}
        self._assumed: dict[str, Policy] = {}
        self._case_rule_periods: dict[str, list[CaseRulePeriod]] = {}
        self.expected_leaves: dict[bytes, bytes] = {}
        """The leaf hashes of entries that were not read for this decision: see `recent`."""
        self.usage = SearchUsage()
        """How much was searched for rights."""

    @property
    def reading(self) -> LogReader:
        """The state of the ledger itself, for what is found otherwise than by name."""
        assert self._reading is not None  # noqa: S101 - facts without one open it themselves
        return self._reading

    @property
    def seen(self) -> Mapping[bytes, Entry | None]:
        """The latest entries of all records that were asked for."""
        return self._entries

    @property
    def preconditions(self) -> dict[bytes, int]:
        """Everything that was read, with the number of its latest entry."""
        return {key: 0 if entry is None else entry.seq for key, entry in self._entries.items()}

    def latest(self, key: bytes) -> int:
        """The number of the latest entry of a record; 0 if there is none."""
        entry = self.entry(key)
        return 0 if entry is None else entry.seq

    def entry(self, key: bytes, *, new: bool = False) -> Entry | None:  # noqa: ARG002 - for who need not look
        """The latest entry of a record. It is expected that a `new` name has none; the answer does not depend on it."""
        if key not in self._entries:
            self._entries[key] = self.reading.record(key)
        return self._entries[key]

    def track(self, entry: Entry) -> None:
        """Note that a decision rests on an entry which was found otherwise than by name.

        Raises `Moved` where it rests on another entry of the record already: it cannot rest on both.
        """
        noted = self._entries.setdefault(entry.key, entry)
        if noted is None or noted.seq != entry.seq:
            raise PreconditionFailed(entry.key, 0 if noted is None else noted.seq, entry.seq)

    def assume(self, prefix: str, policy: Policy) -> None:
        """Decide as if a namespace had this policy: it is about to get it."""
        self._assumed[fold(prefix)] = policy

    def policy(self, prefix: str) -> Policy:
        """The policy of a namespace. One that cannot be read any more allows nothing, rather than everything."""
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
        """The latest policy of a namespace that can be read; None if there never was one."""
        policies = map(stored_policy, self.reading.history(record_key(policy_name(prefix))))
        return next((policy for policy in policies if policy is not None), None)

    def case_rule_periods(self, prefix: str) -> list[CaseRulePeriod]:
        """The times in which the names of a namespace were told apart by one rule, latest first; mostly one."""
        if fold(prefix) not in self._case_rule_periods:
            self._case_rule_periods[fold(prefix)] = self._find_case_rule_periods(prefix)
        return self._case_rule_periods[fold(prefix)]

    def _find_case_rule_periods(self, prefix: str) -> list[CaseRulePeriod]:
        found: list[CaseRulePeriod] = []
        exact: bool | None = None
        since, last = 0, _LAST_ENTRY
        for entry in self.reading.history(record_key(policy_name(prefix))):
            policy = stored_policy(entry)
            if policy is None:
                continue  # one that cannot be read has changed nothing
            was_exact = policy.case is CaseRule.SENSITIVE
            if exact is not None and was_exact != exact:
                found.append(CaseRulePeriod(since, last, exact))
                last = since - 1
            exact, since = was_exact, entry.seq
        if exact is None:
            exact = self.rules.default_policy.case is CaseRule.SENSITIVE
        return [*found, CaseRulePeriod(0, last, exact)]

    def stored(self, requested: Handle, *, new: bool = False) -> StoredRecord:
        """What is under a name, by the rules of its namespace; it is expected to be `new`, or not."""
        policy = self.policy(requested.prefix)
        bare, query, fragment = policy.lookup_form(requested)
        exact = policy.case is CaseRule.SENSITIVE and not bare.is_prefix_handle
        key = record_key(str(bare), exact=exact)
        entry = self.entry(key, new=new)
        # An entry of another case rule ends the key of another name: see `eras`.
        is_of_name = entry is not None and entry.exact == exact
        handle = Handle.parse_lenient(entry.handle) if entry is not None and is_of_name else policy.normalize(bare)
        values = () if entry is None else entry.record()
        return StoredRecord(requested, handle, key, exact, policy, entry, values, query, fragment)

    def values(self, handle: str) -> tuple[Value, ...] | None:
        """All values of a record, private ones included, for authorisation; None if there is no such record here."""
        name = Handle.for_lookup(handle)
        if name is None or fold(name.prefix) == SITE_PREFIX:
            return None
        try:
            stored = self.stored(name)
        except Refused:
            return None  # of a namespace whose policy cannot be read nothing is known
        return stored.values if stored.exists else None

    def group(self, handle: str) -> tuple[Value, ...] | None:
        """The same for a record that may hold a group: of a prefix that is not homed here any more nothing counts."""
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
        """Whether this server answers for a name (§12.1 of the protocol)."""
        if self.is_homed(f"{PREFIX_OF_PREFIXES}/{handle.prefix}") or self.is_homed(handle.prefix):
            return True
        if not handle.is_prefix_handle:
            return False
        markers = (f"{PREFIX_OF_PREFIXES}/{PREFIX_OF_PREFIXES}/{above}" for above in _ancestors(handle.suffix))
        return any(self.is_homed(marker) for marker in markers)

    def referral(self, handle: Handle) -> tuple[Value, ...]:
        """Where the service for a derived prefix handle that is not here can be learnt; empty if nowhere."""
        if not handle.is_prefix_handle:
            return ()
        for above in _ancestors(handle.suffix):
            stored = self.stored(Handle(PREFIX_OF_PREFIXES, above))
            if stored.is_public:
                found = [value for value in stored.values if value.is_public and value.type in DELEGATION_TYPES]
                if found:
                    return tuple(found)
        return ()


def _ancestors(prefix: str) -> Iterator[str]:
    # Anybody may ask about `.7`, above which there is nothing.
    return islice(filter(None, prefixes.ancestors(prefix)), MAX_ANCESTORS)


def stored_policy(entry: Entry) -> Policy | None:
    """The policy in an entry of a policy's record; None if there is none that can be read."""
    for value in entry.record():
        if value.type == POLICY_TYPE:
            try:
                return _parse_policy(value.data)
            except Refused:
                return None
    return None


@lru_cache(_MAX_CACHED_POLICIES)
def _parse_policy(text: bytes) -> Policy:
    """A stored policy."""
    try:
        return Policy.from_stored(text.decode("utf-8"))
    except (InvalidPolicy, UnicodeDecodeError) as problem:
        reason = f"the stored policy cannot be read: {problem}"
        raise Refused(ResponseCode.ERROR, reason, "set the policy of the namespace anew") from problem


def values_of_type(values: tuple[Value, ...], base: str) -> tuple[Value, ...]:
    """The values of a type and its subtypes."""
    return tuple([value for value in values if has_type(value.type, base)])
