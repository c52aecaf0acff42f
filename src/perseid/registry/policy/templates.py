"""Names without a record that a template makes values for: which template, which base, by the rules of the protocol.

What counts is what everybody sees: the HS_NAMESPACE value of a published prefix handle, the public values of a
published base. A template that saw private values could copy them into public ones, and its author need not be who may
read them. So nothing here depends on who asks, and names that are not published are as if they did not exist.

Records are looked up by a function that is an argument: those of one state of the ledger, or of one entry of the past.
The prefix handles are those that are kept here, whether this server answers for them or not; no other server is asked.
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
from perseid.registry.results import Refused
from perseid.registry.snapshot import MAX_ANCESTORS, SITE_PREFIX, Snapshot, StoredRecord, values_of_type
from perseid.wire.codes import ResponseCode

_MAX_CACHED_NAMESPACES: Final = 64  # as many as a server has busy templates, and at most some dozen MiB


@dataclass(frozen=True, slots=True)
class PublicRecord:
    """A record as everybody sees it."""

    entry: Entry
    values: tuple[Value, ...]


RecordLookup: TypeAlias = Callable[[Handle, str | None], PublicRecord | None]
"""A record that is kept here; None if everybody is told that there is none, or if it has no value of a type that is
asked for: to find out what of the past may still be seen costs more than to see that it does not matter."""


@dataclass(frozen=True, slots=True)
class TemplateResult:
    """What a template makes of a name."""

    values: tuple[Value, ...]
    """By ascending index."""
    base: Handle | None
    """The base as it is registered, if it has a record."""
    state: State
    """What the base is."""
    entry: Entry
    """The latest entry that the values follow from."""


def apply_template(
    snapshot: Snapshot, stored: StoredRecord, look_up: RecordLookup, at: int | None = None
) -> TemplateResult | None:
    """The values of a name without a record; None if no template makes any, and there is no such name.

    What is looked up is that of today, or after the entry `at`. Raises `Refused` for a template that costs too much,
    and where the past of what it rests on is not shown.
    """
    requested = stored.requested
    read = _RecordReader(requested, look_up)
    inherited = list(read.namespaces(requested.prefix))
    delimiter = next((found for each in inherited if (found := each.delimiter)), snapshot.rules.template_delimiter)
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
            made = evaluate(templates, subject, lambda reference: _referenced_value(snapshot, read, reference))
        except TemplateBudgetExceeded as problem:
            advice = "ask whoever administers the prefix to make the template simpler"
            raise Refused(
                ResponseCode.ERROR, f"{display_name(requested)} cannot be resolved: {problem}", advice
            ) from problem
        if made is None:
            return None
        values = ascending(made)
    latest = max(read.entries, key=lambda entry: entry.seq)
    if base is None:
        return TemplateResult(values, None, State.NORMAL, latest)
    return TemplateResult(values, Handle.parse_lenient(base.entry.handle), base.entry.state, latest)


def check_namespaces(before: Iterable[Value], values: tuple[Value, ...]) -> None:
    """Refuse HS_NAMESPACE values that are new in a record and cannot be read, or hold an unusable template."""
    known = {value.data for value in before}
    for value in values_of_type(values, HS_NAMESPACE):
        if value.data in known:
            continue
        try:
            check_templates(Namespace.from_bytes(value.data))
        except InvalidData as problem:
            reason = f"the {HS_NAMESPACE} at index {value.index} cannot be used: {problem}"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "mend it; nothing was changed") from problem


def current_public_record(snapshot: Snapshot, handle: Handle, holding: str | None) -> PublicRecord | None:
    """A record as everybody sees it today."""
    stored = snapshot.stored(handle)
    if not stored.is_public or stored.entry is None or not contains_type(stored.values, holding):
        return None
    return PublicRecord(stored.entry, tuple([value for value in stored.values if value.is_public]))


def contains_type(values: tuple[Value, ...], type_: str | None) -> bool:
    """Whether there is a value of a type, if one is named."""
    return type_ is None or bool(values_of_type(values, type_))


class _RecordReader:
    """Records that were read, each once."""

    def __init__(self, requested: Handle, look_up: RecordLookup) -> None:
        self._requested = requested
        self._look_up = look_up
        self.entries: list[Entry] = []

    def record(self, handle: Handle, holding: str | None = None) -> PublicRecord | None:
        try:
            found = self._look_up(handle, holding)
        except Refused as refused:
            if refused.code is not ResponseCode.INSUFFICIENT_PERMISSIONS:
                raise
            # Whoever asks has named another record than the one whose past is too long, or not shown.
            reason = f"the past of what {display_name(self._requested)} is made from is not shown"
            raise Refused(refused.code, reason, refused.advice) from refused
        if found is not None:
            self.entries.append(found.entry)
        return found

    def namespaces(self, prefix: str) -> Iterable[Namespace]:
        """The namespaces of a prefix and of those that it is derived from, nearest first."""
        above = () if fold(prefix) == PREFIX_OF_PREFIXES else filter(None, prefixes.ancestors(prefix))
        for each in (prefix, *islice(above, MAX_ANCESTORS)):
            found = self.record(Handle(PREFIX_OF_PREFIXES, each), HS_NAMESPACE)
            namespace = None if found is None else _namespace(found.values)
            if namespace is not None:
                yield namespace


def _is_exact(snapshot: Snapshot, stored: StoredRecord, at: int | None) -> bool:
    """Whether small and capital letters are told apart in the names of the namespace, today or after an entry."""
    prefix = stored.requested.prefix
    if at is None or fold(prefix) == PREFIX_OF_PREFIXES:
        return stored.policy.case is CaseRule.SENSITIVE
    return next(period.exact for period in snapshot.case_rule_periods(prefix) if period.first <= at)


def _base_handle(base: str) -> Handle | None:
    """The base as a handle; where the slash is the delimiter it is a prefix, whose record is the prefix handle."""
    return Handle.for_lookup(base if "/" in base else f"{PREFIX_OF_PREFIXES}/{base}")


def _referenced_value(snapshot: Snapshot, read: _RecordReader, reference: ValueRef) -> bytes | None:
    """The value that a template refers to, if it is here and everybody may read it."""
    handle = _base_handle(reference.handle)
    if handle is None or fold(handle.prefix) == SITE_PREFIX or not snapshot.is_responsible(handle):
        return None
    try:
        found = read.record(handle)
    except Refused as refused:
        if refused.code is ResponseCode.INSUFFICIENT_PERMISSIONS:
            raise  # there may well have been such a name
        return None  # of a namespace whose policy cannot be read nothing is known
    values = () if found is None else found.values
    return next((value.data for value in values if value.index == reference.index), None)


def _namespace(values: Iterable[Value]) -> Namespace | None:
    """The namespace with the lowest index that can be read."""
    for value in ascending(values_of_type(tuple(values), HS_NAMESPACE)):
        if (found := _parse_namespace(value.data)) is not None:
            return found
    return None


@lru_cache(_MAX_CACHED_NAMESPACES)
def _parse_namespace(data: bytes) -> Namespace | None:
    try:
        return Namespace.from_bytes(data)
    except InvalidData:
        return None
