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

A record as JSON-LD in the words of schema.org: what it says about its thing, and about itself.

There are two nodes. The outer one is the thing, under the address of its identifier. Of it is told what the record
says in values for title, authors and so on (`citing`), where it is, and with which works, versions and metadata it is
linked. It is a `CreativeWork` if something is told that only such a work has, of the type that the record names if
that is one of schema.org, and otherwise a `Thing`.

The inner one is the record, as what the thing is the subject of: since when there is the association of name and thing,
when the record was last changed, who created it and who answers for it (A1). None of that is true of the thing. A map
that was drawn in 1850 was not created by whoever gave it an identifier.

The text can be put into a page as it is: nothing in it ends a script or begins markup.

The forms in which a record can be asked for besides its values: by media type, for content negotiation.

Each form is text in UTF-8 that follows from what was resolved and nothing else. It is made of public values only, so
whoever may ask for the record may have it, and caches may keep it as long as they may keep the record.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from perseid.names.errors import InvalidName
from perseid.names.handle import Handle
from perseid.names.uri import Reference, Resolver, parse_uri, to_http, to_path
from perseid.records.encoding import to_iso
from perseid.records.errors import InvalidData
from perseid.records.json_parsing import JsonObject, write_json
from perseid.records.locations import MAX_HREF_LENGTH, Candidate, Location, Locations, expand_template, find_locations
from perseid.records.record import ascending
from perseid.records.types import has_type
from perseid.records.value import Value
from perseid.registry.policy.authority_metadata import (
    AuthorityMetadata,
    Party,
    first_valid,
    parse_stored_party,
    values_of_exact_type,
)
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Resolution

from .citation import (
    CREATORS,
    DESCRIPTIONS,
    PUBLISHERS,
    TITLES,
    Citation,
    build_citation,
    format_bibtex,
    format_text,
    said,
    to_csl,
    to_single_line,
)
from .links import LINKSET, LINKSET_JSON, MAX_URI, Link, normalize_url, to_linkset, to_linkset_json

LICENSES: Final = ("LICENSE", "LICENCE", "RIGHTS")
RESOURCE_TYPES: Final = ("TYPE",)
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

MAX_PER_TYPE: Final = 100
"""Values of one meaning that are told: works have few versions, and things few authors."""

_LINKS: Final = "10320/links"
_MAX_LINK_VALUES: Final = 20  # values of links that are read
_PROFILES: Final = {"application/ld+json": "https://schema.org/"}  # whose words a form that may use any has
_INVERSE_RELATIONS: Final = {"item": "collection", "describedby": "describes"}
_ORDER: Final = ("cite-as", "linkset", "type", "license", "describedby", "describes", "latest-version", "author")


@dataclass(frozen=True, slots=True)
class AlternateForm:
    """Another form in which a record is to be had."""

    address: str
    media_type: str


@dataclass(frozen=True, slots=True)
class DescribedRecord:
    """Something that was resolved, and all that is known about it and about where it was asked for."""

    policy: Policy
    """That of its namespace."""
    resolved: Resolution
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
    forms: tuple[AlternateForm, ...] = ()
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
        return build_citation(self.policy, public, self.asked, self.resolver, fixed=self.fixed)

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
        return said(self.policy, self.values, words)[:MAX_PER_TYPE]

    def linked(self, type_: str) -> list[Handle]:
        """The names in values of exactly this type."""
        found = [
            first_valid([value], parse_stored_party)
            for value in values_of_exact_type(self.values, type_)[:MAX_PER_TYPE]
        ]
        return [handle for handle in found if handle is not None]

    def located(self) -> tuple[Candidate, ...]:
        """All places of the thing."""
        if self.places is not None:
            return self.places
        return find_locations(self.resolved.handle, self.values, lambda _: None).places

    def address_in(self, text: str) -> str | None:
        """The address that a text is: one of the web, or that of an identifier in the forms for machines."""
        if (address := normalize_url(text)) is not None:
            return address
        try:
            address = to_http(parse_uri(text, for_lookup=True), self.resolver)
        except InvalidName:
            return None
        return address if len(address) <= MAX_URI else None


def build_links(described: DescribedRecord, more: Iterable[Link] = ()) -> tuple[Link, ...]:
    """The links of a record, what matters most first; the context of those without an anchor is its `address`.

    `more` are links of the answer with which they are sent.
    """
    found: dict[tuple[str, str, str | None], Link] = {}
    for link in (*islice(_all_links(described), MAX_LINKS), *more):
        found.setdefault((link.target, link.relation, link.anchor), link)
    return tuple(sorted(found.values(), key=_rank))


