"""Responses that show a record: its page (§9.8), its tombstone page, its locations as XML (§10.6), an explanation.

The page has the title of the record first, then its target, values (`values`), citation and history. What is expensive
is behind links: the history, the QR code, the proof.

The XML contains untrusted attributes, and a browser would act on some of them. Names with a colon and namespace
declarations are therefore left out.
"""

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Final, NamedTuple, cast
from xml.sax.saxutils import quoteattr

from markupsafe import Markup

from perseid.ledger.log.entry import State
from perseid.names.handle import fold
from perseid.records.data_types import interpret
from perseid.records.encoding import JsonObject, to_iso, write_json
from perseid.records.locations import Candidate, Candidates
from perseid.records.record import Value
from perseid.records.types import LOCATIONS, URL, URL_TYPES, has_type
from perseid.registry.policy.authority import AuthorityMetadata, Party
from perseid.registry.queries.citation import Citation, format_text
from perseid.registry.queries.memento import Memento, MementoNeighbors
from perseid.server.http import responses
from perseid.server.http.context import HttpSettings
from perseid.server.http.messages import HeaderList, Response
from perseid.server.http.negotiation import Preference
from perseid.server.http.resolver.lookup import LookupResult, Tombstone
from perseid.server.http.resolver.paths import Action, path_to, quote_name
from perseid.server.http.resolver.redirect import Redirect, RedirectRequest, RedirectSource
from perseid.server.http.resolver.time_travel import AT_PARAMETER
from perseid.wire.codes import ResponseCode

from .links import TextLink, break_url, render_piece, to_link, to_visible
from .pages import PAGES_SCRIPT, VERIFY_SCRIPT, get_environment, render_frequent_page, render_page
from .texts import _
from .values import MAX_LINES, MAX_NAME, MAX_SHORT, LinkBuilder, render_rows

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


MAX_TITLE: Final = 300
"""Characters of the record's title in the heading: some five lines."""

MAX_SUMMARY: Final = 500
"""Characters of the description that other sites show with a link to the page."""

_HDL: Final = "hdl:"


class Field(NamedTuple):
    """A labeled line about the identifier."""

    label: str
    pieces: tuple[TextLink, ...]


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
    title: str = ""
    """The title of the record; empty if it has none."""


def record_page(found: LookupResult, shown: PageDetails, links: LinkBuilder, headers: HeaderList = ()) -> Response:
    """Return the page of a record."""
    settings, citation = links.settings, shown.citation
    name, record_title = to_visible(found.name), to_visible(shown.title, MAX_TITLE)
    uri = to_visible(citation.http or "", MAX_NAME)
    path, then = path_to(found.name, settings), _moment_suffix(shown)
    is_gone = found.tombstone is not None
    rows = render_rows(found.values, links, shown.handle_types)
    target = None if is_gone else _find_target(found.values, settings)
    prefix = _prefix_link(found)
    return render_frequent_page(
        "record.html",
        settings,
        headers,
        (PAGES_SCRIPT, VERIFY_SCRIPT),
        {
            "title": " – ".join(filter(None, (record_title, name, _("handle record")))),
            "name": break_url(name),
            "record_title": record_title,
            "heading": record_title or name,
            "description": to_visible(citation.description or "", MAX_SUMMARY),
            "notice": _notice(found),
            "version": "" if shown.then is None else render_version(_history_notice(found, shown.then, settings)),
            "target": "" if target is None else break_url(target.text),
            "fields": Markup("").join(map(_render_field, (*_fields(shown.authority, links), *_name_fields(found)))),
            "described_rows": rows.described,
            "system_rows": rows.system,
            "system_count": str(rows.system_count),
            "citation": break_url(to_visible(format_text(citation), MAX_NAME)),
            "uri": uri,
            "shown_uri": break_url(uri),
            "hdl": break_url(to_visible(citation.hdl, MAX_NAME)),
            "path": path,
            "then": then,
            "api": shown.api,
            "handle": quote_name(found.registered_name),
            "seq": str(found.resolved.seq),
            "prefix": prefix.text,
            "prefix_path": prefix.href,
            "json_ld": shown.json_ld or "",
        },
        has_target=target is not None,
        has_history=not found.resolved.by_template,
        is_current=shown.then is None,
    )


