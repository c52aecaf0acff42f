"""The past of one name, as far as whoever asks may see it.

Everybody may read the history of a name that they can name. What the public sees of it:

- a value that was public then and has not been hidden since (`Veil` says what that means);
- nothing of the time when the name was reserved or unpublished, not even that there was such a time; and nothing at
  all while it is so today;
- of a name that was deleted, that it existed, unless the policy says `show_past = false`;
- with that line in the policy, nothing but what is there today;
- who made a change only where the policy says `show_actors = true`, and never why: a note may hold anything.

Whoever administers the record (READ_VALUE) or the server sees every version, who made it and why; private values take
READ_VALUE. Rights, and what the policy shows, are those of today: who was an administrator once is none any more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from perseid.ledger.log.entry import Action, Entry, State
from perseid.ledger.log.reader import Reading
from perseid.ledger.log.record_keys import record_key
from perseid.names.characters import fold
from perseid.names.handle import Handle
from perseid.records.record import ascending, select
from perseid.records.value import Permission, Value
from perseid.registry import eras
from perseid.registry.access import permissions
from perseid.registry.access.authorization import authorise, may_read
from perseid.registry.access.permissions import Demand, Differences, Membership, Role, shown
from perseid.registry.access.scopes import Reach, Word
from perseid.registry.context import Context, not_found
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.page_room import Room, octets_of
from perseid.registry.policy import templates
from perseid.registry.results import Refused, Resolved, Unanswerable
from perseid.registry.snapshot import SITE_PREFIX, Facts, Held
from perseid.registry.veil import Searched, Veil, is_public
from perseid.wire.codes import ResponseCode

from .resolve import Query, made, no_such_values

FIRST_INSTANT: Final = 10**14
"""Numbers below it are entries, and from it on microseconds since 1970. No ledger will have a hundred million million
entries, and none is as old as this instant, which lies in March 1973."""

MAX_PAGE: Final = 1_000
"""The most items on a page: what somebody can be sent at once, and what one request may cost."""

DEFAULT_PAGE: Final = 100

SEE_ALL: Final = Demand("see the whole ledger", ((Membership((Role.SERVER,)),),), reach=Reach.everywhere(Word.ADMIN))
"""Who runs the server may see every name and who changed it; private values take more."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_DIGITS: Final = 19  # of a number of 64 bits


@dataclass(frozen=True, slots=True)
class Version:
    """What a name was after one entry, as somebody may see it."""

    seq: int
    at: int
    """When it became so, in microseconds since 1970."""
    action: Action
    """What was done. To the public, publishing is creating or updating: it does not see what was there before."""
    state: State
    values: tuple[Value, ...]
    """The values that may be seen, by ascending index."""
    changed: Differences | None
    """How they differ from those of the version before that may be seen; None if that is not shown."""
    redacted: int
    """How many of the record's values have been erased for good."""
    door: str | None = None
    actor: str | None = None
    """Who did it; None if that may not be seen, or was erased."""
    note: str | None = None

    @property
    def octets(self) -> int:
        """What it takes on a page, with its differences from the version before."""
        changed = () if self.changed is None else (*self.changed.added, *self.changed.removed)
        modified = () if self.changed is None else self.changed.modified
        octets = octets_of((*self.values, *changed)) + sum([octets_of(pair) for pair in modified])
        return octets + len(self.actor or "") + len(self.note or "")


@dataclass(frozen=True, slots=True)
class History:
    """Versions of one name, newest first."""

    handle: Handle
    """The name as it is registered."""
    versions: tuple[Version, ...]
    before: int | None
    """Where the next page begins: the versions before this entry; None if this is the last page."""
    complete: bool
    """Whether everything is told that there is. Otherwise the policy, or the depth of the past, kept some back."""


