"""Machine-readable forms of a record: typed links (Signposting), JSON-LD, and citations by media type.

Nothing is invented. A link states what the record states, or what follows from its existence:

    cite-as          the identifier at a resolver, or as `hdl:` URI
    linkset          all of these links as a document, where the interface has one
    type, license    values of these types (TYPE, LICENSE or RIGHTS) that are addresses
    author           values AUTHOR or CREATOR that are addresses or `hdl:` URIs
    describedby      the record in other forms; its linked metadata record (S12); metadata locations (`role="metadata"`)
    describes        from a metadata record to its object
    latest-version   from a fixed version to the work (S3), whose handle resolves to the latest
    item             the targets: URL values and locations without other meaning
    alternate        locations for content negotiation (`http_role="conneg"`)
    …                the `rel` of a location, if it is one of `RELATIONS`

A linkset also has the inverse links: `collection` from the targets and `describes` from the metadata (FAIR Signposting
Profile, level 2). The page of the record has its own type. The creator of the *identifier* is the author of the record
and not of the target; the link's anchor says so. Records are untrusted: `RELATIONS` has only descriptive relations, not
those that browsers act on (`stylesheet`, `preload`) or that are the server's own (`cite-as`, `memento`).

JSON-LD uses schema.org with two nodes. The outer node is the target, under the address of its identifier: its title,
authors and so on (`citation`), its locations, and linked works, versions and metadata. It is a `CreativeWork` if it has
properties of one, of the schema.org type that the record names, and otherwise a `Thing`. The inner node is the record
that the target is the subject of: when it was created and last changed, who created it and who is responsible (A1).
None of that is true of the target: a map drawn in 1850 was not created by the person who registered its identifier. The
text is safe to embed in HTML.

Every form is UTF-8 text that depends only on the resolution and contains only public values, so caches can store it as
long as the record.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle, fold
from perseid.names.uri import Reference, Resolver, parse_uri, to_path
from perseid.records.encoding import JsonObject, to_iso, write_json
from perseid.records.errors import InvalidData
from perseid.records.locations import MAX_HREF_LENGTH, Candidate, Location, Locations, expand_template, find_locations
from perseid.records.record import Value, ascending
from perseid.records.titles import DESCRIPTIONS, TITLES, to_single_line
from perseid.records.types import has_type
from perseid.registry.policy.authority import (
    AuthorityMetadata,
    Party,
    first_valid,
    parse_stored_party,
)
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Resolution

from .citation import (
    CREATORS,
    PUBLISHERS,
    Citation,
    PublicTexts,
    build_citation,
    format_bibtex,
    format_text,
    to_csl,
    to_uri,
)
from .links import (
    LINKSET,
    LINKSET_JSON,
    MAX_HEADER_BYTES,
    MAX_URI,
    Link,
    format_header,
    limit_headers,
    normalize_url,
    to_linkset,
    to_linkset_json,
)

LICENSES: Final = ("LICENSE", "LICENCE", "RIGHTS")
RESOURCE_TYPES: Final = ("TYPE",)
"""Types by meaning: license and kind of the target."""

RELATIONS: Final = frozenset(
    (
        *("about", "alternate", "appendix", "author", "chapter", "collection", "contents", "copyright", "describedby"),
        *("describes", "derivedfrom", "disclosure", "glossary", "help", "index", "item", "latest-version", "license"),
        *("predecessor-version", "preview", "related", "section", "subsection", "successor-version", "type", "up"),
        *("version-history", "via"),
    )
)
"""Registered relations that a location may have, in addition to relations that are URIs."""

ABOUT_PAGE: Final = "https://schema.org/AboutPage"
"""Type of a page that is about the target, not the target itself."""

MAX_LINKS: Final = 1_000
"""Links per record: as many as there can be locations to redirect to."""

MAX_PER_TYPE: Final = 100
"""Values used per meaning: works have few versions and few authors."""

_LINKS: Final = "10320/links"
_MAX_LINK_VALUES: Final = 20  # values with extra links that are read
_LINKSETS: Final = frozenset((LINKSET, LINKSET_JSON))
_PROFILES: Final = {"application/ld+json": (("profile", "https://schema.org/"),)}  # vocabulary used by the form
_INVERSE_RELATIONS: Final = {"item": "collection", "describedby": "describes"}
_ORDER: Final = ("cite-as", "linkset", "type", "license", "describedby", "describes", "latest-version", "author")
_RANKS: Final = {relation: rank for rank, relation in enumerate(_ORDER)}
_BY_RANK: Final = itemgetter(0)


class AlternateForm(NamedTuple):
    """Another form of a record."""

    address: str
    media_type: str


@dataclass(frozen=True)
class DescribedRecord:
    """A resolution with everything needed to describe it."""

    policy: Policy
    """Policy of its namespace."""
    resolved: Resolution
    asked: Reference
    """The requested reference, for its query and fragment."""
    resolver: Resolver | None
    """The resolver in the addresses of identifiers; without one they are `hdl:` URIs."""
    authority: AuthorityMetadata | None = None
    """Authority metadata: see `resolve.get_authority_metadata`."""
    find_candidates: Callable[[], tuple[Candidate, ...]] | None = None
    """Finds all locations; without it those in the record itself are used."""
    page: str | None = None
    """Address of the record page, which does not redirect."""
    forms: tuple[AlternateForm, ...] = ()
    """Other forms of the record; a linkset is linked as such."""
    fixed: bool = False
    """Whether this version is meant, and no later one."""

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The public values: headers and documents are stored by others."""
        return ascending(value for value in self.resolved.values if value.is_public)

    @cached_property
    def citation(self) -> Citation:
        resolved = self.resolved
        public = resolved if resolved.values == self.values else replace(resolved, values=self.values)
        return build_citation(self.policy, public, self.asked, self.resolver, self._texts, fixed=self.fixed)

    @cached_property
    def address(self) -> str:
        """The identifier at the resolver: the context of the links."""
        name = Reference(self.resolved.registered, self.asked.query, self.asked.fragment)
        whole = to_uri(name, self.resolver)
        return whole if len(whole) <= MAX_URI else self.address_of(name.handle)

    def address_of(self, handle: Handle) -> str:
        """Return the address of another identifier at the same resolver."""
        return to_uri(Reference(handle), self.resolver)

    def texts(self, keywords: tuple[str, ...]) -> list[str]:
        """Return the texts of values of these types."""
        return self._texts.texts(keywords)[:MAX_PER_TYPE]

    @cached_property
    def _texts(self) -> PublicTexts:
        return PublicTexts(self.policy, self.values)

    def linked_handles(self, type_: str) -> list[Handle]:
        """Return the handles in values of exactly this type."""
        values = self._by_type.get(fold(type_))
        if values is None:
            return []
        parties = [first_valid([value], parse_stored_party) for value in values[:MAX_PER_TYPE]]
        return [party for party in parties if party is not None]

    @cached_property
    def _by_type(self) -> dict[str, list[Value]]:
        """The values by folded type."""
        values: dict[str, list[Value]] = {}
        for value in self.values:
            values.setdefault(fold(value.type), []).append(value)
        return values

    @cached_property
    def locations(self) -> tuple[Candidate, ...]:
        """All locations."""
        if self.find_candidates is not None:
            return self.find_candidates()
        return find_locations(self.resolved.handle, self.values, lambda _: None).locations

    def find_address(self, text: str) -> str | None:
        """Return the address in a text: a web address or an identifier in URI form."""
        if (address := normalize_url(text)) is not None:
            return address
        try:
            address = to_uri(parse_uri(text, for_lookup=True), self.resolver)
        except InvalidName:
            return None
        return address if len(address) <= MAX_URI else None


