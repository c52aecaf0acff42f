"""What else may have been meant: advice for whoever asked for a name that is not here.

Prefixes are named only where everybody can know that they are here: their prefix handles can be resolved here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from perseid.names import Handle
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES
from perseid.registry.context import Context, Operation, Plan
from perseid.registry.demands import shown
from perseid.registry.facts import Facts
from perseid.registry.namespaces import homed_prefixes
from perseid.registry.results import Referred, Refused
from perseid.serve.native_failures import WRONG_PREFIX
from perseid.wire.codes import ResponseCode

MAX_NAMED: Final = 5
"""Prefixes that an answer names: enough to see that one has come to the right place, or not."""

MAX_LOOKED_AT: Final = 50
"""Prefixes that are looked at for that: anybody may ask for what is not here."""

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
            raise Refused(refused.code, WRONG_PREFIX, advice(self.name, context.facts)) from refused


def advice(name: str, facts: Facts) -> str:
    """What to do about a name whose prefix is not here."""
    bare = _without_scheme(name)
    if bare is not None and facts.is_responsible(bare):
        return f"names are written without a scheme before them here: {shown(bare)}"
    found = list(islice(public_prefixes(facts), MAX_NAMED + 1))
    if not found:
        return "ask the service of the prefix"
    named = ", ".join(shown(prefix) for prefix in found[:MAX_NAMED])
    more = " and others" if len(found) > MAX_NAMED else ""
    return f"ask the service of the prefix; served here: {named}{more}"


def public_prefixes(facts: Facts) -> Iterator[str]:
    """Prefixes whose names are here, as everybody can find out; a few, in their order."""
    for name in islice(homed_prefixes(facts.reading), MAX_LOOKED_AT):
        prefix = name.partition("/")[2]
        handle = Handle.for_lookup(f"{PREFIX_OF_PREFIXES}/{prefix}")
        if handle is None or "/" in prefix or fold(prefix) == PREFIX_OF_PREFIXES or not facts.is_responsible(handle):
            continue
        if facts.held(handle).is_public:
            yield prefix


def _without_scheme(name: str) -> Handle | None:
    """The handle behind `hdl:` and the like; None if there is no such thing before it."""
    found = _SCHEME.match(name)
    return None if found is None else Handle.for_lookup(name[found.end() :].lstrip("/"))
