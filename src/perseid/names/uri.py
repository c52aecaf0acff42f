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
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self
from urllib.parse import quote, unquote

from .errors import InvalidName, NameMisuse, show
from .handle import Handle

# Letters, digits and "-._~" never need encoding; `quote` knows that by itself.
_SUB_DELIMS = "!$&'()*+,;="
_REG_NAME_SAFE = _SUB_DELIMS
_SEGMENT_SAFE = _SUB_DELIMS + ":@"
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_NOT_REG_NAME = re.compile(rf"[^A-Za-z0-9\-._~%{_REG_NAME_SAFE}]")
_NOT_SEGMENT = re.compile(rf"[^A-Za-z0-9\-._~%{_SEGMENT_SAFE}]")
_NOT_QUERY = re.compile(rf"[^A-Za-z0-9\-._~%{_SEGMENT_SAFE}/?]")
_HDL = re.compile("hdl:", re.IGNORECASE)
_HTTP = re.compile("https?://", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9\-._~]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
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
        for what, text in (("query", self.query), ("fragment", self.fragment)):
            if text is not None and (_NOT_QUERY.search(text) or _BAD_ESCAPE.search(text)):
                raise NameMisuse("U5", f"the {what} {text!r} is not percent-encoded as RFC 3986 demands")

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
        known = self.scheme in _DEFAULT_PORT and _AUTHORITY.fullmatch(self.authority)
        if not known or self.segment == "" or _NOT_SEGMENT.search(self.segment or ""):
            raise NameMisuse("U4", f"{self!r} is no resolver; use Resolver.parse for text from outside")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take a declaration as people write it: `https://hdl.handle.net`, `http://example.org/hdl`."""
        scheme, mark, rest = text.partition("://")
        scheme = scheme.lower()
        if not mark or scheme not in _DEFAULT_PORT:
            raise InvalidName("U4", f"a resolver is named as http(s)://HOST[/SEGMENT]; {text!r} is not")
        authority, _, segment = rest.partition("/")
        authority = _canonical_authority(authority, scheme)
        segment = segment.removesuffix("/")
        if found := _NOT_SEGMENT.search(segment):
            message = f"{show(found.group())} cannot stand in the one segment a resolver may require"
            raise InvalidName("U4", message, position=text.rindex(found.group()), character=found.group())
        return cls(authority, segment or None, scheme)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}" + (f"/{self.segment}" if self.segment else "")


def to_host(reference: Reference) -> str:
    """The host form, `hdl://NA/LOCAL` (U2)."""
    handle = reference.handle
    return f"hdl://{quote(handle.prefix, _REG_NAME_SAFE)}/{quote(handle.suffix, _SEGMENT_SAFE)}{reference.tail}"


def to_path(reference: Reference) -> str:
    """The path form, `hdl:NA/LOCAL` (U3); the shortest, and the one to cite."""
    return f"hdl:{_two_segments(reference)}"


def to_http(reference: Reference, resolver: Resolver) -> str:
    """The HTTP form at a resolver (U4)."""
    return f"{resolver}/{_two_segments(reference)}"


def parse_uri(text: str, resolvers: Sequence[Resolver] = ()) -> Reference:
    """Read the host form, the path form, or the HTTP form of one of the given resolvers; refuse all else.

    A reference without a scheme is ambiguous and refused (U7): bare handles are `Handle.parse`'s.
    """
    if _HDL.match(text):
        if text.startswith("//", 4):
            return _read(text, 6, _NOT_REG_NAME)
        return _read(text, 4, _NOT_SEGMENT)
    if _HTTP.match(text):
        return _read(text, _path_start(text, resolvers), _NOT_SEGMENT)
    message = 'a URI of a handle begins with "hdl:" or with the address of a known resolver'
    raise InvalidName("U7", message, position=0)


def match_resolver(text: str, resolvers: Sequence[Resolver]) -> tuple[Resolver, int] | None:
    """The resolver that an HTTP URL belongs to, and where in the text the handle's path begins."""
    scheme, _, rest = text.partition("://")
    authority, slash, path = rest.partition("/")
    authority = authority.lower().removesuffix(_DEFAULT_PORT[scheme.lower()])
    start = len(text) - len(path)
    for resolver in resolvers:
        if not slash or authority != resolver.authority:
            continue
        if resolver.segment is None:
            return resolver, start
        if path.startswith(resolver.segment + "/"):
            return resolver, start + len(resolver.segment) + 1
    return None


