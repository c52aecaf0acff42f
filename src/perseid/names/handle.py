"""Handles, `prefix "/" suffix` (H1), in their exact spelling; prefixes (H2, H6), characters (H3, H5) and length (H9).

Characters are checked with the table shipped with the package (`_unicode_table`), never the interpreter's, so that a
name is valid on every machine or on none. Private-use and invisible format characters (zero-width space, soft hyphen …)
are assigned and therefore allowed inside a prefix or suffix, except bidirectional controls, but not at its ends: nobody
could tell `12345/x` from `12345/x` with one. A namespace can be stricter.

A prefix is one or more non-empty segments joined by "."; `12345.1` is derived from `12345`. Prefixes are always
case-insensitive for ASCII letters (H5).

Constructors of handles differ in what they reject:

- `Handle.parse` accepts only names that can be registered here (H1–H3, H9).
- `Handle.parse_lenient` also accepts names that another server may have registered; it rejects a missing slash, an
  empty part, invalid UTF-8 and excess length.
- `Handle.for_lookup` is the same, but returns None, which means "not found".
- `Handle.parse_imported` is the same, and also returns the error that `parse` would raise.

Two handles are equal if they are spelled alike. To compare names by the rules of their namespace (H5), compare
`CaseRule.key`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Self

from ._unicode_table import BLANKS, INVISIBLE, UNASSIGNED, UNICODE_VERSION
from .errors import InvalidName, NameMisuse, format_character

_CONTROL = ((0x00, 0x1F), (0x7F, 0x9F))

# Classes of forbidden characters, as messages and inclusive ranges. Apart from UNASSIGNED these never change
# (Unicode stability policy).
_FORBIDDEN: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (
    ("is a control character", _CONTROL),
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
    """Reject characters that no name can contain (H3); for its ends see `check_ends`."""
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


def check_ends(part: str, label: str, offset: int) -> None:
    """Reject spaces and characters that nobody sees at either end of a part of a name, as `check_blanks` does."""
    check_blanks(part, label, offset)
    if part.isascii():
        return
    for position, end in ((0, "begins"), (len(part) - 1, "ends")):
        if is_invisible(part[position]):
            message = f"the {label} {end} with U+{ord(part[position]):04X}, {INVISIBLE_TEXT}; remove it"
            raise InvalidName("H3", message, position=offset + position, character=part[position])


INVISIBLE_TEXT = "an invisible, format or private-use character"


def is_invisible(character: str) -> bool:
    """Whether nobody sees a character: it can be inside a handle, but not at the ends of its parts (H3)."""
    return any(first <= ord(character) <= last for first, last in INVISIBLE)


def find_invisible(text: str) -> str:
    """The first character that nobody sees, with its code; empty if there is none."""
    character = None if text.isascii() else next(filter(is_invisible, text), None)
    return "" if character is None else f"U+{ord(character):04X}, {INVISIBLE_TEXT}"


def describe_unseen(character: str) -> str:
    """What a space, control character or invisible character is; empty for others."""
    if character in BLANKS:
        return "a space"
    if any(first <= ord(character) <= last for first, last in _CONTROL):
        return "a control character"
    return INVISIBLE_TEXT if is_invisible(character) else ""


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


MAX_PREFIX_BYTES = 2043
"""Maximum length of a prefix in bytes of UTF-8: its handle `0.NA/…` must not exceed 2,048 (H9)."""


def check_prefix_structure(prefix: str) -> None:
    """Reject text that does not have the syntax of a prefix (H1, H2)."""
    if not prefix:
        raise InvalidName("H1", 'the prefix (before the first "/") is empty', position=0)
    if "/" in prefix:
        raise InvalidName("H2", 'a prefix cannot contain "/"', position=prefix.index("/"), character="/")
    dot = find_empty_segment(prefix)
    if dot is not None:
        message = "the prefix has an empty segment; write one dot between segments"
        raise InvalidName("H2", message, position=dot, character=".")


def find_empty_segment(prefix: str) -> int | None:
    """Position of the dot next to an empty segment; None if no segment is empty."""
    if prefix[0] == ".":
        return 0
    doubled = prefix.find("..")
    if doubled >= 0:
        return doubled + 1
    return len(prefix) - 1 if prefix[-1] == "." else None


def check_prefix_syntax(prefix: str) -> None:
    """Reject text that cannot be registered as a prefix (H2, H3, H9)."""
    check_prefix_structure(prefix)
    check_length(prefix, MAX_PREFIX_BYTES, "prefix")
    check_characters(prefix)
    check_ends(prefix, "prefix", 0)


def parent_prefix(prefix: str) -> str | None:
    """The prefix that this one is derived from; None if it is not derived (H6)."""
    head, dot, _ = prefix.rpartition(".")
    return head if dot else None


def ancestor_prefixes(prefix: str) -> Iterator[str]:
    """Iterate over the parent, its parent and so on (H6); a request may name `.7`, whose empty parent is none."""
    above = parent_prefix(prefix)
    while above:
        yield above
        above = parent_prefix(above)


def is_derived(prefix: str, from_prefix: str) -> bool:
    """Whether `prefix` is derived from `from_prefix`, directly or indirectly (H6)."""
    return fold(prefix).startswith(fold(from_prefix) + ".")


MAX_BYTES = 2048
"""Maximum length of a handle in bytes of UTF-8 (H9): the limit of the deployed protocol."""

PREFIX_OF_PREFIXES = "0.NA"
"""Every prefix P is described by the handle `0.NA/P`."""

_MAX_CACHED_NAMES = 1_024  # those of administrators and groups, which every decision looks up again; 4 MB at most
_PATH = re.compile(r"\A[^?#]+")
_LIKE_PREFIX = re.compile(r"[0-9]{1,40}(?:\.[0-9A-Za-z_-]{1,40}){0,8}")


@dataclass(frozen=True, slots=True, order=True)
class Handle:
    """A prefix and a suffix, exactly as spelled."""

    prefix: str
    """The part before the first slash."""
    suffix: str
    """The part after it; can contain more slashes."""

    def __post_init__(self) -> None:
        if not self.prefix or not self.suffix or "/" in self.prefix:
            message = 'a handle needs a prefix without "/" and a suffix; use Handle.parse for untrusted text'
            raise NameMisuse("H1", message)
        if not (self.suffix.isascii() and self.prefix.isascii()):
            try:
                self.to_bytes()
            except UnicodeEncodeError:
                message = "a handle cannot contain a surrogate: it has no UTF-8 encoding"
                raise NameMisuse("H4", message) from None

    @classmethod
    def parse(cls, text: str, *, existing: bool = False) -> Self:
        """Parse a valid handle. Nothing is decoded, folded or stripped.

        An `existing` one may begin or end with invisible characters, which were legal once.
        """
        prefix, suffix = _split(text)
        check_prefix_structure(prefix)
        check_length(text, MAX_BYTES, "handle")
        check_characters(text)
        check = check_blanks if existing else check_ends
        check(prefix, "prefix", 0)
        check(suffix, "suffix", len(prefix) + 1)
        return cls(prefix, suffix)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a valid handle in UTF-8 (H4)."""
        return cls.parse(_decode(data))

    @classmethod
    def parse_lenient(cls, name: str | bytes) -> Self:
        """Parse any name that a server may have stored, valid here or not."""
        text = _decode(name) if isinstance(name, bytes) else name
        check_length(text, MAX_BYTES, "handle")
        if not text.isascii():
            _check_utf_8(text)
        return cls(*_split(text))

    @classmethod
    @lru_cache(_MAX_CACHED_NAMES)
    def for_lookup(cls, name: str | bytes) -> Self | None:
        """Parse a name for lookup; None if no record can exist under it."""
        try:
            return cls.parse_lenient(name)
        except InvalidName:
            return None

    @classmethod
    def parse_imported(cls, name: str | bytes) -> tuple[Self, InvalidName | None]:
        """Parse a name that another server registered; also return the error that `parse` would raise."""
        handle = cls.parse_lenient(name)
        try:
            cls.parse(str(handle))
        except InvalidName as problem:
            return handle, problem
        return handle, None

    def __str__(self) -> str:
        return f"{self.prefix}/{self.suffix}"

    def to_bytes(self) -> bytes:
        """The handle in UTF-8 (H4)."""
        return str(self).encode("utf-8")

    @property
    def is_prefix_handle(self) -> bool:
        """Whether this handle describes a prefix: `0.NA/…`."""
        return len(self.prefix) == len(PREFIX_OF_PREFIXES) and fold(self.prefix) == PREFIX_OF_PREFIXES


