"""Rules of resolution: aliases, templates and cache lifetimes.

**Aliases**: which HS_ALIAS value is followed, how many, and which ones a record cannot have. `queries.aliases` follows
them in a snapshot. The web resolver follows the requested values, with the same rules.

**Templates** are values for handles without a record, by the rules of the protocol. Only public data is used: the
HS_NAMESPACE value of a public prefix handle, the public values of a public base. A template with access to private
values could copy them into public ones, and its author need not have permission to read them. So nothing here depends
on the caller, and unpublished handles are treated as missing.

Records are looked up by a function argument, in the current snapshot or at an earlier entry. Prefix handles are those
stored here, whether or not this server is responsible for them; no other server is asked.

**Cache lifetimes**: which TTLs new values can have, and how long clients can cache a response with values. One rule
applies to every interface: the smallest TTL of the values, at most two days. A relative TTL is a number of seconds, an
absolute one the time left until then; neither is ever less than zero. An unknown TTL type allows no caching. Interfaces
decide only whether a response can be cached at all, and by whom.

A new relative TTL is not negative: servers and clients read such a number differently. An absolute one is less than 68
years from now, because times have 32 bits on the wire and mean the one nearest to now.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from itertools import islice
from typing import Final, TypeAlias

from perseid.ledger.log.entry import Entry, State
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle, ancestor_prefixes, fold
from perseid.records.data_types import interpret_as
from perseid.records.errors import InvalidData
from perseid.records.namespace import Namespace
from perseid.records.record import TtlType, Value, ValueRef, ascending
from perseid.records.templates import TemplateBudgetExceeded, TemplateInput, check_templates, evaluate, split_name
from perseid.records.types import HS_ALIAS, HS_NAMESPACE, Alias, has_type
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.results import Refused
from perseid.registry.snapshot import MAX_ANCESTORS, SITE_PREFIX, Snapshot, StoredRecord, values_of_type
from perseid.wire.codes import ResponseCode

from .authority import FoundParty, PartyStatus

MAX_ALIASES: Final = 20
"""How many aliases are followed, as in deployed resolvers. People create one, or two after a merge."""

MAX_CACHE_LIFETIME: Final = 172_800
"""Seconds for which a response is cached at most: two days, so that a changed target takes effect in that time."""

_MAX_TTL_DISTANCE: Final = 1 << 31
_MAX_CACHED_NAMESPACES: Final = 64  # as many busy templates as a server has; at most some dozen MiB


# Aliases


class AliasOutcome(Enum):
    """How following aliases ended."""

    FOUND = "found"
    """At a record that is not an alias."""
    NOT_FOUND = "not_found"
    """At a handle of this server that does not exist or is not public."""
    NOT_HOSTED = "not_hosted"
    """At a handle of another service."""
    LOOP = "loop"
    """At a handle that was visited before."""
    TOO_LONG = "too_long"
    """At an alias beyond the limit."""
    UNREADABLE = "unreadable"
    """At an alias that is not a valid handle."""


class AliasTrail:
    """The aliases that were followed for one request."""

    def __init__(self, limit: int = MAX_ALIASES) -> None:
        self._limit = limit
        self._visited: set[bytes] = set()

    def follow(self, key: bytes) -> AliasOutcome | None:
        """Follow the alias in the record with this key; returns why it cannot be followed, or None."""
        if key in self._visited:
            return AliasOutcome.LOOP
        if len(self._visited) >= self._limit:
            return AliasOutcome.TOO_LONG
        self._visited.add(key)
        return None


def has_alias(values: Iterable[Value]) -> bool:
    """Whether there is an alias among values, readable or not."""
    return any(has_type(value.type, HS_ALIAS) for value in values)


def alias_target(values: Iterable[Value]) -> str | None:
    """The name that values are an alias of: the readable alias with the lowest index. None if there is none."""
    for value in ascending(value for value in values if has_type(value.type, HS_ALIAS)):
        alias = interpret_as(value, Alias)
        if alias is not None and (text := alias.text.strip()):
            return text
    return None


def check_aliases(
    snapshot: Snapshot, stored: StoredRecord, values: Sequence[Value], known: Iterable[Value] = ()
) -> None:
    """Refuse a new alias that points to its own record. `known` are values that are not new."""
    for _, target in _new_aliases(values, known):
        if fold(target.prefix) == fold(stored.handle.prefix) and snapshot.stored(target).key == stored.key:
            reason = f"Handle {display_name(stored.requested)} cannot be an alias of itself"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_OTHER_TARGET(), "S2")


def find_missing_targets(
    snapshot: Snapshot, values: Sequence[Value], known: Iterable[Value] = ()
) -> Iterator[tuple[Value, Handle]]:
    """Yield new aliases of handles that should be here and do not resolve: hidden handles look missing to all."""
    for alias, target in _new_aliases(values, known):
        if snapshot.is_responsible(target) and not _resolves(snapshot, target):
            yield alias, target


def _new_aliases(values: Sequence[Value], known: Iterable[Value]) -> Iterator[tuple[Value, Handle]]:
    aliases = [value for value in values if has_type(value.type, HS_ALIAS)]
    existing = {value.data for value in known if has_type(value.type, HS_ALIAS)} if aliases else set()
    for alias in aliases:
        target = None if alias.data in existing else _target(alias)
        if target is not None:
            yield alias, target


def _resolves(snapshot: Snapshot, handle: Handle) -> bool:
    """Whether the public can resolve a handle, by its record or by a template; true if that is not known."""
    try:
        stored = snapshot.stored(handle)
        return (
            stored.is_public or apply_template(snapshot, stored, partial(current_public_record, snapshot)) is not None
        )
    except Refused:  # the policy is unreadable, or the template exceeds its budget
        return True


def _target(alias: Value) -> Handle | None:
    name = interpret_as(alias, Alias)
    return None if name is None else Handle.for_lookup(name.text.strip())


# Templates


@dataclass(frozen=True, slots=True)
class PublicRecord:
    """The public part of a record."""

    entry: Entry
    values: tuple[Value, ...]


RecordLookup: TypeAlias = Callable[[Handle, str | None], PublicRecord | None]
"""Look up a record that is stored here; None if it is not public, or has no value of the given type. Checking the type
first is cheaper than finding out what of the history is still public."""


@dataclass(frozen=True, slots=True)
class TemplateResult:
    """The values of a template."""

    values: tuple[Value, ...]
    """By ascending index."""
    base: Handle | None
    """The registered base handle, if it has a record."""
    state: State
    """The state of the base."""
    entry: Entry
    """The latest entry that the values depend on."""


def apply_template(
    snapshot: Snapshot, stored: StoredRecord, look_up: RecordLookup, at: int | None = None
) -> TemplateResult | None:
    """The values of a handle without a record, now or after the entry `at`; None if no template applies.

    Raises `Refused` for a template that exceeds its budget, and if the history it depends on is not public.
    """
    requested = stored.requested
    read = _RecordReader(requested, look_up)
    inherited = list(read.namespaces(requested.prefix))
    delimiter = next((each.delimiter for each in inherited if each.delimiter), snapshot.rules.template_delimiter)
    parts = split_name(str(requested), requested.prefix, delimiter)
    if parts is None:
        return None
    name = _base_handle(parts[0])
    base = None if name is None or not snapshot.is_responsible(name) else read.record(name)
    if base is None and not inherited:
        return None
    values = () if base is None else ascending(base.values)
    own = _namespace(values)
    templates = next((each.templates for each in (own, *inherited) if each is not None and each.templates), None)
    if templates is not None:
        subject = TemplateInput(str(requested), *parts, values, ignore_case=not _is_exact(snapshot, stored, at))
        try:
            generated = evaluate(templates, subject, lambda reference: _referenced_value(snapshot, read, reference))
        except TemplateBudgetExceeded as problem:
            reason = f"{display_name(requested)} cannot be resolved: {problem}"
            raise Refused(ResponseCode.ERROR, reason, AdviceKind.FIX_TEMPLATE()) from problem
        if generated is None:
            return None
        values = ascending(generated)
    latest = max(read.entries, key=lambda entry: entry.seq)
    if base is None:
        return TemplateResult(values, None, State.NORMAL, latest)
    return TemplateResult(values, Handle.parse_lenient(base.entry.handle), base.entry.state, latest)


def check_namespaces(before: Iterable[Value], values: tuple[Value, ...]) -> None:
    """Refuse new HS_NAMESPACE values that are invalid, or have an unusable template."""
    known = {value.data for value in before}
    for value in values_of_type(values, HS_NAMESPACE):
        if value.data in known:
            continue
        try:
            check_templates(Namespace.from_bytes(value.data))
        except InvalidData as problem:
            reason = f"Invalid {HS_NAMESPACE} value at index {value.index}: {problem}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.FIX_VALUE()) from problem


def current_public_record(snapshot: Snapshot, handle: Handle, holding: str | None) -> PublicRecord | None:
    """The current public part of a record."""
    stored = snapshot.stored(handle)
    if not stored.is_public or stored.entry is None or not contains_type(stored.values, holding):
        return None
    return PublicRecord(stored.entry, tuple([value for value in stored.values if value.is_public]))


def contains_type(values: tuple[Value, ...], type_: str | None) -> bool:
    """Whether there is a value of a type; true if no type is named."""
    return type_ is None or bool(values_of_type(values, type_))


class _RecordReader:
    """Reads records, each once, and notes their entries."""

    def __init__(self, requested: Handle, look_up: RecordLookup) -> None:
        self._requested = requested
        self._look_up = look_up
        self.entries: list[Entry] = []

    def record(self, handle: Handle, holding: str | None = None) -> PublicRecord | None:
        try:
            record = self._look_up(handle, holding)
        except Refused as refused:
            if refused.code is not ResponseCode.INSUFFICIENT_PERMISSIONS:
                raise
            # Name the requested handle, not the record whose history is hidden or too long.
            reason = f"The history of a record that {display_name(self._requested)} is derived from is hidden"
            raise Refused(refused.code, reason, refused.advice) from refused
        if record is not None:
            self.entries.append(record.entry)
        return record

    def namespaces(self, prefix: str) -> Iterable[Namespace]:
        """The namespaces of a prefix and of its ancestors, nearest first."""
        above = () if fold(prefix) == PREFIX_OF_PREFIXES else ancestor_prefixes(prefix)
        for each in (prefix, *islice(above, MAX_ANCESTORS)):
            record = self.record(Handle(PREFIX_OF_PREFIXES, each), HS_NAMESPACE)
            namespace = None if record is None else _namespace(record.values)
            if namespace is not None:
                yield namespace


def _is_exact(snapshot: Snapshot, stored: StoredRecord, at: int | None) -> bool:
    """Whether the suffixes of the namespace are case-sensitive, now or after an entry."""
    prefix = stored.requested.prefix
    if at is None or fold(prefix) == PREFIX_OF_PREFIXES:
        return stored.policy.case is CaseRule.SENSITIVE
    return next(period.exact for period in snapshot.case_rule_periods(prefix) if period.first <= at)


def _base_handle(base: str) -> Handle | None:
    """The base handle; with the slash as delimiter it is a prefix, and its record the prefix handle."""
    return Handle.for_lookup(base if "/" in base else f"{PREFIX_OF_PREFIXES}/{base}")


def _referenced_value(snapshot: Snapshot, read: _RecordReader, reference: ValueRef) -> bytes | None:
    """The public value that a template refers to, if it is here."""
    handle = _base_handle(reference.handle)
    if handle is None or fold(handle.prefix) == SITE_PREFIX or not snapshot.is_responsible(handle):
        return None
    try:
        record = read.record(handle)
    except Refused as refused:
        if refused.code is ResponseCode.INSUFFICIENT_PERMISSIONS:
            raise  # there may have been such a handle
        return None  # the policy of the namespace cannot be read
    values = () if record is None else record.values
    return next((value.data for value in values if value.index == reference.index), None)


def _namespace(values: Iterable[Value]) -> Namespace | None:
    """The valid namespace with the lowest index."""
    for value in ascending(values_of_type(tuple(values), HS_NAMESPACE)):
        if (namespace := _parse_namespace(value.data)) is not None:
            return namespace
    return None


@lru_cache(_MAX_CACHED_NAMESPACES)
def _parse_namespace(data: bytes) -> Namespace | None:
    try:
        return Namespace.from_bytes(data)
    except InvalidData:
        return None


# Cache lifetimes


def cache_lifetime(values: Iterable[Value], now: float) -> int | None:
    """Seconds for which a response with these values can be cached; None for no values."""
    lifetimes = [value_lifetime(value, now) for value in values]
    return min(lifetimes) if lifetimes else None


def value_lifetime(value: Value, now: float) -> int:
    """Seconds for which a value can be cached."""
    lifetimes = {TtlType.RELATIVE: value.ttl, TtlType.ABSOLUTE: value.ttl - int(now)}  # there are other types
    return max(0, min(lifetimes.get(value.ttl_type, 0), MAX_CACHE_LIFETIME))


def check_ttls(values: Sequence[Value], known: Iterable[Value], now: int) -> None:
    """Refuse new TTLs that others would read differently. `known` are values whose TTLs are not new."""
    unusual = [value for value in values if value.ttl < 0 or value.ttl_type is not TtlType.RELATIVE]
    wrong = [value for value in unusual if _ttl_problem(value, now)]
    if not wrong:
        return
    existing = {(value.ttl, value.ttl_type) for value in known}
    for value in wrong:
        if (value.ttl, value.ttl_type) not in existing:
            reason = f"The TTL of value {value.index} {_ttl_problem(value, now)}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.USE_TTL())


def _ttl_problem(value: Value, now: int) -> str:
    """What is wrong with a TTL; empty if nothing is."""
    is_relative, is_absolute = value.ttl_type is TtlType.RELATIVE, value.ttl_type is TtlType.ABSOLUTE
    if is_relative and value.ttl < 0:
        return f"must not be negative; it is {value.ttl}"
    if is_absolute and not -_MAX_TTL_DISTANCE <= value.ttl - now < _MAX_TTL_DISTANCE:
        return "must be less than 68 years from now"
    return ""


# Parties


def find_party(snapshot: Snapshot, handle: Handle) -> FoundParty:
    """What is known here about a handle that a record names, such as its creator."""
    if not snapshot.is_responsible(handle):
        return FoundParty(PartyStatus.FOREIGN, handle)
    stored = snapshot.stored(handle)
    return FoundParty(PartyStatus.HERE_PUBLIC if stored.is_public else PartyStatus.HERE_MISSING, stored.handle)


def resolves_here(snapshot: Snapshot, handle: Handle) -> bool:
    """Whether a handle is known to resolve, because it is hosted here and public."""
    return find_party(snapshot, handle).status is PartyStatus.HERE_PUBLIC
