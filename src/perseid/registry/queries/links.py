"""Typed links: from what, to where, and what the one is to the other (RFC 8288), in each form in which they travel.

    Link header            RFC 8288; few of them, for servers on the way have little room for headers
    application/linkset    RFC 9264; the same text in a document of its own, each link with its anchor
    application/linkset+json
    application/link-format   RFC 6690, as TimeMaps are written (RFC 7089)

A link that could not be written in all of them cannot be made: its parts are checked when it is. What stands in a
record may be anybody's, so whoever makes links of it takes addresses through `web_address` and lets go of what `Link`
refuses.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from perseid.records.json_parsing import JsonObject, write_json

LINKSET: Final = "application/linkset"
LINKSET_JSON: Final = "application/linkset+json"
LINK_FORMAT: Final = "application/link-format"

MAX_HEADER_LINKS: Final = 50
"""Links that are sent in headers; whoever wants all of them asks for the linkset."""

MAX_HEADER_BYTES: Final = 4_096
"""Octets of all links in headers together: servers on the way have room for 4 to 8 KiB of headers."""

MAX_ADDRESS: Final = 2_048
"""Characters of the longest address of a record that is linked: what every browser and server takes."""

MAX_URI: Final = 8_192
"""Characters of the longest URI in a link: the longest name, all of it percent-encoded, at a resolver."""

MAX_TEXT: Final = 1_024
"""Characters of the longest attribute: of a title more than a few words helps nobody."""

# What a URI may consist of (RFC 3986), beginning with a scheme. It needs no quoting in any form of a link.
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
# "reg-rel-type = LOALPHA *( LOALPHA / DIGIT / "." / "-" )" (RFC 8288, section 3.3)
_RELATION: Final = re.compile(r"[a-z][a-z0-9.-]*")
_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_LANGUAGE: Final = re.compile(r"[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*")
_PRINTABLE: Final = re.compile("[\x20-\x7e]*")
_RESERVED_NAMES: Final = frozenset(("anchor", "rel", "rev", "type", "media", "hreflang", "title", "href"))

# Letter by letter: where case does not count, Python takes U+017F for an "s".
_ADDRESS: Final = re.compile(
    r"([hH][tT][tT][pP][sS]?)://([^/?#\\@:\[\]]+|\[[0-9A-Fa-f:.]+\])((?::[0-9]{1,5})?)([/?#].*)?", re.DOTALL
)
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9.])?|\[[0-9A-Fa-f:.]+\]")
_BAD_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_SAFE_CHARACTERS: Final = "-._~:/?#[]@!$&'()*+,;=%"
_MAX_HOST: Final = 253  # octets of the longest name that DNS has; to convert a longer one costs time for nothing


@dataclass(frozen=True, slots=True)
class Link:
    """A link. What is not legal in it is refused with ValueError."""

    target: str
    """Where it leads: an absolute URI."""
    relation: str
    """What the target is to the anchor; several words have one blank between them."""
    anchor: str | None = None
    """From where it leads: an absolute URI; None for the resource with which the link is sent."""
    type: str | None = None
    """The media type that is to be expected there."""
    media: str | None = None
    hreflang: tuple[str, ...] = ()
    """Languages that are to be expected there."""
    title: str | None = None
    language: str | None = None
    """That of the title."""
    others: tuple[tuple[str, str], ...] = ()
    """Further attributes, such as `datetime`."""

    def __post_init__(self) -> None:
        for what, address in (("target", self.target), ("anchor", self.anchor)):
            if address is not None and (len(address) > MAX_URI or not _URI.fullmatch(address)):
                raise ValueError(f"the {what} of a link is no absolute URI, or longer than {MAX_URI:,} characters")
        for relation in self.relations:
            # RFC 9264 has the anchor among the relations, so that none can have its name.
            if relation == "anchor" or not (_RELATION.fullmatch(relation) or _URI.fullmatch(relation)):
                raise ValueError("a relation is a registered word, or a URI")
        self._check_attributes()

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations, one by one."""
        return tuple(self.relation.split(" "))

    def attributes(self) -> Iterator[tuple[str, str]]:
        """What is said besides target and title, by name, in the order in which it is written."""
        yield "rel", self.relation
        if self.anchor is not None:
            yield "anchor", self.anchor
        if self.type is not None:
            yield "type", self.type
        if self.media is not None:
            yield "media", self.media
        for language in self.hreflang:
            yield "hreflang", language
        yield from self.others

    def _check_attributes(self) -> None:
        if self.type is not None and not _MEDIA_TYPE.fullmatch(self.type):
            raise ValueError("the type of a link is no media type")
        if not all(map(_LANGUAGE.fullmatch, (*self.hreflang, *filter(None, [self.language])))):
            raise ValueError("a language of a link is no tag such as en or pt-BR")
        if self.title is not None and not (self.title.isprintable() and len(self.title) <= MAX_TEXT):
            raise ValueError("the title of a link is too long, or does not show")
        if self.language is not None and self.title is None:
            raise ValueError("a link without a title has no language of it")
        names = [name for name, _ in self.others]
        if (
            len(set(names)) < len(names)
            or not _RESERVED_NAMES.isdisjoint(names)
            or not all(map(_NAME.fullmatch, names))
        ):
            raise ValueError("an attribute of a link has no name of its own")
        texts = (self.relation, self.media or "", *[text for _, text in self.others])
        if any(len(text) > MAX_TEXT or not _PRINTABLE.fullmatch(text) for text in texts):
            raise ValueError("an attribute of a link is too long, or not printable ASCII")


