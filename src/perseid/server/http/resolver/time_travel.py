"""Time travel: the time a request is about, and the headers of earlier versions (RFC 7089).

There are two ways to request a time. `at` in the query names it, as a time or as an entry number of the ledger, and the
response is the state then. `Accept-Datetime` negotiates a version, as web archive clients do: the handle's URL is its
own TimeGate (pattern 1.1 of the RFC: original resource and TimeGate share a URL, mementos have others) and redirects to
the memento `?at=SEQ`. With `at` the header is ignored.

A memento is the complete state. If the handle redirected then, the memento redirects too, with the status it had. The
current state decides who can see which part of the history: see `registry.queries.history`.
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
from perseid.registry.queries.history import MIN_TIMESTAMP, as_of, seq_at_time
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

from .paths import MAX_LINK_BYTES

AT_PARAMETER: Final = "at"
"""The parameter that names a time."""

DO_NOT_NEGOTIATE: Final = ("Link", '<http://mementoweb.org/terms/donotnegotiate>; rel="type"')
"""The header of the server's own pages and files, which have no history (RFC 7089, section 4.5.8)."""

_MICROSECOND: Final = 1_000_000
# A literal plus sign in a query has become a space where it is parsed like a form.
_ZONE: Final = re.compile(r"(?<=[0-9]) (?=[0-9]{2}:?[0-9]{2}$)")


@dataclass(frozen=True, slots=True)
class Moment:
    """The time that `at` names."""

    seq: int
    """The last ledger entry at that time."""
    fixed: bool
    """Whether it was given as an entry number, so that the response never changes."""


def parse_moment(text: str, snapshot: Snapshot, registry: Registry) -> Moment:
    """Parse `at`. Raises `Refused` if it is invalid or in the future."""
    text = text.strip()
    if "T" in text:
        text = _ZONE.sub("+", text)
    fixed = text.isascii() and text.isdecimal() and len(text) < len(str(MIN_TIMESTAMP))
    return Moment(seq_at_time(snapshot.reader, text, registry.ledger.log.clock.now()), fixed)


def parse_accept_datetime(request: Request) -> int | None:
    """Parse `Accept-Datetime`, in seconds since 1970; None if it is absent. Raises `Refused`."""
    name = ACCEPT_DATETIME.lower()
    if request.method not in SAFE_METHODS or request.header(name) is None:
        return None
    return parse_http_date(request.get_joined(name))  # two headers are invalid


def find_versions(
    snapshot: Snapshot, handle: Handle, seq: int, identity: Identity | None = None
) -> MementoNeighbors | None:
    """The version after an entry and its neighbors; None if none is visible."""
    try:
        return find_at_entry(snapshot, identity or Anonymous(), handle, seq)
    except Refused:
        return None


def negotiate_entry(context: Context, handle: Handle, seconds: int) -> tuple[int, MementoNeighbors | None]:
    """Find the entry for a time, and the versions around it. Raises `Refused`.

    A handle made by a template has no versions of its own: its entry is the last one of that second.
    """
    snapshot = context.snapshot
    try:
        found = find_at_time(snapshot, context.identity, handle, seconds)
    except Refused as refused:
        if refused.code is not ResponseCode.HANDLE_NOT_FOUND or snapshot.stored(handle).entry is not None:
            raise
        resolve(Query(handle), context)  # raises if there is no template
        return _last_entry(snapshot, seconds), None
    return found.memento.seq, found


def find_alias_entry(snapshot: Snapshot, handle: Handle, seq: int, seconds: int) -> int:
    """Find the entry for a version that may be an alias.

    The target of an alias must be read at the requested time itself, as the alias may be much older. A handle that is
    not publicly an alias keeps the entry of its version.
    """
    stored = snapshot.stored(handle)
    entry = case_rules.as_of(snapshot, stored, seq)
    if entry is None or not values_of_type(entry.record(), HS_ALIAS):
        return seq
    then = _last_entry(snapshot, seconds)
    try:
        found = as_of(snapshot, Anonymous(), Query(handle, types=(HS_ALIAS,)), then).resolved
    except Refused:
        return seq  # deleted meanwhile, or the alias is not public
    return then if found.seq == seq else seq


def _last_entry(snapshot: Snapshot, seconds: int) -> int:
    return snapshot.reader.seq_at((seconds + 1) * _MICROSECOND - 1)


def memento_headers(found: MementoNeighbors, addresses: MementoUrls | None, *, is_memento: bool = True) -> HeaderList:
    """The headers of a memento, or of the redirect to it."""
    when = datetime_headers(found.memento) if is_memento else ()
    return (*when, *version_links(found, addresses))


def datetime_headers(version: Memento) -> HeaderList:
    """The header that marks an earlier version and its start."""
    return ((MEMENTO_DATETIME, version.datetime),)


def version_links(found: MementoNeighbors, addresses: MementoUrls | None, *, with_map: bool = True) -> HeaderList:
    """The links to neighboring versions; without a TimeMap if that lists other URLs."""
    if addresses is None or len(addresses.original) > MAX_LINK_BYTES:
        return ()
    return _link_headers(memento_links(found, addresses, with_map=with_map))


def gate_links(addresses: MementoUrls | None, *, with_map: bool = False) -> HeaderList:
    """The links to the history of a handle: its TimeGate, and its TimeMap if it has one.

    They reveal nothing about the handle, which need not exist.
    """
    if addresses is None or len(addresses.original) > MAX_LINK_BYTES:
        return ()
    return _link_headers(present_links(addresses, with_map=with_map))


def _link_headers(links: Iterable[Link]) -> HeaderList:
    return tuple([("Link", value) for value in format_headers(links, max_bytes=MAX_LINK_BYTES)])


def memento_json(version: Memento) -> dict[str, object]:
    """A version as a plain object: its entry and time."""
    return {"seq": version.seq, "time": to_iso(version.seconds)}
