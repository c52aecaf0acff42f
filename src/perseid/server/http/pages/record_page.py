"""Responses that show a record: its page (§9.8), its tombstone page, its locations as XML (§10.6), an explanation.

On the page, administrators and value lists are spelled out, and binary data is shown in hexadecimal. Data is a link to
a handle where its type says that it is one, and only if this server resolves it, so no link is dead. The size of a page
is bounded: long data is truncated, and the JSON form has all of it.

The XML contains untrusted attributes, and a browser would act on some of them. Names with a colon and namespace
declarations are therefore left out.
"""

import re
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

from markupsafe import Markup

from perseid.ledger.log.entry import State
from perseid.names.errors import InvalidName
from perseid.names.handle import fold
from perseid.names.uri import MAX_ENCODED_LENGTH, parse_user_input
from perseid.records.admin import Admin, AdminPermission, ValueList
from perseid.records.data_types import interpret
from perseid.records.encoding import JsonObject, decode_printable, to_iso, write_json
from perseid.records.locations import Candidate, Candidates
from perseid.records.record import Value
from perseid.records.types import (
    DESC,
    EMAIL,
    HS_SECKEY,
    LOCATIONS,
    URL,
    URL_TYPES,
    Alias,
    Email,
    ServiceHandle,
    has_type,
)
from perseid.registry.policy.authority import (
    NOT_VERIFIED,
    AuthorityMetadata,
    Party,
    TypeDefinition,
    first_valid,
    parse_stored_party,
)
from perseid.registry.queries.citation import Citation
from perseid.registry.queries.memento import Memento, MementoNeighbors
from perseid.server.http import responses
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.negotiation import Preference
from perseid.server.http.resolver.lookup import LookupResult, Tombstone
from perseid.server.http.resolver.paths import Action, path_to
from perseid.server.http.resolver.redirect import Redirect, RedirectRequest, RedirectSource
from perseid.server.http.resolver.time_travel import AT_PARAMETER
from perseid.wire.codes import ResponseCode

from .links import MAX_SHOWN, TextLink, mail_link, mark_times, to_html, to_link, to_visible, type_to_html
from .pages import render_page

XML_TYPE: Final = "text/xml;charset=utf-8"
TEXT_TYPE: Final = "text/plain;charset=utf-8"

_ROOT: Final = "locations"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Characters that are not allowed in XML 1.0, escaped or not.
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"


def locations_response(candidates: Candidates, values: tuple[Value, ...], name: str) -> Response:
    """List all locations as XML, one per line; of the URL values only the type that resolution uses."""
    root = candidates.lists[0].root.name if candidates.lists else _ROOT
    root = root if _NAME.fullmatch(root) else _ROOT
    lines = [f"<{root}>", *[_element(each) for each in _listed_locations(candidates, values)], f"</{root}>", ""]
    body = "\n".join(lines).encode("utf-8")
    return Response(200, (("Content-Type", XML_TYPE),), body, code=ResponseCode.SUCCESS, name=name)


def explanation_response(
    source: RedirectSource, aliases: tuple[str, ...], wanted: RedirectRequest, redirect: Redirect, *, text: bool
) -> Response:
    """Explain how the target of a request is chosen, as text or as JSON."""
    plain = _explanation(source, aliases, wanted, redirect)
    body = _as_text(plain).encode("utf-8") if text else responses.encode_json(plain)
    type_ = TEXT_TYPE if text else responses.JSON
    return Response(200, (("Content-Type", type_),), body, code=ResponseCode.SUCCESS, name=str(source.handle))


def _listed_locations(candidates: Candidates, values: tuple[Value, ...]) -> list[Candidate]:
    plain = sum(value.is_public and fold(value.type) in URL_TYPES for value in values)
    listed = []
    urls = 0
    for candidate in candidates.locations:
        urls += candidate.is_url
        if not candidate.is_url or not plain or urls <= plain:
            listed.append(candidate)
    return listed


def _element(candidate: Candidate) -> str:
    attributes = dict(candidate.location.attributes)
    attributes["href"] = candidate.href
    pairs = [
        f"{name}={quoteattr(_NO_XML.sub(_REPLACED, value))}"
        for name, value in attributes.items()
        if _NAME.fullmatch(name) and name != "xmlns"
    ]
    return f"<location {' '.join(pairs)}/>"


