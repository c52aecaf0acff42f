"""Which characters a registered name may hold (H3), how many bytes of them (H9), and how letters fold (H5).

The decision uses the table shipped with the package (`_unicode_table`), never the interpreter's, so that a name
is legal on every machine or on none. Private-use characters and format characters other than the bidirectional
controls (the zero-width space, the soft hyphen …) are assigned characters and hence allowed, although nobody sees
them; a namespace may demand more.
"""

import re
from functools import cache

from ._unicode_table import BLANKS, UNASSIGNED, UNICODE_VERSION
from .errors import InvalidName, format_character

# Classes of refused characters with the words that explain them, as inclusive ranges. Apart from UNASSIGNED these
# never change: the Unicode stability policy fixes them.
_FORBIDDEN: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (
    ("is a control character", ((0x00, 0x1F), (0x7F, 0x9F))),
    ("is half of a surrogate pair, not a character", ((0xD800, 0xDFFF),)),
    ("is a line or paragraph separator", ((0x2028, 0x2029),)),
    ("changes the direction of writing, so that the name would not be what it looks like", (
        (0x202A, 0x202E), (0x2066, 0x2069),
    )),
    ("is reserved by Unicode and never a character", ((0xFDD0, 0xFDEF), (0xFFFE, 0xFFFF))),
    ("lies outside the Basic Multilingual Plane (above U+FFFF)", ((0x10000, 0x10FFFF),)),
    (f"is not assigned in Unicode {UNICODE_VERSION}", UNASSIGNED),
)  # fmt: skip


@cache
def _forbidden_pattern() -> re.Pattern[str]:
    """One character class for everything refused; compiled on first use because it takes some milliseconds."""
    ranges = (pair for _, class_ranges in _FORBIDDEN for pair in class_ranges)
    return re.compile("[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]")


def check_characters(text: str) -> None:
    """Refuse text that holds a character which no registered name may hold (H3); blanks are not looked at."""
    # For ASCII the answer of isprintable is fixed: U+0020 to U+007E.
    if text.isascii() and text.isprintable():
        return
    match = _forbidden_pattern().search(text)
    if match is None:
        return
    character = match.group()
    code_point = ord(character)
    reason = next(why for why, ranges in _FORBIDDEN if any(a <= code_point <= b for a, b in ranges))
    raise InvalidName("H3", f"{format_character(character)} {reason}", position=match.start(), character=character)


def check_blanks(part: str, label: str, offset: int) -> None:
    """Refuse blanks at either end of a part of a name (H3); `offset` is where the part begins in the name."""
    if part[0] in BLANKS:
        position, end = 0, "begins"
    elif part[-1] in BLANKS:
        position, end = len(part) - 1, "ends"
    else:
        return
    blank = part[position]
    message = f"the {label} {end} with a blank ({format_character(blank)}), which nobody sees in print"
    raise InvalidName("H3", message, position=offset + position, character=blank)


def check_length(text: str, limit: int, label: str) -> None:
    """Refuse a name of more than `most` bytes of UTF-8 (H9), at the first character that has no room."""
    if len(text) <= limit // 4:  # UTF-8 needs at most four bytes for each
        return
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return
    # Of the characters that begin up to the limit the last one ends beyond it; 0b10xxxxxx continues a character.
    position = sum(byte & 0xC0 != 0x80 for byte in data[: limit + 1]) - 1
    message = f"the {label} has {len(data):,} bytes in UTF-8; {limit:,} are the most"
    raise InvalidName("H9", message, position=position, character=text[position])


def surrogate_error(error: UnicodeEncodeError, offset: int = 0) -> InvalidName:
    """The objection to half of a surrogate pair (H4); `offset` is where the encoded part begins in the text."""
    surrogate = error.object[error.start]
    message = f"{format_character(surrogate)} is half of a surrogate pair and has no UTF-8 form"
    return InvalidName("H4", message, position=offset + error.start, character=surrogate)


def fold(text: str) -> str:
    """Fold ASCII letters to upper case and leave every other character alone (H5): é, ß and İ do not fold."""
    if text.isascii():
        return text.upper()
    # bytes.upper knows ASCII only, and in UTF-8 no byte below 0x80 belongs to another character.
    return text.encode("utf-8", "surrogatepass").upper().decode("utf-8", "surrogatepass")
