"""Templates: values for handles without a record, by the rules of the protocol.

Only public data is used: the HS_NAMESPACE value of a public prefix handle, the public values of a public base. A
template with access to private values could copy them into public ones, and its author need not have permission to read
them. So nothing here depends on the caller, and unpublished handles are treated as missing.

Records are looked up by a function argument, in the current snapshot or at an earlier entry. Prefix handles are those
stored here, whether or not this server is responsible for them; no other server is asked.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final, TypeAlias

from perseid.ledger.log.entry import Entry, State
from perseid.names import prefixes
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle
from perseid.records.errors import InvalidData
from perseid.records.namespace import Namespace
from perseid.records.record import ascending
from perseid.records.templates import TemplateBudgetExceeded, TemplateInput, check_templates, evaluate, split_name
from perseid.records.types import HS_NAMESPACE
from perseid.records.value import Value, ValueRef
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.results import Refused
from perseid.registry.snapshot import MAX_ANCESTORS, SITE_PREFIX, Snapshot, StoredRecord, values_of_type
from perseid.wire.codes import ResponseCode

_MAX_CACHED_NAMESPACES: Final = 64  # as many busy templates as a server has; at most some dozen MiB


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
        above = () if fold(prefix) == PREFIX_OF_PREFIXES else filter(None, prefixes.ancestors(prefix))
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
