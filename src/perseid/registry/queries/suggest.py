"""What may have been meant by a text that is no name here: readings of it, each with what was done to the text.

People copy names out of documents, letters and address bars, and something comes along: blanks, a full stop, a bracket,
the address of a resolver, dashes that a word processor made of hyphens, escapes that were escaped once more. Each
repair takes one such thing away. Repairs are applied to what others have left, as far as there are new readings, and
the outermost comes first.

Only what stands around and between is repaired here. Slips of the pen are the part of `perseid.names.suggest`.

Did you mean …? For a name that was not found: names that are there, and what is known of its prefix.

Suggested are names of this server that everybody may know of, and no others: what is reserved or unpublished looks as
if it were not there. They come from the text itself, repaired (`repairing`), or with one slip of the pen mended
(`perseid.names.suggest`); each candidate is looked up by name. Nothing is listed.

Everybody may ask, so the work is bounded: in look-ups, in time, in what is told. It is meant to help somebody who has
a name that is nearly right, and to be no cheaper way of finding out which names there are than to ask for them one by
one. So one request looks no further than a slip away and tells of a few names. Where a repaired name is there, nothing
is guessed. Where a name has many neighbours, which differ in one character, one more or one less, which of them was
meant cannot be told, and none of them is. Doors let a client ask only so often besides. The work is the same whether or
not there is something to find: it ends when all candidates were looked up, not when enough are found.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice, zip_longest
from typing import Final
from urllib.parse import unquote

from perseid.ledger.log.entry import State
from perseid.ledger.views.answers_format import HandleItem
from perseid.names import prefixes
from perseid.names.characters import fold
from perseid.names.errors import InvalidName, format_character
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle
from perseid.names.pilin import LOOKALIKES
from perseid.names.suffix_scheme import Scheme
from perseid.names.suggest import suggest
from perseid.names.uri import BYTE_ORDER_MARK, KNOWN_RESOLVERS, STRIPPED_CHARACTERS, Resolver, parse_user_input
from perseid.records.json_parsing import JsonObject
from perseid.records.value import Value
from perseid.registry.access.permissions import display_name
from perseid.registry.policy.authority_metadata import first_valid, parse_stored_party, values_of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.registry import Registry
from perseid.registry.results import Refused
from perseid.registry.snapshot import MAX_ANCESTORS, SITE_PREFIX

from .citation import to_single_line

MAX_TEXT: Final = 8_192
"""Characters of the longest text that is read: as long as a request can be."""

WITHOUT_ADDRESS: Final = "without the address before it"
"""What is said of a reading that leaves out what may be a resolver's address, or the beginning of the name."""

MAX_CANDIDATES: Final = 16
"""The most readings of a text: each is looked up, and the fourth thing that came along is hardly ever there."""