@dataclass(frozen=True, slots=True)
class AsOf:
    """What a name stood for at a moment."""

    moment: int
    """The last entry of the ledger at that moment: cite it, and the answer stays the same for ever."""
    resolved: Resolved


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry of a name, and those of its values that may be seen."""

    entry: Entry
    values: tuple[Value, ...]


def moment(reading: Reading, when: str | int, now: int) -> int:
    """The last entry of the ledger at a moment: 0 if there was none yet.

    A moment is a number of an entry, microseconds since 1970, or an ISO 8601 time (UTC if it names no zone). `now` is
    the clock in microseconds: what will be is not known.
    """
    number = when if isinstance(when, int) else _number(when)
    if number is None:
        number = _instant(str(when))
    elif number < FIRST_INSTANT:
        if not 0 <= number <= reading.size:
            reason = f"there is no entry {number}; the last one is {reading.size}"
            raise Unanswerable(reason, "name an entry of this ledger, or a time")
        return number
    if number > now:
        raise Unanswerable("that moment is in the future", "ask for one that has passed")
    return reading.seq_at(number)


def history(
    facts: Facts, who: Identity, handle: Handle, before: int | None = None, limit: int = DEFAULT_PAGE
) -> History:
    """The versions of a name, newest first, those before an entry, as far as a page takes them. Raises `Refused`.

    What has been hidden since is found by walking back from today, so a page further back costs more, up to
    `MAX_SEARCHED`; administrators with READ_VALUE pay for their page only.
    """
    past = Past(facts, who, handle)
    room = Room(page_size(limit))
    versions: list[Version] = []
    newer: Seen | None = None  # it is told when it is known what was before it
    known = more = False
    for seen in past.versions(before):
        known = True
        if before is not None and seen.entry.seq >= before:
            continue
        if newer is not None:
            more = not _taken(room, versions, past.version(newer, seen, first=False)) or room.is_full
        if more:
            break
        newer = seen
    if not known and (before is None or not past.administers or past.held.entry is None):
        raise not_found(past.held)
    if newer is not None and not more:
        more = not _taken(room, versions, past.version(newer, None, first=not past.cut))
    return History(past.held.handle, tuple(versions), versions[-1].seq if more else None, not past.cut)


def _taken(room: Room, versions: list[Version], version: Version) -> bool:
    """Whether a version has room on a page, to which it is added then."""
    is_taken = room.take(version.octets)
    if is_taken:
        versions.append(version)
    return is_taken


def as_of(facts: Facts, who: Identity, query: Query, seq: int) -> AsOf:
    """What a name stood for after an entry of the ledger (see `moment`). Raises `Refused`.

    Who answers for the name, and who may see what, is decided by the state of today.
    """
    searched = Searched()  # a template may rest on dozens of records, each of which may have a long past
    asking = Anonymous() if query.public_only else who
    past = Past(facts, asking, query.handle, refer=query.refer, searched=searched)
    seen = past.existing_at(seq)
    if seen is None:
        by_template = made(query, who, facts, past.held, lambda *name: public_then(facts, seq, searched, *name), seq)
        return AsOf(seq, by_template)
    entry = seen.entry
    wanted = select(entry.record(), query.indexes, query.types)
    if not query.public_only and wanted:
        decision = may_read(who, past.held.handle, wanted, facts, facts.rules.administration, facts.spent)
        if not decision.allowed:
            raise Refused.by_decision(decision)
    found = select(seen.values, query.indexes, query.types)
    if not found:
        raise no_such_values(query, "had")
    held = past.held
    registered = Handle.keepable(entry.handle)
    resolved = Resolved(held.asked, registered, entry.state, found, entry.seq, entry.at, held.query, held.fragment)
    return AsOf(seq, resolved)


def public_then(
    facts: Facts, seq: int, searched: Searched, handle: Handle, holding: str | None
) -> templates.Public | None:
    """A record as everybody sees it after an entry of the ledger; it need not be one that this server answers for."""
    held = facts.held(handle)
    entry = eras.as_of(facts, held, seq)
    if entry is None or not templates.holds(entry.record(), holding):
        return None
    seen = Past(facts, Anonymous(), handle, held=held, searched=searched).existing_at(seq)
    return None if seen is None else templates.Public(seen.entry, seen.values)


def page_size(limit: int) -> int:
    """How many items a page has, for somebody who asks for so many."""
    if limit < 1:
        raise Unanswerable(f"a page of {limit} items holds nothing", "ask for at least one")
    return min(limit, MAX_PAGE)


def may(facts: Facts, who: Identity, demand: Demand) -> bool:
    """Whether somebody meets a demand today."""
    return authorise(who, demand, facts, facts.rules.administration, facts.spent).allowed


class Past:
    """One name's past through the eyes of one who asks."""

    def __init__(
        self,
        facts: Facts,
        who: Identity,
        handle: Handle,
        *,
        refer: bool = False,
        held: Held | None = None,
        searched: Searched | None = None,
    ) -> None:
        """With `held` it is not asked whether this server answers for the name."""
        self._facts = facts
        self._searched = searched
        runs_server = may(facts, who, SEE_ALL)
        if fold(handle.prefix) == SITE_PREFIX and runs_server:
            self.held = own_record(facts, handle)
            self.reads = True  # policies and homed prefixes are the server administrators' own
        else:
            self.held = Context(facts, who, "read", 0).own(handle, refer=refer) if held is None else held
            self.reads = may(facts, who, permissions.read(self.held.handle))
        self.administers = self.reads or runs_server
        self.shows_actors = self.administers or self.held.policy.show_actors
        self.cut = False
        """Whether something was kept back so far."""

    def versions(self, before: int | None = None) -> Iterator[Seen]:
        """The versions that may be seen, newest first. With `before`, later ones may be left out, where that saves
        anything.
        """
        if self.reads:
            facts, held = self._facts, self.held
            entries = eras.history(facts, held) if before is None else eras.history(facts, held, before - 1)
            return (Seen(entry, _readable(entry)) for entry in entries)
        return self._unveiled(eras.history(self._facts, self.held))

    def version_at(self, seq: int) -> Seen:
        """The version after an entry of the ledger; refused if there was none, or none that may be seen."""
        entry = eras.as_of(self._facts, self.held, seq)
        wanted = 0 if entry is None else entry.seq
        # Where the past is not shown, that there was nothing yet is not told either.
        for seen in self.versions(wanted + 1) if wanted or not self.held.policy.show_past else ():
            if seen.entry.seq == wanted:
                return seen
            if seen.entry.seq < wanted:
                break
        if self.cut and self.held.is_public:
            policy = self.held.policy
            reason = f"the past of {shown(self.held.asked)} is shown to its administrators only"
            if policy.show_past:
                reason = f"too much has happened to {shown(self.held.asked)} since to tell what has been hidden"
            rule = "" if policy.show_past else policy.line("show_past")
            raise Refused(ResponseCode.INSUFFICIENT_PERMISSIONS, reason, "ask for what it is today", rule)
        raise not_found(self.held)

    def existing_at(self, seq: int) -> Seen | None:
        """The same, or None if there was no record then, as far as may be known."""
        try:
            seen = self.version_at(seq)
        except Refused as refused:
            if refused.code is not ResponseCode.HANDLE_NOT_FOUND:
                raise
            return None
        return None if seen.entry.state is State.ABSENT else seen

    def version(self, seen: Seen, older: Seen | None, *, first: bool) -> Version:
        """A version as it may be told; `first` says that without an older one there is none."""
        entry = seen.entry
        known = older is not None or first
        door, actor = (entry.who if self.shows_actors else None) or (None, None)
        return Version(
            seq=entry.seq,
            at=entry.at,
            action=entry.action if self.administers else public_action(entry, follows=older is not None or not first),
            state=entry.state,
            values=seen.values,
            changed=Differences.between(older.values if older else (), seen.values) if known else None,
            redacted=sum(slot.is_redacted for slot in entry.values),
            door=door,
            actor=actor,
            note=entry.why if self.administers else None,
        )

    def _unveiled(self, entries: Iterator[Entry]) -> Iterator[Seen]:
        """What those see who may not read private values, found by walking back from today."""
        veil = Veil(self._searched)
        deleted: list[Seen] = []  # entries without a record; they are shown if the record before them was
        found = False
        for entry in entries:
            seen = Seen(entry, veil.lift(entry))
            self.cut = veil.ended
            if self.administers:
                yield seen
                continue
            if self.cut or (not is_public(entry.state) and entry.state is not State.ABSENT and not found):
                return
            if entry.state is State.ABSENT:
                if not found and not self.held.policy.show_past:
                    return
                deleted.append(seen)
            elif is_public(entry.state):
                yield from deleted
                yield seen
                found = True
                deleted = []
                if not self.held.policy.show_past:
                    self.cut = True
                    return
            else:
                deleted = []


