"""Other names for a thing: where HS_ALIAS values lead.

Each name is found by the rules of its own namespace, all of them in one state of the ledger, or as they were at one
moment. Only public values of public records count, and of the past only what everybody may still see. Of several
aliases the one with the lowest index is followed.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.data_types import interpret_as
from perseid.records.record import ascending
from perseid.records.text_types import Alias
from perseid.records.types import HS_ALIAS
from perseid.records.value import Value
from perseid.registry.access.permissions import display_name
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous
from perseid.registry.queries.history import as_of
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.results import Refused, Resolution
from perseid.registry.snapshot import SITE_PREFIX, Snapshot, values_of_type
from perseid.wire.codes import ResponseCode

MAX_ALIASES: Final = 10
"""How many aliases are followed. People make one, or two when names were merged; more is a mistake or a trap."""


class AliasOutcome(Enum):
    """How following aliases ended."""

    FOUND = "found"
    """At a record that is no alias."""
    NOT_FOUND = "not found"
    """At a name of this server without a record that everybody may see."""
    ELSEWHERE = "elsewhere"
    """At a name that another service answers for: ask there."""
    LOOP = "loop"
    """At a name that was met before."""
    TOO_LONG = "too long"
    """At an alias that is one too many."""
    UNREADABLE = "unreadable"
    """At an alias whose data is no name."""


class AliasError(Refused):
    """The name that was asked for exists, and its aliases lead to no record here."""


@dataclass(frozen=True, slots=True)
class AliasChain:
    """Where aliases lead."""

    chain: tuple[Handle, ...]
    """The names in the order in which they were met, the one asked for first and that of the end last."""
    end: AliasOutcome

    @property
    def last(self) -> Handle:
        """The name at the end."""
        return self.chain[-1]


def follow_aliases(snapshot: Snapshot, handle: Handle, at: int | None = None, limit: int = MAX_ALIASES) -> AliasChain:
    """Follow aliases, now or as of an entry of the past (see `past.moment`)."""
    chain: list[Handle] = []
    met: set[bytes] = set()
    while True:
        if fold(handle.prefix) == SITE_PREFIX:
            return AliasChain((*chain, handle), AliasOutcome.NOT_FOUND)
        if not snapshot.is_responsible(handle):
            return AliasChain((*chain, handle), AliasOutcome.ELSEWHERE)
        stored = snapshot.stored(handle)
        # How a name is registered that is not public nobody is told: it looks like one that never was.
        chain.append(
            stored.handle if stored.is_public else stored.policy.normalize(stored.policy.lookup_form(handle)[0])
        )
        if stored.key in met:
            return AliasChain(tuple(chain), AliasOutcome.LOOP)
        met.add(stored.key)
        try:
            found = _resolve_public(snapshot, handle, at)
        except Refused as refused:
            end = AliasOutcome.FOUND if refused.code is ResponseCode.VALUES_NOT_FOUND else AliasOutcome.NOT_FOUND
            return AliasChain(tuple(chain), end)
        # What a template makes of a name may depend on its letters.
        chain[-1] = handle if found.by_template else found.registered
        aliases = ascending(values_of_type(found.values, HS_ALIAS))
        if not aliases:
            return AliasChain(tuple(chain), AliasOutcome.FOUND)
        target = _target(aliases[0])
        if target is None:
            return AliasChain(tuple(chain), AliasOutcome.UNREADABLE)
        if len(chain) > limit:
            return AliasChain(tuple(chain), AliasOutcome.TOO_LONG)
        handle = target


def resolve_aliases(snapshot: Snapshot, handle: Handle, at: int | None = None) -> AliasChain:
    """Follow aliases to the record that the name means in the end; refused if there is none here."""
    found = follow_aliases(snapshot, handle, at)
    if found.end is AliasOutcome.FOUND or (found.end is AliasOutcome.NOT_FOUND and len(found.chain) == 1):
        return found  # of a name that is no alias there is nothing to tell but what resolving tells
    way = f"{display_name(handle)} is another name"
    if found.end is AliasOutcome.NOT_FOUND:
        reason = f"{way} for {display_name(found.last)}, of which there is no record"
        raise AliasError(ResponseCode.HANDLE_NOT_FOUND, reason, "mend the alias, or make that record", "S2")
    if found.end is AliasOutcome.ELSEWHERE:
        if len(found.chain) == 1:
            return found
        reason = f"{way} for {display_name(found.last)}, which another service answers for"
        raise AliasError(
            ResponseCode.SERVER_NOT_RESP, reason, f"ask the service of {display_name(found.last.prefix)}", "S2"
        )
    why = {
        AliasOutcome.LOOP: f"{way} in a circle: {display_name(found.last)} leads back to itself",
        AliasOutcome.TOO_LONG: (
            f"{way}, and behind {display_name(found.last)} the aliases go on; {MAX_ALIASES} are followed"
        ),
        AliasOutcome.UNREADABLE: f"the alias of {display_name(found.last)} is no name",
    }
    raise AliasError(ResponseCode.ERROR, why[found.end], "look at the records on the way, without following", "S2")


def check_aliases(snapshot: Snapshot, handle: Handle, values: tuple[Value, ...]) -> None:
    """Refuse a new alias that leads back to the name whose record it is in: whoever follows it gets nowhere.

    Deployed servers take it, so the doors that speak for them do too; those of our own do not.
    """
    aliases = values_of_type(values, HS_ALIAS)
    if not aliases:
        return
    stored = snapshot.stored(handle)
    there = {value.data for value in values_of_type(stored.values, HS_ALIAS)}
    targets = [_target(alias) for alias in aliases if alias.data not in there]
    for target in targets:
        if (
            target is not None
            and fold(target.prefix) == fold(handle.prefix)
            and snapshot.stored(target).key == stored.key
        ):
            reason = f"{display_name(handle)} cannot be another name for itself"
            raise Refused(ResponseCode.INVALID_VALUE, reason, "name the handle that it should lead to", "S2")


def _resolve_public(snapshot: Snapshot, handle: Handle, at: int | None) -> Resolution:
    """What everybody is told of a name. Raises `Refused`."""
    query = Query(handle, refer=False)
    if at is None:
        return resolve(query, Context(snapshot, Anonymous(), "read", 0))
    return as_of(snapshot, Anonymous(), query, at).resolved


def _target(alias: Value) -> Handle | None:
    """The name that an alias gives."""
    name = interpret_as(alias, Alias)
    return None if name is None else name.handle
