"""A record as JSON-LD in the words of schema.org: what it says about its thing, and about itself.

There are two nodes. The outer one is the thing, under the address of its identifier. Of it is told what the record
says in values for title, authors and so on (`citing`), where it is, and with which works, versions and metadata it is
linked. It is a `CreativeWork` if something is told that only such a work has, of the type that the record names if
that is one of schema.org, and otherwise a `Thing`.

The inner one is the record, as what the thing is the subject of: since when there is the association of name and thing,
when the record was last changed, who created it and who answers for it (A1). None of that is true of the thing. A map
that was drawn in 1850 was not created by whoever gave it an identifier.

The text can be put into a page as it is: nothing in it ends a script or begins markup.
"""

import re
from collections.abc import Sequence
from typing import Final

from perseid.names.uri import Reference, to_path
from perseid.records.encoding import to_iso
from perseid.records.json_parsing import JsonObject, write_json
from perseid.registry.policy.authority_metadata import AuthorityMetadata, Party
from perseid.registry.queries.citation import CREATORS, DESCRIPTIONS, PUBLISHERS, TITLES
from perseid.registry.queries.links import web_address
from perseid.registry.queries.signposting import KINDS, LICENCES, MAX_EACH, Described

CONTEXT: Final = "https://schema.org"
"""The vocabulary."""

NAME_OF_SCHEME: Final = "hdl"
"""What identifiers of this kind are called where several kinds are told apart: the scheme of their URIs."""

_MICROSECOND: Final = 1_000_000
_OF_SCHEMA_ORG: Final = re.compile(r"https?://schema\.org/([A-Z][A-Za-z0-9]{0,63})")
_ESCAPES: Final = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"})


def as_json_ld(described: Described) -> str:
    """The document, as text that may stand in a page."""
    return embeddable(write_json(json_ld(described)))


def json_ld(described: Described) -> JsonObject:
    """The document as a plain object."""
    work = _work(described)
    type_, more = _types(described, "CreativeWork" if work else "Thing")
    thing: JsonObject = {
        "@context": CONTEXT,
        "@id": described.address,
        "@type": type_,
        "additionalType": more,
        "identifier": _identifier(described),
        "name": _several(described.said(TITLES)),
        "description": _several(described.said(DESCRIPTIONS)),
        "url": _several(_urls(described)),
        **work,
        "subjectOf": _several([_record(described), *_references(described, described.policy.metadata_type)]),
    }
    return _told(thing)


def embeddable(text: str) -> str:
    """JSON that means the same, and in which no browser finds the end of a script, or markup."""
    return text.translate(_ESCAPES)


def _identifier(described: Described) -> JsonObject:
    citation = described.citation
    return {
        "@type": "PropertyValue",
        "propertyID": NAME_OF_SCHEME,
        "value": citation.hdl,
        "url": described.address,
    }


def _work(described: Described) -> JsonObject:
    """What only a work has."""
    policy, citation = described.policy, described.citation
    licences = [address for text in described.said(LICENCES) if (address := web_address(text)) is not None]
    return _told(
        {
            "author": _several([_named(described, text) for text in described.said(CREATORS)]),
            "datePublished": citation.date if citation.date_parts else None,
            "publisher": _several([_named(described, text) for text in described.said(PUBLISHERS)]),
            "license": _several(licences),
            "creativeWorkStatus": citation.gone,
            "about": _several(_references(described, policy.object_type)),
            "exampleOfWork": _several(_references(described, policy.work_type)),
            "workExample": _several(_references(described, policy.expression_type)),
        }
    )


def _record(described: Described) -> JsonObject:
    resolved, said = described.resolved, described.authority or AuthorityMetadata(None, None, None)
    answering = said.owners or (() if said.creator is None else (said.creator,))
    updated = resolved.at // _MICROSECOND if said.updated is None else said.updated
    return _told(
        {
            "@type": "DigitalDocument",
            "@id": described.page,
            "name": f"The record of {described.citation.hdl}",
            "version": str(resolved.seq),
            "dateCreated": None if said.created is None else to_iso(said.created),
            "dateModified": to_iso(updated),
            "creator": None if said.creator is None else _party(described, said.creator),
            "sdPublisher": _several([_party(described, party) for party in answering[:MAX_EACH]]),
            "encoding": _several([_form(form.address, form.media_type) for form in described.forms]),
        }
    )


def _types(described: Described, otherwise: str) -> tuple[str, object]:
    """The type of the thing, and further ones that are not of this vocabulary."""
    addresses = [address for text in described.said(KINDS) if (address := web_address(text)) is not None]
    own = [found[1] for address in addresses if (found := _OF_SCHEMA_ORG.fullmatch(address))]
    others = [address for address in addresses if not _OF_SCHEMA_ORG.fullmatch(address)]
    return own[0] if own else otherwise, _several(others)


def _urls(described: Described) -> list[str]:
    """Where the thing is, as the values for it say."""
    hrefs = [place.href for place in described.located() if place.is_url][:MAX_EACH]
    return [address for href in hrefs if (address := web_address(href)) is not None]


def _references(described: Described, type_: str) -> list[object]:
    """The things that values of a type name."""
    return [
        {"@id": described.address_of(handle), "identifier": to_path(Reference(handle))}
        for handle in described.linked(type_)
    ]


def _named(described: Described, text: str) -> object:
    """A party, by its address or in the words of the record, which do not say whether it is a person."""
    address = described.address_in(text)
    return text if address is None else {"@id": address}


def _party(described: Described, party: Party) -> JsonObject:
    return {"@id": described.address_of(party.handle), "identifier": to_path(Reference(party.handle))}


def _form(address: str, media_type: str) -> JsonObject:
    return {"@type": "MediaObject", "contentUrl": address, "encodingFormat": media_type}


def _several(items: Sequence[object]) -> object:
    """One item stands alone; of none nothing is told."""
    return None if not items else items[0] if len(items) == 1 else list(items)


def _told(plain: JsonObject) -> JsonObject:
    return {name: value for name, value in plain.items() if value is not None}