def build_links(described: DescribedRecord, more: Iterable[Link] = ()) -> tuple[Link, ...]:
    """Return the links of a record, most important first; links without an anchor have its `address` as context.

    `more` are links of the response with which they are sent.
    """
    forms = [Link(address, *_describe_form(media_type)[0]) for address, media_type in described.forms]
    links: dict[tuple[str, str, str | None], Link] = {}
    for link in (*forms, *islice(_other_links(described), MAX_LINKS - len(forms)), *more):
        links.setdefault((link.target, link.relation, link.anchor), link)
    return tuple(sorted(links.values(), key=_rank))


def format_link_headers(
    described: DescribedRecord, more: Iterable[Link] = (), max_bytes: int = MAX_HEADER_BYTES
) -> tuple[str, ...]:
    """Return the same links as values of `Link` headers. Those to forms, which are most, are written once."""
    values: dict[tuple[str, str, str | None], tuple[int, str]] = {}
    for address, media_type in described.forms:
        (relation, *_), rank, attributes = _describe_form(media_type)
        values[address, relation, None] = rank, f"<{address}>{attributes}"
    for link in (*islice(_other_links(described), MAX_LINKS - len(values)), *more):
        key = link.target, link.relation, link.anchor
        if key not in values:
            values[key] = _rank(link), format_header(link)
    return limit_headers([value for _, value in sorted(values.values(), key=_BY_RANK)], max_bytes=max_bytes)