def public_action(entry: Entry, *, follows: bool) -> Action:
    """What the public is told was done: publishing tells of a time before, which it does not see.

    `follows` says that there was an earlier version which the public sees.
    """
    if entry.action is not Action.PUBLISH:
        return entry.action
    return Action.UPDATE if follows else Action.CREATE


def own_record(facts: Facts, handle: Handle) -> Held:
    """A record of the installation itself."""
    key = record_key(str(handle))
    entry = facts.entry(key)
    values = () if entry is None else entry.record()
    return Held(handle, handle, key, False, facts.rules.default_policy, entry, values)


def _readable(entry: Entry) -> tuple[Value, ...]:
    """What administrators may read of an entry; some values nobody may."""
    found = [value for value in entry.record() if value.is_public or Permission.ADMIN_READ in value.permissions]
    return ascending(found)


def _number(text: str) -> int | None:
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal()):
        return None
    if len(digits) > _MOST_DIGITS:
        raise _unreadable(text)
    return int(digits)


def _instant(text: str) -> int:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise _unreadable(text) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(microseconds=1)


def _unreadable(text: str) -> Refused:
    reason = f"{shown(text)} is neither a time nor the number of an entry"
    return Unanswerable(reason, "write 2026-11-15T10:00:00Z, or a number")
