"""Typed links (RFC 8288) and their serializations.

    Link header               RFC 8288; limited, because intermediaries limit headers
    application/linkset       RFC 9264; the same text as a document, each link with its anchor
    application/linkset+json
    application/link-format   RFC 6690, used by TimeMaps (RFC 7089)

A link that one of them cannot express is rejected on construction. Records are untrusted, so callers pass addresses
through `normalize_url` and drop what `Link` rejects.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import quote

import msgspec

from perseid.records.encoding import JsonObject, write_json

LINKSET: Final = "application/linkset"
LINKSET_JSON: Final = "application/linkset+json"
LINK_FORMAT: Final = "application/link-format"

MAX_HEADER_LINKS: Final = 50
"""Links sent in headers; the linkset has all of them."""

MAX_HEADER_BYTES: Final = 4_096
"""Bytes of all links in headers: intermediaries allow 4 to 8 KiB of headers."""

MAX_ADDRESS: Final = 2_048
"""Characters of the longest linked address of a record: what every browser and server accepts."""

MAX_URI: Final = 8_192
"""Characters of the longest URI in a link: the longest handle, fully percent-encoded, at a resolver."""

MAX_TEXT: Final = 1_024
"""Characters of the longest attribute."""

MAX_CACHED_ATTRIBUTES: Final = 256
"""Attributes of links that are checked and written once: most links of all records have the same two dozen."""

# Characters of a URI (RFC 3986), starting with a scheme. They need no quoting in any serialization.
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?>[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]+|%[0-9A-Fa-f]{2})+")
# "reg-rel-type = LOALPHA *( LOALPHA / DIGIT / "." / "-" )" (RFC 8288, section 3.3)
_RELATION: Final = re.compile(r"[a-z][a-z0-9.-]*")
_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_LANGUAGE: Final = re.compile(r"[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*")
_PRINTABLE: Final = re.compile("[\x20-\x7e]*")
_RESERVED_NAMES: Final = frozenset(("anchor", "rel", "rev", "type", "media", "hreflang", "title", "href"))

# Spelled out: ignoring case, Python matches U+017F as "s".
_ADDRESS: Final = re.compile(
    r"([hH][tT][tT][pP][sS]?)://([^/?#\\@:\[\]]+|\[[0-9A-Fa-f:.]+\])((?::[0-9]{1,5})?)([/?#].*)?", re.DOTALL
)
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9.])?|\[[0-9A-Fa-f:.]+\]")
_BAD_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_SAFE_CHARACTERS: Final = "-._~:/?#[]@!$&'()*+,;=%"
# What `normalize_url` leaves as it is: nearly all addresses, which is found out faster.
_NORMAL: Final = re.compile(
    r"https?://[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9.])?(?::[0-9]{1,5})?"
    r"[/?#](?>[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]+|%[0-9A-Fa-f]{2})*"
)
_MAX_HOST: Final = 253  # the longest DNS name in bytes; converting longer ones would waste time


class Link(msgspec.Struct, frozen=True):
    """A link. Invalid parts raise ValueError."""

    target: str
    """An absolute URI."""
    relation: str
    """Relation of the target to the anchor; several are separated by one space."""
    anchor: str | None = None
    """Context of the link, an absolute URI; None for the resource with which the link is sent."""
    type: str | None = None
    """Expected media type of the target."""
    media: str | None = None
    hreflang: tuple[str, ...] = ()
    """Expected languages of the target."""
    title: str | None = None
    language: str | None = None
    """Language of the title."""
    others: tuple[tuple[str, str], ...] = ()
    """Further attributes, such as `datetime`."""

    def __post_init__(self) -> None:
        for what, address in (("target", self.target), ("anchor", self.anchor)):
            if address is not None and (len(address) > MAX_URI or not _URI.fullmatch(address)):
                raise ValueError(f"Invalid link {what}: expected an absolute URI of at most {MAX_URI:,} characters")
        _check_attributes(self.relation, self.type, self.media, self.hreflang, self.title, self.language, self.others)

    @property
    def relations(self) -> tuple[str, ...]:
        return tuple(self.relation.split(" "))


@lru_cache(MAX_CACHED_ATTRIBUTES)
def _check_attributes(
    relation: str,
    type_: str | None,
    media: str | None,
    languages: tuple[str, ...],
    title: str | None,
    title_language: str | None,
    others: tuple[tuple[str, str], ...],
) -> None:
    """Check everything but the addresses; raises ValueError."""
    for each in relation.split(" "):
        # In RFC 9264 `anchor` is a member next to the relations, so no relation can have that name.
        if each == "anchor" or not (_RELATION.fullmatch(each) or _URI.fullmatch(each)):
            raise ValueError("Invalid link relation: expected a registered relation or a URI")
    if type_ is not None and not _MEDIA_TYPE.fullmatch(type_):
        raise ValueError("Invalid media type of a link")
    if not all(map(_LANGUAGE.fullmatch, (*languages, *filter(None, [title_language])))):
        raise ValueError("Invalid language of a link: expected a tag such as en or pt-BR")
    if title is not None and not (title.isprintable() and len(title) <= MAX_TEXT):
        raise ValueError("Invalid link title: too long, or not printable")
    if title_language is not None and title is None:
        raise ValueError("A link without a title cannot have a title language")
    names = [name for name, _ in others]
    if len(set(names)) < len(names) or not _RESERVED_NAMES.isdisjoint(names) or not all(map(_NAME.fullmatch, names)):
        raise ValueError("Invalid name of a link attribute: malformed, reserved or repeated")
    texts = (relation, media or "", *[text for _, text in others])
    if any(len(text) > MAX_TEXT or not _PRINTABLE.fullmatch(text) for text in texts):
        raise ValueError("Invalid link attribute: too long, or not printable ASCII")


def normalize_url(text: str) -> str | None:
    """Return a user-supplied web address as a link target; None if it is invalid or must not be linked.

    Only `http` and `https` are safe. Addresses with user information are rejected, because they disguise their host. A
    non-ASCII host is converted to its DNS form.
    """
    if len(text) <= MAX_ADDRESS and _NORMAL.fullmatch(text):
        return text
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or len(text) > MAX_ADDRESS:
        return None
    scheme, host, port, rest = match.groups()
    if not host.isascii():
        host = _to_ascii(host)
    if not _HOST.fullmatch(host) or not (rest or "").isprintable():
        return None
    address = f"{scheme.lower()}://{host}{port}{quote(_BAD_ESCAPE.sub('%25', rest or '/'), safe=_SAFE_CHARACTERS)}"
    return address if len(address) <= MAX_ADDRESS else None


def format_headers(
    links: Iterable[Link], max_links: int = MAX_HEADER_LINKS, max_bytes: int = MAX_HEADER_BYTES
) -> tuple[str, ...]:
    """Return the values of `Link` headers, one per link, within the limits; earlier links take precedence."""
    return limit_headers(map(format_header, links), max_links, max_bytes)


def limit_headers(
    values: Iterable[str], max_links: int = MAX_HEADER_LINKS, max_bytes: int = MAX_HEADER_BYTES
) -> tuple[str, ...]:
    """Return the values of `Link` headers that fit into the limits; earlier ones take precedence."""
    fitting: list[str] = []
    for value in values:
        remaining = max_bytes - len(value) - len("Link: \r\n")
        if remaining >= 0 and len(fitting) < max_links:
            fitting.append(value)
            max_bytes = remaining
    return tuple(fitting)


def format_header(link: Link, separator: str = "; ") -> str:
    """Format a link as the value of a `Link` header."""
    attributes = _format_attributes(
        link.relation, link.anchor, link.type, link.media, link.hreflang, link.others, separator
    )
    start = f"<{link.target}>{separator}{attributes}"
    if link.title is None:
        return start
    if link.language is None and _PRINTABLE.fullmatch(link.title):
        return f"{start}{separator}title={_quote(link.title)}"
    # RFC 8187 notation, for any character and the language.
    return f"{start}{separator}title*=UTF-8'{link.language or ''}'{quote(link.title, safe='')}"


@lru_cache(MAX_CACHED_ATTRIBUTES)
def _format_attributes(
    relation: str,
    anchor: str | None,
    type_: str | None,
    media: str | None,
    languages: tuple[str, ...],
    others: tuple[tuple[str, str], ...],
    separator: str,
) -> str:
    """Format everything but target and title."""
    single = (("rel", relation), ("anchor", anchor), ("type", type_), ("media", media))
    attributes = [(name, text) for name, text in single if text is not None]
    attributes += [*[("hreflang", language) for language in languages], *others]
    # Languages are unquoted, as before RFC 8288 allowed both forms (section 3).
    return separator.join([f"{name}={text if name == 'hreflang' else _quote(text)}" for name, text in attributes])


def format_link_format(links: Iterable[Link]) -> str:
    """Format as `application/link-format`: without blanks, as RFC 6690 requires."""
    return ",\n".join([format_header(link, ";") for link in links]) + "\n"


def to_linkset(links: Iterable[Link], context: str) -> str:
    """Format as `application/linkset`; links without an anchor get `context`."""
    anchored = [msgspec.structs.replace(link, anchor=link.anchor or context) for link in links]
    return ",\n".join(map(format_header, anchored)) + "\n"


def to_linkset_json(links: Iterable[Link], context: str) -> str:
    """Format as `application/linkset+json`."""
    return write_json(to_linkset_object(links, context))


def to_linkset_object(links: Iterable[Link], context: str) -> JsonObject:
    """Return the linkset as a plain object: for each anchor the targets by relation."""
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
            title = {"value": link.title}
            plain["title*"] = [title if link.language is None else title | {"language": link.language}]
    return plain | {name: [text] for name, text in link.others}


def _to_ascii(host: str) -> str:
    """Convert a host by IDNA; empty if impossible."""
    try:
        return host.encode("idna").decode("ascii") if len(host) <= _MAX_HOST else ""
    except UnicodeError:
        return ""


def _quote(text: str) -> str:
    """Return an HTTP quoted-string."""
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))
