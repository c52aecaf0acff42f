"""What a name says about itself as an identifier (A1), with the date of its last update.

That date is the newest timestamp of a value or, where later, the time of the latest entry that changed values: a value
that was removed leaves no timestamp behind (A3). It is found in the history whenever somebody asks, and stored nowhere.
Whoever shows authority metadata takes it from here.

Resolving: what a name stands for, as far as whoever asks may see it.

The rules are the protocol's (§12.2). Reserved and unpublished names are "not found" to the public; their administrators
see them. For a name without a record a template may make values; see `templates`. What a name stood for at another
moment is a matter of `past`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from perseid.ledger.log.entry import Entry, State
from perseid.names.handle import Handle
from perseid.records.record import Record, ascending, select
from perseid.records.value import Permission, Value
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorize_read
from perseid.registry.access.permissions import display_name
from perseid.registry.commands.composition import get_party_status
from perseid.registry.context import IMPORT, Context, not_found
from perseid.registry.identity import Identity
from perseid.registry.policy import case_rules, templates
from perseid.registry.policy.authority import PartyStatus
from perseid.registry.policy.authority_metadata import AuthorityMetadata, build_metadata
from perseid.registry.results import Refused, Resolution
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

_MICROSECOND: Final = 1_000_000


def get_authority_metadata(snapshot: Snapshot, stored: StoredRecord) -> AuthorityMetadata | None:
    """The authority metadata of a record, of what everybody may read in it; None if there is none, or no policy asks.

    Whether somebody may know of the record is not asked here: resolve it first.
    """
    if not stored.policy.authority or stored.state in (State.ABSENT, State.RESERVED):
        return None
    changed = last_change(case_rules.history(snapshot, stored))
    record = Record(stored.handle, stored.values)
    return build_metadata(
        stored.policy, record, changed, lambda party: get_party_status(snapshot, party) is PartyStatus.HERE_PUBLIC
    )


def last_change(entries: Iterable[Entry]) -> int | None:
    """When values were last changed, in seconds since 1970, given the entries of a record from the latest back.

    To publish, to hide and to erase the past change none. What an import brings was changed elsewhere, at the times
    that its values have: None, if there was nothing else.
    """
    later: Entry | None = None
    for entry in entries:
        if later is not None and _values_differ(later, entry):
            return later.at // _MICROSECOND
        later = entry
    return None if later is None or _is_import(later) else later.at // _MICROSECOND


def _values_differ(later: Entry, earlier: Entry) -> bool:
    return not _is_import(later) and _contents(later) != _contents(earlier)


def _is_import(entry: Entry) -> bool:
    return entry.identity is not None and entry.identity[0] == IMPORT


def _contents(entry: Entry) -> list[bytes]:
    return [slot.commitment if slot.content is None else slot.content for slot in entry.values]


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked about a name."""

    handle: Handle
    types: Collection[str] = ()
    indexes: Collection[int] = ()
    """Values whose type matches or whose index is listed; all, if both are empty."""
    public_only: bool = True
    """Whether private values are left out in silence; otherwise they are shown to those who may see them."""
    refer: bool = True
    """Whether a derived prefix that is not here is answered with where to ask (DNR clear)."""


def resolve(query: Query, context: Context) -> Resolution:
    """Answer a query about the present; see `past.as_of` for another moment. Raises `Refused`."""
    stored = context.get_hosted(query.handle, refer=query.refer)
    if not stored.exists or (not stored.is_public and not _is_administrator(context, stored, query)):
        snapshot = context.snapshot
        return resolve_by_template(
            query, context.identity, snapshot, stored, lambda *name: templates.current_public_record(snapshot, *name)
        )
    found = select(stored.values, query.indexes, query.types)
    if query.public_only:
        found = tuple([value for value in found if value.is_public])
    elif found:
        snapshot = context.snapshot
        decision = authorize_read(
            context.identity, stored.handle, found, snapshot, snapshot.rules.administration, snapshot.usage
        )
        if not decision.allowed:
            raise Refused.from_decision(decision)
        found = tuple([value for value in found if value.is_public or Permission.ADMIN_READ in value.permissions])
    if not found:
        raise values_not_found(query)
    return to_resolved(stored, found)


def resolve_by_template(
    query: Query,
    identity: Identity,
    snapshot: Snapshot,
    stored: StoredRecord,
    look_up: templates.RecordLookup,
    at: int | None = None,
) -> Resolution:
    """Answer a query about a name without a record that may be known to whoever asks: by a template, if there is one.

    What is looked up is that of today, or as it was after the entry `at`. Whoever asks within a session for more than
    public values has to be allowed to read the base.
    """
    found = templates.apply_template(snapshot, stored, look_up, at)
    if found is None:
        raise not_found(stored)
    values = select(found.values, query.indexes, query.types)
    if not query.public_only and values:
        decision = authorize_read(
            identity, found.base or stored.handle, values, snapshot, snapshot.rules.administration, snapshot.usage
        )
        if not decision.allowed:
            raise Refused.from_decision(decision)
    if not values:
        raise values_not_found(query)
    entry = found.entry
    return Resolution(
        stored.requested, stored.requested, found.state, values, entry.seq, entry.at, by_template=True, base=found.base
    )


def values_not_found(query: Query, verb: str = "has") -> Refused:
    """The name exists, and has nothing of what was asked for that may be seen."""
    return Refused(ResponseCode.VALUES_NOT_FOUND, f"{display_name(query.handle)} {verb} no such values")


def to_resolved(stored: StoredRecord, values: tuple[Value, ...]) -> Resolution:
    """The answer about a record."""
    assert stored.entry is not None  # noqa: S101 - what exists has an entry
    return Resolution(
        stored.requested,
        stored.handle,
        stored.state,
        ascending(values),
        stored.entry.seq,
        stored.entry.at,
        stored.query,
        stored.fragment,
    )


def _is_administrator(context: Context, stored: StoredRecord, query: Query) -> bool:
    return not query.public_only and context.is_allowed(permissions.read(stored.handle))