_OPENING: Final = "([{<\"'«“‘„‹"  # noqa: RUF001 - the quotation marks of several languages are meant
_CLOSING: Final = ")]}>\"'»”’“›.,;:!?…"  # noqa: RUF001
_DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_SLASHES: Final = "\u2044\u2215\u29f8\uff0f"
_BLANKS: Final = "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_INVISIBLE: Final = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060" + BYTE_ORDER_MARK
_TO_ASCII: Final = str.maketrans(
    dict.fromkeys(_DASHES, "-")
    | dict.fromkeys(_SLASHES, "/")
    | dict.fromkeys(_BLANKS, " ")
    | dict.fromkeys(_INVISIBLE, "")
    # Letters and digits as wide as Chinese ones, which keyboards for these make.
    | {chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(0x5E) if chr(0xFF01 + offset) not in _DASHES}
)
_BLANK: Final = re.compile(r"\s+")
_TAIL: Final = re.compile("[?#]")
_NUMERIC: Final = re.compile("[0-9.]+")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may have been meant."""

    text: str
    done: tuple[str, ...] = ()
    """What was done to the text, as clauses for people; nothing to the text as it came."""

    @property
    def why(self) -> str:
        """How it comes from the text, as a clause."""
        return f"this is what you asked for, {', '.join(self.done)}"


def find_candidates(text: str, resolvers: Sequence[Resolver]) -> tuple[Candidate, ...]:
    """What may have been meant by a text: the text itself, and then what repairs make of it; no two are the same."""
    found = [Candidate(text)]
    if len(text) > MAX_TEXT:
        return tuple(found)
    known = {text}
    for reading in found:  # grows while it is walked
        for other, clause in _repairs(reading.text, resolvers):
            if len(found) < MAX_CANDIDATES and other and other not in known:
                known.add(other)
                found.append(Candidate(other, reading.done if clause in reading.done else (*reading.done, clause)))
    return tuple(found)


def _repairs(text: str, resolvers: Sequence[Resolver]) -> Iterator[tuple[str, str]]:
    yield text.strip(STRIPPED_CHARACTERS), "without the blanks around it"
    yield text.translate(_TO_ASCII), "with plain hyphens, slashes, blanks and letters"
    yield text.lstrip(_OPENING).rstrip(_CLOSING), "without the punctuation around it"
    yield text.rstrip("/"), "without the slash at its end"
    with suppress(InvalidName):
        yield str(parse_user_input(text, resolvers, for_lookup=True).handle), "without what a URI has around a name"
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
        yield path, WITHOUT_ADDRESS


MAX_SUGGESTIONS: Final = 5
"""Names that are told: as many as somebody looks at."""

MAX_LOOKUPS: Final = 1_000
"""Names and prefixes that are looked up for a request: one character wrong, missing or too many anywhere in a suffix of
a dozen takes all of them, where letters are not told apart. Of a longer one the likelier slips are tried. Each takes
some 10 µs with all that belongs to it."""

MAX_SECONDS: Final = 0.1
"""How long is looked, however slow the machine: the page that says "not found" waits for it."""

MAX_NEIGHBORS: Final = 3
"""Names one character away that are told: another one, one more or one less. Where there are more, as among numbers
given one after the other, they are neighbours by chance."""

_PUBLIC: Final = (State.NORMAL, State.TOMBSTONE)
_TO_DIGITS: Final = str.maketrans({fold(letter): digit for letter, digit in LOOKALIKES.items()})


class PrefixStatus(Enum):
    """What this server is to a prefix."""

    HERE = "here"
    """It answers for its names."""
    DERIVED = "derived"
    """It answers for the names of a prefix that this one is derived from, and not for those of this one."""
    ELSEWHERE = "elsewhere"
    """It knows the prefix, and another service answers for its names."""
    UNKNOWN = "unknown"
    """It knows nothing of it."""


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """What is known of the prefix of a name that was not found."""

    prefix: str
    standing: PrefixStatus
    related: str | None = None
    """The prefix that it is derived from, if that is the nearest one that is here."""

    @property
    def why(self) -> str:
        """The same for people, as a clause."""
        name = display_name(self.prefix)
        if self.standing is PrefixStatus.HERE:
            return f"names that begin with {name}/ are kept here, and this one is not among them"
        if self.standing is PrefixStatus.DERIVED:
            return (
                f"{name} is derived from {display_name(self.related or '')}, which is kept here; {name} itself is not"
            )
        if self.standing is PrefixStatus.ELSEWHERE:
            return f"{name} is known here, and another service answers for its names"
        return f"nothing is known here of the prefix {name}"

    def to_json(self) -> JsonObject:
        """As a plain object."""
        plain: JsonObject = {"prefix": self.prefix, "standing": self.standing.value, "why": self.why}
        return plain if self.related is None else plain | {"derivedFrom": self.related}


@dataclass(frozen=True, slots=True)
class TombstoneInfo:
    """What became of a thing whose name is a tombstone (S8); empty is not told."""

    reason: str = ""
    date: str = ""
    replacement: Handle | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A name that is there, and may have been meant."""

    handle: Handle
    """As it is registered."""
    why: str
    """What makes it likely, as a clause."""
    gone: TombstoneInfo | None = None
    """What became of its thing; None if that is there."""

    def to_json(self) -> JsonObject:
        """As a plain object."""
        plain: JsonObject = {"handle": str(self.handle), "why": self.why}
        if self.gone is not None:
            replacement = self.gone.replacement
            plain["gone"] = {
                "reason": self.gone.reason,
                "date": self.gone.date,
                "replacement": None if replacement is None else str(replacement),
            }
        return plain


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What can be told to somebody who asked for a name that is not there."""

    suggestions: tuple[Suggestion, ...] = ()
    """The nearest first."""
    prefix: KnownPrefix | None = None
    """None if the text has no prefix."""

    def to_json(self) -> JsonObject:
        """As a plain object."""
        plain: JsonObject = {"suggestions": [each.to_json() for each in self.suggestions]}
        return plain if self.prefix is None else plain | {"prefix": self.prefix.to_json()}


def suggestions(
    registry: Registry,
    text: str,
    resolvers: Sequence[Resolver] = KNOWN_RESOLVERS,
    clock: Callable[[], float] = time.monotonic,
) -> Suggestions:
    """What may have been meant by a text that was not found as a name, as everybody may know it.

    `resolvers` are those whose addresses people paste: the known ones, and the door's own.
    """
    looking = _SuggestionSearch(registry, clock)
    try:
        looking.look_up_repairs(text, resolvers)
        looking.look_up_typos()
    except _LimitReached:
        pass
    return looking.result()


class _LimitReached(Exception):
    """No more is to be looked up."""


class _Typo(Enum):
    """How two spellings differ."""

    CASE = "only capital and small letters differ"
    LOOKALIKE = "0 and O, or 1, I and l, are easily taken for each other"
    SWAPPED = "two characters are the other way round there"
    ONE = "one character is another there"
    MORE = "one character is missing"
    LESS = "one character is too many"
    OTHER = "it is spelled nearly the same"


_NEIGHBOR_TYPOS: Final = (_Typo.ONE, _Typo.MORE, _Typo.LESS)


class _SuggestionSearch:
    """Looks names up, within bounds, and keeps what it finds in the order of finding it."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._clock = clock
        self._until = clock() + MAX_SECONDS
        self._remaining = MAX_LOOKUPS
        self._homed: dict[str, bool] = {}
        self._seen_names: set[str] = set()
        self._found: dict[bytes, tuple[HandleItem, str]] = {}
        self._neighbors: set[bytes] = set()
        self._is_certain = False  # that nothing has to be guessed
        self._likely: Handle | None = None
        self._prefix: KnownPrefix | None = None

    def look_up_repairs(self, text: str, resolvers: Sequence[Resolver]) -> None:
        """Look up what repairs make of a text, and decide which reading of it was meant most likely."""
        found = find_candidates(text, resolvers)
        names = [(reading, handle) for reading in found if (handle := Handle.for_lookup(reading.text)) is not None]
        self._likely = self._likeliest(names[::-1])
        if self._likely is not None:
            self._prefix = self._known(self._likely.prefix)
        elif bare := [reading.text for reading in found if _is_prefix(reading.text)]:
            self._prefix = self._known(bare[-1])
        for reading, handle in names:
            if reading.done:
                self._note(self._look_up(handle), reading.why)
        self._is_certain = bool(self._found)

    def _likeliest(self, names: Sequence[tuple[Candidate, Handle]]) -> Handle | None:
        """The reading with the least left on it: of those that are names of this server, or else of all.

        What stands before a slash is an address for certain only where the text says so, or where that leads to a name.
        """
        for _, handle in names:
            if self._answers_for(handle):
                return handle
        whole = [handle for reading, handle in names if WITHOUT_ADDRESS not in reading.done]
        return next(iter(whole or [handle for _, handle in names]), None)

    def look_up_typos(self) -> None:
        """Look up what one slip of the pen away is from the reading that was meant most likely."""
        meant = self._likely
        if meant is None:
            return
        scheme, case = self._rules(meant)

        def check_candidate(name: str) -> bool:
            handle = Handle.parse(name)
            item = self._look_up(handle)
            if item is not None:
                slip, why = _compare(meant, _item_handle(item))
                if slip in _NEIGHBOR_TYPOS:
                    self._neighbors.add(item.key)
                if not self._is_certain:
                    self._note(item, why)
            return False  # so that all candidates are looked up, whatever is found

        suggest(str(meant), check_candidate, scheme=scheme, case=case, resolvers=())

    def result(self) -> Suggestions:
        """What is told of what was found."""
        crowded = set() if self._is_certain or len(self._neighbors) <= MAX_NEIGHBORS else self._neighbors
        found = [pair for key, pair in self._found.items() if key not in crowded][:MAX_SUGGESTIONS]
        return Suggestions(
            tuple([Suggestion(_item_handle(item), why, self._gone(item)) for item, why in found]), self._prefix
        )

    # Names

    def _look_up(self, handle: Handle) -> HandleItem | None:
        """What is under a name that this server answers for and everybody may know of."""
        if str(handle) in self._seen_names or not self._answers_for(handle):
            return None
        self._seen_names.add(str(handle))
        self._spend()
        item = self._registry.ledger.find(handle.to_bytes())
        return item if item is not None and item.state in _PUBLIC else None

    def _note(self, item: HandleItem | None, why: str) -> None:
        if item is not None:
            self._found.setdefault(item.key, (item, why))

    def _rules(self, handle: Handle) -> tuple[Scheme | None, CaseRule]:
        """How names of a namespace look, and which spellings are one: as far as that can be told."""
        try:
            policy = self._policy_of(handle.prefix)
            return policy.suffix_scheme(), policy.case
        except (Refused, InvalidPolicy):
            return None, CaseRule.SENSITIVE

    def _policy_of(self, prefix: str) -> Policy:
        with self._registry.snapshot() as snapshot:
            return snapshot.policy(prefix)

    def _gone(self, item: HandleItem) -> TombstoneInfo | None:
        if item.state is not State.TOMBSTONE:
            return None
        try:
            policy = self._policy_of(_item_handle(item).prefix)
        except Refused:
            return TombstoneInfo()
        now = self._registry.now()
        values = [Value.from_bytes(data, now) for data in item.values]

        def said(type_: str) -> str:
            texts = (
                to_single_line(value.data.decode("utf-8", "replace")) for value in values_of_exact_type(values, type_)
            )
            return next(texts, "")

        replacement = first_valid(values_of_exact_type(values, policy.tombstone_replacement_type), parse_stored_party)
        return TombstoneInfo(said(policy.tombstone_reason_type), said(policy.tombstone_date_type), replacement)

    # Prefixes

    def _answers_for(self, handle: Handle) -> bool:
        """Whether this server answers for a name (§12.1 of the protocol)."""
        if self._is_homed(handle.prefix):
            return True
        return handle.is_prefix_handle and any(self._holds_derived(above) for above in _parent_prefixes(handle.suffix))

    def _is_homed(self, prefix: str) -> bool:
        key = fold(prefix)
        if key not in self._homed:
            self._spend()
            item = None if key == SITE_PREFIX else self._registry.ledger.prefix(prefix.encode("utf-8"))
            self._homed[key] = item is not None and (item.homed or item.homed_bare)
        return self._homed[key]

    def _holds_derived(self, prefix: str) -> bool:
        self._spend()
        item = self._registry.ledger.prefix(prefix.encode("utf-8"))
        return item is not None and item.marker

    def _known(self, prefix: str) -> KnownPrefix:
        if self._is_homed(prefix):
            return KnownPrefix(prefix, PrefixStatus.HERE)
        handle = Handle.for_lookup(f"{PREFIX_OF_PREFIXES}/{prefix}")
        if handle is not None and self._look_up(handle) is not None:
            return KnownPrefix(prefix, PrefixStatus.ELSEWHERE)
        above = next(filter(self._is_homed, _parent_prefixes(prefix)), None)
        return KnownPrefix(prefix, PrefixStatus.UNKNOWN if above is None else PrefixStatus.DERIVED, above)

    def _spend(self) -> None:
        self._remaining -= 1
        if self._remaining < 0 or self._clock() > self._until:
            raise _LimitReached


