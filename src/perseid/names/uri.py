"""Handles in URIs (U1–U8), for machines: what does not follow the grammar is refused.

The grammar is RFC 3986, sections 3.2.2 to 3.5:

    pchar    = unreserved / pct-encoded / sub-delims / ":" / "@"
    segment  = *pchar
    reg-name = *( unreserved / pct-encoded / sub-delims )
    query    = *( pchar / "/" / "?" )          fragment = the same

and a handle takes one of three forms, each with an optional query and fragment:

    host form   hdl://NA/LOCAL                      NA a registered name, LOCAL a segment
    path form   hdl:NA/LOCAL                        both segments
    HTTP form   http(s)://AUTHORITY/[SEGMENT/]NA/LOCAL

A segment is percent-decoded once, as UTF-8. Query and fragment are not part of the handle; they are handed on as
they stand, undecoded, because their meaning is open. For what people type see `human`.

Names as people type and paste them (U7): search boxes, command lines, never machine interfaces.

Accepted are bare handles, the URI forms with their slips (`hdl:/NA/LOCAL`, unescaped slashes and letters in the
suffix), `doi:` and `info:` prefixes and the URLs of known resolvers, with blanks around them and the mark (U+FEFF)
before them with which some editors begin a file.

A bare handle is literal: "?", "#" and "%" in it belong to the name. In a URI form "?" and "#" begin query and
fragment and escapes are decoded, once.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self
from urllib.parse import quote

from ._unicode_table import BLANKS
from .characters import surrogate_error
from .errors import InvalidName, NameMisuse, format_character, quote_text
from .handle import Handle

# Letters, digits and "-._~" never need encoding; `quote` knows that by itself.
_SUB_DELIMS = "!$&'()*+,;="
_REG_NAME_SAFE = _SUB_DELIMS
_SEGMENT_SAFE = _SUB_DELIMS + ":@"
QUERY_SAFE = _SEGMENT_SAFE + "/?"
"""What a query or fragment may hold unencoded besides letters, digits and "-._~"."""


def _sequence(safe: str) -> str:
    """The pattern of the grammar's `*( unreserved / pct-encoded / … )`; atomic, so that it takes linear time."""
    # Not with possessive quantifiers: around a group Python 3.11.0 to 3.11.4 gets them wrong.
    plain = rf"[A-Za-z0-9\-._~{safe}]*"
    return f"(?>{plain}(?:%[0-9A-Fa-f]{{2}}{plain})*)"


QUERY = _sequence(QUERY_SAFE)
"""The pattern of a query or fragment."""

_TAIL = rf"(?:\?({QUERY}))?(?:#({QUERY}))?"
_AFTER_HOST = re.compile(f"({_sequence(_REG_NAME_SAFE)})/({_sequence(_SEGMENT_SAFE)}){_TAIL}")
_AFTER_PATH = re.compile(f"({_sequence(_SEGMENT_SAFE)})/({_sequence(_SEGMENT_SAFE)}){_TAIL}")
# What the above does not match, these explain.
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_NOT_REG_NAME = re.compile(rf"[^A-Za-z0-9\-._~%{_REG_NAME_SAFE}]")
_NOT_SEGMENT = re.compile(rf"[^A-Za-z0-9\-._~%{_SEGMENT_SAFE}]")
_NOT_QUERY = re.compile(rf"[^A-Za-z0-9\-._~%{QUERY_SAFE}]")
# ASCII: without it "\u017f" (long s) would be an "s" regardless of case.
_HDL = re.compile("hdl:", re.IGNORECASE | re.ASCII)
_HTTP = re.compile("https?://", re.IGNORECASE | re.ASCII)
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9\-._~]+|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{1,5}))?")
_MAX_PORT = 65_535
_ESCAPES = re.compile("%..(?:%..)*")  # in text without bad escapes
_TOKEN = re.compile("%[0-9A-Fa-f]{2}|.", re.DOTALL)
_CONTINUATION = re.compile("%[89ABab][0-9A-Fa-f]")  # an escape that continues a character begun before it
_DEFAULT_PORT = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Reference:
    """What a URI says: a handle, and the query and fragment that stood beside it."""

    handle: Handle
    """The name itself, decoded."""
    query: str | None = None
    """What follows "?", still percent-encoded; None if there is no "?"."""
    fragment: str | None = None
    """What follows "#", still percent-encoded; None if there is no "#"."""

    def __post_init__(self) -> None:
        if self.query is None and self.fragment is None:
            return
        for label, text in (("query", self.query), ("fragment", self.fragment)):
            if text is not None and (_NOT_QUERY.search(text) or _BAD_ESCAPE.search(text)):
                raise NameMisuse("U5", f"the {label} {text!r} is not percent-encoded as RFC 3986 demands")

    @property
    def tail(self) -> str:
        """Query and fragment with their marks, ready to be put behind any form."""
        query = "" if self.query is None else "?" + self.query
        return query if self.fragment is None else f"{query}#{self.fragment}"