def build_linkset(described: DescribedRecord) -> tuple[Link, ...]:
    """The same with all that leads back to the thing, or tells about the page of its record: what a linkset has."""
    found = build_links(described)
    address = described.address
    back = {
        (link.target, relation): Link(address, relation, link.target)
        for link in found
        for relation in map(_INVERSE_RELATIONS.get, link.relations)
        if link.anchor is None and relation is not None
    }
    page = () if described.page is None else (Link(ABOUT_PAGE, "type", described.page),)
    return (*found, *back.values(), *page)


def _rank(link: Link) -> int:
    first = link.relations[0]
    return _ORDER.index(first) if first in _ORDER and link.anchor is None else len(_ORDER)


def _all_links(described: DescribedRecord) -> Iterator[Link]:
    policy = described.policy
    yield Link(described.address, "cite-as")
    yield from _form_links(described)
    for relation, words in (("type", RESOURCE_TYPES), ("license", LICENSES), ("author", CREATORS)):
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


def _form_links(described: DescribedRecord) -> Iterator[Link]:
    for form in described.forms:
        is_linkset = form.media_type in (LINKSET, LINKSET_JSON)
        profile = _PROFILES.get(form.media_type)
        others = () if profile is None else (("profile", profile),)
        yield Link(form.address, "linkset" if is_linkset else "describedby", type=form.media_type, others=others)


def _location_links(described: DescribedRecord) -> Iterator[Link]:
    places = [(place.href, place.location) for place in described.located()]
    hrefs = {location.get("id"): href for href, location in reversed(places)}
    for href, location in (*places, *_extra_locations(described)):
        address = normalize_url(href)
        if address is None:
            continue
        relation = _relation(location)
        about = location.get("anchor-id")
        anchor = None if about is None else normalize_url(hrefs.get(about, ""))
        if relation is None or (about is not None and anchor is None):
            continue  # a link from nobody knows where says something else than was meant
        with suppress(ValueError):
            yield Link(address, relation, anchor, *_target_hints(location), *_title(location))


def _extra_locations(described: DescribedRecord) -> list[tuple[str, Location]]:
    """Locations that are there to be linked, and nothing else."""
    found = []
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
                found.append((href, location))
    return found


def _max_expanded_length(template: str, handle: Handle) -> int:
    """The most characters that a template can become: an octet of the name becomes three at most."""
    return len(template) + template.count("{hdl") * 3 * len(handle.to_bytes())


def _relation(location: Location) -> str | None:
    """What a location is to the thing; None if it says so in a way that may not be repeated."""
    written = location.get("rel")
    if written is not None:
        words = [word for word in written.split() if word.lower() in RELATIONS or ":" in word]
        return " ".join([word if ":" in word else word.lower() for word in words]) or None
    if location.get("role") == "metadata":
        return "describedby"
    return "alternate" if location.get("http_role") == "conneg" else "item"


def _target_hints(location: Location) -> tuple[str | None, str | None, tuple[str, ...]]:
    """What a location says is to be expected there: media type, media, languages."""
    languages = (location.get("hreflang") or "").replace(",", " ").split()
    return location.get("media-type") or None, location.get("media") or None, tuple(languages)


def _title(location: Location) -> tuple[str | None, str | None]:
    title = to_single_line(location.get("title") or "") or None
    return title, (location.get("titlelang") or None) if title else None


CONTEXT: Final = "https://schema.org"
"""The vocabulary."""

PROPERTY_ID: Final = "hdl"
"""What identifiers of this kind are called where several kinds are told apart: the scheme of their URIs."""

_MICROSECOND: Final = 1_000_000
_SCHEMA_ORG_TYPE: Final = re.compile(r"https?://schema\.org/([A-Z][A-Za-z0-9]{0,63})")
_ESCAPES: Final = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"})


def format_json_ld(described: DescribedRecord) -> str:
    """The document, as text that may stand in a page."""
    return escape_for_html(write_json(to_json_ld(described)))


def to_json_ld(described: DescribedRecord) -> JsonObject:
    """The document as a plain object."""
    work = _work(described)
    type_, more = _types(described, "CreativeWork" if work else "Thing")
    thing: JsonObject = {
        "@context": CONTEXT,
        "@id": described.address,
        "@type": type_,
        "additionalType": more,
        "identifier": _identifier(described),
        "name": _one_or_many(described.said(TITLES)),
        "description": _one_or_many(described.said(DESCRIPTIONS)),
        "url": _one_or_many(_urls(described)),
        **work,
        "subjectOf": _one_or_many([_record(described), *_references(described, described.policy.metadata_type)]),
    }
    return _drop_none(thing)


