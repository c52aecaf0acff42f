"""What a TOML text may be like before it is read: the standard library's reader has no bounds of its own.

It takes time that grows with the square of the parts of a dotted key, `a.a.a… = 1`, and it nests as deeply as the text
does. A text of rules or settings is flat, so it is looked at first, in time that grows with its length alone.

Dots and brackets in texts and comments mean nothing, and are passed over as the reader does it. Where a text does not
end the reader stops; so it does not matter what comes after that.
"""

import re
from typing import Final

MAX_DOTS: Final = 32
"""Dots outside of texts, in all: those between the parts of keys, for which flat rules have hardly any use. With as
many, 16 KiB are read in 30 milliseconds at worst; with a thousand it is half a second."""

MAX_NESTING: Final = 8
"""How deep lists and tables stand in each other; a policy needs one level, and `[[name]]` two."""

_PASSED: Final = re.compile(
    r"""
      \"{3} (?: \\. | [^\\] )*? (?: \"{3,5} | \Z )          # a text of several lines
    | '{3} .*? (?: '{3,5} | \Z )                            # the same, without escapes
    | " (?: [^"\\\n] | \\[^\n] )*+ (?: " | .* )             # a text; one that does not end goes on for ever
    | ' [^'\n]*+ (?: ' | .* )
    | \# [^\n]*+                                            # a comment
    """,
    re.VERBOSE | re.DOTALL,
)
_BRACKET: Final = re.compile(r"[\[\]{}]")


def objection(text: str) -> str | None:
    """Why a text is not read at all, in words; None if it is."""
    rest = _PASSED.sub("", text)
    dots = rest.count(".")
    if dots > MAX_DOTS:
        return f"keys are single words, and here are {dots:,} dots outside of texts; {MAX_DOTS} are the most"
    depth = 0
    for found in _BRACKET.finditer(rest):
        depth += 1 if found[0] in "[{" else -1
        if depth > MAX_NESTING:
            return f"lists and tables stand in each other, very deep; {MAX_NESTING} levels are the most"
    return None
