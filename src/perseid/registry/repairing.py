"""What may have been meant by a text that is no name here: readings of it, each with what was done to the text.

People copy names out of documents, letters and address bars, and something comes along: blanks, a full stop, a bracket,
the address of a resolver, dashes that a word processor made of hyphens, escapes that were escaped once more. Each
repair takes one such thing away. Repairs are applied to what others have left, as far as there are new readings, and
the outermost comes first.

Only what stands around and between is repaired here. Slips of the pen are the part of `perseid.names.suggest`.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from perseid.names.errors import InvalidName
from perseid.names.uri import AROUND, BYTE_ORDER_MARK, Resolver, parse_human

MAX_TEXT: Final = 8_192
"""Characters of the longest text that is read: as long as a request can be."""

ADDRESS: Final = "without the address before it"
"""What is said of a reading that leaves out what may be a resolver's address, or the beginning of the name."""

MAX_READINGS: Final = 16
"""The most readings of a text: each is looked up, and the fourth thing that came along is hardly ever there."""

_OPENING: Final = "([{<\"'«“‘„‹"  # noqa: RUF001 - the quotation marks of several languages are meant
_CLOSING: Final = ")]}>\"'»”’“›.,;:!?…"  # noqa: RUF001
_DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_SLASHES: Final = "\u2044\u2215\u29f8\uff0f"
_BLANKS: Final = "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_UNSEEN: Final = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060" + BYTE_ORDER_MARK
_PLAIN: Final = str.maketrans(
    dict.fromkeys(_DASHES, "-")
    | dict.fromkeys(_SLASHES, "/")
    | dict.fromkeys(_BLANKS, " ")
    | dict.fromkeys(_UNSEEN, "")
    # Letters and digits as wide as Chinese ones, which keyboards for these make.
    | {chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(0x5E) if chr(0xFF01 + offset) not in _DASHES}
)
_BLANK: Final = re.compile(r"\s+")
_TAIL: Final = re.compile("[?#]")
_NUMERIC: Final = re.compile("[0-9.]+")


@dataclass(frozen=True, slots=True)
class Reading:
    """What may have been meant."""

    text: str
    done: tuple[str, ...] = ()
    """What was done to the text, as clauses for people; nothing to the text as it came."""

    @property
    def why(self) -> str:
        """How it comes from the text, as a clause."""
        return f"this is what you asked for, {', '.join(self.done)}"


def readings(text: str, resolvers: Sequence[Resolver]) -> tuple[Reading, ...]:
    """What may have been meant by a text: the text itself, and then what repairs make of it; no two are the same."""
    found = [Reading(text)]
    if len(text) > MAX_TEXT:
        return tuple(found)
    known = {text}
    for reading in found:  # grows while it is walked
        for other, clause in _repaired(reading.text, resolvers):
            if len(found) < MAX_READINGS and other and other not in known:
                known.add(other)
                found.append(Reading(other, reading.done if clause in reading.done else (*reading.done, clause)))
    return tuple(found)


def _repaired(text: str, resolvers: Sequence[Resolver]) -> Iterator[tuple[str, str]]:
    yield text.strip(AROUND), "without the blanks around it"
    yield text.translate(_PLAIN), "with plain hyphens, slashes, blanks and letters"
    yield text.lstrip(_OPENING).rstrip(_CLOSING), "without the punctuation around it"
    yield text.rstrip("/"), "without the slash at its end"
    with suppress(InvalidName):
        yield str(parse_human(text, resolvers, for_lookup=True).handle), "without what a URI has around a name"
    if "%" in text:
        with suppress(UnicodeDecodeError):
            yield unquote(text, errors="strict"), "with its escapes decoded once more"
    yield _TAIL.split(text, maxsplit=1)[0], "without the query or fragment behind it"
    yield from _without_address(text)
    yield _BLANK.sub("", text), "without the blanks inside it"


def _without_address(text: str) -> Iterator[tuple[str, str]]:
    """A resolver's address without its scheme, or one that is not known: what follows the host, or host and segment."""
    address = text.partition("://")[2]
    first, _, path = (address or text).partition("/")
    if "/" in path.strip("/") and (address or not _NUMERIC.fullmatch(first)):  # digits and dots are a prefix
        yield path, ADDRESS
