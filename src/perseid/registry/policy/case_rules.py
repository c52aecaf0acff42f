"""One name through the times of its namespace: the rule by which letters count may have changed.

A record is kept under a key that follows from the case rule (H5). Where the rule changed, every name was given an entry
under its new key and one that ends the old key, so a name has an entry in every era since it was made; see `case_rule`.
Whoever looks at a name's past looks at it through here, and sees one history.

Changing the case rule of a namespace that has names (H5): all at once, or not at all.

Under the new rule every name has another key. So the change is one commit: the policy, and for each name an entry that
ends its old key and one under the new, with the same values, state and spelling. Whoever looks at a name's history sees
no break (`eras`). It is refused if two names would become one, names that were deleted included: a name is not given a
second time, and the one would answer for the other.

When letters begin to count, a name is found by the spelling that was registered and by no other any more.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.reader import CHUNK
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.requests import LeaseProvider
from perseid.names.characters import fold
from perseid.names.handle import CaseRule, Handle
from perseid.registry.access.permissions import display_name
from perseid.registry.context import Context
from perseid.registry.results import Refused
from perseid.registry.snapshot import SITE_PREFIX, CaseRulePeriod, Snapshot, StoredRecord
from perseid.wire.codes import ResponseCode

from .policy import Policy

_LAST: Final = (1 << 63) - 1


def history(snapshot: Snapshot, stored: StoredRecord, until: int = _LAST) -> Iterator[Entry]:
    """The entries of a name, newest first, up to and including an entry of the ledger."""
    if stored.entry is None or _ignores_case_rule(stored.handle):
        return snapshot.reading.history(stored.key, until)
    return _history_across_periods(snapshot, stored, snapshot.case_rule_periods(stored.handle.prefix), until)


def as_of(snapshot: Snapshot, stored: StoredRecord, seq: int) -> Entry | None:
    """The last entry of a name up to and including an entry of the ledger; None if there was none yet."""
    return next(history(snapshot, stored, seq), None)


def ends_key(snapshot: Snapshot, entry: Entry) -> bool:
    """Whether an entry says nothing of its name, but that it is found under another key from then on."""
    name = Handle.parse_lenient(entry.handle)
    if entry.state is not State.ABSENT or _ignores_case_rule(name):
        return False
    return (
        next(period.exact for period in snapshot.case_rule_periods(name.prefix) if period.first <= entry.seq)
        != entry.exact
    )


def _history_across_periods(
    snapshot: Snapshot, stored: StoredRecord, case_rule_periods: Iterable[CaseRulePeriod], until: int
) -> Iterator[Entry]:
    is_current = True
    for period in case_rule_periods:
        key = record_key(str(stored.handle), exact=period.exact)
        for entry in snapshot.reading.history(key, min(until, period.last)):
            if entry.seq < period.first:
                break
            if entry.exact != period.exact:
                continue  # it ends the key of another era
            if not is_current and entry.handle != str(stored.handle):
                return  # a name that was told from this one only later
            yield entry
        is_current = False


def _ignores_case_rule(name: Handle) -> bool:
    """Whether letters never count in a name: the system's own."""
    return name.is_prefix_handle or fold(name.prefix) == SITE_PREFIX


MAX_NAMES: Final = 10_000
"""How many names a namespace may have: it is one commit, and nobody else can write meanwhile, a second or so."""

NOTE: Final = "case rule"
"""What the note of each name's entry begins with."""

MAX_CONFLICTS: Final = 20
"""How many of the names that would become one a refusal lists."""


def has_same_keys(before: Policy, after: Policy) -> bool:
    """Whether names are kept under the same keys by both rules: for a record, a path is like any other name."""
    return (before.case is CaseRule.SENSITIVE) == (after.case is CaseRule.SENSITIVE)


