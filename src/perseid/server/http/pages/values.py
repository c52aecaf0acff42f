"""Values of records as HTML that people can read.

Administrators, groups and keys are explained in words, and binary data is shown in hexadecimal. Data is a link to a
handle where its type says that it is one, and only if this server resolves it, so no link is dead. The size of a page
is bounded: long data is truncated, and the JSON form has all of it.

Rows are written here and not by a template, which takes three times as long.
"""

from collections.abc import Callable, Container, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from html import escape
from typing import Final, NamedTuple, Protocol, TypeVar

from markupsafe import Markup

from perseid.names.errors import InvalidName
from perseid.names.handle import fold
from perseid.names.uri import MAX_ENCODED_LENGTH, parse_user_input
from perseid.records.admin import ALL_PERMISSIONS, Admin, AdminPermission, ValueList
from perseid.records.data_types import Data, interpret
from perseid.records.encoding import decode_printable, to_iso
from perseid.records.keys import PublicKey
from perseid.records.locations import Locations
from perseid.records.record import Value
from perseid.records.site import Site
from perseid.records.types import (
    DESC,
    EMAIL,
    HS_ADMIN,
    HS_ALIAS,
    HS_CERT,
    HS_NA_DELEGATE,
    HS_NAMESPACE,
    HS_PUBKEY,
    HS_SECKEY,
    HS_SERV,
    HS_SIGNATURE,
    HS_SITE,
    HS_VLIST,
    LOCATIONS,
    URL,
    Alias,
    Email,
    ServiceHandle,
    has_type,
)
from perseid.registry.policy.authority import first_valid, parse_stored_party
from perseid.server.http.context import HttpSettings

from .links import MAX_SHOWN, TextLink, mail_link, to_html, to_link, to_visible, type_to_html
from .texts import _, get_language, ngettext, on_change

MAX_PAGE: Final = 200_000
"""Characters of data that one page shows before values are shortened to `MAX_SHORT`."""

MAX_SHORT: Final = 80
"""Characters of one value that are shown after that."""

MAX_NAME: Final = 2_048
"""Characters of a name that are shown: the length of the longest name."""

MAX_HEX_BYTES: Final = 512
"""Bytes that are shown in hexadecimal."""

MAX_LINES: Final = 200
"""Entries of a value list that are shown."""

MAX_LOCATIONS: Final = 2_000
"""Bytes of a list of locations that is shown as links: more than most have, and quickly parsed."""

MAX_CACHED_PERMISSIONS: Final = 256
"""Sets of permissions that are kept as text: most administrators have one of a few."""

MAX_CACHED_TIMES: Final = 1_024
"""Times that are kept as HTML: records that were created together have the same."""

MAX_CACHED_TYPE: Final = 64
"""Characters of a type that is kept as HTML: records have the same few."""

MAX_CACHED_DATA: Final = 128
"""Bytes of a value of the Handle System that is kept as HTML: an administrator has some 40, a key several hundred."""

_HDL: Final = "hdl:"
_SYSTEM: Final = "HS_"
_TYPES: Final = "0.TYPE"
_PLAIN_TYPES: Final = frozenset((URL, DESC))  # their data is text, which says all
_LOCATION_NAMES: Final = ("id", "href", "href_template")  # what is not a condition
_KNOWN_TYPES: Final = (URL, DESC, EMAIL)

_NOTHING: Final = Markup("")

_T = TypeVar("_T")

Line = tuple[TextLink, ...]


class ValueRows(NamedTuple):
    """The rows of a record's values."""

    described: Markup
    """What the record says about its target."""
    system: Markup
    """Administrators, keys and other values of the Handle System itself."""
    system_count: int


class _Cache(Protocol):
    def __call__(self, key: Hashable, find: Callable[[], _T], /) -> _T: ...


@dataclass(frozen=True, slots=True)
class LinkBuilder:
    """Builds links to handles that this server resolves."""

    settings: HttpSettings
    path_of: Callable[[str], str]
    """Returns the path of the page of a name; empty if there is none here."""
    get_cached: "_Cache" = lambda _, find: find()
    """Finds something once in each state of the records."""

    def to(self, name: str, text: str | None = None) -> TextLink:
        """Return a name, or another text for it, as a link if the name resolves here."""
        return TextLink(to_visible(name if text is None else text, MAX_NAME), self.path_of(name))


def render_rows(values: Iterable[Value], links: LinkBuilder, handle_types: Container[str]) -> ValueRows:
    """Write the rows of a table of values."""
    budget = MAX_PAGE
    rows: tuple[list[str], list[str]] = ([], [])
    for value in values:
        limit, is_handle = MAX_SHOWN if budget > 0 else MAX_SHORT, fold(value.type) in handle_types
        is_system = value.type[:3].upper() == _SYSTEM
        if is_system and len(value.data) <= MAX_CACHED_DATA:  # administrators, most often: many records have the same
            key = (get_language(), links.settings, value.type, value.data, limit, is_handle)
            cells = links.get_cached(key, partial(_describe_cells, value, links, limit, is_handle=is_handle))
        else:
            cells = _describe_cells(value, links, limit, is_handle=is_handle)
        budget -= cells.length
        rows[is_system].append(_row(value, cells))
    described, system = map(Markup, map("\n".join, rows))
    return ValueRows(described, system, len(rows[1]))


