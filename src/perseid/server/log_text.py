r"""Texts of strangers in the log: one line of printable characters, of bounded length, that can be read back.

Names, texts and identities come from the network and may hold anything: line breaks that would forge lines of the log,
codes that a terminal obeys, marks that turn the direction of writing. What `str.isprintable` does not call printable is
escaped, and that is all of these: controls, formats, separators other than the space, surrogates, and what the
interpreter's Unicode table does not know.

    \n \r \t            as in Python        \x1b    another control of ASCII
    \u202e \U000e0001   a character         \xff    an octet of 0x80 and above that is no UTF-8

Limits are in octets as written, so that a whole line has a limit (see `log_output`).
"""

import re
from json.encoder import encode_basestring_ascii
from typing import Final

MAX_TEXT: Final = 512
"""Octets of one text in a line, unless said otherwise: longer than nearly every name."""

CUT: Final = "…"
"""Stands where a text was cut."""

_PLAIN = re.compile(r"[!#-\[\]-~]+")  # printable ASCII without space, quotation mark and backslash
_UNREADABLE = range(0xDC80, 0xDD00)  # what the error handler surrogateescape makes of octets
_SURROGATES = range(0xD800, 0xE000)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CUT_OCTETS = len(CUT.encode())
_JSON_CUT = encode_basestring_ascii(CUT)[1:-1]
_QUOTED = '"\\'


def text_of(octets: bytes) -> str:
    """Octets from the network as text; what is no UTF-8 becomes surrogates, which the functions below escape."""
    return octets.decode("utf-8", "surrogateescape")


def escaped(text: str, limit: int = MAX_TEXT) -> str:
    """A text as part of a line, of at most so many octets."""
    if len(text) * 4 <= limit and text.isprintable():
        return text
    return _cut(text, limit, "")


def field(text: str, limit: int = MAX_TEXT) -> str:
    """A text as the value of a field: in quotation marks unless it is one plain word."""
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text
    return f'"{_cut(text, limit - 2, _QUOTED)}"'


def json_text(text: str, limit: int = MAX_TEXT) -> str:
    """A text as JSON, in ASCII. Surrogates, which not every reader of JSON takes, are escaped once more."""
    if len(text) <= limit:
        written = _as_json(text)
        if len(written) <= limit:
            return written
    parts: list[str] = []
    room = limit - 2 - len(_JSON_CUT)
    for part in (_as_json(character)[1:-1] for character in text):  # pragma: no branch - it does not all fit
        room -= len(part)
        if room < 0:
            break
        parts.append(part)
    return f'"{"".join(parts)}{_JSON_CUT}"'


def _cut(text: str, limit: int, quoted: str) -> str:
    """The text escaped, and cut at the last character that leaves room for the mark."""
    parts: list[str] = []
    octets = kept = 0
    for character in text:
        part = character if character.isprintable() else _escape(character)
        if character in quoted:
            part = "\\" + character
        octets += len(part.encode())
        if octets > limit:
            return "".join(parts[:kept]) + CUT
        parts.append(part)
        if octets <= limit - _CUT_OCTETS:
            kept = len(parts)
    return "".join(parts)


def _escape(character: str) -> str:
    number = ord(character)
    if number in _UNREADABLE:
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x80:
        return _SHORT.get(character) or f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x1_0000 else f"\\U{number:08x}"


def _as_json(text: str) -> str:
    """A text as JSON of printable ASCII: the library leaves DEL as it is."""
    if not text.isascii():
        text = "".join(_escape(each) if ord(each) in _SURROGATES else each for each in text)
    return encode_basestring_ascii(text).replace("\x7f", "\\u007f")
