"""Names as people type and paste them (U7): search boxes, command lines, never machine interfaces.

Accepted are bare handles, the URI forms with their slips (`hdl:/NA/LOCAL`, unescaped slashes and letters in the
suffix), `doi:` and `info:` prefixes and the URLs of known resolvers, with blanks around them and the mark (U+FEFF)
before them with which some editors begin a file.

A bare handle is literal: "?", "#" and "%" in it belong to the name. In a URI form "?" and "#" begin query and
fragment and escapes are decoded, once.
"""

import re
from collections.abc import Callable, Sequence
from urllib.parse import quote

from ._unicode_table import BLANKS
from .characters import without_utf_8
from .errors import InvalidName, quoted
from .handle import Handle
from .uri import (
    QUERY_SAFE,
    Reference,
    Resolver,
    check_escapes,
    handle_reader,
    match_resolver,
    read_handle,
    split_tail,
)

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

AROUND = BLANKS + "\t\r\n"
"""What may stand around a name without being part of it."""

BYTE_ORDER_MARK = "\ufeff"

_URI = re.compile(rf"(?:(?:hdl|doi):[{BLANKS}]*(?://?)?|info:(?:hdl|doi)/|(https?://))", re.IGNORECASE | re.ASCII)


def parse_human(text: str, resolvers: Sequence[Resolver] = KNOWN_RESOLVERS, *, for_lookup: bool = False) -> Reference:
    """Read a name in any form a person may use; with `for_lookup` also one that is not legal here: see `parse_uri`."""
    take = handle_reader(for_lookup)
    begin = len(text) - len(text.removeprefix(BYTE_ORDER_MARK).lstrip(AROUND))
    text = text.rstrip(AROUND)
    form = _URI.match(text, begin)
    if form is None:
        return Reference(_read_bare(text, begin, take))
    if form.group(1) is None:
        return _read_uri(text, form.end(), take)
    found = match_resolver(text[begin:], resolvers)
    if found is None:
        host = text[form.end() :].partition("/")[0]
        raise InvalidName("U4", f"{quoted(host)} is not the address of a known resolver", position=begin)
    return _read_uri(text, begin + found[1], take)


def _read_bare(text: str, begin: int, take: Callable[[str], Handle]) -> Handle:
    try:
        return take(text[begin:])
    except InvalidName as problem:
        raise problem.moved_to(None if problem.position is None else problem.position + begin) from None


def _read_uri(text: str, start: int, take: Callable[[str], Handle]) -> Reference:
    end, query, fragment = split_tail(text, start)
    slash = text.find("/", start, end)
    if slash < 0:
        raise InvalidName("H1", 'there is no "/" between prefix and suffix', position=end)
    check_escapes(text, start, len(text))
    handle = read_handle(text, start, slash, end, take)
    return Reference(handle, _encoded(query, end + 1), _encoded(fragment, len(text) - len(fragment or "")))


def _encoded(tail: str | None, offset: int) -> str | None:
    try:
        return None if tail is None else quote(tail, QUERY_SAFE + "%")
    except UnicodeEncodeError as error:
        raise without_utf_8(error, offset) from None
