"""Signposting: typed links in headers, and records in other forms.

A redirect has only a few links, which depend on the name alone (`addresses.redirect_links`). The page of a record and
its JSON have those of `registry.queries.signposting` as far as they fit into headers; the linkset has all of them. A
description in another form names what it describes and its linkset. All have links to the history, or to the versions
around the one shown.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from markupsafe import Markup

from perseid.names.uri import Reference
from perseid.records.locations import Candidate
from perseid.registry.queries.links import MAX_HEADER_BYTES, Link, format_headers
from perseid.registry.queries.memento import Memento
from perseid.registry.queries.signposting import (
    ABOUT_PAGE,
    BIBLIOGRAPHY,
    BIBTEX,
    FORMATTERS,
    DescribedRecord,
    build_links,
    format_json_ld,
)
from perseid.registry.results import Resolution
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response

from .addresses import get_addresses, get_forms, get_resolver, record_url, redirect_links
from .lookup import LookupResult, RecordReader
from .time_travel import datetime_headers, gate_links, memento_headers

MAX_EMBEDDED: Final = 65_536
"""Characters of the longest description that is embedded in a page, so that it does not double the page."""

_OF_FORMS: Final = ("cite-as", "linkset")  # relations of a description itself
_CHARSETS: Final = frozenset((BIBTEX, BIBLIOGRAPHY))  # types that need a charset


def describe(
    found: LookupResult, reader: RecordReader, settings: HttpSettings, candidates: tuple[Candidate, ...] | None = None
) -> DescribedRecord:
    """Collect everything known about a record; `candidates` are its locations, if they are already known."""
    resolved = found.resolved
    then = () if reader.at is None else (f"at={reader.at}",)
    return DescribedRecord(
        reader.policy(found),
        resolved,
        Reference(resolved.registered, resolved.query, resolved.fragment),
        get_resolver(settings),
        reader.authority(found),
        reader.candidates(found).locations if candidates is None else candidates,
        record_url(found.name, settings, "noredirect", *then) if settings.public_url else None,
        get_forms(found.name, settings, reader.at),
        fixed=reader.at is not None,
    )


def record_headers(
    described: DescribedRecord, found: LookupResult, reader: RecordReader, settings: HttpSettings, *, is_page: bool
) -> HeaderList:
    """The headers of a record's page or JSON: all links that fit."""
    own = (Link(ABOUT_PAGE, "type"),) if is_page else ()
    return _headers(build_links(described, own), found, reader, settings)


def form_headers(
    described: DescribedRecord, found: LookupResult, reader: RecordReader, settings: HttpSettings
) -> HeaderList:
    """The headers of a record in another form."""
    own = [link for link in build_links(described) if link.relations[0] in _OF_FORMS]
    with suppress(ValueError):
        own.append(Link(described.address, "describes"))
    return _headers(own, found, reader, settings)


def _headers(own: Iterable[Link], found: LookupResult, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """Links, and the time headers; only the latter without a public URL."""
    times = time_headers(found.resolved, reader, settings)
    if not settings.public_url:
        return times
    remaining = max(0, MAX_HEADER_BYTES - sum(len(name) + len(value) + 4 for name, value in times))
    return (*[("Link", value) for value in format_headers(own, max_bytes=remaining)], *times)


def time_headers(resolved: Resolution, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """The headers about other times: links to the history, or to the versions around this one.

    A handle made by a template has no versions of its own, and so no TimeMap. The start of its state is known.
    """
    addresses = get_addresses(str(resolved.registered), settings)
    if reader.at is None:
        return gate_links(addresses, with_map=not resolved.by_template)
    versions = reader.versions(resolved)
    if versions is not None:
        return memento_headers(versions, addresses)
    return (*datetime_headers(Memento(resolved.seq, resolved.at)), *gate_links(addresses))


def redirect_headers(found: LookupResult, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """The links of a redirect."""
    return _redirect_headers(found.name, found.resolved, reader, settings)


def alias_headers(found: LookupResult, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """The links of a redirect from an alias; they are about the alias."""
    return _redirect_headers(found.aliases[0], found.first, reader, settings)


def _redirect_headers(name: str, resolved: Resolution, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    if reader.at is not None:
        return time_headers(resolved, reader, settings)
    value = redirect_links(name, settings, with_map=not resolved.by_template)
    return () if value is None else (("Link", value),)


def form_response(media_type: str, described: DescribedRecord, status: int, headers: HeaderList) -> Response:
    """Create the response with a record in another form."""
    body = FORMATTERS[media_type](described).encode("utf-8", "replace")
    type_ = f"{media_type};charset=utf-8" if media_type in _CHARSETS else media_type
    return Response(status, (*headers, ("Content-Type", type_)), body)


def embedded_json_ld(described: DescribedRecord, settings: HttpSettings) -> Markup | None:
    """The description embedded in a record's page; None if it is too long, or without a public URL.

    It is data, not a script: browsers do not run JSON-LD, and its text cannot close the element. See
    `registry.queries.signposting`.
    """
    if not settings.public_url:
        return None
    text = format_json_ld(described)
    return Markup(text) if len(text) <= MAX_EMBEDDED else None  # noqa: S704 - it contains no markup
