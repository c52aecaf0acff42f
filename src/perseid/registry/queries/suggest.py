"""Suggestions ("did you mean …?") for a text that is not found as a handle.

`perseid.names.suggest` repairs the text and corrects typos; this module decides what is looked up and shown. Only
public handles are suggested: reserved and unpublished ones look free. A repaired text is the handle that the caller
meant. A handle that differs by a typo is suggested only in namespaces that the caller could list: for everybody those
with `who_may_list = "public"`.

Anybody can ask, so lookups, time and results are limited. It helps people with a nearly correct handle and must not be
a cheaper way to enumerate handles than asking for them one by one: a request tries a single typo and returns a few
handles. If a repaired handle exists, nothing is guessed. If many handles differ from the text in one character, none of
them is suggested. Interfaces also limit the rate. The work is the same whether or not something is found: it ends when
all candidates were looked up.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from perseid.ledger.log.entry import State
from perseid.ledger.views.answers_format import HandleItem
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle, ancestor_prefixes, fold
from perseid.names.schemes import Scheme
from perseid.names.suggest import WITHOUT_ADDRESS, Reading, Typo, compare, find_candidates, find_readings
from perseid.names.uri import KNOWN_RESOLVERS, Resolver
from perseid.records.encoding import JsonObject
from perseid.records.record import Value
from perseid.records.titles import to_single_line
from perseid.registry.access.permissions import display_name
from perseid.registry.policy.authority import first_valid, parse_stored_party, values_of_exact_type
from perseid.registry.policy.policy import Policy
from perseid.registry.policy.text import InvalidPolicy
from perseid.registry.registry import Registry
from perseid.registry.results import NotYetCreated, OtherServer, Refused
from perseid.registry.snapshot import MAX_ANCESTORS, SITE_PREFIX, LedgerNeeded, Snapshot
from perseid.schema.problems import PrefixStatus
from perseid.wire.codes import ResponseCode

from .browse import is_listed

MAX_SUGGESTIONS: Final = 5
"""Maximum number of suggested handles."""

MAX_LOOKUPS: Final = 1_000
"""Lookups of handles and prefixes per request: enough for one wrong, missing or extra character in a case-insensitive
suffix of a dozen characters. In longer ones the likelier typos are tried. Each takes about 10 µs in total."""

STEP_LOOKUPS: Final = 16
"""Lookups in one step of a search: two tenths of a millisecond, for which everybody else in a process waits."""

MAX_SECONDS: Final = 0.1
"""Time limit, however slow the machine: the "not found" page waits for it."""

MAX_NEIGHBORS: Final = 3
"""Suggested handles that differ in one character. If there are more, as among consecutive numbers, they are similar by
chance."""

SUGGESTION_CODES: Final = frozenset(
    (ResponseCode.HANDLE_NOT_FOUND, ResponseCode.INVALID_HANDLE, ResponseCode.SERVER_NOT_RESP)
)
"""Codes that a typo may cause, unless another server of the site is responsible (`may_be_typo`)."""

_PUBLIC: Final = (State.NORMAL, State.TOMBSTONE)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """What is known about the prefix of a handle that was not found."""

    prefix: str
    status: PrefixStatus
    related: str | None = None
    """The nearest hosted prefix that it is derived from."""

    @property
    def why(self) -> str:
        """Explanation for people, as a clause."""
        name = display_name(self.prefix)
        if self.status is PrefixStatus.HOSTED:
            return f"prefix {name} is hosted here, but this handle does not exist"
        if self.status is PrefixStatus.DERIVED:
            return f"prefix {name} is not hosted here; it is derived from {display_name(self.related or '')}, which is"
        if self.status is PrefixStatus.OTHER_SERVICE:
            return f"prefix {name} is hosted by another service"
        return f"prefix {name} is unknown to this server"

    def to_json(self) -> JsonObject:
        plain: JsonObject = {"prefix": self.prefix, "status": self.status.value, "why": self.why}
        return plain if self.related is None else plain | {"derived_from": self.related}


@dataclass(frozen=True, slots=True)
class TombstoneInfo:
    """Why an identifier was withdrawn (S8); empty fields are omitted."""

    reason: str = ""
    date: str = ""
    replacement: Handle | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An existing handle that may have been meant."""

    handle: Handle
    """As registered."""
    why: str
    """Why it is likely, as a clause."""
    gone: TombstoneInfo | None = None
    """Set if it is a tombstone."""

    def to_json(self) -> JsonObject:
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
    """The response for a handle that was not found."""

    suggestions: tuple[Suggestion, ...] = ()
    """The nearest first."""
    prefix: KnownPrefix | None = None
    """None if the text has no prefix."""

    def to_json(self) -> JsonObject:
        plain: JsonObject = {"suggestions": [each.to_json() for each in self.suggestions]}
        return plain if self.prefix is None else plain | {"prefix": self.prefix.to_json()}