def _explanation(
    source: RedirectSource, aliases: tuple[str, ...], wanted: RedirectRequest, redirect: Redirect
) -> JsonObject:
    candidates, chosen = source.candidates, redirect.chosen
    locations: list[object] = [
        {
            "href": candidate.href,
            "weight": candidate.weight,
            "from": "URL value" if candidate.is_url else "location",
            "attributes": dict(candidate.location.attributes),
            "problem": redirect.invalid_targets.get(candidate.href),
            "chosen": chosen is not None and candidate is chosen.candidate,
        }
        for candidate in candidates.locations
    ]
    by = None
    if chosen is not None:
        by = "only location" if chosen.by is None else chosen.by.value
    return {
        "handle": str(source.handle),
        "aliases": list(aliases),
        "location": None if redirect.target is None else redirect.target.location,
        "status": None if redirect.target is None else redirect.status,
        "statusFrom": None if redirect.target is None else redirect.status_from,
        "chosenBy": by,
        "methods": [method.value for method in candidates.methods],
        "preferences": [_format_preference(preference) for preference in wanted.preferences.attributes],
        "locations": locations,
        "invalidLists": [value.index for value in source.values if _is_invalid_list(value)],
        "truncated": candidates.truncated,
    }


def _is_invalid_list(value: Value) -> bool:
    return has_type(value.type, LOCATIONS) and interpret(value) is None


def _as_text(plain: JsonObject) -> str:
    """Format the explanation as text; each untrusted text follows its key, on its own line."""
    lines = []
    for key, value in plain.items():
        if not isinstance(value, list):
            lines.append(f"{key}: {_line(value)}")
            continue
        lines.append(f"{key}:{'' if value else ' none'}")
        lines += [f"  {_line(item)}" for item in value]
    return "\n".join(lines) + "\n"


def _line(value: object) -> str:
    """Format a value on one line, as escaped JSON if it has characters that do not print."""
    return value if isinstance(value, str) and value.isprintable() else write_json(value)


def _format_preference(preference: Preference) -> str:
    name, value = preference
    return name if value is None else f"{name}:{value}"


MAX_PAGE: Final = 200_000
"""Characters of data that one page shows before values are shortened to `MAX_SHORT`."""

MAX_SHORT: Final = 80
"""Characters of one value that are shown after that."""

MAX_TITLE: Final = 300
"""Characters of the record's title in the heading: some five lines."""

MAX_NAME: Final = 2_048
"""Characters of a name that are shown: the length of the longest name."""

MAX_HEX_BYTES: Final = 512
"""Bytes that are shown in hexadecimal."""

MAX_LINES: Final = 200
"""Entries of a value list that are shown."""

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
"""Permissions of an administrator, in the words and the order of deployed resolvers."""

MAX_CACHED_PERMISSIONS: Final = 256
"""Sets of permissions that are kept as text: most administrators have one of a few."""

_HDL: Final = "hdl:"
_TYPES: Final = "0.TYPE"
_KNOWN_TYPES: Final = (URL, DESC, EMAIL)
_WITHHELD: Final = "not shown: secret key"

_FORMS: Final = (
    ("Citation", Action.CITATION),
    ("as BibTeX", Action.BIBTEX),
    ("as CSL-JSON", Action.CSL_JSON),
    ("as JSON-LD", Action.JSON_LD),
)

Line = tuple[TextLink, ...]


class Field(NamedTuple):
    """A labeled line above the values."""

    label: str
    pieces: tuple[TextLink, ...]


@dataclass(frozen=True, slots=True)
class LinkBuilder:
    """Builds links to handles that this server resolves."""

    settings: HttpSettings
    path_of: Callable[[str], str]
    """Returns the path of the page of a name; empty if there is none here."""

    def to(self, name: str, text: str | None = None) -> TextLink:
        """Return a name, or another text for it, as a link if the name resolves here."""
        return TextLink(to_visible(name if text is None else text, MAX_NAME), self.path_of(name))


@dataclass(frozen=True, slots=True)
class PastMoment:
    """The earlier state that a page shows."""

    seq: int
    """The last ledger entry that is included."""
    versions: MementoNeighbors | None
    """The version shown and its neighbors; None for a record without versions of its own."""


@dataclass(frozen=True, slots=True)
class PageDetails:
    """What a record page shows besides the values."""

    citation: Citation
    authority: AuthorityMetadata | None
    api: str
    """The path of the JSON form."""
    then: PastMoment | None = None
    """None for the current record."""
    json_ld: Markup | None = None
    """Metadata for machines that read the page."""
    handle_types: Container[str] = ()
    """The folded types whose data is a handle by the policy of the namespace."""


