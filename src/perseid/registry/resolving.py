"""Resolving: what a name stands for, as far as whoever asks may see it.

The rules are the protocol's (§12.2). Reserved and unpublished names are "not found" to the public; their administrators
see them. What a name stood for at another moment is a matter of `past`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from perseid.names import Handle
from perseid.records.record import ascending, select
from perseid.records.value import Permission, Value
from perseid.wire.codes import ResponseCode

from . import demands
from .authorisation import may_read
from .context import Context, not_found
from .demands import shown
from .facts import Held
from .results import Refused, Resolved


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
        raise not_found(held)
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
        raise Refused(ResponseCode.VALUES_NOT_FOUND, f"{shown(query.handle)} has no such values")
    return answer(held, found)


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
    return not query.public_only and context.may(demands.read(held.handle))