def plan_case_change(
    context: Context, prefix: str, policy: Draft, *, exact: bool
) -> Callable[[LeaseProvider], Sequence[Draft]]:
    """Makes the entries that give a namespace the other case rule, its policy first; refused where that cannot be.

    `exact` says whether letters count by the new rule.
    """
    found = _entries(context, prefix)
    names = [entry for entry in found if entry.exact != exact]  # the others end keys of an earlier era
    _check_conflicts(prefix, names, exact)
    drafts = (policy, *[draft for entry in names for draft in _move_entry(context, entry, exact, policy.note)])
    first, end = key_range(prefix)
    bounds = [first, *[entry.key + b"\0" for entry in found]]
    gaps = list(zip(bounds, [*[entry.key for entry in found], end], strict=True))

    def make(lender: LeaseProvider) -> Sequence[Draft]:
        # What was read is checked like all that a decision rests on; a name between them would be new.
        if any(lender.any_between(*gap) for gap in gaps):
            reason = f"names were made under {display_name(prefix)} while its case rule was about to change"
            raise Refused(ResponseCode.SERVER_TOO_BUSY, reason, "try again", "H5")
        return drafts

    return make


def detect_case_sensitivity(snapshot: Snapshot, prefix: str) -> bool | None:
    """Whether letters count in the names of a namespace, as their entries say; None if they do not tell.

    This is for a namespace whose policy cannot be read. All records that exist are kept by the rule of today. What does
    not exist may be the end of a key of an earlier era, so it tells something only where all of it tells the same.
    """
    found: set[bool] = set()
    first, end = key_range(prefix)
    while page := snapshot.reading.names(first, end, CHUNK):
        for entry in page:
            if entry.state is not State.ABSENT:
                return entry.exact
            found.add(entry.exact)
        first = page[-1].key + b"\0"
    return found.pop() if len(found) == 1 else None


def key_range(prefix: str) -> tuple[bytes, bytes]:
    """From which key on, and up to which, the names of a namespace are kept, by every rule."""
    first = record_key(f"{prefix}/")
    return first, first[:-1] + b"0"


def _entries(context: Context, prefix: str) -> list[Entry]:
    """The latest entries of all names there ever were; the decision rests on them."""
    found: list[Entry] = []
    first, end = key_range(prefix)
    while page := context.snapshot.reading.names(first, end, CHUNK):
        found += page
        if len(found) > MAX_NAMES:
            reason = (
                f"{display_name(prefix)} has more than {MAX_NAMES:,} names: too many for another case rule, all at once"
            )
            raise Refused(ResponseCode.INVALID_VALUE, reason, "make a namespace with the other rule beside it", "H5")
        first = page[-1].key + b"\0"
    for entry in found:
        context.snapshot.track(entry)
    return found


def _check_conflicts(prefix: str, names: Sequence[Entry], exact: bool) -> None:
    """Refuse if two names would become one."""
    groups: dict[bytes, list[str]] = {}
    for entry in names:
        deleted = " (deleted)" if entry.state is State.ABSENT else ""
        groups.setdefault(record_key(entry.handle, exact=exact), []).append(display_name(entry.handle) + deleted)
    clashes = [" and ".join(group) for group in groups.values() if len(group) > 1]
    if clashes:
        listed = "; ".join(clashes[:MAX_CONFLICTS])
        more = f"; and {len(clashes) - MAX_CONFLICTS:,} more" if len(clashes) > MAX_CONFLICTS else ""
        reason = f"names under {display_name(prefix)} would become one: {listed}{more}"
        advice = "a name that exists, or was deleted, is never given up: leave the rule, or make another namespace"
        raise Refused(ResponseCode.INVALID_VALUE, reason, advice, "H5")


def _move_entry(context: Context, entry: Entry, exact: bool, note: str) -> list[Draft]:
    """The entries of one name; they say what they belong to."""
    by = (context.interface, str(context.identity), f"{NOTE}: {note}" if note else NOTE)
    action = Action.DELETE if entry.state is State.ABSENT else Action.UPDATE
    moved = Draft(action, entry.state, entry.handle, *by, entry.record(), exact)
    if moved.key == entry.key:
        return [moved]
    return [Draft(Action.DELETE, State.ABSENT, entry.handle, *by, (), entry.exact), moved]
