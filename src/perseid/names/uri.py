"""Handles in URIs (U1–U8): strict parsing for machines, and lenient parsing of user input (U7).

The strict grammar is RFC 3986 §3.2.2–3.5:

    pchar    = unreserved / pct-encoded / sub-delims / ":" / "@"
    segment  = *pchar
    reg-name = *( unreserved / pct-encoded / sub-delims )
    query    = *( pchar / "/" / "?" )          fragment = the same

with three forms of a handle, each with an optional query and fragment:

    host form   hdl://NA/LOCAL                      NA a registered name, LOCAL a segment
    path form   hdl:NA/LOCAL                        both segments
    HTTP form   http(s)://AUTHORITY/[SEGMENT/]NA/LOCAL

A segment is percent-decoded once, as UTF-8. Query and fragment are not part of the handle; they are passed on
undecoded.

Clients remove segments of dots, encoded or not, before they send a request (RFC 3986 §5.2.4, WHATWG URL). So in the
HTTP form the slash before a suffix that is "." or ".." is encoded: `https://hdl.handle.net/10.1000%2F..`. The host form
has no such spelling; there the dots are encoded, which most programs keep.

User input (search boxes, command lines) can also be a bare handle, a URI with common typos (`hdl:/NA/LOCAL`,
unescaped slashes and letters in the suffix, an escaped slash before it) or a `doi:`, `info:` or `urn:` URI, with spaces
around it and a byte order mark before it. A bare handle is literal: "?", "#" and "%" belong to the name. In a URI, "?"
and "#" start the query and fragment, and escapes are decoded once.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Self
from urllib.parse import quote

from ._unicode_table import BLANKS
from .errors import InvalidName, NameMisuse, format_character, quote_text
from .handle import MAX_BYTES, Handle, missing_suffix, surrogate_error

# Besides letters, digits and "-._~", which `quote` never encodes.
_SUB_DELIMS = "!$&'()*+,;="
_REG_NAME_SAFE = _SUB_DELIMS
_SEGMENT_SAFE = _SUB_DELIMS + ":@"
QUERY_SAFE = _SEGMENT_SAFE + "/?"
"""Characters allowed unencoded in a query or fragment, besides letters, digits and "-._~"."""
_UNRESERVED = re.compile(r"[A-Za-z0-9\-._~]*")
_CACHED_NAMES = 64  # a page repeats a few names many times


def _sequence(safe: str) -> str:
    """Pattern for `*( unreserved / pct-encoded / … )`; atomic, so that it takes linear time."""
    # No possessive quantifiers: Python 3.11.0 to 3.11.4 has a bug with them around a group.
    plain = rf"[A-Za-z0-9\-._~{safe}]*"
    return f"(?>{plain}(?:%[0-9A-Fa-f]{{2}}{plain})*)"


QUERY = _sequence(QUERY_SAFE)
"""Pattern of a query or fragment."""

_TAIL = rf"(?:\?({QUERY}))?(?:#({QUERY}))?"
_AFTER_HOST = re.compile(f"({_sequence(_REG_NAME_SAFE)})/({_sequence(_SEGMENT_SAFE)}){_TAIL}")
_AFTER_PATH = re.compile(f"({_sequence(_SEGMENT_SAFE)})/({_sequence(_SEGMENT_SAFE)}){_TAIL}")
_DOTS = re.compile(rf"((?:[A-Za-z0-9\-._~{_SEGMENT_SAFE}]|%[0-9A-Fa-f]{{2}})+?)%2[Ff](\.\.?){_TAIL}")
DOT_SEGMENTS = (".", "..")
# For error messages about text that does not match the patterns above.
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_NOT_REG_NAME = re.compile(rf"[^A-Za-z0-9\-._~%{_REG_NAME_SAFE}]")
_NOT_SEGMENT = re.compile(rf"[^A-Za-z0-9\-._~%{_SEGMENT_SAFE}]")
_NOT_QUERY = re.compile(rf"[^A-Za-z0-9\-._~%{QUERY_SAFE}]")
# ASCII: without it "\u017f" (long s) would match "s".
_HDL = re.compile("hdl:", re.IGNORECASE | re.ASCII)
_HTTP = re.compile("https?://", re.IGNORECASE | re.ASCII)
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9\-._~]+|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{1,5}))?")
_MAX_PORT = 65_535
_ESCAPES = re.compile("%..(?:%..)*")  # in text without bad escapes
_TOKEN = re.compile("%[0-9A-Fa-f]{2}|.", re.DOTALL)
_CONTINUATION = re.compile("%[89ABab][0-9A-Fa-f]")  # an escape for a continuation byte
_DEFAULT_PORT = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A handle with the query and fragment of its URI."""

    handle: Handle
    """The handle, decoded."""
    query: str | None = None
    """The part after "?", still percent-encoded; None if there is no "?"."""
    fragment: str | None = None
    """The part after "#", still percent-encoded; None if there is no "#"."""

    def __post_init__(self) -> None:
        if self.query is None and self.fragment is None:
            return
        for label, text in (("query", self.query), ("fragment", self.fragment)):
            if text is not None and (_NOT_QUERY.search(text) or _BAD_ESCAPE.search(text)):
                raise NameMisuse("U5", f"the {label} {text!r} is not percent-encoded (RFC 3986)")

    @property
    def tail(self) -> str:
        """Query and fragment with "?" and "#", to append to any form."""
        query = "" if self.query is None else "?" + self.query
        return query if self.fragment is None else f"{query}#{self.fragment}"


