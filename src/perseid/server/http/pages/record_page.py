"""All places of a name: as XML, as deployed resolvers show them (§10.6), and with the reason why one of them is chosen.

The XML is made of attributes that strangers wrote, and a browser would act on some of them. So names with a colon and
declarations of namespaces are left out: without those it is data, and nothing else.

The page of a record (§9.8): its values as people read them, what it says about itself, and where it leads.

Administrators and lists are spelled out, other octets that are no text are shown in hexadecimal. Names are links where
this server resolves them, so that no link of a page is dead. A page has a bound, whatever a record holds: what is long
is cut, and the JSON has all of it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import quoteattr

from markupsafe import Markup

from perseid.ledger.log.entry import State
from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.names.uri import Reference, to_http, to_path
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.data_types import interpret
from perseid.records.encoding import decode_printable, to_iso
from perseid.records.json_parsing import JsonObject, write_json
from perseid.records.locations import Candidate, Candidates
from perseid.records.text_types import Alias, Email, ServiceHandle
from perseid.records.types import DESC, EMAIL, HS_SECKEY, LOCATIONS, URL, has_type
from perseid.records.value import Value
from perseid.registry.policy.authority_metadata import AuthorityMetadata, Party
from perseid.registry.queries.memento import Memento, MementoNeighbors
from perseid.server.http import responses
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.negotiation import Preference
from perseid.server.http.resolver.lookup import LookupResult, Tombstone
from perseid.server.http.resolver.paths import Action, get_resolvers, path_to, strip_scheme
from perseid.server.http.resolver.redirect import Redirect, RedirectRequest, RedirectSource
from perseid.server.http.resolver.time_travel import AT_PARAMETER
from perseid.wire.codes import ResponseCode

from .pages import MAX_SHOWN, TextLink, mail_link, render_page, to_link, to_visible

XML_TYPE: Final = "text/xml;charset=utf-8"
TEXT_TYPE: Final = "text/plain;charset=utf-8"

_ROOT: Final = "locations"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# What no document of XML 1.0 may hold, escaped or not.
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
_URL_TYPES: Final = (URL, f"0.TYPE/{URL}")


def locations_response(candidates: Candidates, values: tuple[Value, ...], name: str) -> Response:
    """All places, one to a line; of URL values those of the kind that would be used."""
    root = candidates.lists[0].root.name if candidates.lists else _ROOT
    root = root if _NAME.fullmatch(root) else _ROOT
    lines = [f"<{root}>", *[_element(place) for place in _listed_locations(candidates, values)], f"</{root}>", ""]
    body = "\n".join(lines).encode("utf-8")
    return Response(200, (("Content-Type", XML_TYPE),), body, code=ResponseCode.SUCCESS, name=name)


def explanation_response(
    known: RedirectSource, aliases: tuple[str, ...], wanted: RedirectRequest, redirect: Redirect, *, text: bool
) -> Response:
    """Why a request would be sent where it would be sent; as text for people, or as JSON."""
    plain = _explanation(known, aliases, wanted, redirect)
    body = _as_text(plain).encode("utf-8") if text else responses.encode_json(plain)
    type_ = TEXT_TYPE if text else responses.JSON
    return Response(200, (("Content-Type", type_),), body, code=ResponseCode.SUCCESS, name=str(known.handle))


def _listed_locations(candidates: Candidates, values: tuple[Value, ...]) -> list[Candidate]:
    plain = sum(value.is_public and fold(value.type) in _URL_TYPES for value in values)
    found = []
    urls = 0
    for place in candidates.places:
        urls += place.is_url
        if not place.is_url or not plain or urls <= plain:
            found.append(place)
    return found


def _element(place: Candidate) -> str:
    attributes = dict(place.location.attributes)
    attributes["href"] = place.href
    written = [
        f"{name}={quoteattr(_NO_XML.sub(_REPLACED, value))}"
        for name, value in attributes.items()
        if _NAME.fullmatch(name) and name != "xmlns"
    ]
    return f"<location {' '.join(written)}/>"


def _explanation(
    known: RedirectSource, aliases: tuple[str, ...], wanted: RedirectRequest, redirect: Redirect
) -> JsonObject:
    candidates, chosen = known.candidates, redirect.chosen
    places: list[object] = [
        {
            "href": place.href,
            "weight": place.weight,
            "from": "URL value" if place.is_url else "location",
            "attributes": dict(place.location.attributes),
            "unsuitable": redirect.invalid_targets.get(place.href),
            "chosen": chosen is not None and place is chosen.place,
        }
        for place in candidates.places
    ]
    by = None
    if chosen is not None:
        by = "the only one" if chosen.by is None else chosen.by.value
    return {
        "handle": str(known.handle),
        "aliases": list(aliases),
        "location": None if redirect.target is None else redirect.target.location,
        "status": None if redirect.target is None else redirect.status,
        "statusFrom": None if redirect.target is None else redirect.status_from,
        "chosenBy": by,
        "methods": [method.value for method in candidates.methods],
        "wishes": [_format_preference(wish) for wish in wanted.preferences.attributes],
        "places": places,
        "unreadableLists": [value.index for value in known.values if _is_unreadable(value)],
        "tooMany": candidates.truncated,
    }


def _is_unreadable(value: Value) -> bool:
    """Whether a list of locations counts as if it were not there."""
    return has_type(value.type, LOCATIONS) and interpret(value) is None


def _as_text(plain: JsonObject) -> str:
    """The same for people: what strangers wrote stands behind its name, each on a line of its own."""
    lines = []
    for key, value in plain.items():
        if not isinstance(value, list):
            lines.append(f"{key}: {_line(value)}")
            continue
        lines.append(f"{key}:{'' if value else ' none'}")
        lines += [f"  {_line(item)}" for item in value]
    return "\n".join(lines) + "\n"


def _line(value: object) -> str:
    """A value on one line; what could be taken for another line, or would not show, is escaped."""
    return value if isinstance(value, str) and value.isprintable() else write_json(value)


def _format_preference(wish: Preference) -> str:
    name, value = wish
    return name if value is None else f"{name}:{value}"


MAX_PAGE: Final = 200_000
"""Characters of data that one page shows at length: more than anybody reads."""

MAX_SHORT: Final = 80
"""Characters of one value that are shown beyond that."""

MAX_NAME: Final = 2_048
"""Characters of a name that are shown: as many as the longest one can have."""

MAX_HEX_BYTES: Final = 512
"""Octets that are shown in hexadecimal."""

MAX_LINES: Final = 200
"""Entries of a list that are shown."""

PERMISSIONS: Final = (
    (AdminPermission.ADD_HANDLE, "create hdl"),
    (AdminPermission.DELETE_HANDLE, "delete hdl"),
    (AdminPermission.ADD_NA, "create derived prefix"),
    (AdminPermission.DELETE_NA, "delete derived prefix"),
    (AdminPermission.READ_VALUE, "read val"),
    (AdminPermission.MODIFY_VALUE, "modify val"),
    (AdminPermission.REMOVE_VALUE, "del val"),
    (AdminPermission.ADD_VALUE, "add val"),
    (AdminPermission.MODIFY_ADMIN, "modify admin"),
    (AdminPermission.REMOVE_ADMIN, "del admin"),
    (AdminPermission.ADD_ADMIN, "add admin"),
    (AdminPermission.LIST_HANDLES, "list"),
)
"""What an administrator may do, in the words and the order of deployed resolvers."""

_HDL: Final = "hdl:"
_TYPES: Final = "0.TYPE"
_KNOWN_TYPES: Final = (URL, DESC, EMAIL)
_WITHHELD: Final = "not shown: it proves who somebody is"

_FORMS: Final = (
    ("How to cite it", Action.CITATION),
    ("as BibTeX", Action.BIBTEX),
    ("as CSL-JSON", Action.CSL_JSON),
    ("as JSON-LD", Action.JSON_LD),
)

Line = tuple[TextLink, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A value on the page."""

    index: int
    type: TextLink
    timestamp: str
    lines: tuple[Line, ...]
    note: str = ""
    """What is to be said about what is shown."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is known of the name."""

    label: str
    pieces: tuple[TextLink, ...]