def describe_data(value: Value, links: LinkBuilder, limit: int = MAX_SHOWN) -> tuple[tuple[Line, ...], str]:
    """Return the lines that show a value, and a note."""
    if value.type in _PLAIN_TYPES:
        return _describe_text(value.data, links, limit)
    if has_type(value.type, HS_SECKEY):
        return (), _("not shown: secret key")
    return _describe_content(interpret(value), links, limit) or _describe_text(value.data, links, limit)


def _describe_content(content: Data | None, links: LinkBuilder, limit: int) -> tuple[tuple[Line, ...], str] | None:
    """Describe structured data; None if its bytes say all."""
    match content:
        case Admin():
            administrator = content.administrator
            key = _("key {index} of").format(index=administrator.index) if administrator.index else _("any key of")
            rest = TextLink(f": {describe_permissions(content.permissions)}")
            return ((TextLink(f"{key} "), links.to(administrator.handle), rest),), ""
        case ValueList():
            lines = [(TextLink(f"{each.index}:"), links.to(each.handle)) for each in content.entries[:MAX_LINES]]
            more = len(content.entries) - len(lines)
            return tuple(lines), _("and {count} more").format(count=f"{more:,}") if more else ""
        case PublicKey():
            return ((TextLink(content.fingerprint),),), ""
        case Site():
            return _describe_site(content)
        case Email():
            return ((mail_link(content.text, links.settings),),), _truncation_note(content.text, limit)
        case Alias() | ServiceHandle():
            return ((links.to(content.text),),), _truncation_note(content.text, limit)
    return None


def _describe_text(data: bytes, links: LinkBuilder, limit: int) -> tuple[tuple[Line, ...], str]:
    text = decode_printable(data)
    if text is None:
        return _hex_dump(data, limit)
    if text[: len(_HDL)].lower() == _HDL:
        name = ""
        if len(text) <= len(_HDL) + MAX_ENCODED_LENGTH:
            with suppress(InvalidName):
                name = str(parse_user_input(text, for_lookup=True).handle)
        return ((links.to(name, text),),), _truncation_note(text, MAX_NAME)
    return ((to_link(text, links.settings, limit),),), _truncation_note(text, limit)


def _describe_locations(value: Value, links: LinkBuilder) -> tuple[tuple[Line, ...], str] | None:
    """Describe a list of locations by its URLs and their attributes; None for other values, or if it has no URLs."""
    is_short = has_type(value.type, LOCATIONS) and len(value.data) <= MAX_LOCATIONS
    content = interpret(value) if is_short else None
    if not isinstance(content, Locations):
        return None
    lines: list[Line] = []
    for each in content.locations:
        words = _format_attributes([pair for pair in each.attributes if pair[0] not in _LOCATION_NAMES])
        rest = (TextLink(f" ({words})"),) if words else ()
        if each.href:
            lines.append((to_link(each.href, links.settings), *rest))
        elif each.href_template:
            lines.append((TextLink(to_visible(each.href_template)), *rest))
    return (tuple(lines), _format_attributes(content.root.attributes)) if lines else None


def _format_attributes(attributes: Iterable[tuple[str, str]]) -> str:
    return to_visible(", ".join([f"{name}: {text}" for name, text in attributes]))


def link_type(type_: str, links: LinkBuilder) -> TextLink:
    """Return a type, linked if it is a handle or is registered under `0.TYPE`."""
    if "/" not in type_ and (fold(type_) in _KNOWN_TYPES or (fold(type_).startswith(_SYSTEM) and "." not in type_)):
        return links.to(f"{_TYPES}/{type_}", type_)
    return links.to(type_)


class _Cells(NamedTuple):
    """What a row shows besides index and time."""

    type: str
    data: str
    """As HTML."""
    length: int
    """Characters of data that are shown."""


def _describe_cells(value: Value, links: LinkBuilder, limit: int, *, is_handle: bool) -> _Cells:
    lines, note = _describe_locations(value, links) or describe_data(value, links, limit)
    if is_handle and len(value.data) <= MAX_ENCODED_LENGTH:
        handle = first_valid([value], parse_stored_party)
        lines = lines if handle is None else ((links.to(str(handle), value.data.decode()),),)
    data = "".join([f"<div>{''.join(map(to_html, line))}</div>" for line in lines])
    if note:
        data += f'<div class="quiet">{escape(note)}</div>'
    key, find_type = (get_language(), links.settings, value.type), partial(_describe_type, value.type, links)
    type_ = links.get_cached(key, find_type) if len(value.type) <= MAX_CACHED_TYPE else find_type()
    return _Cells(type_, data, sum([len(piece.text) for line in lines for piece in line]))