def build_linkset(described: DescribedRecord) -> tuple[Link, ...]:
    """Return the links of a linkset: with inverse links and the type of the record page."""
    links = build_links(described)
    address = described.address
    inverse = {
        (link.target, relation): Link(address, relation, link.target)
        for link in links
        for relation in map(_INVERSE_RELATIONS.get, link.relations)
        if link.anchor is None and relation is not None
    }
    page = () if described.page is None else (Link(ABOUT_PAGE, "type", described.page),)
    return (*links, *inverse.values(), *page)


def _rank(link: Link) -> int:
    return len(_RANKS) if link.anchor is not None else _RANKS.get(link.relation.partition(" ")[0], len(_RANKS))


def _other_links(described: DescribedRecord) -> Iterator[Link]:
    """All links except those to forms."""
    policy = described.policy
    yield Link(described.address, "cite-as")
    for relation, keywords in (("type", RESOURCE_TYPES), ("license", LICENSES), ("author", CREATORS)):
        addresses = map(described.find_address, described.texts(keywords))
        yield from (Link(address, relation) for address in addresses if address is not None)
    linked = (
        ("describedby", policy.metadata_type),
        ("describes", policy.object_type),
        ("latest-version", policy.work_type),
    )
    for relation, type_ in linked:
        yield from (Link(described.address_of(handle), relation) for handle in described.linked_handles(type_))
    authority = described.authority
    if described.page is not None and authority is not None and authority.creator is not None:
        yield Link(described.address_of(authority.creator.handle), "author", described.page)
    yield from _location_links(described)


@cache
def _describe_form(media_type: str) -> tuple[tuple[Any, ...], int, str]:
    """What links to a form say besides its address: as arguments of `Link`, their rank, and as text of a header."""
    relation, others = "linkset" if media_type in _LINKSETS else "describedby", _PROFILES.get(media_type, ())
    arguments = (relation, None, media_type, None, (), None, None, others)
    link = Link("form:x", *arguments)
    return arguments, _rank(link), format_header(link).removeprefix(f"<{link.target}>")


def _location_links(described: DescribedRecord) -> Iterator[Link]:
    locations = [(each.href, None if each.is_url else each.location) for each in described.locations]
    hrefs = {location.get("id"): href for href, location in reversed(locations) if location is not None}
    for href, location in (*locations, *_extra_locations(described)):
        address = normalize_url(href)
        if address is None:
            continue
        if location is None:  # a URL value
            yield Link(address, "item")
            continue
        relation = _relation(location)
        about = location.get("anchor-id")
        anchor = None if about is None else normalize_url(hrefs.get(about, ""))
        if relation is None or (about is not None and anchor is None):
            continue  # without its anchor the link would be misleading
        with suppress(ValueError):
            yield Link(address, relation, anchor, *_target_hints(location), *_title(location))


