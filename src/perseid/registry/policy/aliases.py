"""Rules for HS_ALIAS values: which one is followed, how many, and which ones a record cannot have.

`queries.aliases` follows them in a snapshot. The web resolver follows the requested values, with the same rules.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.data_types import interpret_as
from perseid.records.record import ascending
from perseid.records.types import HS_ALIAS, Alias, has_type
from perseid.records.value import Value
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

MAX_ALIASES: Final = 20
"""How many aliases are followed, as in deployed resolvers. People create one, or two after a merge."""


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
    aliases = [value for value in values if has_type(value.type, HS_ALIAS)]
    if not aliases:
        return
    existing = {value.data for value in known if has_type(value.type, HS_ALIAS)}
    for alias in aliases:
        target = None if alias.data in existing else _target(alias)
        if (
            target is not None
            and fold(target.prefix) == fold(stored.handle.prefix)
            and snapshot.stored(target).key == stored.key
        ):
            reason = f"Handle {display_name(stored.requested)} cannot be an alias of itself"
            raise Refused(ResponseCode.INVALID_VALUE, reason, AdviceKind.NAME_OTHER_TARGET(), "S2")


def _target(alias: Value) -> Handle | None:
    name = interpret_as(alias, Alias)
    return None if name is None else Handle.for_lookup(name.text.strip())
