"""Names across handles: the log, what changed between two moments, the names under a prefix, the homed prefixes.

To see the names of a namespace together takes LIST_HANDLES on its prefix handle, or a policy that opens it
(`who_may_list`). Whoever has the permission administers the namespace, and sees its names in every state and who
changed them. Whom only the policy admits sees what the public may know of each single name: nothing of names that are
reserved or unpublished, and of the past only where the policy shows it. The installation's own records (`0.SITE/…`)
are for server administrators, and so are names that this server does not answer for, as after their prefix was unhomed.

Pages cost the same wherever they begin: what may not be seen is passed over, so much of it at a time, and a page may
be short, or empty, although there are more. The next one begins where this one ended. Names are passed over by number,
so that a page's end does not give away a name.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from perseid.ledger.log.entry import Action, Entry, State
from perseid.ledger.log.reader import Reading
from perseid.ledger.log.record_keys import record_key
from perseid.names.characters import fold
from perseid.names.handle import PREFIX_OF_PREFIXES, CaseRule, Handle
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorise
from perseid.registry.access.permissions import Demand, shown
from perseid.registry.commands.namespaces import homed_prefixes
from perseid.registry.identity import Identity, LocalOperator
from perseid.registry.policy import case_rules
from perseid.registry.policy.keys import Who
from perseid.registry.policy.policy import Policy
from perseid.registry.results import Refused, Unanswerable
from perseid.registry.snapshot import SITE_PREFIX, Facts, Held
from perseid.wire.codes import OpCode, ResponseCode

from .history import DEFAULT_PAGE, SEE_ALL, is_public, may, own_record, page_size, public_action
from .paging import Room

MAX_SCANNED: Final = 1_000
"""How many entries or names one page looks at. What is not shown costs as much as what is."""

MAX_PREFIXES: Final = 100
"""For how many prefixes one page decides whether they may be seen; each may lead through many groups."""

_FEWEST_READ: Final = 50  # names at a time, so that a page of one is not read one by one past those not shown
_MAX_STEPS: Final = 32  # back in a record's history, to tell what the public knew of it: a deletion is one step

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Generic[T_co]):
    """Some of many, in order."""

    items: tuple[T_co, ...]
    last: int
    """The entry at which the page ended: the next one begins behind it."""
    more: bool
    """Whether there may be a next one."""


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry of the log, as somebody may see it."""

    seq: int
    at: int
    """In microseconds since 1970."""
    action: Action
    handle: str
    state: State
    door: str | None = None
    actor: str | None = None
    """Who did it; None if that may not be seen, or was erased."""
    note: str | None = None

    @property
    def octets(self) -> int:
        """What it takes on a page."""
        return len(self.handle) + len(self.actor or "") + len(self.note or "")


@dataclass(frozen=True, slots=True)
class Altered:
    """A name whose record differs between two moments."""

    handle: str
    before: int
    """Its entry at the earlier moment; 0 if there was none that may be seen."""
    after: int
    """Its entry at the later moment."""
    state_before: State
    state_after: State
    at: int
    """When it became what it was at the later moment, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A name under a prefix."""

    handle: str
    state: State
    seq: int
    """Its latest entry."""


def log(facts: Facts, who: Identity, after: int = 0, limit: int = DEFAULT_PAGE) -> Page[Logged]:
    """The entries behind one, in order. Raises `Refused`."""
    sight = Sight(facts, who)
    room = Room(page_size(limit))
    found: list[Logged] = []
    last, size = after, facts.reading.size
    for entry in facts.reading.log(after, after + MAX_SCANNED):
        right = sight.right(entry.handle)
        if right is None:
            break
        if sight.shows(entry, right):
            logged = sight.logged(entry, right)
            if not room.take(logged.octets):
                break
            found.append(logged)
        last = entry.seq
        if room.is_full:
            break
    return Page(tuple(found), last, last < size)