def _extra_locations(described: DescribedRecord) -> list[tuple[str, Location]]:
    """Return locations that exist only to be linked."""
    extra = []
    handle = described.resolved.handle
    for value in [value for value in described.values if has_type(value.type, _LINKS)][:_MAX_LINK_VALUES]:
        try:
            locations = Locations.from_bytes(value.data).locations
        except InvalidData:
            continue
        for location in locations[:MAX_LINKS]:
            href, template = location.href, location.href_template
            if href is None and template is not None and _max_expanded_length(template, handle) <= MAX_HREF_LENGTH:
                href = expand_template(template, handle)
            if href is not None and location.get("rel"):
                extra.append((href, location))
    return extra


def _max_expanded_length(template: str, handle: Handle) -> int:
    """Return the maximum length of an expanded template: each byte of the handle becomes at most three."""
    return len(template) + template.count("{hdl") * 3 * len(handle.to_bytes())


def _relation(location: Location) -> str | None:
    """Return the relation of a location; None if it is not allowed."""
    written = location.get("rel")
    if written is not None:
        words = [word for word in written.split() if word.lower() in RELATIONS or ":" in word]
        return " ".join([word if ":" in word else word.lower() for word in words]) or None
    if location.get("role") == "metadata":
        return "describedby"
    return "alternate" if location.get("http_role") == "conneg" else "item"


