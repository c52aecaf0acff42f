"""Names as they are cited and printed: found for whoever asks, in the state of the ledger that they mean."""

from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver
from perseid.registry.commands.records import require_record
from perseid.registry.queries.citation import Citation, citation_of
from perseid.registry.queries.history import as_of, moment
from perseid.registry.queries.resolve import Query, resolve

from .context import Context
from .results import Refused, Resolved
from .snapshot import Held


def cited(context: Context, asked: Reference, resolver: Resolver, at: str | None = None, clock: int = 0) -> Citation:
    """How to cite a name: as it is, or as it was `at` a time or after an entry. Raises `Refused`.

    `clock` is the time in microseconds, before which a past time has to lie.
    """
    facts, query = context.facts, Query(asked.handle)
    if at is None:
        found = resolve(query, context)
    else:
        found = as_of(facts, context.who, query, moment(facts.reading, at, clock)).resolved
    tail = _with_tail(asked.handle, asked, found)
    return citation_of(facts.policy(found.registered.prefix), found, tail, resolver, fixed=at is not None)


def printable_name(context: Context, asked: Reference) -> Reference:
    """The name for a code: as it is registered, or as it was asked for if a template makes its values.

    One that is reserved will do, since that is what names are reserved for. Raises `Refused`.
    """
    held = context.own(asked.handle)
    try:
        require_record(context, held)
    except Refused:
        made = resolve(Query(asked.handle), context)  # refused in the same way, if there is no template
        return _with_tail(made.registered, asked, made)
    return _with_tail(held.handle, asked, held)


def _with_tail(handle: Handle, asked: Reference, found: Held | Resolved) -> Reference:
    """A name with the query and fragment that were asked for: within the URI, or within a name of CORDRA (C5)."""
    return Reference(
        handle,
        asked.query if found.query is None else found.query,
        asked.fragment if found.fragment is None else found.fragment,
    )