def changes(
    facts: Facts, who: Identity, earlier: int, later: int, after: int | None = None, limit: int = DEFAULT_PAGE
) -> Page[Altered]:
    """The names whose records changed between two moments (see `past.moment`), in the order of their first change.

    `after` is where the page before ended. Raises `Refused`.
    """
    sight = Sight(facts, who)
    limit = page_size(limit)
    found: list[Altered] = []
    last = max(earlier, after or 0)
    for entry in facts.reading.log(last, min(later, last + MAX_SCANNED)):
        right = sight.right(entry.handle)
        if right is None:
            break
        last = entry.seq
        if right.lists and (altered := sight.altered(entry, right, earlier, later)) is not None:
            found.append(altered)
        if len(found) == limit:
            break
    return Page(tuple(found), last, last < min(later, facts.reading.size))


def list_handles(
    facts: Facts, who: Identity, name: str, after: int = 0, limit: int = DEFAULT_PAGE, *, deleted: bool = False
) -> Page[Listed]:
    """The names under a prefix, in the order of their keys, behind that of an entry (§16.7). Raises `Refused`.

    `name` is a prefix, or its prefix handle; for `0.NA/0.NA/P` the handles of the prefixes derived from P are listed.
    Those who administer the namespace may also ask for names that were `deleted`.
    """
    first, end, administers = _listable(facts, who, name)
    limit = page_size(limit)
    is_exact = facts.policy(first.decode().partition("/")[0]).case is CaseRule.SENSITIVE
    first = _behind(facts.reading, after, first, end)
    found: list[Listed] = []
    last, more, scanned = after, True, 0
    while more and len(found) < limit and scanned < MAX_SCANNED:
        wanted = max(limit - len(found), _FEWEST_READ)
        entries, more = facts.reading.some_names(first, end, wanted)
        scanned += len(entries)
        for place, entry in enumerate(entries, 1):
            last, first = entry.seq, entry.key + b"\0"
            # An absent one with the other rule ends a key of another era.
            is_one = entry.state is not State.ABSENT or (deleted and entry.exact == is_exact)
            if is_public(entry.state) or (administers and is_one):
                found.append(Listed(entry.handle, entry.state, entry.seq))
            if len(found) == limit:
                more = more or place < len(entries)
                break
    return Page(tuple(found), last, more)


def list_numbered(facts: Facts, who: Identity, name: str, skip: int, limit: int = DEFAULT_PAGE) -> tuple[Listed, ...]:
    """The names that `list_handles` shows on all its pages, without so many of the first. Raises `Refused`.

    This is for clients that count pages. It costs what is skipped, and names that are made meanwhile move the others.
    """
    first, end, administers = _listable(facts, who, name)
    states, limit = _states(administers=administers), page_size(limit)
    found: list[Listed] = []
    more = True
    while more and len(found) < limit:
        entries, more = facts.reading.names_shown(first, end, states, limit - len(found), skip)
        found += [Listed(entry.handle, entry.state, entry.seq) for entry in entries]
        first, skip = entries[-1].key + b"\0" if entries else first, 0
    return tuple(found)


def count_handles(facts: Facts, who: Identity, name: str) -> int:
    """How many names `list_handles` shows on all its pages. Raises `Refused`."""
    first, end, administers = _listable(facts, who, name)
    return facts.reading.count_names(first, end, _states(administers=administers))


def list_homed(facts: Facts, who: Identity) -> tuple[str, ...]:
    """The table of homed prefixes, as its entries are written (§16.7). Raises `Refused`."""
    decision = authorise(who, permissions.serve(OpCode.LIST_HOMED_NAS), facts, facts.rules.administration, facts.spent)
    if not decision.allowed:
        raise Refused.by_decision(decision)
    return tuple(homed_prefixes(facts.reading))


@dataclass(frozen=True, slots=True)
class Right:
    """What somebody may see of the names of one prefix."""

    lists: bool = False
    administers: bool = False
    shows_actors: bool = False
    shows_past: bool = False