def record_page(found: LookupResult, shown: PageDetails, links: LinkBuilder, headers: HeaderList = ()) -> Response:
    """Return the page of a record."""
    settings = links.settings
    name, record_title = to_visible(found.name), to_visible(shown.citation.title or "", MAX_TITLE)
    rows = _rows(found.values, links, shown.handle_types)
    path, then = path_to(found.name, settings), _moment_suffix(shown)
    actions = []
    if found.tombstone is None and any(_is_target(value, settings) for value in found.values):
        words = "Go to the target" if shown.then is None else "Go to the target at that time"
        actions = [TextLink(words, f"{path}?action={Action.REDIRECT.value}{then}")]
    forms = [TextLink(words, f"{path}?action={action.value}{then}") for words, action in _FORMS]
    return render_page(
        "record.html",
        settings,
        headers=headers,
        title=" – ".join(filter(None, (record_title, name, "handle record"))),
        name=name,
        record_title=record_title,
        notice=_notice(found),
        version=_history_notice(found, shown.then, settings),
        fields=[*_fields(shown.citation, shown.authority, links), *_name_fields(found)],
        rows=rows,
        actions=[*actions, TextLink("Record as JSON", shown.api), *forms],
        json_ld=shown.json_ld,
    )


def tombstone_page(
    found: LookupResult, tombstone: Tombstone, shown: PageDetails, links: LinkBuilder, headers: HeaderList = ()
) -> Response:
    """Return the page of a withdrawn identifier (S8)."""
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
        version=_history_notice(found, shown.then, settings),
        actions=[
            TextLink("Show the record", f"{path_to(found.name, settings)}?noredirect{_moment_suffix(shown)}"),
            TextLink("Record as JSON", shown.api),
        ],
    )


def type_page(definition: TypeDefinition, settings: HttpSettings, headers: HeaderList = ()) -> Response:
    """Return the page of a type that another service hosts: a copy of its definition (A6)."""
    prefix = definition.type.partition("/")[0]
    return render_page(
        "type.html",
        settings,
        headers=headers,
        title=f"{definition.type} – type of values",
        name=definition.type,
        prefix=prefix,
        definition=definition,
    )


def _moment_suffix(shown: PageDetails) -> str:
    """The query parameter that keeps links at the time the page shows."""
    return "" if shown.then is None else f"&{AT_PARAMETER}={shown.then.seq}"


def _history_notice(
    found: LookupResult, then: PastMoment | None, settings: HttpSettings
) -> tuple[str, tuple[TextLink, ...]] | None:
    """Describe the earlier version a page shows, with links to other versions; None for the current record."""
    if then is None:
        return None
    path = path_to(found.name, settings)
    current = TextLink("Current version", f"{path}?noredirect")
    if then.versions is None:
        return f"This is the state after ledger entry {then.seq:,}.", (current,)
    around = then.versions
    text = f"This is the version of {to_iso(around.memento.seconds)} (entry {around.memento.seq:,})"
    text += "." if around.next is None else f", replaced {to_iso(around.next.seconds)}."
    versions = (("Previous version", around.previous), ("Next version", around.next))
    links = [_version(path, words, version) for words, version in versions if version is not None]
    return text, (*links, current)


def _version(path: str, words: str, version: Memento) -> TextLink:
    return TextLink(f"{words}: {to_iso(version.seconds)}", f"{path}?noredirect&{AT_PARAMETER}={version.seq}")


def _notice(found: LookupResult) -> str:
    if found.resolved.state is State.TOMBSTONE:
        return "This identifier has been withdrawn. Its record gives the reason."
    if found.aliases:
        return f"You requested {to_visible(found.aliases[0])}, which is an alias of this handle."
    if found.resolved.by_template:
        return "This handle has no record of its own. Its values come from a template of the namespace."
    return ""


def _fields(citation: Citation, authority: AuthorityMetadata | None, links: LinkBuilder) -> list[Field]:
    fields = [Field("Cite as", tuple(map(TextLink, filter(None, (citation.hdl, citation.http)))))]
    if authority is not None:
        if authority.created is not None:
            fields.append(Field("Created", (TextLink(to_iso(authority.created)),)))
        if authority.updated is not None:
            fields.append(Field("Last update", (TextLink(to_iso(authority.updated)),)))
        if authority.creator is not None:
            fields.append(Field("Creator", (_party(authority.creator, links),)))
        if authority.owners:
            fields.append(Field("Owner", tuple([_party(owner, links) for owner in authority.owners[:MAX_LINES]])))
    return fields


def _name_fields(found: LookupResult) -> list[Field]:
    """Query and fragment of a CORDRA name, which the record does not depend on (C5)."""
    parts = (("Query", found.resolved.query), ("Fragment", found.resolved.fragment))
    return [Field(label, (TextLink(to_visible(part, MAX_NAME)),)) for label, part in parts if part is not None]