@dataclass(frozen=True, slots=True)
class Resolver:
    """What an HTTP resolver declares (U4): where it is and which first segment it requires, if any."""

    authority: str
    """Host and port, in lower case, without the scheme's default port."""
    segment: str | None = None
    """The first segment of every path, e.g. `hdl`."""
    scheme: str = "https"
    """What to write; `http` and `https` are both read."""

    def __post_init__(self) -> None:
        try:
            authority = _canonical_authority(self.authority, self.scheme, 0) if self.scheme in _DEFAULT_PORT else None
        except InvalidName:
            authority = None
        segment = "" if self.segment is None else self.segment or "/"  # an empty one is as wrong as a slash
        if authority != self.authority or _NOT_SEGMENT.search(segment) or _BAD_ESCAPE.search(segment):
            raise NameMisuse("U4", f"{self!r} is no resolver; use Resolver.parse for text from outside")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take a declaration as people write it: `https://hdl.handle.net`, `http://example.org/hdl`."""
        scheme, mark, rest = text.partition("://")
        scheme = scheme.lower()
        if not mark or scheme not in _DEFAULT_PORT:
            message = f"a resolver is named as http(s)://HOST[/SEGMENT]; {quote_text(text)} is not"
            raise InvalidName("U4", message, position=0)
        authority, _, segment = rest.partition("/")
        authority = _canonical_authority(authority, scheme, len(text) - len(rest))
        start = len(text) - len(segment)
        segment = segment.removesuffix("/")
        if found := _NOT_SEGMENT.search(segment):
            message = f"{format_character(found.group())} cannot stand in the one segment a resolver may require"
            raise InvalidName("U4", message, position=start + found.start(), character=found.group())
        check_escapes(text, start, start + len(segment))
        return cls(authority, segment or None, scheme)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}" + (f"/{self.segment}" if self.segment else "")


def to_host(reference: Reference) -> str:
    """The host form, `hdl://NA/LOCAL` (U2)."""
    handle = reference.handle
    return f"hdl://{quote(handle.prefix, _REG_NAME_SAFE)}/{quote(handle.suffix, _SEGMENT_SAFE)}{reference.tail}"


def to_path(reference: Reference) -> str:
    """The path form, `hdl:NA/LOCAL` (U3); the shortest, and the one to cite."""
    return f"hdl:{_format_path(reference)}"


def to_http(reference: Reference, resolver: Resolver) -> str:
    """The HTTP form at a resolver (U4)."""
    return f"{resolver}/{_format_path(reference)}"


def parse_uri(text: str, resolvers: Sequence[Resolver] = (), *, for_lookup: bool = False) -> Reference:
    """Read the host form, the path form, or the HTTP form of one of the given resolvers; refuse all else.

    A reference without a scheme is ambiguous and refused (U7): bare handles are `Handle.parse`'s.

    With `for_lookup` the handle need not be legal here (H2, H3): another server may have registered it and it may
    have been imported. The form of the URI is demanded all the same.
    """
    parse_handle = get_handle_parser(for_lookup)
    if _HDL.match(text):
        if text.startswith("//", 4):
            return _parse_form(text, 6, _AFTER_HOST, _NOT_REG_NAME, parse_handle)
        return _parse_form(text, 4, _AFTER_PATH, _NOT_SEGMENT, parse_handle)
    if _HTTP.match(text):
        return _parse_form(text, _path_start(text, resolvers), _AFTER_PATH, _NOT_SEGMENT, parse_handle)
    message = 'a URI of a handle begins with "hdl:" or with the address of a known resolver'
    raise InvalidName("U7", message, position=0)


def get_handle_parser(for_lookup: bool) -> Callable[[str], Handle]:
    """The function that takes a bare handle: for look-up, or else for registration."""
    return Handle.parse_lenient if for_lookup else Handle.parse


def match_resolver(text: str, resolvers: Sequence[Resolver]) -> tuple[Resolver, int] | None:
    """The resolver that an HTTP URL belongs to, and where in the text the handle's path begins."""
    scheme, _, rest = text.partition("://")
    authority, slash, path = rest.partition("/")
    # Outside ASCII lower case deceives: that of U+212A, the Kelvin sign, is a "k".
    authority = authority.lower().removesuffix(_DEFAULT_PORT[scheme.lower()]) if authority.isascii() else ""
    if not slash:
        return None
    start, found = len(text) - len(path), None
    for resolver in resolvers:
        if authority == resolver.authority:
            # One that requires a segment says more, so it comes first wherever it stands in the list.
            if resolver.segment is None:
                found = found or (resolver, start)
            elif path.startswith(resolver.segment + "/"):
                return resolver, start + len(resolver.segment) + 1
    return found