class Sight:
    """What somebody may see of the names of all prefixes; decided for each prefix when it is met."""

    def __init__(self, facts: Facts, who: Identity) -> None:
        self._facts = facts
        self._who = who
        self._rights: dict[str, Right] = {}
        self._sees_all = may(facts, who, SEE_ALL)
        if not (facts.rules.listing_allowed or self._sees_all):
            raise not_supported()

    def right(self, handle: str) -> Right | None:
        """What may be seen of a name's namespace; None if that would be one prefix too many for a page."""
        if self._sees_all:
            return Right(True, True, True, True)
        prefix = fold(handle.partition("/")[0])
        if prefix not in self._rights:
            if len(self._rights) == MAX_PREFIXES:
                return None
            self._rights[prefix] = self._decide(prefix, handle)
        right = self._rights[prefix]
        # Handles of prefixes may be here one by one.
        is_told = not right.lists or prefix != PREFIX_OF_PREFIXES or self._is_served(handle)
        return right if is_told else Right()

    def _is_served(self, handle: str) -> bool:
        return self._facts.is_responsible(Handle.keepable(handle))

    def _decide(self, prefix: str, handle: str) -> Right:
        """What may be seen of the names of a prefix, of which this is one."""
        if prefix == SITE_PREFIX or (prefix != PREFIX_OF_PREFIXES and not self._is_served(handle)):
            return Right()
        try:
            policy = self._facts.policy(prefix)
        except Refused:
            return Right()  # a policy that cannot be read opens nothing
        if not may(self._facts, self._who, demand_listing(prefix, policy)):
            return Right()
        administers = may(self._facts, self._who, demand_listing(prefix))
        return Right(True, administers, administers or policy.show_actors, administers or policy.show_past)

    def shows(self, entry: Entry, right: Right) -> bool:
        """Whether an entry may be seen in the log."""
        if not right.lists or right.administers:
            return right.lists
        is_told = not case_rules.ends_a_key(self._facts, entry)
        return is_told and self._known(entry, right) and self._is_known_today(entry, right)

    def logged(self, entry: Entry, right: Right) -> Logged:
        """An entry as it may be told."""
        door, actor = (entry.who if right.shows_actors else None) or (None, None)
        action = entry.action
        if not right.administers:
            action = public_action(entry, follows=not right.shows_past or self._follows(entry))
        note = entry.why if self._sees_all else None
        return Logged(entry.seq, entry.at, action, entry.handle, entry.state, door, actor, note)

    def altered(self, entry: Entry, right: Right, earlier: int, later: int) -> Altered | None:
        """The record of an entry, if this is its first change between the moments and what it became may be seen."""
        if case_rules.ends_a_key(self._facts, entry):
            return None
        held = self._held(entry)
        before = case_rules.as_of(self._facts, held, entry.seq - 1)
        if before is not None and before.seq > earlier:
            return None  # told already, with the record's first change
        after = case_rules.as_of(self._facts, held, later) or entry
        if not self.shows(after, right):
            return None
        if before is not None and not (right.administers or (right.shows_past and self._known(before, right))):
            before = None
        seq, state = (0, State.ABSENT) if before is None else (before.seq, before.state)
        if state is State.ABSENT and after.state is State.ABSENT and not right.administers:
            return None
        return Altered(after.handle, seq, after.seq, state, after.state, after.at)

    def _held(self, entry: Entry) -> Held:
        """The record of an entry, as it is today."""
        name = Handle.keepable(entry.handle)
        if fold(name.prefix) == SITE_PREFIX:
            return own_record(self._facts, name)
        try:
            return self._facts.held(name)
        except Refused:  # its policy cannot be read; who runs the server sees it all the same
            return replace(own_record(self._facts, name), key=entry.key, exact=entry.exact)

    # What the public knows

    def _known(self, entry: Entry, right: Right) -> bool:
        """Whether the public could see what an entry made of its name."""
        if entry.state is not State.ABSENT:
            return is_public(entry.state)
        if not right.shows_past:
            return False
        steps = self._steps_back(entry)
        return is_public(next((step.state for step in steps if step.state is not State.ABSENT), State.RESERVED))

    def _is_known_today(self, entry: Entry, right: Right) -> bool:
        """Whether the public may still be told of an entry."""
        latest = self._held(entry).entry or entry
        return (right.shows_past or latest.seq == entry.seq) and self._known(latest, right)

    def _follows(self, entry: Entry) -> bool:
        """Whether the public knew of the name before an entry."""
        return any(is_public(step.state) for step in self._steps_back(entry))

    def _steps_back(self, entry: Entry) -> Iterator[Entry]:
        """A few versions of the record before an entry, newest first."""
        steps = case_rules.history(self._facts, self._held(entry), entry.seq - 1)
        return (step for step, _ in zip(steps, range(_MAX_STEPS), strict=False))