def _target_hints(location: Location) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return media type, media and languages of a location."""
    languages = (location.get("hreflang") or "").replace(",", " ").split()
    return location.get("media-type") or None, location.get("media") or None, tuple(languages)


def _title(location: Location) -> tuple[str | None, str | None]:
    title = to_single_line(location.get("title") or "") or None
    return title, (location.get("titlelang") or None) if title else None


CONTEXT: Final = "https://schema.org"
PROPERTY_ID: Final = "hdl"
"""Name of this identifier scheme: that of its URIs."""

_MICROSECOND: Final = 1_000_000
_SCHEMA_ORG_TYPE: Final = re.compile(r"https?://schema\.org/([A-Z][A-Za-z0-9]{0,63})")
_ESCAPES: Final = tuple([(sign, f"\\u{ord(sign):04x}") for sign in "<>&\u2028\u2029"])


def format_json_ld(described: DescribedRecord) -> str:
    """Format as JSON-LD that is safe to embed in HTML."""
    return escape_for_html(write_json(to_json_ld(described)))


def to_json_ld(described: DescribedRecord) -> JsonObject:
    """Return the JSON-LD document as a plain object."""
    work = _work(described)
    type_, more = _types(described, "CreativeWork" if work else "Thing")
    thing: JsonObject = {
        "@context": CONTEXT,
        "@id": described.address,
        "@type": type_,
        "additionalType": more,
        "identifier": _identifier(described),
        "name": _one_or_many(described.texts(TITLES)),
        "description": _one_or_many(described.texts(DESCRIPTIONS)),
        "url": _one_or_many(_urls(described)),
        **work,
        "subjectOf": _one_or_many([_record(described), *_references(described, described.policy.metadata_type)]),
    }
    return _drop_none(thing)


def escape_for_html(text: str) -> str:
    """Escape JSON so that no browser finds markup or the end of a script in it."""
    for sign, escape in _ESCAPES:
        text = text.replace(sign, escape)  # faster than `translate`: most texts have none of them
    return text


def _identifier(described: DescribedRecord) -> JsonObject:
    citation = described.citation
    return {
        "@type": "PropertyValue",
        "propertyID": PROPERTY_ID,
        "value": citation.hdl,
        "url": described.address,
    }


def _work(described: DescribedRecord) -> JsonObject:
    """Return the properties that only a work has."""
    policy, citation = described.policy, described.citation
    licenses = [address for text in described.texts(LICENSES) if (address := normalize_url(text)) is not None]
    return _drop_none(
        {
            "author": _one_or_many([_agent(described, text) for text in described.texts(CREATORS)]),
            "datePublished": citation.date if citation.date_parts else None,
            "publisher": _one_or_many([_agent(described, text) for text in described.texts(PUBLISHERS)]),
            "license": _one_or_many(licenses),
            "creativeWorkStatus": citation.gone,
            "about": _one_or_many(_references(described, policy.object_type)),
            "exampleOfWork": _one_or_many(_references(described, policy.work_type)),
            "workExample": _one_or_many(_references(described, policy.expression_type)),
        }
    )


def _record(described: DescribedRecord) -> JsonObject:
    resolved, metadata = described.resolved, described.authority or AuthorityMetadata(None, None, None)
    responsible = metadata.owners or (() if metadata.creator is None else (metadata.creator,))
    updated = resolved.at // _MICROSECOND if metadata.updated is None else metadata.updated
    return _drop_none(
        {
            "@type": "DigitalDocument",
            "@id": described.page,
            "name": f"The record of {described.citation.hdl}",
            "version": str(resolved.seq),
            "dateCreated": None if metadata.created is None else to_iso(metadata.created),
            "dateModified": to_iso(updated),
            "creator": None if metadata.creator is None else _party(described, metadata.creator),
            "sdPublisher": _one_or_many([_party(described, party) for party in responsible[:MAX_PER_TYPE]]),
            "encoding": _one_or_many(
                [
                    {"@type": "MediaObject", "contentUrl": address, "encodingFormat": media_type}
                    for address, media_type in described.forms
                ]
            ),
        }
    )


def _types(described: DescribedRecord, otherwise: str) -> tuple[str, object]:
    """Return the schema.org type of the target, and types of other vocabularies."""
    addresses = [address for text in described.texts(RESOURCE_TYPES) if (address := normalize_url(text)) is not None]
    schema_types = [found[1] for address in addresses if (found := _SCHEMA_ORG_TYPE.fullmatch(address))]
    others = [address for address in addresses if not _SCHEMA_ORG_TYPE.fullmatch(address)]
    return schema_types[0] if schema_types else otherwise, _one_or_many(others)


def _urls(described: DescribedRecord) -> list[str]:
    """Return the web addresses of the target."""
    hrefs = [each.href for each in described.locations if each.is_url][:MAX_PER_TYPE]
    return [address for href in hrefs if (address := normalize_url(href)) is not None]


def _references(described: DescribedRecord, type_: str) -> list[object]:
    """Return the objects named by values of a type."""
    return [
        {"@id": described.address_of(handle), "identifier": to_path(Reference(handle))}
        for handle in described.linked_handles(type_)
    ]


def _agent(described: DescribedRecord, text: str) -> object:
    """Return a party as address or text; the record does not say whether it is a person."""
    address = described.find_address(text)
    return text if address is None else {"@id": address}


def _party(described: DescribedRecord, party: Party) -> JsonObject:
    return {"@id": described.address_of(party.handle), "identifier": to_path(Reference(party.handle))}


def _one_or_many(items: Sequence[object]) -> object:
    """Return a single item alone, several as a list, and None for none."""
    return None if not items else items[0] if len(items) == 1 else list(items)


def _drop_none(plain: JsonObject) -> JsonObject:
    return {name: value for name, value in plain.items() if value is not None}


JSON_LD: Final = "application/ld+json"
CSL_JSON: Final = "application/vnd.citationstyles.csl+json"
BIBTEX: Final = "application/x-bibtex"
BIBLIOGRAPHY: Final = "text/x-bibliography"

FORMATTERS: Final[Mapping[str, Callable[[DescribedRecord], str]]] = {
    JSON_LD: format_json_ld,
    LINKSET_JSON: lambda described: to_linkset_json(build_linkset(described), described.address),
    LINKSET: lambda described: to_linkset(build_linkset(described), described.address),
    # A single item, like other identifier services; citation files are lists.
    CSL_JSON: lambda described: write_json(to_csl(described.citation)),
    BIBTEX: lambda described: f"{format_bibtex(described.citation)}\n",
    BIBLIOGRAPHY: lambda described: f"{format_text(described.citation)}\n",
}
"""Formatters by media type, in order of preference."""
