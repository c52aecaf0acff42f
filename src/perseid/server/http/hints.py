"""What else may have been meant: advice for whoever asked for a name that is not here.

Which prefixes are here is told to those who may list them, and to nobody else.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, Handle
from perseid.registry.access import permissions
from perseid.registry.access.permissions import shown
from perseid.registry.commands.namespaces import homed_prefixes
from perseid.registry.context import Context, Operation, Plan
from perseid.registry.results import Referred, Refused
from perseid.registry.snapshot import Facts
from perseid.server.native_failures import WRONG_PREFIX
from perseid.wire.codes import OpCode, ResponseCode

MAX_NAMED: Final = 5
"""Prefixes that an answer names: enough to see that one has come to the right place, or not."""

_SCHEME: Final = re.compile("(?:hdl|doi|info:hdl/|info:doi/|urn:hdl|urn:doi):?", re.IGNORECASE | re.ASCII)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Explaining(Generic[T]):
    """An operation whose refusal of a name that is not here says more."""

    operation: Operation[T]
    name: str
    """As it was asked for."""

    def decide(self, context: Context) -> Plan[T]:
        """As the operation decides."""
        try:
            return self.operation.decide(context)
        except Referred:
            raise
        except Refused as refused:
            if refused.code != ResponseCode.SERVER_NOT_RESP or fold(refused.reason) != fold(WRONG_PREFIX):
                raise
            raise Refused(refused.code, WRONG_PREFIX, advice(self.name, context)) from refused


def advice(name: str, context: Context) -> str:
    """What to do about a name whose prefix is not here."""
    bare = _without_scheme(name)
    if bare is not None and context.facts.is_responsible(bare):
        return f"names are written without a scheme before them here: {shown(bare)}"
    asks = "ask the service of the prefix, if the prefix is right as it is written"
    if not context.may(permissions.serve(OpCode.LIST_HOMED_NAS)):
        return asks
    found = list(islice(_prefixes(context.facts), MAX_NAMED + 1))
    if not found:
        return asks
    named = ", ".join(shown(prefix) for prefix in found[:MAX_NAMED])
    more = " and others" if len(found) > MAX_NAMED else ""
    return f"{asks}; served here: {named}{more}"


def _prefixes(facts: Facts) -> Iterator[str]:
    """Prefixes whose names are here, in their order: those of the table that people make names under."""
    for name in homed_prefixes(facts.reading):
        prefix = name.removeprefix(f"{PREFIX_OF_PREFIXES}/")
        if "/" not in prefix and fold(prefix) != PREFIX_OF_PREFIXES:
            yield prefix


def _without_scheme(name: str) -> Handle | None:
    """The handle behind `hdl:` and the like; None if there is no such thing before it."""
    found = _SCHEME.match(name)
    return None if found is None else Handle.for_lookup(name[found.end() :].lstrip("/"))
