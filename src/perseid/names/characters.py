"""Characters (H3), length (H9) and case folding (H5) of names.

Checks use the table shipped with the package (`_unicode_table`), never the interpreter's, so that a name is valid on
every machine or on none. Private-use and invisible format characters (zero-width space, soft hyphen …) are assigned
and therefore allowed, except bidirectional controls; a namespace can be stricter.
"""

import re
from functools import cache

from ._unicode_table import BLANKS, UNASSIGNED, UNICODE_VERSION
from .errors import InvalidName, format_character

# Classes of forbidden characters, as messages and inclusive ranges. Apart from UNASSIGNED these never change
# (Unicode stability policy).
_FORBIDDEN: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (
    ("is a control character", ((0x00, 0x1F), (0x7F, 0x9F))),
    ("is a surrogate, not a character", ((0xD800, 0xDFFF),)),
    ("is a line or paragraph separator", ((0x2028, 0x2029),)),
    ("is a bidirectional control: the name would not read as it is stored", (
        (0x202A, 0x202E), (0x2066, 0x2069),
    )),
    ("is a Unicode noncharacter", ((0xFDD0, 0xFDEF), (0xFFFE, 0xFFFF))),
    ("is outside the Basic Multilingual Plane (above U+FFFF)", ((0x10000, 0x10FFFF),)),
    (f"is not assigned in Unicode {UNICODE_VERSION}", UNASSIGNED),
)  # fmt: skip


@cache
def _forbidden_pattern() -> re.Pattern[str]:
    """Character class of everything forbidden; compiled on first use, which takes some milliseconds."""
    ranges = (pair for _, class_ranges in _FORBIDDEN for pair in class_ranges)
    return re.compile("[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]")


def check_characters(text: str) -> None:
    """Reject characters that no name can contain (H3); for spaces see `check_blanks`."""
    # For ASCII the result of isprintable is fixed: U+0020 to U+007E.
    if text.isascii() and text.isprintable():
        return
    match = _forbidden_pattern().search(text)
    if match is None:
        return
    character = match.group()
    code_point = ord(character)
    reason = next(text for text, ranges in _FORBIDDEN if any(a <= code_point <= b for a, b in ranges))
    raise InvalidName("H3", f"{format_character(character)} {reason}", position=match.start(), character=character)


def check_blanks(part: str, label: str, offset: int) -> None:
    """Reject spaces at either end of a part of a name (H3); `offset` is the start of the part in the name."""
    if part[0] in BLANKS:
        position, end = 0, "begins"
    elif part[-1] in BLANKS:
        position, end = len(part) - 1, "ends"
    else:
        return
    blank = part[position]
    message = f"the {label} {end} with a space ({format_character(blank)}); remove it"
    raise InvalidName("H3", message, position=offset + position, character=blank)


def check_length(text: str, limit: int, label: str) -> None:
    """Reject more than `limit` bytes of UTF-8 (H9), at the first character beyond the limit."""
    if len(text) <= limit // 4:  # UTF-8 needs at most four bytes per character
        return
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return
    # The last character that starts within the limit ends beyond it; 0b10xxxxxx is a continuation byte.
    position = sum(byte & 0xC0 != 0x80 for byte in data[: limit + 1]) - 1
    message = f"the {label} has {len(data):,} bytes in UTF-8; the maximum is {limit:,}"
    raise InvalidName("H9", message, position=position, character=text[position])


def surrogate_error(error: UnicodeEncodeError, offset: int = 0) -> InvalidName:
    """Error for a surrogate (H4); `offset` is the start of the encoded part in the text."""
    surrogate = error.object[error.start]
    message = f"{format_character(surrogate)} is a surrogate and cannot be encoded in UTF-8"
    return InvalidName("H4", message, position=offset + error.start, character=surrogate)


def fold(text: str) -> str:
    """Convert ASCII letters to uppercase and leave all other characters unchanged (H5): é, ß and İ do not fold."""
    if text.isascii():
        return text.upper()
    # bytes.upper changes ASCII only, and in UTF-8 no byte below 0x80 is part of another character.
    return text.encode("utf-8", "surrogatepass").upper().decode("utf-8", "surrogatepass")