def _describe_type(type_: str, links: LinkBuilder) -> str:
    """The cell of a type, as HTML."""
    text = type_to_html(link_type(type_, links))
    words = explain_type(type_)
    return f'<div>{text}</div><div class="quiet">{words}</div>' if words else text


def _row(value: Value, cells: _Cells) -> str:
    """One row as HTML; times are in ISO 8601, which a script shows in the reader's zone."""
    labels = _labels()
    return (
        f'<tr data-index="{value.index}"><td data-label="{labels[0]}" class="type">{cells.type}</td>'
        f'<td data-label="{labels[1]}" class="data">{cells.data}</td>'
        f'<td data-label="{labels[2]}" class="time">{_time(value.timestamp)}</td>'
        f'<td data-label="{labels[3]}" class="number">{value.index}</td></tr>'
    )


@lru_cache(MAX_CACHED_TIMES)
def _time(seconds: int) -> str:
    text = to_iso(seconds)
    return f'<time datetime="{text}">{text}</time>' if seconds else "–"


@cache
def _labels() -> tuple[str, ...]:
    """The headings of the columns, for each cell on a phone."""
    return tuple(map(escape, (_("Type"), _("Data"), _("Changed"), _("Index"))))


def explain_type(type_: str) -> Markup:
    """What a type of the Handle System is for, as HTML; empty for other types."""
    return _explanations().get(fold(type_).partition(".")[0], _NOTHING)


@cache
def _explanations() -> dict[str, Markup]:
    """What the types of the Handle System are for."""
    texts = {
        HS_ADMIN: _("Who can change this record"),
        HS_VLIST: _("A group of keys"),
        HS_PUBKEY: _("A public key, to authenticate its owner"),
        HS_SECKEY: _("A secret key, to authenticate its owner"),
        HS_SITE: _("The servers of a prefix"),
        HS_SERV: _("The handle that names the servers of a prefix"),
        HS_NA_DELEGATE: _("The servers of derived prefixes"),
        HS_NAMESPACE: _("Settings of a prefix"),
        HS_ALIAS: _("The handle that this one is another name of"),
        HS_SIGNATURE: _("A signature of other values"),
        HS_CERT: _("A certificate of a key"),
    }
    return {type_: Markup(escape(text)) for type_, text in texts.items()}  # noqa: S704 - it is escaped


@lru_cache(MAX_CACHED_PERMISSIONS)
def describe_permissions(permissions: AdminPermission) -> str:
    """The permissions of an administrator in words."""
    if permissions & ALL_PERMISSIONS == ALL_PERMISSIONS:
        return _("all permissions")
    words = {
        AdminPermission.ADD_HANDLE: _("create handles"),
        AdminPermission.DELETE_HANDLE: _("delete handles"),
        AdminPermission.ADD_NA: _("create derived prefixes"),
        AdminPermission.DELETE_NA: _("delete derived prefixes"),
        AdminPermission.READ_VALUE: _("read private values"),
        AdminPermission.MODIFY_VALUE: _("change values"),
        AdminPermission.REMOVE_VALUE: _("remove values"),
        AdminPermission.ADD_VALUE: _("add values"),
        AdminPermission.MODIFY_ADMIN: _("change administrators"),
        AdminPermission.REMOVE_ADMIN: _("remove administrators"),
        AdminPermission.ADD_ADMIN: _("add administrators"),
        AdminPermission.LIST_HANDLES: _("list handles"),
    }
    return ", ".join([text for bit, text in words.items() if bit in permissions]) or _("no permissions")


for _forget in (_labels.cache_clear, _explanations.cache_clear, describe_permissions.cache_clear):
    on_change(_forget)


def _describe_site(site: Site) -> tuple[tuple[Line, ...], str]:
    count = len(site.servers)
    kind = _("primary site") if site.is_primary else _("mirror site")
    text = ngettext("{kind} with {count} server", "{kind} with {count} servers", count).format(kind=kind, count=count)
    lines = [(TextLink(to_visible(str(server.ip), MAX_SHORT)),) for server in site.servers[:MAX_LINES]]
    return ((TextLink(text),), *lines), ""


def _hex_dump(data: bytes, limit: int) -> tuple[tuple[Line, ...], str]:
    shown = min(MAX_HEX_BYTES, limit // 2)
    size = f"{len(data):,}"
    note = _("{size} bytes").format(size=size)
    if len(data) > shown:
        note = _("{size} bytes; the first {shown} are shown").format(size=size, shown=shown)
    return ((TextLink(data[:shown].hex().upper()),),), note


def _truncation_note(text: str, limit: int) -> str:
    if len(text) <= limit:
        return ""
    note = _("{size} characters; the first {shown} are shown")
    return note.format(size=f"{len(text):,}", shown=f"{limit:,}")
