"""What a record means to machines, over HTTP: links in headers (Signposting), and the record in other forms.

A redirection has a few links only, which follow from the name alone (`addresses.links_of_redirection`). The page of a
record, and its JSON, have those of `registry.meaning` as far as there is room for them in headers; all of them are in
the linkset. A description of the thing in another form says what it describes, and where the links are. With each go
the links to the past of the name, or to the versions around the one that is shown.
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
"""Characters of the longest description that is put into a page: a page should not become twice as long by it."""

_OF_FORMS: Final = ("cite-as", "linkset")  # relations that a description has itself
_CHARSETS: Final = frozenset((BIBTEX, BIBLIOGRAPHY))  # types whose encoding has to be said


def describe(
    found: LookupResult, reader: RecordReader, settings: HttpSettings, places: tuple[Candidate, ...] | None = None
) -> DescribedRecord:
    """All that is known about what was found; `places` are those of the thing, if they are known already."""
    resolved = found.resolved
    then = () if reader.at is None else (f"at={reader.at}",)
    return DescribedRecord(
        reader.policy(found),
        resolved,
        Reference(resolved.registered, resolved.query, resolved.fragment),
        get_resolver(settings),
        reader.authority(found),
        reader.candidates(found).places if places is None else places,
        record_url(found.name, settings, "noredirect", *then) if settings.public_url else None,
        get_forms(found.name, settings, reader.at),
        fixed=reader.at is not None,
    )


def record_headers(
    described: DescribedRecord, found: LookupResult, reader: RecordReader, settings: HttpSettings, *, is_page: bool
) -> HeaderList:
    """What goes with the page of a record, or its JSON: all links for which there is room."""
    own = (Link(ABOUT_PAGE, "type"),) if is_page else ()
    return _headers(build_links(described, own), found, reader, settings)


def form_headers(
    described: DescribedRecord, found: LookupResult, reader: RecordReader, settings: HttpSettings
) -> HeaderList:
    """What goes with a record in another form."""
    own = [link for link in build_links(described) if link.relations[0] in _OF_FORMS]
    with suppress(ValueError):
        own.append(Link(described.address, "describes"))
    return _headers(own, found, reader, settings)


def _headers(own: Iterable[Link], found: LookupResult, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """Links, and those to other times; none if nothing here has an address."""
    past = time_headers(found.resolved, reader, settings)
    if not settings.public_url:
        return past
    room = max(0, MAX_HEADER_BYTES - sum(len(name) + len(value) + 4 for name, value in past))
    return (*[("Link", value) for value in format_headers(own, octets=room)], *past)


def time_headers(resolved: Resolution, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """What is said about other times with an answer: where the past is to be had, or the versions around this one.

    A name that a template makes has no versions of its own, and so no list of them. Since when it was so is known.
    """
    addresses = get_addresses(str(resolved.registered), settings)
    if reader.at is None:
        return gate_links(addresses, with_map=not resolved.by_template)
    versions = reader.versions(resolved)
    if versions is not None:
        return memento_headers(versions, addresses)
    return (*datetime_headers(Memento(resolved.seq, resolved.at)), *gate_links(addresses))


def redirect_headers(found: LookupResult, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """The links that go with a redirection."""
    return _redirect_headers(found.name, found.resolved, reader, settings)


def alias_headers(found: LookupResult, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    """Those that go with the answer that leads from an alias to the name which it is one of: they are the alias's."""
    return _redirect_headers(found.aliases[0], found.first, reader, settings)


def _redirect_headers(name: str, resolved: Resolution, reader: RecordReader, settings: HttpSettings) -> HeaderList:
    if reader.at is not None:
        return time_headers(resolved, reader, settings)
    value = redirect_links(name, settings, with_map=not resolved.by_template)
    return () if value is None else (("Link", value),)


def form_response(media_type: str, described: DescribedRecord, status: int, headers: HeaderList) -> Response:
    """A record in one of its other forms."""
    body = FORMATTERS[media_type](described).encode("utf-8", "replace")
    type_ = f"{media_type};charset=utf-8" if media_type in _CHARSETS else media_type
    return Response(status, (*headers, ("Content-Type", type_)), body)


def embedded_json_ld(described: DescribedRecord, settings: HttpSettings) -> Markup | None:
    """The description that goes into the page of a record; None if it is too long, or nothing here has an address.

    It is data in a page and no script: browsers do not run what says that it is JSON-LD, and what is in it cannot end
    it. See `registry.json_ld`.
    """
    if not settings.public_url:
        return None
    text = format_json_ld(described)
    return Markup(text) if len(text) <= MAX_EMBEDDED else None  # noqa: S704 - it holds nothing that is markup