@dataclass(slots=True)
class LinkBuilder:
    """Makes links to names that this server resolves."""

    settings: HttpSettings
    is_here: Callable[[Handle], bool]
    _found: dict[str, bool] = field(default_factory=dict)

    def to(self, name: str, text: str | None = None) -> TextLink:
        """A name, or another text for it, as a link to what it stands for, if it stands for something here."""
        text = to_visible(name if text is None else text, MAX_NAME)
        handle = Handle.for_lookup(name.strip())
        if handle is None:
            return TextLink(text)
        if str(handle) not in self._found:
            self._found[str(handle)] = self.is_here(handle)
        return TextLink(text, path_to(str(handle), self.settings)) if self._found[str(handle)] else TextLink(text)


@dataclass(frozen=True, slots=True)
class PastMoment:
    """The moment of the past that a page is about."""

    seq: int
    """The entry after which it was so."""
    versions: MementoNeighbors | None
    """The version that is shown, and those around it; None for what has no versions of its own."""


@dataclass(frozen=True, slots=True)
class PageDetails:
    """What a page about a record shows besides its values."""

    authority: AuthorityMetadata | None
    api: str
    """The path of the same as JSON."""
    then: PastMoment | None = None
    """None for the record as it is now."""
    json_ld: Markup | None = None
    """What the record means, for machines that read pages."""