def tombstone_page(
    found: LookupResult,
    tombstone: Tombstone,
    shown: PageDetails,
    replacement: TextLink,
    settings: HttpSettings,
    last_title: str,
    headers: HeaderList,
) -> Response:
    """Return the page of a withdrawn identifier (S8); `last_title` is that of its last version, or empty."""
    name, record_title = to_visible(found.name), to_visible(shown.title, MAX_TITLE)
    path, then = path_to(found.name, settings), _moment_suffix(shown)
    return render_page(
        "tombstone.html",
        settings,
        410,
        headers,
        scripts=(PAGES_SCRIPT,),
        title=_("{name} – gone").format(name=name),
        name=name,
        record_title=record_title,
        reason=to_visible(tombstone.reason),
        date=to_visible(tombstone.date, MAX_SHORT),
        replacement=replacement,
        last_title="" if last_title in tombstone.reason else to_visible(last_title, MAX_TITLE),
        version=_history_notice(found, shown.then, settings),
        citation=to_visible(format_text(shown.citation), MAX_NAME),
        actions=[
            TextLink(_("Show the record"), f"{path}?noredirect{then}"),
            TextLink(_("History"), f"{path}?action={Action.HISTORY.value}"),
            TextLink(_("Record as JSON"), shown.api),
        ],
    )


def render_version(version: tuple[str, tuple[TextLink, ...]] | None) -> Markup:
    """Write the notice about an earlier version as HTML."""
    module = get_environment().get_template("parts.html").module
    return cast("Markup", module.version_notice(version))  # type: ignore[attr-defined]


def _render_field(field: Field) -> Markup:
    pieces = [
        Markup("{} ({})").format(render_piece(piece), piece.remark) if piece.remark else render_piece(piece)
        for piece in field.pieces
    ]
    return Markup("<div><dt>{}</dt><dd>{}</dd></div>\n").format(field.label, Markup("<br>").join(pieces))


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
    current = TextLink(_("Current version"), f"{path}?noredirect")
    if then.versions is None:
        return _("This is the state after ledger entry {seq}.").format(seq=f"{then.seq:,}"), (current,)
    around = then.versions
    time, seq = to_iso(around.memento.seconds), f"{around.memento.seq:,}"
    if around.next is None:
        text = _("This is the version of {time} (entry {seq}).").format(time=time, seq=seq)
    else:
        text = _("This is the version of {time} (entry {seq}), replaced {later}.")
        text = text.format(time=time, seq=seq, later=to_iso(around.next.seconds))
    versions = ((_("Previous version: {time}"), around.previous), (_("Next version: {time}"), around.next))
    links = [_version(path, words, version) for words, version in versions if version is not None]
    return text, (*links, current)


def _version(path: str, words: str, version: Memento) -> TextLink:
    return TextLink(words.format(time=to_iso(version.seconds)), f"{path}?noredirect&{AT_PARAMETER}={version.seq}")


def _notice(found: LookupResult) -> str:
    if found.resolved.state is State.TOMBSTONE:
        return _("This identifier has been withdrawn. Its record gives the reason.")
    if found.aliases:
        return _("You requested {alias}, which is an alias of this handle.").format(alias=to_visible(found.aliases[0]))
    if found.resolved.by_template:
        return _("This handle has no record of its own. Its values come from a template of the namespace.")
    return ""


def _fields(authority: AuthorityMetadata | None, links: LinkBuilder) -> list[Field]:
    fields: list[Field] = []
    if authority is not None:
        if authority.created is not None:
            fields.append(Field(_("Created"), (TextLink(to_iso(authority.created)),)))
        if authority.updated is not None:
            fields.append(Field(_("Last update"), (TextLink(to_iso(authority.updated)),)))
        if authority.creator is not None:
            fields.append(Field(_("Creator"), (_party(authority.creator, links),)))
        if authority.owners:
            fields.append(Field(_("Owner"), tuple([_party(owner, links) for owner in authority.owners[:MAX_LINES]])))
    return fields


def _name_fields(found: LookupResult) -> list[Field]:
    """Query and fragment of a CORDRA name, which the record does not depend on (C5)."""
    parts = ((_("Query"), found.resolved.query), (_("Fragment"), found.resolved.fragment))
    return [Field(label, (TextLink(to_visible(part, MAX_NAME)),)) for label, part in parts if part is not None]


def _prefix_link(found: LookupResult) -> TextLink:
    """The namespace of a record: that of a prefix handle is the one it names."""
    handle = found.resolved.handle
    prefix = handle.suffix if handle.is_prefix_handle else handle.prefix
    return TextLink(to_visible(prefix, MAX_NAME), f"/namespaces/{quote_name(prefix)}")


def _party(party: Party, links: LinkBuilder) -> TextLink:
    link = links.to(str(party.handle), _HDL + str(party.handle))
    return link if party.verified else link._replace(remark=_("not verified: it has no public record here"))


def _find_target(values: tuple[Value, ...], settings: HttpSettings) -> TextLink | None:
    """The first target of a record, as text; the text is empty if it depends on the reader. None without a target."""
    for value in values:
        if has_type(value.type, URL):
            link = to_link(value.data.decode("utf-8", "replace"), settings, MAX_SHORT)
            if link.href:
                return link
    return TextLink("") if any(has_type(value.type, LOCATIONS) for value in values) else None