@dataclass(frozen=True, slots=True)
class Resolver:
    """An HTTP resolver (U4): its address and the first path segment that it requires, if any."""

    authority: str
    """Host and port, in lowercase, without the scheme's default port."""
    segment: str | None = None
    """The first segment of every path, such as `hdl`."""
    scheme: str = "https"
    """The scheme to write; both `http` and `https` are read."""

    def __post_init__(self) -> None:
        try:
            authority = _canonical_authority(self.authority, self.scheme, 0) if self.scheme in _DEFAULT_PORT else None
        except InvalidName:
            authority = None
        segment = "" if self.segment is None else self.segment or "/"  # empty is as invalid as a slash
        if authority != self.authority or _NOT_SEGMENT.search(segment) or _BAD_ESCAPE.search(segment):
            raise NameMisuse("U4", f"{self!r} is not a resolver; use Resolver.parse for untrusted text")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `https://hdl.handle.net` or `http://example.org/hdl`."""
        scheme, mark, rest = text.partition("://")
        scheme = scheme.lower()
        if not mark or scheme not in _DEFAULT_PORT:
            message = f"{quote_text(text)} is not a resolver; write http(s)://HOST[/SEGMENT]"
            raise InvalidName("U4", message, position=0)
        authority, _, segment = rest.partition("/")
        authority = _canonical_authority(authority, scheme, len(text) - len(rest))
        start = len(text) - len(segment)
        segment = segment.removesuffix("/")
        if match := _NOT_SEGMENT.search(segment):
            message = f"{format_character(match.group())} is not allowed in the segment of a resolver"
            raise InvalidName("U4", message, position=start + match.start(), character=match.group())
        check_escapes(text, start, start + len(segment))
        return cls(authority, segment or None, scheme)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}" + (f"/{self.segment}" if self.segment else "")


def own_resolvers(public_url: str, segments: Iterable[str]) -> tuple[Resolver, ...]:
    """The resolvers of a server with this public URL; an empty segment is the form without one."""
    resolvers = []
    for segment in segments if public_url else ():
        with suppress(InvalidName):  # a public URL with a path has no room for another segment
            resolvers.append(Resolver.parse(f"{public_url}/{segment}"))
    return tuple(resolvers)


def to_host(reference: Reference) -> str:
    """Format the host form, `hdl://NA/LOCAL` (U2)."""
    handle = reference.handle
    suffix = _quote(handle.suffix)
    if suffix in DOT_SEGMENTS:
        suffix = suffix.replace(".", "%2E")
    return f"hdl://{quote(handle.prefix, _REG_NAME_SAFE)}/{suffix}{reference.tail}"


def to_path(reference: Reference) -> str:
    """Format the path form, `hdl:NA/LOCAL` (U3), which is the one to cite."""
    handle = reference.handle
    return f"hdl:{_quote(handle.prefix)}/{_quote(handle.suffix)}{reference.tail}"


def to_http(reference: Reference, resolver: Resolver) -> str:
    """Format the HTTP form at a resolver (U4)."""
    return f"{resolver}/{encode_name(str(reference.handle))}{reference.tail}"


@lru_cache(_CACHED_NAMES)
def encode_name(name: str) -> str:
    """Encode a name for the end of an HTTP path; slashes of the suffix too (U5). No client removes a segment of it."""
    prefix, slash, suffix = name.partition("/")
    separator = "%2F" if suffix in DOT_SEGMENTS else slash
    return f"{_quote(prefix)}{separator}{_quote(suffix)}"


def _quote(text: str) -> str:
    """Encode a part of a handle as a segment; most parts need no escape, which is found out faster."""
    return text if _UNRESERVED.fullmatch(text) else quote(text, _SEGMENT_SAFE)


def parse_uri(text: str, resolvers: Sequence[Resolver] = (), *, for_lookup: bool = False) -> Reference:
    """Parse the host form, the path form, or the HTTP form of one of the given resolvers.

    A text without a scheme is rejected as ambiguous (U7); for bare handles use `Handle.parse`. With `for_lookup` the
    handle need not be valid here (H2, H3), because another server may have registered it.
    """
    parse_handle = get_handle_parser(for_lookup)
    if _HDL.match(text):
        if text.startswith("//", 4):
            return _parse_form(text, 6, _AFTER_HOST, _NOT_REG_NAME, parse_handle)
        return _parse_form(text, 4, _AFTER_PATH, _NOT_SEGMENT, parse_handle)
    if _HTTP.match(text):
        start = _path_start(text, resolvers)
        form = _DOTS if _DOTS.fullmatch(text, start) else _AFTER_PATH
        return _parse_form(text, start, form, _NOT_SEGMENT, parse_handle)
    message = 'a handle URI must begin with "hdl:" or with the address of a known resolver'
    raise InvalidName("U7", message, position=0)


def get_handle_parser(for_lookup: bool) -> Callable[[str], Handle]:
    """The parser for bare handles: for lookup or for registration."""
    return Handle.parse_lenient if for_lookup else Handle.parse


def match_resolver(text: str, resolvers: Sequence[Resolver]) -> tuple[Resolver, int] | None:
    """The resolver of an HTTP URL, and the position at which the handle begins."""
    scheme, _, rest = text.partition("://")
    authority, slash, path = rest.partition("/")
    # ASCII only: the lowercase of U+212A, the Kelvin sign, is a "k".
    authority = authority.lower().removesuffix(_DEFAULT_PORT[scheme.lower()]) if authority.isascii() else ""
    if not slash:
        return None
    start, fallback = len(text) - len(path), None
    for resolver in resolvers:
        if authority == resolver.authority:
            # A resolver that requires a segment is more specific and takes precedence.
            if resolver.segment is None:
                fallback = fallback or (resolver, start)
            elif path.startswith(resolver.segment + "/"):
                return resolver, start + len(resolver.segment) + 1
    return fallback


def _decode_handle(
    text: str, start: int, separator: tuple[int, int], end: int, parse_handle: Callable[[str], Handle]
) -> Handle:
    """Percent-decode `text[start:end]` once, prefix and suffix separately, and parse the handle.

    `separator` is the end of the prefix and the start of the suffix; bad escapes were rejected before. Error positions
    refer to the whole text.
    """
    slash, after = separator
    prefix, suffix = text[start:slash], text[after:end]
    if "%" in prefix:
        prefix = _decode(text, start, slash)
        if "/" in prefix:
            position = _encoded_position(text, start, end, prefix.index("/"))
            raise InvalidName("H2", 'a prefix cannot contain "/" (%2F)', position=position, character="/")
    if "%" in suffix:
        suffix = _decode(text, after, end)
    try:
        return parse_handle(f"{prefix}/{suffix}")
    except InvalidName as problem:
        index = problem.position
        raise problem.with_position(None if index is None else _encoded_position(text, start, end, index)) from None


def split_tail(text: str, start: int) -> tuple[int, str | None, str | None]:
    """Split off query and fragment (U6): return the end of the path, the query and the fragment."""
    rest, sharp, fragment = text[start:].partition("#")
    path, mark, query = rest.partition("?")
    return start + len(path), query if mark else None, fragment if sharp else None


def _path_start(text: str, resolvers: Sequence[Resolver]) -> int:
    if match := match_resolver(text, resolvers):
        return match[1]
    known = ", ".join(map(str, resolvers)) or "none"
    raise InvalidName("U4", f"this is not the address of a known resolver (known: {known})", position=0)


def _parse_form(
    text: str,
    start: int,
    form: re.Pattern[str],
    forbidden_in_prefix: re.Pattern[str],
    parse_handle: Callable[[str], Handle],
) -> Reference:
    """Parse NA/LOCAL with query and fragment from `start` on."""
    match = form.fullmatch(text, start)
    if match is None:
        raise _make_error(text, start, forbidden_in_prefix)
    separator = match.end(1), match.start(2)
    return Reference(_decode_handle(text, start, separator, match.end(2), parse_handle), *match.group(3, 4))


def _make_error(text: str, start: int, forbidden_in_prefix: re.Pattern[str]) -> InvalidName:
    end, query, fragment = split_tail(text, start)
    slash = text.find("/", start, end)
    if slash < 0:
        return missing_suffix(text[start:end], end)
    if slash == start:
        return InvalidName("H1", 'the prefix (before the "/") is empty', position=start)
    extra = text.find("/", slash + 1, end)
    if extra >= 0:
        message = 'only one segment can follow the prefix; write "/" inside the suffix as %2F'
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
    match = forbidden.search(text, start, end)
    if match is None:
        return None
    character = match.group()
    surrogate = "\ud800" <= character <= "\udfff"
    advice = "cannot be encoded in UTF-8" if surrogate else f"must be percent-encoded, as {quote(character, safe='')}"
    return InvalidName("U5", f"{format_character(character)} {advice}", position=match.start(), character=character)


def _find_bad_escape(text: str, start: int, end: int) -> InvalidName | None:
    match = _BAD_ESCAPE.search(text, start, end)
    if match is None:
        return None
    message = '"%" must be followed by two hexadecimal digits; write a literal "%" as %25'
    return InvalidName("U5", message, position=match.start(), character="%")


def check_escapes(text: str, start: int, end: int) -> None:
    """Reject a "%" in `text[start:end]` that does not begin an escape."""
    if escape_error := _find_bad_escape(text, start, end):
        raise escape_error


def _decode(text: str, start: int, end: int) -> str:
    def decode(escapes: re.Match[str]) -> str:
        try:
            return bytes.fromhex(escapes.group().replace("%", "")).decode()
        except UnicodeDecodeError as error:
            message = f"the escapes {quote_text(escapes.group())} are not valid UTF-8"
            position = start + escapes.start() + 3 * error.start
            raise InvalidName("U5", message, position=position, character="%") from None

    return _ESCAPES.sub(decode, text[start:end])


def _encoded_position(text: str, start: int, end: int, index: int) -> int:
    """Position in `text[start:end]` of the character that has this index after decoding."""
    tokens = (token for token in _TOKEN.finditer(text, start, end) if not _CONTINUATION.match(token.group()))
    return next((token.start() for token in islice(tokens, index, None)), end)


def _canonical_authority(authority: str, scheme: str, start: int) -> str:
    """Host and port in lowercase, without the default port; `start` is their position in the text."""
    match = _AUTHORITY.match(authority)
    end = match.end() if match else 0
    if match is None or end < len(authority):
        message = f"{quote_text(authority)} is not a host with an optional port"
        raise InvalidName("U4", message, position=start + end, character=authority[end : end + 1] or None)
    address, port = match.groups()
    if port is not None and not 0 < int(port) <= _MAX_PORT:
        message = f"port {port} is not between 1 and {_MAX_PORT}"
        raise InvalidName("U4", message, position=start + match.start(2))
    if address is not None and not _is_ipv6(address):
        raise InvalidName("U4", f"{quote_text(address)} is not an IPv6 address", position=start + match.start(1))
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
            # As spelled in the source documents.
            "http://hld.handle.net",
            "http://resolver.net.au/hdl",
            "http://arrow.resolver.au.gov:2641/hdl",
        ),
    )
)
"""Resolvers that are known by default; others are named with `--resolver`."""

STRIPPED_CHARACTERS = BLANKS + "\t\r\n"
"""Characters that are stripped from both ends of user input."""

BYTE_ORDER_MARK = "\ufeff"

_URI = re.compile(
    rf"(?:(?:hdl|doi):[{BLANKS}]*(?://?)?|info:(?:hdl|doi)/|(urn:(?:hdl|doi|eidr):)|(https?://))",
    re.IGNORECASE | re.ASCII,
)
# In order of preference; no lookahead, which would take quadratic time.
_SEPARATORS = (re.compile("/"), re.compile("%2[Ff]"))  # an escaped one only if there is no other
_URN_SEPARATORS = (re.compile("[:/]|%2[Ff]"),)  # as in `urn:hdl:12345:x`
_WEB_SEPARATORS = (re.compile("/|%2[Ff]"),)  # resolvers read both alike

MAX_ENCODED_LENGTH = 3 * MAX_BYTES
"""Maximum length of a handle in a URI, in characters (H9): each of its bytes can be an escape, `%XX`."""


def parse_user_input(
    text: str, resolvers: Sequence[Resolver] = KNOWN_RESOLVERS, *, for_lookup: bool = False
) -> Reference:
    """Parse a name in any form that people use; for `for_lookup` see `parse_uri`."""
    parse_handle = get_handle_parser(for_lookup)
    begin = len(text) - len(text.removeprefix(BYTE_ORDER_MARK).lstrip(STRIPPED_CHARACTERS))
    text = text.rstrip(STRIPPED_CHARACTERS)
    form = _URI.match(text, begin)
    if form is None:
        return Reference(_parse_bare(text, begin, parse_handle))
    urn, web = form.groups()
    if web is None:
        return _parse_lenient_uri(text, form.end(), _URN_SEPARATORS if urn else _SEPARATORS, parse_handle)
    match = match_resolver(text[begin:], resolvers)
    if match is None:
        host = text[form.end() :].partition("/")[0]
        raise InvalidName("U4", f"{quote_text(host)} is not the address of a known resolver", position=begin)
    return _parse_lenient_uri(text, begin + match[1], _WEB_SEPARATORS, parse_handle)


def is_uri(text: str) -> bool:
    """Whether a text begins like one of the URIs that `parse_user_input` reads."""
    return _URI.match(text) is not None or text.lower().startswith(("http:", "https:"))


def strip_scheme(name: str) -> str:
    """Remove the scheme before a name that is already decoded, as in the path of an HTTP request."""
    form = _URI.match(name)
    if form is None or form.group(2):
        return name
    rest = name[form.end() :]
    return re.sub("[:/]", "/", rest, count=1) if form.group(1) else rest


def _parse_bare(text: str, begin: int, parse_handle: Callable[[str], Handle]) -> Handle:
    try:
        return parse_handle(text[begin:])
    except InvalidName as problem:
        raise problem.with_position(None if problem.position is None else problem.position + begin) from None


def _parse_lenient_uri(
    text: str, start: int, separators: Sequence[re.Pattern[str]], parse_handle: Callable[[str], Handle]
) -> Reference:
    end, query, fragment = split_tail(text, start)
    if end - start > MAX_ENCODED_LENGTH:  # before untrusted text is searched and decoded
        position = start + MAX_ENCODED_LENGTH
        message = f"the handle has {end - start:,} characters in the URI; the maximum is {MAX_ENCODED_LENGTH:,}"
        raise InvalidName("H9", message, position=position, character=text[position])
    slash = next(filter(None, (separator.search(text, start, end) for separator in separators)), None)
    if slash is None:
        raise missing_suffix(text[start:end], end)
    check_escapes(text, start, len(text))
    handle = _decode_handle(text, start, slash.span(), end, parse_handle)
    return Reference(handle, _encode_tail(query, end + 1), _encode_tail(fragment, len(text) - len(fragment or "")))


def _encode_tail(tail: str | None, offset: int) -> str | None:
    try:
        return None if tail is None else quote(tail, QUERY_SAFE + "%")
    except UnicodeEncodeError as error:
        raise surrogate_error(error, offset) from None