def decode_handle(text: str, start: int, slash: int, end: int, parse_handle: Callable[[str], Handle]) -> Handle:
    """Percent-decode `text[start:end]` once, prefix and suffix apart, and `take` the handle.

    `slash` is where the separator stands; bad escapes have been refused before. Positions in errors are those in the
    whole text.
    """
    prefix, suffix = text[start:slash], text[slash + 1 : end]
    if "%" in prefix:
        prefix = _decode(text, start, slash)
        if "/" in prefix:
            position = _encoded_position(text, start, end, prefix.index("/"))
            raise InvalidName("H2", "%2F in the prefix: a prefix holds no slash", position=position, character="/")
    if "%" in suffix:
        suffix = _decode(text, slash + 1, end)
    try:
        return parse_handle(f"{prefix}/{suffix}")
    except InvalidName as problem:
        index = problem.position
        raise problem.with_position(None if index is None else _encoded_position(text, start, end, index)) from None


def split_tail(text: str, start: int) -> tuple[int, str | None, str | None]:
    """Cut query and fragment off: where the rest ends, the query, the fragment (U6)."""
    rest, sharp, fragment = text[start:].partition("#")
    path, mark, query = rest.partition("?")
    return start + len(path), query if mark else None, fragment if sharp else None


def _format_path(reference: Reference) -> str:
    handle = reference.handle
    return f"{quote(handle.prefix, _SEGMENT_SAFE)}/{quote(handle.suffix, _SEGMENT_SAFE)}{reference.tail}"


def _path_start(text: str, resolvers: Sequence[Resolver]) -> int:
    if found := match_resolver(text, resolvers):
        return found[1]
    known = ", ".join(map(str, resolvers)) or "none is"
    raise InvalidName("U4", f"this is not the address of a known resolver ({known} known)", position=0)


def _parse_form(
    text: str,
    start: int,
    form: re.Pattern[str],
    forbidden_in_prefix: re.Pattern[str],
    parse_handle: Callable[[str], Handle],
) -> Reference:
    """Read NA/LOCAL with its tail from `start` on."""
    found = form.fullmatch(text, start)
    if found is None:
        raise _make_error(text, start, forbidden_in_prefix)
    query, fragment = found.group(3, 4)
    return Reference(decode_handle(text, start, found.end(1), found.end(2), parse_handle), query, fragment)


def _make_error(text: str, start: int, forbidden_in_prefix: re.Pattern[str]) -> InvalidName:
    """What is wrong with a text that does not follow the grammar from `start` on."""
    end, query, fragment = split_tail(text, start)
    slash = text.find("/", start, end)
    if slash < 0:
        return InvalidName("H1", 'there is no "/" between prefix and suffix', position=end)
    if slash == start:
        return InvalidName("H1", 'the prefix (before the "/") is empty', position=start)
    extra = text.find("/", slash + 1, end)
    if extra >= 0:
        message = 'after the prefix there is one segment only; a "/" inside the suffix is written %2F'
        return InvalidName("U5", message, position=extra, character="/")
    parts = (
        (start, slash, forbidden_in_prefix),
        (slash + 1, end, _NOT_SEGMENT),
        (end + 1, end + 1 + len(query or ""), _NOT_QUERY),
        (len(text) - len(fragment or ""), len(text), _NOT_QUERY),
    )
    return next(
        part_error
        for part in parts
        if (part_error := _find_forbidden(text, *part) or _find_bad_escape(text, *part[:2]))
    )


def _find_forbidden(text: str, start: int, end: int, forbidden: re.Pattern[str]) -> InvalidName | None:
    """The objection to the first forbidden character in `text[start:end]`."""
    found = forbidden.search(text, start, end)
    if found is None:
        return None
    character = found.group()
    surrogate = "\ud800" <= character <= "\udfff"
    advice = "has no UTF-8 form" if surrogate else f"must be percent-encoded here, as {quote(character, safe='')}"
    return InvalidName("U5", f"{format_character(character)} {advice}", position=found.start(), character=character)


def _find_bad_escape(text: str, start: int, end: int) -> InvalidName | None:
    """The objection to the first "%" in `text[start:end]` that does not begin an escape."""
    found = _BAD_ESCAPE.search(text, start, end)
    if found is None:
        return None
    message = '"%" must be followed by two hexadecimal digits; a "%" of the name itself is written %25'
    return InvalidName("U5", message, position=found.start(), character="%")


def check_escapes(text: str, start: int, end: int) -> None:
    """Refuse a "%" in `text[start:end]` that does not begin an escape."""
    if escape_error := _find_bad_escape(text, start, end):
        raise escape_error


