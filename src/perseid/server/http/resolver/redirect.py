"""Headers that a record asks for: `Link` from locations with a relation, and lines of `10320/headers` (§10.5).

A record may be anybody's, and what stands in a header is obeyed by browsers, caches and servers on the way. So there is
a short list of names that a record may set, each of which only says something about the thing; a value goes out if it
is printable ASCII; links lead to permitted schemes and have relations that only say what a thing is to another; and all
of it together has a bearable length. Lines for the head of a page, which `10320/headers` may hold too, are not put
there: they would be markup of strangers on our pages.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final
from urllib.parse import quote

from perseid.names.handle import Handle
from perseid.records.errors import InvalidData
from perseid.records.locations import Candidate, Candidates, Location, Locations, expand
from perseid.records.record import ascending
from perseid.records.types import has_type
from perseid.records.value import Value
from perseid.records.xml import MAX_XML_OCTETS, is_yes
from perseid.registry.queries.signposting import RELATIONS
from perseid.server.http.urls import Unsuitable, target_of

HEADERS: Final = "10320/headers"
LINKS: Final = "10320/links"

_LINK: Final = "Link"

ALLOWED: Final = {name.lower(): name for name in ("Deprecation", _LINK, "Sunset", "X-Robots-Tag")}
"""The headers that a record may set: what it is linked with, since when and until when it holds, whether it is to be
listed. None of them changes how the answer itself is read, kept or passed on. `Memento-Datetime` is not one of them:
with it the server itself says that an answer is about the past."""

ALLOWED_RELATIONS: Final = RELATIONS | {"canonical"}
"""The registered relations that a link of a record may have, besides those that are URIs. On others browsers act
(`stylesheet`, `preload`), or the server speaks for itself with them (`timegate`, `linkset`). By `canonical` records of
deployed servers say which of several places is the main one."""

MAX_HEADERS: Final = 50
"""Headers that a record may add to an answer."""

MAX_OCTETS: Final = 4_096
"""Octets of all of them together: servers on the way have room for 4 to 8 KiB of headers."""

# A link as a line may have it (RFC 8288, section 3), whole; of the names of parameters only those that are known.
_PARAMETER: Final = re.compile(
    r"""[ \t]*;[ \t]*(rel|anchor|type|target-type|media|hreflang|title\*?)[ \t]*=[ \t]*"""
    r"""(?:"((?:[^"\\]|\\.)*)"|([!#$%&'*+.^_`|~0-9A-Za-z:/-]+))""",
    re.IGNORECASE,
)
_TARGET: Final = re.compile(r"[ \t]*<([^<>]*)>")
_NEXT: Final = re.compile(r"[ \t]*,")
_PRINTABLE: Final = re.compile("[\x20-\x7e]*")
_ATTRIBUTES: Final = (
    ("type", "media-type"),
    ("target-type", "target-type"),
    ("media", "media"),
    ("hreflang", "hreflang"),
)
_MAX_LISTS: Final = 20  # values of links that are read
_MAX_LOCATIONS: Final = 2_000  # locations that are looked at for a relation
_MAX_LINES: Final = 200  # lines of headers that are looked at

Header = tuple[str, str]


def extra_headers(
    handle: Handle, values: Iterable[Value], candidates: Candidates, schemes: Collection[str]
) -> tuple[Header, ...]:
    """The headers that a record asks for, lines first, as far as they may go out."""
    record = [value for value in ascending(values) if value.is_public]
    hrefs = {place.location.get("id"): place.href for place in reversed(candidates.places)}
    own = [place for place in candidates.places if not place.of_namespace]
    others = [place for place in candidates.places if place.of_namespace]
    found = [*_lines(handle, record, schemes), *_links(_linked(handle, record, own), hrefs, schemes)]
    if not is_yes(candidates.get("suppressNsHeaders")) and not (
        found and is_yes(candidates.get("suppressNsHeadersIfLocalHeaders"))
    ):
        found += _links([(place.href, place.location) for place in others], hrefs, schemes)
    room = MAX_OCTETS
    kept: list[Header] = []
    for name, value in found[:MAX_HEADERS]:
        room -= len(name) + len(value) + 4
        if room < 0:
            break
        kept.append((name, value))
    return tuple(kept)