def record_page(found: LookupResult, shown: PageDetails, links: LinkBuilder, headers: HeaderList = ()) -> Response:
    """The page of a record."""
    settings = links.settings
    name = to_visible(found.name)
    budget = MAX_PAGE
    rows = []
    for value in found.values:
        row = _row(value, links, MAX_SHOWN if budget > 0 else MAX_SHORT)
        budget -= sum(len(piece.text) for line in row.lines for piece in line)
        rows.append(row)
    path, then = path_to(found.name, settings), _moment_suffix(shown)
    actions = []
    if found.tombstone is None and any(_is_target(value, settings) for value in found.values):
        words = "Go to what it stands for" if shown.then is None else "Go to what it stood for then"
        actions = [TextLink(words, f"{path}?action={Action.REDIRECT.value}{then}")]
    forms = [TextLink(words, f"{path}?action={action.value}{then}") for words, action in _FORMS]
    return render_page(
        "record.html",
        settings,
        headers=headers,
        title=f"{name} – handle record",
        name=name,
        notice=_notice(found),
        past=_history_notice(found, shown.then, settings),
        facts=_facts(found, shown.authority, links),
        rows=rows,
        actions=[*actions, TextLink("The record as JSON", shown.api), *forms],
        json_ld=shown.json_ld,
    )


def tombstone_page(
    found: LookupResult, tombstone: Tombstone, shown: PageDetails, links: LinkBuilder, headers: HeaderList = ()
) -> Response:
    """The page of a thing that is gone (S8)."""
    settings = links.settings
    name = to_visible(found.name)
    return render_page(
        "tombstone.html",
        settings,
        410,
        headers,
        title=f"{name} – gone",
        name=name,
        reason=to_visible(tombstone.reason),
        date=to_visible(tombstone.date, MAX_SHORT),
        replacement=links.to(tombstone.replacement),
        past=_history_notice(found, shown.then, settings),
        actions=[
            TextLink("What its record holds", f"{path_to(found.name, settings)}?noredirect{_moment_suffix(shown)}"),
            TextLink("The record as JSON", shown.api),
        ],
    )


def _moment_suffix(shown: PageDetails) -> str:
    """What keeps a link of a page about the past in the past."""
    return "" if shown.then is None else f"&{AT_PARAMETER}={shown.then.seq}"


def _history_notice(
    found: LookupResult, then: PastMoment | None, settings: HttpSettings
) -> tuple[str, tuple[TextLink, ...]] | None:
    """What a page about the past says of it, and the links to other times; None for a page about today."""
    if then is None:
        return None
    path = path_to(found.name, settings)
    today = TextLink("Today", f"{path}?noredirect")
    if then.versions is None:
        return f"This is how it was after entry {then.seq:,} of the ledger.", (today,)
    around = then.versions
    said = f"This is how it was since {_time(around.memento.seconds)} (entry {around.memento.seq:,})"
    said += "." if around.next is None else f", until {_time(around.next.seconds)}."
    versions = (("The version before", around.previous), ("The version after", around.next))
    links = [_version(path, words, version) for words, version in versions if version is not None]
    return said, (*links, today)


def _version(path: str, words: str, version: Memento) -> TextLink:
    return TextLink(f"{words}: {_time(version.seconds)}", f"{path}?noredirect&{AT_PARAMETER}={version.seq}")


