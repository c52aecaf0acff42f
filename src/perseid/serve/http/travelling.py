"""Time travel: which moment a request is about, and what an answer about the past says in its headers (RFC 7089).

There are two ways to ask. `at` in the query names a moment, as a time or as the number of an entry of the ledger, and
the answer is what was known then. `Accept-Datetime` asks for the version of a time, as clients of the web's archives
do: the name itself is the TimeGate (the RFC's pattern 1.1: original resource and TimeGate have one address, and the
mementos have others), and leads to the memento `?at=SEQ`. There, and wherever else `at` is given, the header does not
count: a memento is what it is.

A memento is all that the name was. If it led somewhere then, the memento leads there too, with the status that it had.
Who may see what of the past is decided by the state of today: see `registry.past`.
"""

import re
from dataclasses import dataclass
from typing import Final

from perseid.names import Handle
from perseid.records.times import to_iso
from perseid.registry.context import Context
from perseid.registry.facts import Facts
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.links import header_values
from perseid.registry.memento import (
    ACCEPT_DATETIME,
    MEMENTO_DATETIME,
    Addresses,
    Around,
    Memento,
    around,
    memento_links,
    negotiated,
    read_datetime,
)
from perseid.registry.past import FIRST_INSTANT, moment
from perseid.registry.registry import Registry
from perseid.registry.resolving import Query, resolve
from perseid.registry.results import Refused
from perseid.wire.codes import ResponseCode

from .messages import HeaderList, Request
from .methods import READING

AT: Final = "at"
"""The parameter that names a moment."""

MAX_LINK_OCTETS: Final = 2_048
"""Octets of all links to versions in headers: half of what all links may have."""

_MICROSECOND: Final = 1_000_000
# A plus sign that stands as it is in a query has become a blank where it is read as a form is.
_ZONE: Final = re.compile(r"(?<=[0-9]) (?=[0-9]{2}:?[0-9]{2}$)")


@dataclass(frozen=True, slots=True)
class Moment:
    """What `at` names."""

    seq: int
    """The last entry of the ledger at that moment."""
    fixed: bool
    """Whether it was named by its number, so that the answer stays the same for ever."""


def moment_of(text: str, facts: Facts, registry: Registry) -> Moment:
    """The moment that `at` names. Raises `Refused` for what cannot be read, and for what will be."""
    text = text.strip()
    if "T" in text:
        text = _ZONE.sub("+", text)
    fixed = text.isascii() and text.isdecimal() and len(text) < len(str(FIRST_INSTANT))
    return Moment(moment(facts.reading, text, registry.ledger.log.clock.now()), fixed)


def wanted_time(request: Request) -> int | None:
    """The time that `Accept-Datetime` names, in seconds since 1970; None if there is none. Raises `Refused`."""
    header = request.header(ACCEPT_DATETIME.lower())
    return None if header is None or request.method not in READING else read_datetime(header)


def versions_at(facts: Facts, handle: Handle, seq: int, who: Identity | None = None) -> Around | None:
    """The version after an entry, and those around it; None if there is none that may be seen."""
    try:
        return around(facts, who or Anonymous(), handle, seq)
    except Refused:
        return None


def entry_for(context: Context, handle: Handle, seconds: int) -> tuple[int, Around | None]:
    """The entry to which somebody is led who asks for a time, and the versions around it. Raises `Refused`.

    A name that a template makes has no versions of its own: it is what it was after the last entry of that second.
    """
    facts = context.facts
    try:
        found = negotiated(facts, context.who, handle, seconds)
    except Refused as refused:
        if refused.code is not ResponseCode.HANDLE_NOT_FOUND or facts.held(handle).entry is not None:
            raise
        resolve(Query(handle), context)  # raises if no template makes it
        return facts.reading.seq_at((seconds + 1) * _MICROSECOND - 1), None
    return found.memento.seq, found


def past_headers(found: Around | None, addresses: Addresses | None, *, is_memento: bool = True) -> HeaderList:
    """What is said with a memento, or with the answer that leads to it."""
    if found is None:
        return ()
    when = ((MEMENTO_DATETIME, found.memento.datetime),) if is_memento else ()
    return (*when, *past_links(found, addresses))


def past_links(found: Around, addresses: Addresses | None, *, with_map: bool = True) -> HeaderList:
    """The links to the versions around one; without a TimeMap where what it lists has other addresses."""
    if addresses is None:
        return ()
    links = [link for link in memento_links(found, addresses) if with_map or "timemap" not in link.relations]
    return tuple([("Link", value) for value in header_values(links, octets=MAX_LINK_OCTETS)])


def memento_json(version: Memento) -> dict[str, object]:
    """A version as a plain object: the entry and its time."""
    return {"seq": version.seq, "time": to_iso(version.seconds)}