def read_handle(text: str, start: int, slash: int, end: int) -> Handle:
    """Percent-decode `text[start:end]` once, prefix and suffix apart, to a legal handle.

    `slash` is where the separator stands. Positions in errors are those in the whole text.
    """
    prefix, suffix = text[start:slash], text[slash + 1 : end]
    if "%" in prefix or "%" in suffix:
        prefix, suffix = _decode(text, start, slash), _decode(text, slash + 1, end)
        if "/" in prefix:
            position = _written_at(text, start, end, prefix.index("/"))
            raise InvalidName("H2", "%2F in the prefix: a prefix holds no slash", position=position, character="/")
    try:
        return Handle.parse(f"{prefix}/{suffix}")
    except InvalidName as problem:
        index = problem.position
        raise problem.moved_to(None if index is None else _written_at(text, start, end, index)) from None


def split_tail(text: str, start: int) -> tuple[int, str | None, str | None]:
    """Cut query and fragment off: where the rest ends, the query, the fragment (U6)."""
    rest, sharp, fragment = text[start:].partition("#")
    path, mark, query = rest.partition("?")
    return start + len(path), query if mark else None, fragment if sharp else None


def _two_segments(reference: Reference) -> str:
    handle = reference.handle
    return f"{quote(handle.prefix, _SEGMENT_SAFE)}/{quote(handle.suffix, _SEGMENT_SAFE)}{reference.tail}"


def _path_start(text: str, resolvers: Sequence[Resolver]) -> int:
    if found := match_resolver(text, resolvers):
        return found[1]
    known = ", ".join(map(str, resolvers)) or "none is"
    raise InvalidName("U4", f"this is not the address of a known resolver ({known} known)", position=0)


def _read(text: str, start: int, not_prefix: re.Pattern[str]) -> Reference:
    """Read NA/LOCAL with its tail from `start` on."""
    end, query, fragment = split_tail(text, start)
    slash = text.find("/", start, end)
    if slash < 0:
        raise InvalidName("H1", 'there is no "/" between prefix and suffix', position=end)
    if slash == start:
        raise InvalidName("H1", 'the prefix (before the "/") is empty', position=start)
    extra = text.find("/", slash + 1, end)
    if extra >= 0:
        message = 'after the prefix there is one segment only; a "/" inside the suffix is written %2F'
        raise InvalidName("U5", message, position=extra, character="/")
    _check(text, start, slash, not_prefix)
    _check(text, slash + 1, end, _NOT_SEGMENT)
    if query is not None:
        _check(text, end + 1, end + 1 + len(query), _NOT_QUERY)
    if fragment is not None:
        _check(text, len(text) - len(fragment), len(text), _NOT_QUERY)
    return Reference(read_handle(text, start, slash, end), query, fragment)


def _check(text: str, start: int, end: int, forbidden: re.Pattern[str]) -> None:
    """Refuse characters and escapes that the grammar does not allow in `text[start:end]`."""
    if found := forbidden.search(text, start, end):
        character = found.group()
        written = quote(character, safe="", errors="replace")
        message = f"{show(character)} must be percent-encoded here, as {written}"
        raise InvalidName("U5", message, position=found.start(), character=character)
    check_escapes(text, start, end)


def check_escapes(text: str, start: int, end: int) -> None:
    """Refuse a "%" in `text[start:end]` that does not begin an escape."""
    if found := _BAD_ESCAPE.search(text, start, end):
        message = '"%" must be followed by two hexadecimal digits; a "%" of the name itself is written %25'
        raise InvalidName("U5", message, position=found.start(), character="%")


def _decode(text: str, start: int, end: int) -> str:
    check_escapes(text, start, end)
    raw = text[start:end]
    try:
        return unquote(raw, errors="strict")
    except UnicodeDecodeError:
        message = f"the escapes in {raw!r} do not decode to UTF-8, the only encoding names have"
        raise InvalidName("U5", message, position=start + raw.index("%"), character="%") from None


def _written_at(text: str, start: int, end: int, index: int) -> int:
    """Where in `text[start:end]` the character is written that has this index after decoding."""
    tokens = (found for found in _TOKEN.finditer(text, start, end) if not _CONTINUATION.match(found.group()))
    return next((found.start() for found in islice(tokens, index, None)), end)


def _canonical_authority(authority: str, scheme: str) -> str:
    if not _AUTHORITY.fullmatch(authority):
        raise InvalidName("U4", f"{authority!r} is not a host with an optional port")
    return authority.lower().removesuffix(_DEFAULT_PORT[scheme])