def normalize_url(text: str) -> str | None:
    """A web address that somebody wrote, as the target of a link; None if it is none, or may not be linked.

    Only `http` and `https` lead to a thing and do nothing else. An address with a user's name in it seems to lead to
    another host than it does. A host outside of ASCII is written as DNS has it.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or len(text) > MAX_ADDRESS:
        return None
    scheme, host, port, rest = found.groups()
    if not host.isascii():
        host = _to_ascii(host)
    if not _HOST.fullmatch(host) or not (rest or "").isprintable():
        return None
    address = f"{scheme.lower()}://{host}{port}{quote(_BAD_ESCAPE.sub('%25', rest or '/'), safe=_SAFE_CHARACTERS)}"
    return address if len(address) <= MAX_ADDRESS else None


def format_headers(
    links: Iterable[Link], most: int = MAX_HEADER_LINKS, octets: int = MAX_HEADER_BYTES
) -> tuple[str, ...]:
    """The values of `Link` headers, one for each link, as far as there is room; earlier ones come first."""
    found: list[str] = []
    for link in links:
        value = format_header(link)
        room = octets - len(value) - len("Link: \r\n")
        if room >= 0 and len(found) < most:
            found.append(value)
            octets = room
    return tuple(found)


def format_header(link: Link, between: str = "; ") -> str:
    """A link as the value of a `Link` header."""
    parts = [f"<{link.target}>"]
    # A language goes without quotation marks, as it did before RFC 8288 allowed for both (section 3).
    parts += [f"{name}={text if name == 'hreflang' else _quote(text)}" for name, text in link.attributes()]
    if link.title is not None:
        if link.language is None and _PRINTABLE.fullmatch(link.title):
            parts.append(f"title={_quote(link.title)}")
        else:  # in the notation of RFC 8187, which has room for every letter and for the language
            parts.append(f"title*=UTF-8'{link.language or ''}'{quote(link.title, safe='')}")
    return between.join(parts)


def format_link_format(links: Iterable[Link]) -> str:
    """A document of the type `application/link-format`: without blanks, which RFC 6690 does not have."""
    return ",\n".join([format_header(link, ";") for link in links]) + "\n"


def to_linkset(links: Iterable[Link], context: str) -> str:
    """A document of the type `application/linkset`; what has no anchor leads from `context`."""
    anchored = [replace(link, anchor=link.anchor or context) for link in links]
    return ",\n".join(map(format_header, anchored)) + "\n"


def to_linkset_json(links: Iterable[Link], context: str) -> str:
    """A document of the type `application/linkset+json`."""
    return write_json(to_linkset_object(links, context))


def to_linkset_object(links: Iterable[Link], context: str) -> JsonObject:
    """The same as a plain object: for each anchor, by relation, the targets."""
    contexts: dict[str, dict[str, list[JsonObject]]] = {}
    for link in links:
        by_relation = contexts.setdefault(link.anchor or context, {})
        for relation in link.relations:
            by_relation.setdefault(relation, []).append(_target_object(link))
    return {"linkset": [{"anchor": anchor, **by_relation} for anchor, by_relation in contexts.items()]}


def _target_object(link: Link) -> JsonObject:
    plain: JsonObject = {"href": link.target}
    plain |= {name: text for name, text in (("type", link.type), ("media", link.media)) if text is not None}
    if link.hreflang:
        plain["hreflang"] = list(link.hreflang)
    if link.title is not None:
        if link.language is None and _PRINTABLE.fullmatch(link.title):
            plain["title"] = link.title
        else:
            said = {"value": link.title}
            plain["title*"] = [said if link.language is None else said | {"language": link.language}]
    return plain | {name: [text] for name, text in link.others}


def _to_ascii(host: str) -> str:
    """The host by the rules of IDNA; empty if it has no such form."""
    try:
        return host.encode("idna").decode("ascii") if len(host) <= _MAX_HOST else ""
    except UnicodeError:
        return ""


def _quote(text: str) -> str:
    """A quoted string of HTTP."""
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))