def demand_listing(prefix: str, policy: Policy | None = None) -> Demand:
    """What it takes to list the names of a prefix; without a policy, to see them as one who administers them."""
    demand = permissions.list_handles(prefix)
    opened = Who.ADMINISTRATORS if policy is None else policy.who_may_list
    if opened is Who.PUBLIC:
        return replace(demand, alternatives=(), public=True)
    if opened is Who.AUTHENTICATED:
        return replace(demand, alternatives=((),))
    by_permission = demand.alternatives if opened is Who.ADMINISTRATORS else ()
    return replace(demand, alternatives=(*SEE_ALL.alternatives, *by_permission))


def not_supported() -> Refused:
    """Names are not listed here."""
    reason = "this server does not list names"
    return Refused(ResponseCode.OPERATION_NOT_SUPPORTED, reason, "its setting for listing is off")


def _listable(facts: Facts, who: Identity, name: str) -> tuple[bytes, bytes, bool]:
    """From which key, and up to which, the names of a prefix stand, and whether whoever asks may see all of them.

    Raises `Refused` if they may see none.
    """
    if not facts.rules.listing_allowed and not isinstance(who, LocalOperator):  # it is about the network
        raise not_supported()
    prefix, first, end, homed = _range(name)
    if not any(facts.is_homed(each) for each in homed):
        raise Refused(ResponseCode.SERVER_NOT_RESP, "that prefix doesn't live here", "ask the service of the prefix")
    decision = authorise(
        who, demand_listing(prefix, facts.policy(prefix)), facts, facts.rules.administration, facts.spent
    )
    if not decision.allowed:
        raise Refused.by_decision(decision)
    return first, end, may(facts, who, demand_listing(prefix))


def _states(*, administers: bool) -> tuple[State, ...]:
    """The states of names that are shown: all, or those that the public may know of."""
    known = (State.NORMAL, State.TOMBSTONE)
    return (*known, State.RESERVED, State.UNPUBLISHED) if administers else known


def _range(name: str) -> tuple[str, bytes, bytes, tuple[str, ...]]:
    """Which prefix a listing is about, the keys from and up to which its names stand, and what has to be homed."""
    marker = f"{PREFIX_OF_PREFIXES}/"
    folded = fold(name)
    prefix = folded.removeprefix(marker)
    derived = folded.startswith(marker + marker)
    if derived:
        prefix = prefix.removeprefix(marker)
    if "/" in prefix or Handle.for_lookup(marker + prefix) is None:
        raise Refused(ResponseCode.INVALID_HANDLE, f"{shown(name)} is no prefix", "name a prefix, such as 12345", "H2")
    if derived:
        first = record_key(f"{marker}{prefix}.")
        homed: tuple[str, ...] = (marker + PREFIX_OF_PREFIXES,)
    else:
        first = record_key(f"{prefix}/")
        homed = (marker + prefix, prefix)
    return prefix, first, first[:-1] + bytes((first[-1] + 1,)), homed


def _behind(reading: Reading, after: int, first: bytes, end: bytes) -> bytes:
    """The key with which a page begins that follows the record of an entry."""
    if not after:
        return first
    try:
        key = reading.entry(after).key
    except KeyError:
        key = b""
    if not first <= key < end:
        reason = f"entry {after} is not about a name of this prefix"
        raise Unanswerable(reason, "begin at 0, and go on where the page ended")
    return key + b"\0"