def escape_for_html(text: str) -> str:
    """JSON that means the same, and in which no browser finds the end of a script, or markup."""
    return text.translate(_ESCAPES)


def _identifier(described: DescribedRecord) -> JsonObject:
    citation = described.citation
    return {
        "@type": "PropertyValue",
        "propertyID": PROPERTY_ID,
        "value": citation.hdl,
        "url": described.address,
    }


def _work(described: DescribedRecord) -> JsonObject:
    """What only a work has."""
    policy, citation = described.policy, described.citation
    licenses = [address for text in described.said(LICENSES) if (address := normalize_url(text)) is not None]
    return _drop_none(
        {
            "author": _one_or_many([_agent(described, text) for text in described.said(CREATORS)]),
            "datePublished": citation.date if citation.date_parts else None,
            "publisher": _one_or_many([_agent(described, text) for text in described.said(PUBLISHERS)]),
            "license": _one_or_many(licenses),
            "creativeWorkStatus": citation.gone,
            "about": _one_or_many(_references(described, policy.object_type)),
            "exampleOfWork": _one_or_many(_references(described, policy.work_type)),
            "workExample": _one_or_many(_references(described, policy.expression_type)),
        }
    )


def _record(described: DescribedRecord) -> JsonObject:
    resolved, said = described.resolved, described.authority or AuthorityMetadata(None, None, None)
    answering = said.owners or (() if said.creator is None else (said.creator,))
    updated = resolved.at // _MICROSECOND if said.updated is None else said.updated
    return _drop_none(
        {
            "@type": "DigitalDocument",
            "@id": described.page,
            "name": f"The record of {described.citation.hdl}",
            "version": str(resolved.seq),
            "dateCreated": None if said.created is None else to_iso(said.created),
            "dateModified": to_iso(updated),
            "creator": None if said.creator is None else _party(described, said.creator),
            "sdPublisher": _one_or_many([_party(described, party) for party in answering[:MAX_PER_TYPE]]),
            "encoding": _one_or_many([_form(form.address, form.media_type) for form in described.forms]),
        }
    )


def _types(described: DescribedRecord, otherwise: str) -> tuple[str, object]:
    """The type of the thing, and further ones that are not of this vocabulary."""
    addresses = [address for text in described.said(RESOURCE_TYPES) if (address := normalize_url(text)) is not None]
    own = [found[1] for address in addresses if (found := _SCHEMA_ORG_TYPE.fullmatch(address))]
    others = [address for address in addresses if not _SCHEMA_ORG_TYPE.fullmatch(address)]
    return own[0] if own else otherwise, _one_or_many(others)


def _urls(described: DescribedRecord) -> list[str]:
    """Where the thing is, as the values for it say."""
    hrefs = [place.href for place in described.located() if place.is_url][:MAX_PER_TYPE]
    return [address for href in hrefs if (address := normalize_url(href)) is not None]


def _references(described: DescribedRecord, type_: str) -> list[object]:
    """The things that values of a type name."""
    return [
        {"@id": described.address_of(handle), "identifier": to_path(Reference(handle))}
        for handle in described.linked(type_)
    ]


def _agent(described: DescribedRecord, text: str) -> object:
    """A party, by its address or in the words of the record, which do not say whether it is a person."""
    address = described.address_in(text)
    return text if address is None else {"@id": address}


def _party(described: DescribedRecord, party: Party) -> JsonObject:
    return {"@id": described.address_of(party.handle), "identifier": to_path(Reference(party.handle))}


def _form(address: str, media_type: str) -> JsonObject:
    return {"@type": "MediaObject", "contentUrl": address, "encodingFormat": media_type}


def _one_or_many(items: Sequence[object]) -> object:
    """One item stands alone; of none nothing is told."""
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
    # One item, as services for other identifiers answer; a file of citations is a list of them.
    CSL_JSON: lambda described: write_json(to_csl(described.citation)),
    BIBTEX: lambda described: f"{format_bibtex(described.citation)}\n",
    BIBLIOGRAPHY: lambda described: f"{format_text(described.citation)}\n",
}
"""The forms by media type; where a client does not care, the earlier one is given."""
