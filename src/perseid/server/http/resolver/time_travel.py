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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from perseid.names.handle import Handle
from perseid.records.encoding import to_iso
from perseid.records.types import HS_ALIAS
from perseid.registry.context import Context
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.policy import case_rules
from perseid.registry.queries.history import MIN_TIMESTAMP, as_of, moment
from perseid.registry.queries.links import Link, format_headers
from perseid.registry.queries.memento import (
    ACCEPT_DATETIME,
    MEMENTO_DATETIME,
    Memento,
    MementoNeighbors,
    MementoUrls,
    find_at_entry,
    find_at_time,
    memento_links,
    parse_http_date,
    present_links,
)
from perseid.registry.queries.resolve import Query, resolve
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import Snapshot, values_of_type
from perseid.server.http.messages import SAFE_METHODS, HeaderList, Request
from perseid.wire.codes import ResponseCode

from .addresses import MAX_LINK_BYTES

AT_PARAMETER: Final = "at"
"""The parameter that names a moment."""

DO_NOT_NEGOTIATE: Final = ("Link", '<http://mementoweb.org/terms/donotnegotiate>; rel="type"')
"""What the server's own pages and files say, which have no past that could be asked for (RFC 7089, section 4.5.8)."""

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


def parse_moment(text: str, snapshot: Snapshot, registry: Registry) -> Moment:
    """The moment that `at` names. Raises `Refused` for what cannot be read, and for what will be."""
    text = text.strip()
    if "T" in text:
        text = _ZONE.sub("+", text)
    fixed = text.isascii() and text.isdecimal() and len(text) < len(str(MIN_TIMESTAMP))
    return Moment(moment(snapshot.reading, text, registry.ledger.log.clock.now()), fixed)


def parse_accept_datetime(request: Request) -> int | None:
    """The time that `Accept-Datetime` names, in seconds since 1970; None if there is none. Raises `Refused`."""
    name = ACCEPT_DATETIME.lower()
    if request.method not in SAFE_METHODS or request.header(name) is None:
        return None
    return parse_http_date(request.get_joined(name))  # of two times, neither is meant


def find_versions(
    snapshot: Snapshot, handle: Handle, seq: int, identity: Identity | None = None
) -> MementoNeighbors | None:
    """The version after an entry, and those around it; None if there is none that may be seen."""
    try:
        return find_at_entry(snapshot, identity or Anonymous(), handle, seq)
    except Refused:
        return None


def negotiate_entry(context: Context, handle: Handle, seconds: int) -> tuple[int, MementoNeighbors | None]:
    """The entry to which somebody is led who asks for a time, and the versions around it. Raises `Refused`.

    A name that a template makes has no versions of its own: it is what it was after the last entry of that second.
    """
    snapshot = context.snapshot
    try:
        found = find_at_time(snapshot, context.identity, handle, seconds)
    except Refused as refused:
        if refused.code is not ResponseCode.HANDLE_NOT_FOUND or snapshot.stored(handle).entry is not None:
            raise
        resolve(Query(handle), context)  # raises if no template makes it
        return _last_entry(snapshot, seconds), None
    return found.memento.seq, found


def find_alias_entry(snapshot: Snapshot, handle: Handle, seq: int, seconds: int) -> int:
    """The entry to which somebody is led for whom a version, that of an entry, is not all: it is another name.

    What that other name was has to be asked for at the time itself, for the alias may be much older. Names that are no
    alias, as everybody may see them, have the entry of their version.
    """
    stored = snapshot.stored(handle)
    entry = case_rules.as_of(snapshot, stored, seq)
    if entry is None or not values_of_type(entry.record(), HS_ALIAS):
        return seq
    then = _last_entry(snapshot, seconds)
    try:
        found = as_of(snapshot, Anonymous(), Query(handle, types=(HS_ALIAS,)), then).resolved
    except Refused:
        return seq  # it was deleted meanwhile, or nobody may know that it is one
    return then if found.seq == seq else seq


def _last_entry(snapshot: Snapshot, seconds: int) -> int:
    """The last entry of a second."""
    return snapshot.reading.seq_at((seconds + 1) * _MICROSECOND - 1)


def memento_headers(found: MementoNeighbors, addresses: MementoUrls | None, *, is_memento: bool = True) -> HeaderList:
    """What is said with a memento, or with the answer that leads to it."""
    when = datetime_headers(found.memento) if is_memento else ()
    return (*when, *version_links(found, addresses))


def datetime_headers(version: Memento) -> HeaderList:
    """What says that an answer is of the past, and since when it was so."""
    return ((MEMENTO_DATETIME, version.datetime),)


def version_links(found: MementoNeighbors, addresses: MementoUrls | None, *, with_map: bool = True) -> HeaderList:
    """The links to the versions around one; without a TimeMap where what it lists has other addresses."""
    if addresses is None or len(addresses.original) > MAX_LINK_BYTES:
        return ()
    return _link_headers(memento_links(found, addresses, with_map=with_map))


def gate_links(addresses: MementoUrls | None, *, with_map: bool = False) -> HeaderList:
    """The links to where the past of a name is to be had: its TimeGate, and its TimeMap if it has one.

    They tell nothing about the name, and it need not be one that is there.
    """
    if addresses is None or len(addresses.original) > MAX_LINK_BYTES:
        return ()
    return _link_headers(present_links(addresses, with_map=with_map))


def _link_headers(links: Iterable[Link]) -> HeaderList:
    return tuple([("Link", value) for value in format_headers(links, octets=MAX_LINK_BYTES)])


def memento_json(version: Memento) -> dict[str, object]:
    """A version as a plain object: the entry and its time."""
    return {"seq": version.seq, "time": to_iso(version.seconds)}