def suggestions(
    registry: Registry,
    text: str,
    resolvers: Sequence[Resolver] = KNOWN_RESOLVERS,
    clock: Callable[[], float] = time.monotonic,
    *,
    lists_all: bool = False,
) -> Suggestions:
    """Return public suggestions for a text that was not found.

    `resolvers` are those whose addresses people paste: the known ones and the interface's own. `lists_all` is whether
    the caller can list the handles of all namespaces.
    """
    search = SuggestionSearch(registry, text, resolvers, clock, lists_all=lists_all)
    for _ in search.steps():
        pass
    return search.result()


class _LimitReached(Exception):
    """The limit of lookups or time is reached."""


_NEIGHBOR_TYPOS: Final = (Typo.ONE, Typo.MORE, Typo.LESS)


class SuggestionSearch:
    """Looks up candidates within limits and keeps matches in order."""

    def __init__(
        self,
        registry: Registry,
        text: str,
        resolvers: Sequence[Resolver] = KNOWN_RESOLVERS,
        clock: Callable[[], float] = time.monotonic,
        *,
        lists_all: bool = False,
    ) -> None:
        self._registry = registry
        self._lists_all = lists_all
        self._text = text
        self._resolvers = resolvers
        self._clock = clock
        self._until = clock() + MAX_SECONDS
        self._remaining = MAX_LOOKUPS
        self._homed: dict[str, bool] = {}
        self._listed: dict[str, bool] = {}
        self._looked_up: set[str] = set()
        self._found: dict[bytes, tuple[HandleItem, str]] = {}
        self._neighbors: set[bytes] = set()
        self._is_certain = False  # a repaired handle exists
        self._likely: Handle | None = None
        self._prefix: KnownPrefix | None = None

    def steps(self) -> Iterator[None]:
        """Search; after each step of `STEP_LOOKUPS` lookups the caller can do something else, or stop."""
        try:
            self._look_up_repairs()
            yield
            for number, _ in enumerate(self._look_up_typos(), 1):
                if number % STEP_LOOKUPS == 0:
                    yield
        except _LimitReached:
            pass

    def _look_up_repairs(self) -> None:
        """Look up the repaired forms of the text and choose the most likely reading."""
        readings = find_readings(self._text, self._resolvers)
        names = [(reading, handle) for reading in readings if (handle := Handle.for_lookup(reading.text)) is not None]
        self._likely = self._likeliest(names[::-1])
        if self._likely is not None:
            if not self._is_elsewhere(self._likely):
                self._prefix = self._known(self._likely.prefix)
        elif bare := [reading.text for reading in readings if _is_prefix(reading.text)]:
            self._prefix = self._known(bare[-1])
        for reading, handle in names:
            if reading.done:
                self._add(self._look_up(handle, is_repaired=True), reading.why)
        self._is_certain = bool(self._found)

    def _likeliest(self, names: Sequence[tuple[Reading, Handle]]) -> Handle | None:
        """Return the most repaired reading: of those hosted here, or else of all.

        The part before a slash is certainly an address only if the text says so, or if removing it leads to a hosted
        handle.
        """
        for _, handle in names:
            if self._answers_for(handle):
                return handle
        whole = [handle for reading, handle in names if WITHOUT_ADDRESS not in reading.done]
        return next(iter(whole or [handle for _, handle in names]), None)

    def _look_up_typos(self) -> Iterator[None]:
        """Look up handles that are one typo away from the most likely reading; all of them, whatever is found."""
        requested = self._likely
        if requested is None:
            return
        scheme, case = self._rules(requested)
        for handle in find_candidates(str(requested), scheme=scheme, case=case, resolvers=()):
            item = self._look_up(handle)
            if item is not None:
                typo, why = compare(requested, _item_handle(item))
                if typo in _NEIGHBOR_TYPOS:
                    self._neighbors.add(item.key)
                if not self._is_certain:
                    self._add(item, why)
            yield

    def result(self) -> Suggestions:
        crowded = set() if self._is_certain or len(self._neighbors) <= MAX_NEIGHBORS else self._neighbors
        found = [pair for key, pair in self._found.items() if key not in crowded][:MAX_SUGGESTIONS]
        return Suggestions(
            tuple([Suggestion(_item_handle(item), why, self._gone(item)) for item, why in found]), self._prefix
        )

    # Handles

    def _look_up(self, handle: Handle, *, is_repaired: bool = False) -> HandleItem | None:
        """Return a public record that this server hosts: of a repaired text, or one that the caller could list."""
        if str(handle) in self._looked_up or not self._answers_for(handle):
            return None
        if not is_repaired and not self._is_listed(handle.prefix):
            return None
        self._looked_up.add(str(handle))
        return self._find(handle)

    def _find(self, handle: Handle) -> HandleItem | None:
        """Return a public record that is not a copy of one at another server of this site."""
        self._spend()
        if self._is_elsewhere(handle):
            return None
        item = self._registry.ledger.find(handle.to_bytes())
        return item if item is not None and item.state in _PUBLIC else None

    def _add(self, item: HandleItem | None, why: str) -> None:
        if item is not None:
            self._found.setdefault(item.key, (item, why))

    def _rules(self, handle: Handle) -> tuple[Scheme | None, CaseRule]:
        """Return the suffix scheme and case rule of a namespace, as far as known."""
        try:
            policy = self._policy_of(handle.prefix)
            return policy.suffix_scheme(), policy.case
        except (Refused, InvalidPolicy):
            return None, CaseRule.SENSITIVE

    def _policy_of(self, prefix: str) -> Policy:
        return self._read(lambda snapshot: snapshot.policy(prefix))

    def _read(self, read: Callable[[Snapshot], T]) -> T:
        with suppress(LedgerNeeded), self._registry.public_snapshot() as public:
            return read(public)
        with self._registry.snapshot() as snapshot:
            return read(snapshot)

    def _gone(self, item: HandleItem) -> TombstoneInfo | None:
        if item.state is not State.TOMBSTONE:
            return None
        try:
            policy = self._policy_of(_item_handle(item).prefix)
        except Refused:
            return TombstoneInfo()
        now = self._registry.now()
        values = [Value.from_bytes(data, now) for data in item.values]

        def text_of(type_: str) -> str:
            texts = (
                to_single_line(value.data.decode("utf-8", "replace")) for value in values_of_exact_type(values, type_)
            )
            return next(texts, "")

        replacement = first_valid(values_of_exact_type(values, policy.tombstone_replacement_type), parse_stored_party)
        return TombstoneInfo(text_of(policy.tombstone_reason_type), text_of(policy.tombstone_date_type), replacement)

    # Prefixes

    def _answers_for(self, handle: Handle) -> bool:
        """Whether this server is responsible for a handle (§12.1 of the protocol)."""
        if self._is_homed(handle.prefix):
            return True
        return handle.is_prefix_handle and any(self._holds_derived(above) for above in _parent_prefixes(handle.suffix))

    def _is_elsewhere(self, handle: Handle) -> bool:
        """Whether another server of this site is responsible for a handle."""
        partition = self._registry.rules.partition
        return partition is not None and partition.find_other(handle) is not None

    def _is_homed(self, prefix: str) -> bool:
        key = fold(prefix)
        if key not in self._homed:
            self._spend()
            item = None if key == SITE_PREFIX else self._registry.ledger.prefix(prefix.encode("utf-8"))
            self._homed[key] = item is not None and item.hosted
        return self._homed[key]

    def _is_listed(self, prefix: str) -> bool:
        key = fold(prefix)
        if key not in self._listed:
            self._listed[key] = self._lists_all or self._read(lambda snapshot: is_listed(snapshot, prefix))
        return self._listed[key]

    def _holds_derived(self, prefix: str) -> bool:
        self._spend()
        item = self._registry.ledger.prefix(prefix.encode("utf-8"))
        return item is not None and item.marker

    def _known(self, prefix: str) -> KnownPrefix:
        if self._is_homed(prefix):
            return KnownPrefix(prefix, PrefixStatus.HOSTED)
        handle = Handle.for_lookup(f"{PREFIX_OF_PREFIXES}/{prefix}")
        if handle is not None and self._answers_for(handle) and self._find(handle) is not None:
            return KnownPrefix(prefix, PrefixStatus.OTHER_SERVICE)
        above = next(filter(self._is_homed, _parent_prefixes(prefix)), None)
        return KnownPrefix(prefix, PrefixStatus.UNKNOWN if above is None else PrefixStatus.DERIVED, above)

    def _spend(self) -> None:
        self._remaining -= 1
        if self._remaining < 0 or self._clock() > self._until:
            raise _LimitReached


def may_be_typo(refused: Refused) -> bool:
    """Whether suggestions make sense for a refusal."""
    return refused.code in SUGGESTION_CODES and not isinstance(refused, NotYetCreated | OtherServer)


def _is_prefix(text: str) -> bool:
    return "/" not in text and Handle.for_lookup(f"{PREFIX_OF_PREFIXES}/{text}") is not None


def _parent_prefixes(prefix: str) -> Sequence[str]:
    return tuple(islice(ancestor_prefixes(prefix), MAX_ANCESTORS))


def _item_handle(item: HandleItem) -> Handle:
    return Handle.parse_lenient(item.spelling)
