"""What a record means to machines: typed links to and from what it identifies (Signposting).

Nothing is invented. A link says what the record says, or what follows from the record being there:

    cite-as          the identifier itself, at a resolver
    linkset          all of these links as a document, where the door has one
    type, license    values whose types say so (TYPE, LICENSE or RIGHTS), if they hold an address
    author           values AUTHOR or CREATOR, if they hold an address or a handle as `hdl:` URI
    describedby      the record in its other forms; the metadata record that it is linked with (S12); locations for
                     metadata (`role="metadata"`)
    describes        from a metadata record to its thing
    latest-version   from a fixed version to the work (S3), whose name leads to the latest
    item             where the thing is: URL values and locations that say nothing else
    alternate        locations for those who ask for another form (`http_role="conneg"`)
    …                what a location says with `rel`, if it is one of `RELATIONS`

A linkset has, besides, what leads back: `collection` from where the thing is, and `describes` from what describes it
(FAIR Signposting Profile, level 2). That the page of the record is about the thing is said with its type.

Who created the *identifier* is the author of the record and not of the thing, and the link's anchor says so.

A record may be anybody's. `RELATIONS` has those relations only that tell about a thing: there are others on which
browsers act (`stylesheet`, `preload`), and others with which the server speaks for itself (`cite-as`, `memento`).
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, parse_uri, to_http
from perseid.records.errors import InvalidData
from perseid.records.locations import MAX_HREF, Candidate, Location, Locations, expand, find_locations
from perseid.records.record import ascending
from perseid.records.types import has_type
from perseid.records.value import Value
from perseid.registry.policy.authority_metadata import AuthorityMetadata, first_readable, of_type, read_stored_party
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Resolved

from .citation import CREATORS, Citation, citation_of, on_one_line, said
from .links import LINKSET, LINKSET_JSON, MAX_URI, Link, web_address

LICENCES: Final = ("LICENSE", "LICENCE", "RIGHTS")
KINDS: Final = ("TYPE",)
"""The types that say under which licence a thing is, and what kind of thing it is."""

RELATIONS: Final = frozenset(
    (
        *("about", "alternate", "appendix", "author", "chapter", "collection", "contents", "copyright", "describedby"),
        *("describes", "derivedfrom", "disclosure", "glossary", "help", "index", "item", "latest-version", "license"),
        *("predecessor-version", "preview", "related", "section", "subsection", "successor-version", "type", "up"),
        *("version-history", "via"),
    )
)
"""The registered relations that a location may have; those that are URIs it may have too."""

ABOUT_PAGE: Final = "https://schema.org/AboutPage"
"""The type of a page that is about a thing and not the thing itself."""

MAX_LINKS: Final = 1_000
"""Links of one record: as many as there are locations that somebody can be sent to."""

MAX_EACH: Final = 100
"""Values of one meaning that are told: works have few versions, and things few authors."""

_LINKS: Final = "10320/links"
_MAX_LISTS: Final = 20  # values of links that are read
_PROFILES: Final = {"application/ld+json": "https://schema.org/"}  # whose words a form that may use any has
_BACK: Final = {"item": "collection", "describedby": "describes"}
_ORDER: Final = ("cite-as", "linkset", "type", "license", "describedby", "describes", "latest-version", "author")


@dataclass(frozen=True, slots=True)
class Form:
    """Another form in which a record is to be had."""

    address: str
    media_type: str


@dataclass(frozen=True, slots=True)
class Described:
    """Something that was resolved, and all that is known about it and about where it was asked for."""

    policy: Policy
    """That of its namespace."""
    resolved: Resolved
    asked: Reference
    """The name as it was asked for, for its query and fragment."""
    resolver: Resolver
    """Where names are resolved: what the addresses of identifiers begin with."""
    authority: AuthorityMetadata | None = None
    """What the record says about itself as an identifier: see `about`."""
    places: tuple[Candidate, ...] | None = None
    """All places of the thing, if they were looked up already; otherwise those that the record itself names."""
    page: str | None = None
    """The address of the record itself: it is shown there, and nobody is led on."""
    forms: tuple[Form, ...] = ()
    """The record in other forms; a linkset among them is linked as such."""
    fixed: bool = False
    """Whether that version is meant, and no later one."""

    @property
    def values(self) -> tuple[Value, ...]:
        """What everybody may read of it: this goes into headers and documents that others keep."""
        return ascending(value for value in self.resolved.values if value.is_public)

    @property
    def citation(self) -> Citation:
        """How to cite it."""
        public = replace(self.resolved, values=self.values)
        return citation_of(self.policy, public, self.asked, self.resolver, fixed=self.fixed)

    @property
    def address(self) -> str:
        """The identifier at the resolver: what the links lead from."""
        name = Reference(self.resolved.registered, self.asked.query, self.asked.fragment)
        whole = to_http(name, self.resolver)
        return whole if len(whole) <= MAX_URI else self.address_of(name.handle)

    def address_of(self, handle: Handle) -> str:
        """Another identifier at the same resolver."""
        return to_http(Reference(handle), self.resolver)

    def said(self, words: tuple[str, ...]) -> list[str]:
        """What values of these types say about the thing."""
        return said(self.policy, self.values, words)[:MAX_EACH]

    def linked(self, type_: str) -> list[Handle]:
        """The names in values of exactly this type."""
        found = [first_readable([value], read_stored_party) for value in of_type(self.values, type_)[:MAX_EACH]]
        return [handle for handle in found if handle is not None]

    def located(self) -> tuple[Candidate, ...]:
        """All places of the thing."""
        if self.places is not None:
            return self.places
        return find_locations(self.resolved.handle, self.values, lambda _: None).places

    def address_in(self, text: str) -> str | None:
        """The address that a text is: one of the web, or that of an identifier in the forms for machines."""
        if (address := web_address(text)) is not None:
            return address
        try:
            address = to_http(parse_uri(text, for_lookup=True), self.resolver)
        except InvalidName:
            return None
        return address if len(address) <= MAX_URI else None


def links(described: Described, more: Iterable[Link] = ()) -> tuple[Link, ...]:
    """The links of a record, what matters most first; the context of those without an anchor is its `address`.

    `more` are links of the answer with which they are sent.
    """
    found: dict[tuple[str, str, str | None], Link] = {}
    for link in (*islice(_all_links(described), MAX_LINKS), *more):
        found.setdefault((link.target, link.relation, link.anchor), link)
    return tuple(sorted(found.values(), key=_rank))


def link_set(described: Described) -> tuple[Link, ...]:
    """The same with all that leads back to the thing, or tells about the page of its record: what a linkset has."""
    found = links(described)
    address = described.address
    back = {
        (link.target, relation): Link(address, relation, link.target)
        for link in found
        for relation in map(_BACK.get, link.relations)
        if link.anchor is None and relation is not None
    }
    page = () if described.page is None else (Link(ABOUT_PAGE, "type", described.page),)
    return (*found, *back.values(), *page)


def _rank(link: Link) -> int:
    first = link.relations[0]
    return _ORDER.index(first) if first in _ORDER and link.anchor is None else len(_ORDER)


def _all_links(described: Described) -> Iterator[Link]:
    policy = described.policy
    yield Link(described.address, "cite-as")
    yield from _forms(described)
    for relation, words in (("type", KINDS), ("license", LICENCES), ("author", CREATORS)):
        addresses = map(described.address_in, described.said(words))
        yield from (Link(address, relation) for address in addresses if address is not None)
    linked = (
        ("describedby", policy.metadata_type),
        ("describes", policy.object_type),
        ("latest-version", policy.work_type),
    )
    for relation, type_ in linked:
        yield from (Link(described.address_of(handle), relation) for handle in described.linked(type_))
    authority = described.authority
    if described.page is not None and authority is not None and authority.creator is not None:
        yield Link(described.address_of(authority.creator.handle), "author", described.page)
    yield from _location_links(described)


def _forms(described: Described) -> Iterator[Link]:
    for form in described.forms:
        is_linkset = form.media_type in (LINKSET, LINKSET_JSON)
        profile = _PROFILES.get(form.media_type)
        others = () if profile is None else (("profile", profile),)
        yield Link(form.address, "linkset" if is_linkset else "describedby", type=form.media_type, others=others)


def _location_links(described: Described) -> Iterator[Link]:
    places = [(place.href, place.location) for place in described.located()]
    hrefs = {location.get("id"): href for href, location in reversed(places)}
    for href, location in (*places, *_listed(described)):
        address = web_address(href)
        if address is None:
            continue
        relation = _relation(location)
        about = location.get("anchor-id")
        anchor = None if about is None else web_address(hrefs.get(about, ""))
        if relation is None or (about is not None and anchor is None):
            continue  # a link from nobody knows where says something else than was meant
        with suppress(ValueError):
            yield Link(address, relation, anchor, *_expected(location), *_title(location))


def _listed(described: Described) -> list[tuple[str, Location]]:
    """Locations that are there to be linked, and nothing else."""
    found = []
    handle = described.resolved.handle
    for value in [value for value in described.values if has_type(value.type, _LINKS)][:_MAX_LISTS]:
        try:
            locations = Locations.from_bytes(value.data).locations
        except InvalidData:
            continue
        for location in locations[:MAX_LINKS]:
            href, template = location.href, location.href_template
            if href is None and template is not None and _expands_to(template, handle) <= MAX_HREF:
                href = expand(template, handle)
            if href is not None and location.get("rel"):
                found.append((href, location))
    return found


def _expands_to(template: str, handle: Handle) -> int:
    """The most characters that a template can become: an octet of the name becomes three at most."""
    return len(template) + template.count("{hdl") * 3 * len(handle.to_octets())


def _relation(location: Location) -> str | None:
    """What a location is to the thing; None if it says so in a way that may not be repeated."""
    written = location.get("rel")
    if written is not None:
        words = [word for word in written.split() if word.lower() in RELATIONS or ":" in word]
        return " ".join([word if ":" in word else word.lower() for word in words]) or None
    if location.get("role") == "metadata":
        return "describedby"
    return "alternate" if location.get("http_role") == "conneg" else "item"


def _expected(location: Location) -> tuple[str | None, str | None, tuple[str, ...]]:
    """What a location says is to be expected there: media type, media, languages."""
    languages = (location.get("hreflang") or "").replace(",", " ").split()
    return location.get("media-type") or None, location.get("media") or None, tuple(languages)


def _title(location: Location) -> tuple[str | None, str | None]:
    title = on_one_line(location.get("title") or "") or None
    return title, (location.get("titlelang") or None) if title else None