def _is_prefix(text: str) -> bool:
    return "/" not in text and Handle.for_lookup(f"{PREFIX_OF_PREFIXES}/{text}") is not None


def _parent_prefixes(prefix: str) -> Sequence[str]:
    return tuple(islice(filter(None, prefixes.ancestors(prefix)), MAX_ANCESTORS))


def _item_handle(item: HandleItem) -> Handle:
    return Handle.parse_lenient(item.spelling)


def _compare(meant: Handle, found: Handle) -> tuple[_Typo, str]:
    """How a name differs from what was asked for, and the same for people."""
    one, other = fold(str(meant)), fold(str(found))
    if one == other:
        return _Typo.CASE, _Typo.CASE.value
    if one.translate(_TO_DIGITS) == other.translate(_TO_DIGITS):
        return _Typo.LOOKALIKE, _Typo.LOOKALIKE.value
    places = [place for place, pair in enumerate(zip_longest(one, other)) if pair[0] != pair[1]]
    place = places[0]
    if one == other[:place] + other[place + 1 :]:
        return (
            _Typo.MORE,
            f"it has one character more there: character {place + 1}, {format_character(str(found)[place])}",
        )
    if other == one[:place] + one[place + 1 :]:
        return (
            _Typo.LESS,
            f"it has one character less there: without character {place + 1}, {format_character(str(meant)[place])}",
        )
    if len(one) != len(other) or len(places) > 2:
        return _Typo.OTHER, _Typo.OTHER.value
    if len(places) == 1:
        return (
            _Typo.ONE,
            (
                f"character {place + 1} is {format_character(str(found)[place])} there, not "
                f"{format_character(str(meant)[place])}"
            ),
        )
    first, second = places
    is_swapped = (one[first], one[second]) == (other[second], other[first])
    slip = _Typo.SWAPPED if is_swapped else _Typo.OTHER
    return slip, slip.value