def _lines(handle: Handle, record: list[Value], schemes: Collection[str]) -> Iterator[Header]:
    """Lines `Name: value` with permitted names."""
    for value in record:
        if not has_type(value.type, HEADERS):
            continue
        text = value.data[:MAX_XML_OCTETS].decode("utf-8", "replace")
        for line in text.splitlines()[:_MAX_LINES]:
            name, colon, content = line.partition(":")
            known = ALLOWED.get(name.strip().lower())
            content = content.strip()
            if colon and known and len(content) <= MAX_OCTETS:
                content = expand(content, handle)
                if content and _PRINTABLE.fullmatch(content) and (known != _LINK or _may_link(content, schemes)):
                    yield known, content


def _may_link(content: str, schemes: Collection[str]) -> bool:
    """Whether every link of a `Link` line may go out: what cannot be read to its end may not, nor what names its
    relation twice, which is not one (RFC 8288, section 3.3).
    """
    at = 0
    while True:
        target = _TARGET.match(content, at)
        if target is None or not _may_target(target[1], schemes):
            return False
        at, relations = target.end(), 0
        while parameter := _PARAMETER.match(content, at):
            at = parameter.end()
            name, text = parameter[1].lower(), parameter[2] if parameter[2] is not None else parameter[3]
            if name == "rel":
                relations += 1
                if not _is_allowed(text):
                    return False
            elif name == "anchor" and not _may_target(text, schemes):
                return False
        if relations != 1:
            return False
        if not content[at:].strip(" \t"):
            return True
        following = _NEXT.match(content, at)
        if following is None:
            return False
        at = following.end()


def _may_target(address: str, schemes: Collection[str]) -> bool:
    try:
        return target_of(address, schemes).location == address
    except Unsuitable:
        return False


def _is_allowed(relation: str) -> bool:
    """Whether all words of a relation may go out."""
    return bool(relation.strip()) and _allowed(relation) == " ".join(relation.split())


def _allowed(relation: str) -> str:
    """The words of a relation that may go out."""
    return " ".join([word for word in relation.split() if ":" in word or word.lower() in ALLOWED_RELATIONS])


def _linked(handle: Handle, record: list[Value], places: list[Candidate]) -> Iterator[tuple[str, Location]]:
    """The locations of a record, and those that are there to be linked and nothing else."""
    yield from ((place.href, place.location) for place in places)
    for value in [value for value in record if has_type(value.type, LINKS)][:_MAX_LISTS]:
        try:
            locations = Locations.from_bytes(value.data).locations
        except InvalidData:
            continue
        for location in locations:
            href, template = location.href, location.href_template
            if href is None and template is not None and len(template) <= MAX_OCTETS:
                href = expand(template, handle)
            if href is not None:
                yield href, location


def _links(
    locations: Iterable[tuple[str, Location]], hrefs: Mapping[str | None, str], schemes: Collection[str]
) -> list[Header]:
    """A header for each location with a relation that may be linked."""
    with_relation = [pair for pair in islice(locations, _MAX_LOCATIONS) if pair[1].get("rel")][:MAX_HEADERS]
    found = [_link(href, location, hrefs, schemes) for href, location in with_relation]
    return [(_LINK, value) for value in found if value is not None]


def _link(href: str, location: Location, hrefs: Mapping[str | None, str], schemes: Collection[str]) -> str | None:
    relation = _allowed(location.get("rel") or "")
    if not relation or not _PRINTABLE.fullmatch(relation):
        return None
    try:
        parts = [f"<{target_of(href, schemes).location}>"]
        anchor = hrefs.get(location.get("anchor-id")) if location.get("anchor-id") else None
        if anchor is not None:
            parts.append(f"anchor={_quoted(target_of(anchor, schemes).location)}")
    except Unsuitable:
        return None
    parts.append(f"rel={_quoted(relation)}")
    for name, attribute in _ATTRIBUTES:
        text = location.get(attribute)
        if text and _PRINTABLE.fullmatch(text):
            parts.append(f"{name}={_quoted(text)}")
    if title := location.get("title"):
        parts.append(_title(title, location.get("titlelang") or ""))
    return "; ".join(parts)


def _title(title: str, language: str) -> str:
    """A title; in the long form where it is not ASCII, or has a language."""
    if not language and _PRINTABLE.fullmatch(title):
        return f"title={_quoted(title)}"
    tag = language if re.fullmatch("[A-Za-z0-9-]{0,35}", language) else ""
    return f"title*=UTF-8'{tag}'{quote(title, safe='')}"


def _quoted(text: str) -> str:
    """A quoted string of HTTP."""
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))