class CaseRule(Enum):
    """Case sensitivity of a namespace (H5). Fixed when the namespace is created."""

    SENSITIVE = "sensitive"
    """Exact spelling; the default."""
    INSENSITIVE = "insensitive"
    """A–Z and a–z are equal; no other letter folds."""
    PATH = "path"
    """Insensitive up to the first "?" or "#" of the suffix; query and fragment are exact."""

    def key(self, handle: Handle) -> str:
        """The key that all spellings of a name share. Prefixes and handles under `0.NA` always fold."""
        if self is CaseRule.INSENSITIVE or handle.is_prefix_handle:
            return fold(str(handle))
        suffix = handle.suffix
        if self is CaseRule.PATH:
            suffix = _PATH.sub(lambda path: fold(path.group()), suffix, count=1)
        return f"{fold(handle.prefix)}/{suffix}"


PROFILE_CASE_RULES = {
    "pilin": CaseRule.INSENSITIVE,
    "cordra": CaseRule.PATH,
    "free": CaseRule.INSENSITIVE,  # as deployed services do
    "exact": CaseRule.SENSITIVE,
}
"""Case rules of the built-in namespace profiles (H5)."""


def _split(text: str) -> tuple[str, str]:
    prefix, slash, suffix = text.partition("/")
    if prefix and suffix:
        return prefix, suffix
    if not slash:
        raise missing_suffix(text, len(text))
    if not prefix:
        raise InvalidName("H1", 'the prefix (before the first "/") is empty', position=0)
    raise InvalidName("H1", 'the suffix (after the first "/") is empty', position=len(text))


def missing_suffix(prefix: str, position: int) -> InvalidName:
    """Error for a name without a slash (H1). If it looks like a prefix, name the handle that describes it (H8)."""
    message = 'a handle is PREFIX/SUFFIX, but there is no "/"' if prefix else "the name is empty"
    if _LIKE_PREFIX.fullmatch(prefix):
        message = f"{message}; the prefix {prefix} itself is described by {PREFIX_OF_PREFIXES}/{prefix}"
    return InvalidName("H1", message, position=position)


def _check_utf_8(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise surrogate_error(error) from None


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        message = f"byte {error.start + 1} (0x{byte:02X}) is not valid UTF-8"
        raise InvalidName("H4", message) from None