def _party(party: Party, links: LinkBuilder) -> TextLink:
    link = links.to(str(party.handle), _HDL + str(party.handle))
    return link if party.verified else link._replace(remark=NOT_VERIFIED)


def _rows(values: Iterable[Value], links: LinkBuilder, handle_types: Container[str]) -> Markup:
    """The rows of the values. Written here, as a template takes three times as long."""
    budget = MAX_PAGE
    rows = []
    for value in values:
        lines, note = _data(value, links, MAX_SHOWN if budget > 0 else MAX_SHORT)
        if fold(value.type) in handle_types and len(value.data) <= MAX_ENCODED_LENGTH:
            handle = first_valid([value], parse_stored_party)
            lines = lines if handle is None else ((links.to(str(handle), value.data.decode()),),)
        budget -= sum([len(piece.text) for line in lines for piece in line])
        rows.append(_row(value, _type(value.type, links), lines, note))
    return Markup("\n").join(map(Markup, rows))


def _row(value: Value, type_: TextLink, lines: tuple[Line, ...], note: str) -> str:
    """One row as HTML; times are in ISO 8601, as all dates of a page (deployed resolvers show a space, not `T`)."""
    time = str(mark_times(to_iso(value.timestamp))) if value.timestamp else "–"
    data = "".join([f"<div>{''.join(map(to_html, line))}</div>" for line in lines])
    if note:
        data += f'<div class="quiet">{escape(note)}</div>'
    return (
        f'<tr>\n<td data-label="Index" class="number">{value.index}</td>\n'
        f'<td data-label="Type" class="type">{type_to_html(type_)}</td>\n'
        f'<td data-label="Timestamp" class="time">{time}</td>\n'
        f'<td data-label="Data" class="data">{data}</td>\n</tr>'
    )


def _type(type_: str, links: LinkBuilder) -> TextLink:
    """Return a type, linked if it is a handle or is registered under `0.TYPE`."""
    if "/" not in type_ and (fold(type_) in _KNOWN_TYPES or (fold(type_).startswith("HS_") and "." not in type_)):
        return links.to(f"{_TYPES}/{type_}", type_)
    return links.to(type_)


def _data(value: Value, links: LinkBuilder, limit: int) -> tuple[tuple[Line, ...], str]:
    """Return the lines that show a value, and a note."""
    if has_type(value.type, HS_SECKEY):
        return (), _WITHHELD
    content = interpret(value)
    match content:
        case Admin():
            administrator = content.administrator
            rest = TextLink(f"; index={administrator.index}; [{_permission_words(content.permissions)}]")
            return ((TextLink("handle="), links.to(administrator.handle), rest),), ""
        case ValueList():
            lines = [(TextLink(f"{each.index}:"), links.to(each.handle)) for each in content.entries[:MAX_LINES]]
            more = len(content.entries) - len(lines)
            return tuple(lines), f"and {more:,} more" if more else ""
        case Email():
            return ((mail_link(content.text, links.settings),),), _truncation_note(content.text, limit)
        case Alias() | ServiceHandle():
            return ((links.to(content.text),),), _truncation_note(content.text, limit)
    text = decode_printable(value.data)
    if text is None:
        return _hex_dump(value.data, limit)
    if text[: len(_HDL)].lower() == _HDL:
        name = ""
        if len(text) <= len(_HDL) + MAX_ENCODED_LENGTH:
            with suppress(InvalidName):
                name = str(parse_user_input(text, for_lookup=True).handle)
        return ((links.to(name, text),),), _truncation_note(text, MAX_NAME)
    return ((to_link(text, links.settings, limit),),), _truncation_note(text, limit)


@lru_cache(MAX_CACHED_PERMISSIONS)
def _permission_words(permissions: AdminPermission) -> str:
    return ",".join([word for bit, word in PERMISSIONS if bit in permissions])


def _hex_dump(data: bytes, limit: int) -> tuple[tuple[Line, ...], str]:
    shown = min(MAX_HEX_BYTES, limit // 2)
    note = f"{len(data):,} bytes; the first {shown} are shown" if len(data) > shown else f"{len(data):,} bytes"
    return ((TextLink(data[:shown].hex().upper()),),), note


def _truncation_note(text: str, limit: int) -> str:
    return f"{len(text):,} characters; the first {limit:,} are shown" if len(text) > limit else ""


def _is_target(value: Value, settings: HttpSettings) -> bool:
    """Whether a value can be a target."""
    if has_type(value.type, LOCATIONS):
        return True
    return has_type(value.type, URL) and bool(to_link(value.data.decode("utf-8", "replace"), settings).href)
