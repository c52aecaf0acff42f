"""Resolution, and the authority metadata of a record (A1).

The rules are the protocol's (§12.2). Reserved and unpublished handles are "not found" to the public; their
administrators see them. A template can supply values for a handle without a record (`policy.resolution`). Resolution at
a past time is in `history`.

The date of the last update is the newest timestamp of a value or, if later, the time of the latest entry that changed
values: a removed value leaves no timestamp (A3). It is computed from the history on demand and stored nowhere.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from perseid.ledger.log.entry import IMPORT, Entry, State
from perseid.names.handle import Handle
from perseid.records.record import Record, Value, ascending, select
from perseid.registry.access import permissions
from perseid.registry.access.permissions import display_name
from perseid.registry.context import Context, not_found
from perseid.registry.identity import Identity
from perseid.registry.policy import case_rules, resolution
from perseid.registry.policy.authority import AuthorityMetadata, build_metadata
from perseid.registry.results import Refused, Resolution
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

_MICROSECOND: Final = 1_000_000


def get_authority_metadata(snapshot: Snapshot, stored: StoredRecord) -> AuthorityMetadata | None:
    """Return the public authority metadata of a record; None if there is none, or the policy requires none.

    Visibility of the record is not checked here: resolve it first.
    """
    if not stored.policy.authority or stored.state in (State.ABSENT, State.RESERVED):
        return None
    known = snapshot.last_update(stored)
    changed = last_change(case_rules.history(snapshot, stored)) if known is None else known[0]
    record = Record(stored.handle, stored.values)
    return build_metadata(stored.policy, record, changed, lambda party: resolution.resolves_here(snapshot, party))


def last_change(entries: Iterable[Entry]) -> int | None:
    """Return when values last changed, in seconds since 1970, given the entries of a record, newest first.

    Publishing, hiding and redacting change no values. Imported values changed elsewhere, at their own timestamps: None
    if there was nothing else.
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
    return entry.origin is not None and entry.origin[0] == IMPORT


def _contents(entry: Entry) -> list[bytes]:
    return [slot.commitment if slot.content is None else slot.content for slot in entry.values]


@dataclass(frozen=True, slots=True)
class Query:
    """A request to resolve a handle."""

    handle: Handle
    types: Collection[str] = ()
    indexes: Collection[int] = ()
    """Select values by type or index; all values if both are empty."""
    public_only: bool = True
    """Omit private values silently; otherwise they require permission."""
    refer: bool = True
    """Answer for a derived prefix that is not here with a referral (DNR clear)."""


def resolve(query: Query, context: Context) -> Resolution:
    """Resolve a handle now; see `history.as_of` for another time. Raises `Refused`."""
    stored = context.get_hosted(query.handle, refer=query.refer)
    if not stored.exists or (not stored.is_public and not _is_administrator(context, stored, query)):
        snapshot = context.snapshot
        return resolve_by_template(
            query, context.identity, snapshot, stored, lambda *name: resolution.current_public_record(snapshot, *name)
        )
    values = select(stored.values, query.indexes, query.types)
    if query.public_only:
        values = tuple([value for value in values if value.is_public])
    elif values:
        context.require_read(stored.handle, values)
        values = tuple([value for value in values if value.is_readable])
    if not values:
        raise values_not_found(query)
    return to_resolved(stored, values)


def resolve_by_template(
    query: Query,
    identity: Identity,
    snapshot: Snapshot,
    stored: StoredRecord,
    look_up: resolution.RecordLookup,
    at: int | None = None,
) -> Resolution:
    """Resolve a handle without a visible record through a template, if there is one.

    Records are looked up as of today, or of the entry `at`. Reading more than public values requires permission to read
    the base.
    """
    result = resolution.apply_template(snapshot, stored, look_up, at)
    if result is None:
        raise not_found(stored)
    values = select(result.values, query.indexes, query.types)
    if not query.public_only and values:
        Context(snapshot, identity, "read", 0).require_read(result.base or stored.handle, values)
    if not values:
        raise values_not_found(query)
    entry = result.entry
    return Resolution(
        stored.requested,
        stored.requested,
        result.state,
        values,
        entry.seq,
        entry.at,
        by_template=True,
        base=result.base,
    )


def values_not_found(query: Query) -> Refused:
    """Return the refusal for a handle without visible matching values."""
    return Refused(ResponseCode.VALUES_NOT_FOUND, f"Handle {display_name(query.handle)} has no matching values")


def to_resolved(stored: StoredRecord, values: tuple[Value, ...]) -> Resolution:
    """Return the resolution of a record."""
    assert stored.entry is not None  # noqa: S101 - existing records have an entry
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
