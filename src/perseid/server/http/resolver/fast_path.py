"""Redirections and records at once, from the answers view: the octets of the answer before anything else is begun.

Most requests are alike: a plain GET for a name of plain letters, with headers that the request before had too, for a
record that leads to one place. Those are answered here, in the event loop, in a few microseconds. Whatever is not so
gives None, and the usual way is taken, which reads the ledger and knows everything. The octets are the same as there;
tests compare the two for generated records and requests.

What is looked at here and what is not:

- The path is `/{name}`, `/{segment}/{name}` or `/api/handles/{name}`, without a query, an escape or a character that
  would need one. The prefix begins with a digit, so it is no path of the server's own.
- The headers hold no condition, no time of the past and, for the API, nothing that says who asks. What follows from
  them is found out once for all requests of a connection that have the same.
- The record is a published one, under the case rule that its namespace has now.
- It is redirected to its first URL if that is plain ASCII which goes out as it is, and if nothing else could have a say
  in it: an alias, locations, headers of the record, a namespace with places or words of its own.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from html import escape
from struct import error as StructError  # noqa: N812 - it is a class, whatever its module calls it
from typing import Final, NamedTuple, Protocol

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.entry import State
from perseid.records.value import TtlType
from perseid.registry.commands.conditions import TAG_LENGTH
from perseid.server.http import responses
from perseid.server.http.caching import MAX_AGE, etag_header
from perseid.server.http.compat.reading import NO_CACHE, VARY
from perseid.server.http.connection.requests import ParsedRequest
from perseid.server.http.connection.responses import encode_head, format_date
from perseid.server.http.context import HANDLE_SEGMENT, HttpSettings
from perseid.server.http.messages import HeaderList, Request, Response
from perseid.server.http.negotiation import VARY as VARIES_BY
from perseid.server.http.negotiation import parse_accept
from perseid.server.http.service import with_default_headers
from perseid.server.native.resolution import MAX_LEVELS, MAX_PLAIN_PREFIXES, ResolutionSettings
from perseid.server.native.selection import FastPathMiss, read_lengths

from .addresses import API_HANDLES_PATH, MAX_SIGNPOSTED_NAME, link_pieces
from .fast_json import HEAD, record_json
from .paths import get_segments
from .redirect import MAX_URL, redirect_page

CACHED_DATES: Final = 256
"""Dates that are kept as text: that of this second, and one for each TTL that is in use."""

# What may stand in a path as it is and means itself (RFC 3986): nothing that begins a query or an escape.
_PATH: Final = re.compile(rb"/(?:(api/handles)/|([A-Za-z]+)/)?(([1-9][0-9A-Za-z.]*)/[!$&-;=@-Z_a-z~]+)")
_AUTHORITY: Final = rb"://[A-Za-z0-9._~-]+(?::[0-9]*)?"
_REST: Final = rb"(?:[/?#][A-Za-z0-9\-._~!$()*,:@/;=+&'?#\[\]%]*)?"
_HTML_SPECIAL: Final = re.compile(rb"[&']")  # what may stand in such a URL and must not in a page
_NEEDS_ESCAPE: Final = re.compile(rb"&|/\.{0,2}(?:/|\Z)")  # in a name: what links to its record at the API escape

_CONDITIONS: Final = frozenset(
    ("accept-datetime", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "range")
)
_IDENTITY_HEADERS: Final = frozenset(("authorization", "origin"))

_HEAD_SIZE: Final = HEAD.size
_RELATIVE: Final = int(TtlType.RELATIVE)
_URL_TYPES: Final = frozenset((b"URL", b"0.TYPE/URL"))
_SPECIAL_TYPE_PREFIX: Final = b"10320/"  # how types begin by which a record has a say in its answers
_NAMESPACE: Final = b"HS_NAMESPACE"

# The first octet of a handle's item, and of a prefix's.
_STATE, _NORMAL, _EXACT, _LEADING_ON, _SPELLED = 0x07, State.NORMAL.value, 0x08, 0x20 | 0x40, 0x80
_HOMED, _CASE, _SENSITIVE, _UNUSED = 0x03, 0x30, 0x10, 0xC0
_CONTINUATION_BIT: Final = 0x80  # of an octet of a number in the view: another one follows

_FALLBACK_ERRORS: Final = (LedgerError, OSError, IndexError, ValueError, StructError, FastPathMiss)
"""What says that the usual way has to be taken: no view, a damaged one, a value that is none."""

_Stamp = tuple[int, int]


class View(Protocol):
    """What is needed of the answers view; `ledger.AnswersReader` is one."""

    def get_pair_stamped(self, prefix: bytes, name: bytes) -> tuple[bytes | None, bytes | None, _Stamp]:
        """The item of a prefix and the items of a handle, in one state of the view, and which state that is."""
        ...

    def get(self, name: bytes) -> bytes | None:
        """The items of a handle."""
        ...


class HeaderHints(NamedTuple):
    """What follows from the headers of a request."""

    reads: bool
    """Whether the API may answer it at once."""
    leads: bool
    """Whether it may be redirected at once."""


class FastPath:
    """Answers what can be answered at once."""

    def __init__(self, view: View, site: ResolutionSettings, settings: HttpSettings, time: Callable[[], float]) -> None:
        self._view = view
        self._time = time
        self._alone = site.servers == 1
        self._default_sensitive = site.default_sensitive
        self._bare = settings.bare
        self._segments = frozenset([segment.encode() for segment in get_segments(settings)])
        web = b"|".join([scheme for scheme in (b"https", b"http") if scheme.decode() in settings.schemes])
        self._url = re.compile(b"(?:%b)%b%b" % (web, _AUTHORITY, _REST)) if web else None
        self._plain: dict[bytes, bytes] = {}
        self._leading: dict[bytes, _Stamp] = {}
        pieces = link_pieces("/" if settings.bare else f"/{HANDLE_SEGMENT}/", settings) if settings.public_url else ()
        self._links = [piece.encode() for piece in pieces]
        self._gate = f"<{settings.public_url}{API_HANDLES_PATH}".encode() if settings.public_url else b""
        linked: HeaderList = (("Link", _PLACEHOLDERS[3]),) if self._gate else ()
        self._kept_record = _record_template(("Cache-Control", f"public, max-age={_PLACEHOLDERS[0]}"), linked)
        self._unkept_record = _record_template(("Cache-Control", NO_CACHE), linked)
        self._redirection = _template(
            Response(
                settings.redirect_status,
                (
                    ("Location", _PLACEHOLDERS[0]),
                    ("Expires", _PLACEHOLDERS[1]),
                    ("Cache-Control", f"public, max-age={_PLACEHOLDERS[2]}"),
                    ("Vary", VARIES_BY),
                    *([("Link", _PLACEHOLDERS[3])] if self._links else []),
                    ("Content-Type", "text/html;charset=utf-8"),
                ),
            ),
            b"/x",
        )

    def __call__(self, request: ParsedRequest) -> tuple[bytes, bytes] | None:
        """The octets of an answer and the name that it is about; None if the usual way has to be taken."""
        if not self._alone or not request.keep or request.version != "1.1":
            return None
        whole = request.method == "GET"
        if not whole and request.method != "HEAD":
            return None
        path = _PATH.fullmatch(request.target)
        if path is None:
            return None
        noted = request.fields.noted
        if not isinstance(noted, HeaderHints):
            noted = request.fields.noted = _read_hints(request)
        api, segment, name, prefix = path.groups()
        try:
            if api is not None:
                data = self._record(prefix, name, whole=whole) if noted.reads else None
            elif noted.leads and (segment in self._segments if segment else self._bare):
                data = self._redirect(prefix, name, whole=whole)
            else:
                data = None
        except _FALLBACK_ERRORS:
            return None
        return None if data is None else (data, name)

    # Answers

    def _record(self, prefix: bytes, name: bytes, *, whole: bool) -> bytes | None:
        if len(name) > MAX_SIGNPOSTED_NAME or _NEEDS_ESCAPE.search(name):
            return None
        about, items, _ = self._view.get_pair_stamped(prefix, name)
        if items is None or about is None or not (about == self._plain.get(prefix) or self._is_plain(prefix, about)):
            return None
        item = _plain_item(items)
        if item is None:
            return None
        _, at, lengths = item
        now = self._time()
        body, least = record_json(name, items, at, lengths, int(now))
        tag = hashlib.sha256(items[at:]).hexdigest()[:TAG_LENGTH].encode()
        link = (b'%b%b>; rel="original timegate"' % (self._gate, name),) if self._gate else ()
        date, length = _date(int(now)), b"%d" % len(body)
        if least is None:
            head = self._unkept_record % (tag, *link, date, length)
        else:
            head = self._kept_record % (b"%d" % least, tag, *link, date, length)
        return head + body if whole else head

    def _redirect(self, prefix: bytes, name: bytes, *, whole: bool) -> bytes | None:
        if prefix in self._segments or self._url is None:
            return None
        about, items, stamp = self._view.get_pair_stamped(prefix, name)
        if items is None or about is None or not (about == self._plain.get(prefix) or self._is_plain(prefix, about)):
            return None
        item = _plain_item(items)
        if item is None or item[0] & _LEADING_ON:
            return None
        if self._leading.get(prefix) != stamp and not self._leads(prefix, stamp):
            return None
        now = int(self._time())
        found = _first_url(items, item[1], item[2])
        if found is None:
            return None
        url, seconds = found
        if len(url) > MAX_URL or self._url.fullmatch(url) is None:
            return None
        encoded = prefix + b"/" + name[len(prefix) + 1 :].replace(b"/", b"%2F")
        if len(encoded) > MAX_SIGNPOSTED_NAME or encoded.endswith((b"/.", b"/..")):
            return None
        shown = escape(url.decode("ascii")).encode() if _HTML_SPECIAL.search(url) else url
        body = redirect_page(shown, shown)
        head = self._redirection % (
            url,
            _date(now + seconds),
            b"%d" % seconds,
            *((encoded.join(self._links),) if self._links else ()),
            _date(now),
            b"%d" % len(body),
        )
        return head + body if whole else head

    # Namespaces

    def _is_plain(self, prefix: bytes, about: bytes) -> bool:
        """Whether names of a prefix are served here and letters are not told apart; noted while its item is this."""
        head = about[0]
        case = head & _CASE
        if head & _UNUSED or not head & _HOMED or (not case and about[1]):
            return False
        if case == _SENSITIVE or (not case and self._default_sensitive):
            return False
        if len(self._plain) >= MAX_PLAIN_PREFIXES:
            self._plain.clear()
        self._plain[prefix] = about
        return True

    def _leads(self, prefix: bytes, stamp: _Stamp) -> bool:
        """Whether no namespace has a say in where names of a prefix lead; noted while the view is in this state."""
        if any(_NAMESPACE in (self._view.get(b"0.NA/" + each) or b"").upper() for each in _with_ancestors(prefix)):
            return False
        if len(self._leading) >= MAX_PLAIN_PREFIXES:
            self._leading.clear()
        self._leading[prefix] = stamp
        return True


def _read_hints(request: ParsedRequest) -> HeaderHints:
    """What follows from headers, whatever the request is for."""
    names = {name for name, _ in request.headers}
    if names & _CONDITIONS:
        return HeaderHints(reads=False, leads=False)
    reads = not names & _IDENTITY_HEADERS and request.client.certificate is None
    return HeaderHints(reads, leads=parse_accept(request.all("accept")).named_form is None)


def _plain_item(data: bytes) -> tuple[int, int, Sequence[int]] | None:
    """The head of an item, where its values begin and how long each is; None if it is not as most are.

    That is: a single published one in a namespace that does not tell letters apart, and not so large that others would
    have to wait while it is written out.
    """
    if len(data) > responses.MAX_INLINE_BYTES:
        return None
    head = data[0]
    at = 1
    if head & _SPELLED:
        at = data[1]
        if at & _CONTINUATION_BIT:
            return None
        at += 2
    if head & _EXACT or head & _STATE != _NORMAL:
        return None
    count = data[at]
    values_at = at + 1 + count
    lengths: Sequence[int] = data[at + 1 : values_at]
    if count & _CONTINUATION_BIT or not data[at + 1 : values_at].isascii():
        lengths, values_at = read_lengths(data, at)
    if not lengths or values_at + sum(lengths) != len(data):
        return None
    return head, values_at, lengths


def _first_url(data: bytes, at: int, lengths: Sequence[int]) -> tuple[bytes, int] | None:
    """The first URL among values, and for how many seconds they may be kept; None if the record says more than that."""
    url: bytes | None = None
    least = MAX_AGE
    unpack = HEAD.unpack_from
    for length in lengths:
        _, _, ttl_type, ttl, _, size = unpack(data, at)
        type_at = at + _HEAD_SIZE
        type_end = type_at + size
        type_ = data[type_at:type_end].upper()
        if ttl_type != _RELATIVE or type_.startswith(_SPECIAL_TYPE_PREFIX):
            return None
        if ttl < least:  # noqa: PLR1730 - a call for each value of each record would take longer than all else here
            least = ttl
        if url is None and type_ in _URL_TYPES:
            data_at = type_end + 4
            url = data[data_at : data_at + int.from_bytes(data[type_end:data_at], "big")]
        at += length
    return None if url is None else (url, max(0, least))


def _with_ancestors(prefix: bytes) -> list[bytes]:
    """A prefix and those that it is derived from; far more than any has, or those that anybody makes up."""
    parts = prefix.split(b".")
    found = [b".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    if len(found) > MAX_LEVELS:
        raise ValueError("a prefix of so many parts is for others to look at")
    return found


# Heads of answers, as the usual way writes them


@lru_cache(CACHED_DATES)
def _date(second: int) -> bytes:
    return format_date(second).encode()


_PLACEHOLDERS: Final = ("mark-0", "mark-1", "mark-2", "mark-3")


def _template(response: Response, path: bytes) -> bytes:
    """The head of an answer with a place for each mark, the date and the length, in the order in which they stand."""
    data = encode_head(with_default_headers(Request("GET", path), response), version="1.1", keep=True, seconds=0)
    for text in (*_PLACEHOLDERS, format_date(0), "Content-Length: 0"):
        place = b"Content-Length: \0" if text.startswith("Content-Length") else b"\0"
        data = data.replace(text.encode(), place)
    return data.replace(b"%", b"%%").replace(b"\0", b"%b")


def _record_template(age: tuple[str, str], links: HeaderList) -> bytes:
    headers: HeaderList = (age, VARY, etag_header(_PLACEHOLDERS[1]), *links, responses.DEFAULT_FORMAT.content_type)
    return _template(Response(200, headers), b"/api/handles/1/x")