def _decode(text: str, start: int, end: int) -> str:
    def decode(escapes: re.Match[str]) -> str:
        try:
            return bytes.fromhex(escapes.group().replace("%", "")).decode()
        except UnicodeDecodeError as error:
            message = f"the escapes {quote_text(escapes.group())} do not decode to UTF-8, the only encoding names have"
            position = start + escapes.start() + 3 * error.start
            raise InvalidName("U5", message, position=position, character="%") from None

    return _ESCAPES.sub(decode, text[start:end])


def _encoded_position(text: str, start: int, end: int, index: int) -> int:
    """Where in `text[start:end]` the character is written that has this index after decoding."""
    tokens = (found for found in _TOKEN.finditer(text, start, end) if not _CONTINUATION.match(found.group()))
    return next((found.start() for found in islice(tokens, index, None)), end)


def _canonical_authority(authority: str, scheme: str, start: int) -> str:
    """Host and port in lower case, without the default port; `start` is where they stand in the text."""
    found = _AUTHORITY.match(authority)
    end = found.end() if found else 0
    if found is None or end < len(authority):
        message = f"{quote_text(authority)} is not a host with an optional port"
        raise InvalidName("U4", message, position=start + end, character=authority[end : end + 1] or None)
    address, port = found.groups()
    if port is not None and not 0 < int(port) <= _MAX_PORT:
        raise InvalidName("U4", f"there is no port {port}: they are 1 to {_MAX_PORT}", position=start + found.start(2))
    if address is not None and not _is_ipv6(address):
        raise InvalidName("U4", f"{quote_text(address)} is no IPv6 address", position=start + found.start(1))
    return authority.lower().removesuffix(_DEFAULT_PORT[scheme])


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


KNOWN_RESOLVERS = tuple(
    map(
        Resolver.parse,
        (
            "https://hdl.handle.net",
            "https://doi.org",
            "https://dx.doi.org",
            # The resolvers of the seed documents, as these spell them.
            "http://hld.handle.net",
            "http://resolver.net.au/hdl",
            "http://arrow.resolver.au.gov:2641/hdl",
        ),
    )
)
"""Resolvers whose URLs are understood without being told; whoever runs another one names it."""

STRIPPED_CHARACTERS = BLANKS + "\t\r\n"
"""What may stand around a name without being part of it."""

BYTE_ORDER_MARK = "\ufeff"

_URI = re.compile(rf"(?:(?:hdl|doi):[{BLANKS}]*(?://?)?|info:(?:hdl|doi)/|(https?://))", re.IGNORECASE | re.ASCII)


def parse_user_input(
    text: str, resolvers: Sequence[Resolver] = KNOWN_RESOLVERS, *, for_lookup: bool = False
) -> Reference:
    """Read a name in any form a person may use; with `for_lookup` also one that is not legal here: see `parse_uri`."""
    parse_handle = get_handle_parser(for_lookup)
    begin = len(text) - len(text.removeprefix(BYTE_ORDER_MARK).lstrip(STRIPPED_CHARACTERS))
    text = text.rstrip(STRIPPED_CHARACTERS)
    form = _URI.match(text, begin)
    if form is None:
        return Reference(_parse_bare(text, begin, parse_handle))
    if form.group(1) is None:
        return _parse_lenient_uri(text, form.end(), parse_handle)
    found = match_resolver(text[begin:], resolvers)
    if found is None:
        host = text[form.end() :].partition("/")[0]
        raise InvalidName("U4", f"{quote_text(host)} is not the address of a known resolver", position=begin)
    return _parse_lenient_uri(text, begin + found[1], parse_handle)


def _parse_bare(text: str, begin: int, parse_handle: Callable[[str], Handle]) -> Handle:
    try:
        return parse_handle(text[begin:])
    except InvalidName as problem:
        raise problem.with_position(None if problem.position is None else problem.position + begin) from None


def _parse_lenient_uri(text: str, start: int, parse_handle: Callable[[str], Handle]) -> Reference:
    end, query, fragment = split_tail(text, start)
    slash = text.find("/", start, end)
    if slash < 0:
        raise InvalidName("H1", 'there is no "/" between prefix and suffix', position=end)
    check_escapes(text, start, len(text))
    handle = decode_handle(text, start, slash, end, parse_handle)
    return Reference(handle, _encode_tail(query, end + 1), _encode_tail(fragment, len(text) - len(fragment or "")))


def _encode_tail(tail: str | None, offset: int) -> str | None:
    try:
        return None if tail is None else quote(tail, QUERY_SAFE + "%")
    except UnicodeEncodeError as error:
        raise surrogate_error(error, offset) from None
