"""Prefixes: their form (H2), and who is derived from whom as far as names alone tell (H6).

A prefix is one or more non-empty segments joined by "."; `12345.1` is derived from `12345`. Prefixes are compared
without regard to the case of ASCII letters, always (H5).
"""

from collections.abc import Iterable, Iterator

from .characters import check_blanks, check_characters, check_length, fold
from .errors import InvalidName, NameMisuse

MAX_PREFIX_BYTES = 2043
"""The longest prefix in bytes of UTF-8: the handle that describes it, `0.NA/…`, must not exceed 2,048 (H9)."""


def check_structure(prefix: str) -> None:
    """Refuse what does not have the form of a prefix (H1, H2)."""
    if not prefix:
        raise InvalidName("H1", 'the prefix (before the first "/") is empty', position=0)
    if "/" in prefix:
        raise InvalidName("H2", 'a prefix holds no "/"', position=prefix.index("/"), character="/")
    dot = find_empty_segment(prefix)
    if dot is not None:
        message = "the prefix has an empty segment: dots stand between segments, singly"
        raise InvalidName("H2", message, position=dot, character=".")


def find_empty_segment(prefix: str) -> int | None:
    """Where the dot stands beside which a segment is empty; None if every segment has a character."""
    if prefix[0] == ".":
        return 0
    doubled = prefix.find("..")
    if doubled >= 0:
        return doubled + 1
    return len(prefix) - 1 if prefix[-1] == "." else None


def check_prefix(prefix: str) -> None:
    """Refuse what may not be registered as a prefix (H2, H3, H9)."""
    check_structure(prefix)
    check_length(prefix, MAX_PREFIX_BYTES, "prefix")
    check_characters(prefix)
    check_blanks(prefix, "prefix", 0)


def parent(prefix: str) -> str | None:
    """The prefix that this one is derived from; None if it is not derived (H6)."""
    head, dot, _ = prefix.rpartition(".")
    return head if dot else None


def ancestors(prefix: str) -> Iterator[str]:
    """Parent, grandparent and so on, nearest first (H6)."""
    above = parent(prefix)
    while above is not None:
        yield above
        above = parent(above)


def is_derived(prefix: str, from_prefix: str) -> bool:
    """Whether `prefix` is derived from `from_prefix`, directly or over several levels (H6)."""
    return fold(prefix).startswith(fold(from_prefix) + ".")


def children(prefix: str, among: Iterable[str]) -> list[str]:
    """Those `among` the given prefixes that are derived directly from `prefix`, in their order (H6)."""
    folded = fold(prefix)
    return [other for other in among if (above := parent(other)) is not None and fold(above) == folded]


def derive(prefix: str, segment: str) -> str:
    """The name of the derived prefix `prefix.segment` (H6)."""
    if not segment or "." in segment:
        raise NameMisuse("H6", f'a prefix is derived by one segment without "."; {segment!r} is not one')
    derived = f"{prefix}.{segment}"
    check_prefix(derived)
    return derived