def _notice(found: LookupResult) -> str:
    if found.resolved.state is State.TOMBSTONE:
        return "What this identifier stood for is gone; its record says why."
    if found.aliases:
        return f"You asked for {to_visible(found.aliases[0])}, which is another name for this one."
    if found.resolved.by_template:
        return "There is no record of this name: a template of its namespace has made these values."
    return ""


def _facts(found: LookupResult, authority: AuthorityMetadata | None, links: LinkBuilder) -> list[Fact]:
    """How to cite it, and what it says about itself."""
    facts = []
    handle = found.resolved.handle
    cited = [TextLink(to_path(Reference(handle)))]
    cited += [TextLink(to_http(Reference(handle), resolver)) for resolver in get_resolvers(links.settings)[:1]]
    facts.append(Fact("Cite as", tuple(cited)))
    if authority is not None:
        if authority.created is not None:
            facts.append(Fact("Created", (TextLink(_time(authority.created)),)))
        if authority.updated is not None:
            facts.append(Fact("Last update", (TextLink(_time(authority.updated)),)))
        if authority.creator is not None:
            facts.append(Fact("Creator", (_party(authority.creator, links),)))
        if authority.owners:
            facts.append(Fact("Owner", tuple([_party(owner, links) for owner in authority.owners[:MAX_LINES]])))
    return facts


def _party(party: Party, links: LinkBuilder) -> TextLink:
    return links.to(str(party.handle), _HDL + str(party.handle))


def _row(value: Value, links: LinkBuilder, limit: int) -> Row:
    lines, note = _data(value, links, limit)
    timestamp = _time(value.timestamp) if value.timestamp else "–"
    return Row(value.index, _type(value.type, links), timestamp, lines, note)


def _type(type_: str, links: LinkBuilder) -> TextLink:
    """A type, which is a handle or has one in the registry of types; those that nobody knows are just text."""
    if "/" not in type_ and (fold(type_) in _KNOWN_TYPES or (fold(type_).startswith("HS_") and "." not in type_)):
        return links.to(f"{_TYPES}/{type_}", type_)
    return links.to(type_)


def _data(value: Value, links: LinkBuilder, limit: int) -> tuple[tuple[Line, ...], str]:
    """What a value says, line by line, and a note about it."""
    if has_type(value.type, HS_SECKEY):
        return (), _WITHHELD
    said = interpret(value)
    match said:
        case Admin():
            words = ",".join([word for bit, word in PERMISSIONS if bit in said.permissions])
            administrator = said.administrator
            rest = TextLink(f"; index={administrator.index}; [{words}]")
            return ((TextLink("handle="), links.to(administrator.handle), rest),), ""
        case ValueList():
            lines = [(TextLink(f"{each.index}:"), links.to(each.handle)) for each in said.entries[:MAX_LINES]]
            more = len(said.entries) - len(lines)
            return tuple(lines), f"and {more:,} more" if more else ""
        case Email():
            return ((mail_link(said.text, links.settings),),), _truncation_note(said.text, limit)
        case Alias() | ServiceHandle():
            return ((links.to(said.text),),), _truncation_note(said.text, limit)
    text = decode_printable(value.data)
    if text is None:
        return _hex_dump(value.data, limit)
    if text.lower().startswith(_HDL):
        return ((links.to(strip_scheme(text.strip()), text),),), _truncation_note(text, MAX_NAME)
    return ((to_link(text, links.settings, limit),),), _truncation_note(text, limit)


def _hex_dump(data: bytes, limit: int) -> tuple[tuple[Line, ...], str]:
    shown = min(MAX_HEX_BYTES, limit // 2)
    note = f"{len(data):,} octets; the first {shown} are shown" if len(data) > shown else f"{len(data):,} octets"
    return ((TextLink(data[:shown].hex().upper()),),), note


def _truncation_note(text: str, limit: int) -> str:
    return f"{len(text):,} characters; the first {limit:,} are shown" if len(text) > limit else ""


def _time(instant: int) -> str:
    """`2017-07-14 02:40:00Z`; the times of a record have 32 bits, so there is always such a day."""
    return to_iso(instant).replace("T", " ")


def _is_target(value: Value, settings: HttpSettings) -> bool:
    """Whether a value may be what the name leads to."""
    if has_type(value.type, LOCATIONS):
        return True
    return has_type(value.type, URL) and bool(to_link(value.data.decode("utf-8", "replace"), settings).href)
