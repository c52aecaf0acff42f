"""Resolving: what a name stands for, as far as whoever asks may see it.

The rules are the protocol's (§12.2). Reserved and unpublished names are "not found" to the public; their administrators
see them. For a name without a record a template may make values; see `templates`. What a name stood for at another
moment is a matter of `past`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from perseid.names.handle import Handle
from perseid.records.record import ascending, select
from perseid.records.value import Permission, Value
from perseid.registry.access import permissions
from perseid.registry.access.authorization import may_read
from perseid.registry.access.permissions import shown
from perseid.registry.context import Context, not_found
from perseid.registry.identity import Identity
from perseid.registry.policy import templates
from perseid.registry.results import Refused, Resolved
from perseid.registry.snapshot import Facts, Held
from perseid.wire.codes import ResponseCode


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


def resolve(query: Query, context: Context) -> Resolved:
    """Answer a query about the present; see `past.as_of` for another moment. Raises `Refused`."""
    held = context.own(query.handle, refer=query.refer)
    if not held.exists or (not held.is_public and not _is_administrator(context, held, query)):
        facts = context.facts
        return made(query, context.who, facts, held, lambda *name: templates.public_now(facts, *name))
    found = select(held.values, query.indexes, query.types)
    if query.public_only:
        found = tuple([value for value in found if value.is_public])
    elif found:
        facts = context.facts
        decision = may_read(context.who, held.handle, found, facts, facts.rules.administration, facts.spent)
        if not decision.allowed:
            raise Refused.by_decision(decision)
        found = tuple([value for value in found if value.is_public or Permission.ADMIN_READ in value.permissions])
    if not found:
        raise no_such_values(query)
    return answer(held, found)


def made(
    query: Query, who: Identity, facts: Facts, held: Held, look_up: templates.LookUp, at: int | None = None
) -> Resolved:
    """Answer a query about a name without a record that may be known to whoever asks: by a template, if there is one.

    What is looked up is that of today, or as it was after the entry `at`. Whoever asks within a session for more than
    public values has to be allowed to read the base.
    """
    found = templates.make(facts, held, look_up, at)
    if found is None:
        raise not_found(held)
    values = select(found.values, query.indexes, query.types)
    if not query.public_only and values:
        decision = may_read(who, found.base or held.handle, values, facts, facts.rules.administration, facts.spent)
        if not decision.allowed:
            raise Refused.by_decision(decision)
    if not values:
        raise no_such_values(query)
    entry = found.entry
    return Resolved(held.asked, held.asked, found.state, values, entry.seq, entry.at, by_template=True, base=found.base)


def no_such_values(query: Query, verb: str = "has") -> Refused:
    """The name exists, and has nothing of what was asked for that may be seen."""
    return Refused(ResponseCode.VALUES_NOT_FOUND, f"{shown(query.handle)} {verb} no such values")


def answer(held: Held, values: tuple[Value, ...]) -> Resolved:
    """The answer about a record."""
    assert held.entry is not None  # noqa: S101 - what exists has an entry
    return Resolved(
        held.asked,
        held.handle,
        held.state,
        ascending(values),
        held.entry.seq,
        held.entry.at,
        held.query,
        held.fragment,
    )


def _is_administrator(context: Context, held: Held, query: Query) -> bool:
    return not query.public_only and context.may(permissions.read(held.handle))
