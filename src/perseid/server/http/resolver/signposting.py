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
from perseid.registry.queries.links import MAX_HEADER_OCTETS, Link, header_values
from perseid.registry.queries.memento import Memento
from perseid.registry.queries.signposting import ABOUT_PAGE, BIBLIOGRAPHY, BIBTEX, FORMS, Described, as_json_ld, links
from perseid.registry.results import Resolved
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response

from .addresses import about, addresses_of, forms_of, links_of_redirection, resolver_of
from .lookup import Found, Reading
from .time_travel import gate_links, past_headers, when_headers

MAX_EMBEDDED: Final = 65_536
"""Characters of the longest description that is put into a page: a page should not become twice as long by it."""

_OF_FORMS: Final = ("cite-as", "linkset")  # relations that a description has itself
_CHARSETS: Final = frozenset((BIBTEX, BIBLIOGRAPHY))  # types whose encoding has to be said


def describe(
    found: Found, reading: Reading, settings: HttpSettings, places: tuple[Candidate, ...] | None = None
) -> Described:
    """All that is known about what was found; `places` are those of the thing, if they are known already."""
    resolved = found.resolved
    then = () if reading.at is None else (f"at={reading.at}",)
    return Described(
        reading.policy(found),
        resolved,
        Reference(resolved.registered, resolved.query, resolved.fragment),
        resolver_of(settings),
        reading.authority(found),
        reading.candidates(found).places if places is None else places,
        about(found.name, settings, "noredirect", *then) if settings.public_url else None,
        forms_of(found.name, settings, reading.at),
        fixed=reading.at is not None,
    )


def record_headers(
    described: Described, found: Found, reading: Reading, settings: HttpSettings, *, is_page: bool
) -> HeaderList:
    """What goes with the page of a record, or its JSON: all links for which there is room."""
    own = (Link(ABOUT_PAGE, "type"),) if is_page else ()
    return _headers(links(described, own), found, reading, settings)


def form_headers(described: Described, found: Found, reading: Reading, settings: HttpSettings) -> HeaderList:
    """What goes with a record in another form."""
    own = [link for link in links(described) if link.relations[0] in _OF_FORMS]
    with suppress(ValueError):
        own.append(Link(described.address, "describes"))
    return _headers(own, found, reading, settings)


def _headers(own: Iterable[Link], found: Found, reading: Reading, settings: HttpSettings) -> HeaderList:
    """Links, and those to other times; none if nothing here has an address."""
    past = time_headers(found.resolved, reading, settings)
    if not settings.public_url:
        return past
    room = max(0, MAX_HEADER_OCTETS - sum(len(name) + len(value) + 4 for name, value in past))
    return (*[("Link", value) for value in header_values(own, octets=room)], *past)


def time_headers(resolved: Resolved, reading: Reading, settings: HttpSettings) -> HeaderList:
    """What is said about other times with an answer: where the past is to be had, or the versions around this one.

    A name that a template makes has no versions of its own, and so no list of them. Since when it was so is known.
    """
    addresses = addresses_of(str(resolved.registered), settings)
    if reading.at is None:
        return gate_links(addresses, with_map=not resolved.by_template)
    versions = reading.versions(resolved)
    if versions is not None:
        return past_headers(versions, addresses)
    return (*when_headers(Memento(resolved.seq, resolved.at)), *gate_links(addresses))


def redirection_headers(found: Found, reading: Reading, settings: HttpSettings) -> HeaderList:
    """The links that go with a redirection."""
    return _leading_headers(found.name, found.resolved, reading, settings)


def alias_headers(found: Found, reading: Reading, settings: HttpSettings) -> HeaderList:
    """Those that go with the answer that leads from an alias to the name which it is one of: they are the alias's."""
    return _leading_headers(found.aliases[0], found.first, reading, settings)


def _leading_headers(name: str, resolved: Resolved, reading: Reading, settings: HttpSettings) -> HeaderList:
    if reading.at is not None:
        return time_headers(resolved, reading, settings)
    value = links_of_redirection(name, settings, with_map=not resolved.by_template)
    return () if value is None else (("Link", value),)


def form_answer(media_type: str, described: Described, status: int, headers: HeaderList) -> Response:
    """A record in one of its other forms."""
    body = FORMS[media_type](described).encode("utf-8", "replace")
    type_ = f"{media_type};charset=utf-8" if media_type in _CHARSETS else media_type
    return Response(status, (*headers, ("Content-Type", type_)), body)


def embedded(described: Described, settings: HttpSettings) -> Markup | None:
    """The description that goes into the page of a record; None if it is too long, or nothing here has an address.

    It is data in a page and no script: browsers do not run what says that it is JSON-LD, and what is in it cannot end
    it. See `registry.json_ld`.
    """
    if not settings.public_url:
        return None
    text = as_json_ld(described)
    return Markup(text) if len(text) <= MAX_EMBEDDED else None  # noqa: S704 - it holds nothing that is markup
