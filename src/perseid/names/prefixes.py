"""Prefixes: syntax (H2) and derivation (H6).

A prefix is one or more non-empty segments joined by "."; `12345.1` is derived from `12345`. Prefixes are always
case-insensitive for ASCII letters (H5).
"""

from collections.abc import Iterator

from .characters import check_blanks, check_characters, check_length, fold
from .errors import InvalidName

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
    check_blanks(prefix, "prefix", 0)


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
