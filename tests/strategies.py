"""Hypothesis strategies shared by test folders: every legal handle, URI references, and arbitrary text.

Legal characters are computed here from the pinned Unicode data, not taken from the package, so that a mistake in the
package's own table is found and not repeated.
"""

import re
from itertools import islice

import unicodedata2
from hypothesis import strategies as st

from perseid.names import pilin
from perseid.names.handle import MAX_BYTES, Handle
from perseid.names.uri import Reference

_BIDIRECTIONAL = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_REFUSED_CATEGORIES = {"Cc", "Cs", "Cn", "Zl", "Zp"}

BMP = [chr(code_point) for code_point in range(0x10000)]
LEGAL = [c for c in BMP if unicodedata2.category(c) not in _REFUSED_CATEGORIES and ord(c) not in _BIDIRECTIONAL]
"""Every character that is allowed inside a registered name (H3)."""
BLANK = {c for c in BMP if unicodedata2.category(c) == "Zs"}
NOT_AT_ENDS = (
    BLANK
    | {c for c in BMP if unicodedata2.category(c) in ("Cf", "Co")}
    | set("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
    | set(map(chr, range(0xFE00, 0xFE10)))
)
"""The legal characters that are not allowed at an end: spaces, and what nobody sees."""

# Characters with a meaning in names or URIs are drawn much more often than by an even choice among 62,000.
_MEANINGFUL = ["%", "?", "#", "/", " ", ".", ":", "@", "%2F", "%25", "%zz", "%C3", "//", "?a=b#c", "[", "\\", '"', "<"]


def _texts_of(alphabet: list[str], pieces: int) -> st.SearchStrategy[str]:
    often = st.sampled_from([piece for piece in _MEANINGFUL if set(piece) <= set(alphabet)])
    ascii_only = st.text([character for character in alphabet if character.isascii()], min_size=1, max_size=6)
    piece = often | ascii_only | st.text(alphabet, min_size=1, max_size=6)
    return st.lists(piece, min_size=1, max_size=pieces).map("".join)


# Built once: hypothesis needs a while for an alphabet of this size.
_segments = _texts_of([character for character in LEGAL if character not in "/."], 2)
_suffixes = _texts_of(LEGAL, 6)


def _has_clean_ends(text: str) -> bool:
    return text[0] not in NOT_AT_ENDS and text[-1] not in NOT_AT_ENDS


def prefixes() -> st.SearchStrategy[str]:
    """Legal prefixes of one to four segments."""
    return st.lists(_segments, min_size=1, max_size=4).map(".".join).filter(_has_clean_ends)


@st.composite
def _long_handles(draw: st.DrawFn) -> Handle:
    """A handle of many bytes, often of exactly the maximum."""
    prefix, filler = draw(prefixes()), draw(_suffixes)
    data = draw(st.just(MAX_BYTES) | st.integers(300, MAX_BYTES))
    available = data - len(f"{prefix}/".encode())
    suffix = filler * (available // len(filler.encode()))
    return Handle(prefix, suffix + "x" * (available - len(suffix.encode())))


def handles() -> st.SearchStrategy[Handle]:
    """Legal handles over the whole alphabet, of every length up to the limit; built without a parser."""
    suffixes = _suffixes.filter(_has_clean_ends)
    long = _long_handles().filter(lambda handle: _has_clean_ends(handle.suffix))
    return st.builds(Handle, prefixes(), suffixes) | long


def imported_handles() -> st.SearchStrategy[Handle]:
    """Handles that other servers can have registered, legal here or not."""
    # At most three bytes per character: far from the limit.
    anything = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40) | _suffixes.map(lambda text: text[:40])
    prefix = anything.map(lambda text: text.replace("/", "") or ".")
    return handles() | st.builds(Handle, prefix, anything)


_query_characters = st.sampled_from(list("azAZ09-._~!$&'()*+,;=:@/?"))
_escapes = st.binary(min_size=1, max_size=1).map(lambda byte: f"%{byte.hex()}")


def queries() -> st.SearchStrategy[str | None]:
    """Queries and fragments according to RFC 3986, including empty ones and escapes of any byte."""
    return st.none() | st.lists(_query_characters | _escapes, max_size=12).map("".join)


def references() -> st.SearchStrategy[Reference]:
    """Legal handles with any query and fragment."""
    return st.builds(Reference, handles(), queries(), queries())


def milliseconds() -> st.SearchStrategy[int]:
    """Every millisecond that has a PILIN suffix."""
    return st.integers(pilin.MIN_MILLISECONDS, pilin.END_MILLISECONDS - 1)


def hexadecimal(length: int) -> st.SearchStrategy[str]:
    """Hexadecimal digits in mixed case, `length` of them."""
    return st.text(st.sampled_from("0123456789abcdefABCDEF"), min_size=length, max_size=length)


def authorities() -> st.SearchStrategy[str]:
    """CORDRA naming authorities."""
    digits = st.text(st.sampled_from("0123456789"), min_size=1, max_size=5)
    return st.lists(digits, min_size=1, max_size=4).map(".".join)


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Templates of the scheme `pattern`, with and without check character."""
    marks = draw(st.lists(st.sampled_from([*"dedede0123456789BCDFGHJKLMNPQRSTVWXYZ-._~"]), max_size=32))
    marks.insert(draw(st.integers(0, len(marks))), draw(st.sampled_from("de")))
    if draw(st.booleans()):
        return "".join(marks)
    letters = [position for position, mark in enumerate(marks) if mark not in "-._~"]
    cut = next(islice(letters, 29, None), len(marks))
    body = "".join(marks[:cut])
    return f"{body}k" if "d" in body or "e" in body else "dk"


# Pieces that parsers recognize, so that arbitrary text gets past the first check of a parser.
_PIECES = [
    *("hdl:", "HDL:", "hdl://", "doi:", "info:hdl/", "http://", "https://", "http\u017f://", "\u0131nfo:hdl/", "://"),
    *("hdl.handle.net", "hdl.handle.net:80", "doi.org:443", "resolver.net.au/hdl/", "10.1", "102.100.272", "0.NA"),
    *("/", "//", "%", "%2", "%2F", "%25", "%252F", "%C3", "%A9", "%C3%A9", "%FF", "%ED%A0%80", "%00", "?", "#", "."),
    *(" ", "\t", "\u00a0", "\u3000", "é", "\u017f", "\u0130", "\ud800", "\udc00", "\U0001f600", "\u202e", "\ufdd0"),
    *("D7J1G0DQH", "d7j1g0dqh", "O", "I", "EEF4DF17361A42E2B975E554663B70C3", "(", ")", '"', "x" * 3000),
]


def utf_8_texts() -> st.SearchStrategy[str]:
    """Any text without surrogates, so that a handle can contain it."""
    return texts().map(lambda text: re.sub("[\ud800-\udfff]", "\ufffd", text))


def texts() -> st.SearchStrategy[str]:
    """Any text: surrogates, control characters, and text that resembles a name."""
    anything = st.text(st.characters(), max_size=60)
    return anything | st.lists(st.sampled_from(_PIECES) | anything, max_size=8).map("".join)
