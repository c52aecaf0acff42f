"""Case rules of a namespace (H5): history of a handle across changes of the rule, and the change itself.

A record is stored under a key that depends on the case rule. A change of the rule is one commit: the policy, and for
each handle an entry that ends its old key and one under the new key, with the same values, state and spelling. So a
handle has an entry in every period since it was created, and `history` returns one history without a break.

The change is refused if two handles would collide, deleted ones included: a handle is not reused, and one would resolve
to the other. Once suffixes are case-sensitive, a handle is found only in its registered spelling.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from perseid.ledger.log.entry import Action, Draft, Entry, State
from perseid.ledger.log.record_keys import record_key
from perseid.names.handle import CaseRule, Handle, fold
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import Context
from perseid.registry.results import StateConflict
from perseid.registry.snapshot import SITE_PREFIX, CaseRulePeriod, Snapshot, StoredRecord

from .policy import Policy

_LAST: Final = (1 << 63) - 1


def history(snapshot: Snapshot, stored: StoredRecord, until: int = _LAST) -> Iterator[Entry]:
    """The entries of a handle, newest first, up to and including an entry of the ledger."""
    if stored.entry is None or _ignores_case_rule(stored.handle):
        return snapshot.reader.history(stored.key, until)
    return _history_across_periods(snapshot, stored, snapshot.case_rule_periods(stored.handle.prefix), until)


def as_of(snapshot: Snapshot, stored: StoredRecord, seq: int) -> Entry | None:
    """The last entry of a handle up to and including an entry of the ledger; None if there was none yet."""
    return next(history(snapshot, stored, seq), None)


def ends_key(snapshot: Snapshot, entry: Entry) -> bool:
    """Whether an entry only ends the key of a handle, which has another key from then on."""
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
        for entry in snapshot.reader.history(key, min(until, period.last)):
            if entry.seq < period.first:
                break
            if entry.exact != period.exact:
                continue  # it ends a key of another period
            if not is_current and entry.handle != str(stored.handle):
                return  # a handle that became distinct only later
            yield entry
        is_current = False


def _ignores_case_rule(name: Handle) -> bool:
    """Whether a handle is never case-sensitive: those of the system."""
    return name.is_prefix_handle or fold(name.prefix) == SITE_PREFIX


MAX_NAMES: Final = 10_000
"""How many handles a namespace may have: it is one commit, which blocks all other writes for about a second."""

NOTE: Final = "case rule"
"""Start of the note of each entry."""

MAX_CONFLICTS: Final = 20
"""How many collisions a refusal lists."""


def has_same_keys(before: Policy, after: Policy) -> bool:
    """Whether both rules use the same keys: a path is treated like any other suffix."""
    return (before.case is CaseRule.SENSITIVE) == (after.case is CaseRule.SENSITIVE)


def plan_case_change(context: Context, prefix: str, policy: Draft, *, exact: bool) -> tuple[Draft, ...]:
    """Build the entries that change the case rule of a namespace, besides that of its policy; raises `Refused`.

    `exact` says whether suffixes are case-sensitive by the new rule.
    """
    entries = _entries(context, prefix)
    current = [entry for entry in entries if entry.exact != exact]  # the others end keys of an earlier period
    _check_conflicts(prefix, current, exact)
    return tuple([draft for entry in current for draft in _move_entry(context, entry, exact, policy.note)])


def detect_case_sensitivity(snapshot: Snapshot, prefix: str) -> bool | None:
    """Whether the suffixes of a namespace are case-sensitive, judged by their entries; None if these do not tell.

    This is for a namespace whose policy cannot be read. All existing records follow the current rule. Deleted ones may
    be ended keys of an earlier period, so they count only if all of them agree.
    """
    deleted: set[bool] = set()
    for entry in snapshot.reader.all_names(f"{prefix}/"):
        if entry.state is not State.ABSENT:
            return entry.exact
        deleted.add(entry.exact)
    return deleted.pop() if len(deleted) == 1 else None


def _entries(context: Context, prefix: str) -> list[Entry]:
    """The latest entries of all handles there ever were, noted as preconditions."""
    entries = list(islice(context.snapshot.reader.all_names(f"{prefix}/"), MAX_NAMES + 1))
    if len(entries) > MAX_NAMES:
        reason = f"{display_name(prefix)} has more than {MAX_NAMES:,} handles, too many to change the case rule"
        raise StateConflict(reason, AdviceKind.CREATE_OTHER_NAMESPACE(), "H5")
    for entry in entries:
        context.snapshot.track(entry)
    return entries


def _check_conflicts(prefix: str, entries: Sequence[Entry], exact: bool) -> None:
    """Refuse if two handles would collide."""
    groups: dict[bytes, list[str]] = {}
    for entry in entries:
        deleted = " (deleted)" if entry.state is State.ABSENT else ""
        groups.setdefault(record_key(entry.handle, exact=exact), []).append(display_name(entry.handle) + deleted)
    clashes = [" and ".join(group) for group in groups.values() if len(group) > 1]
    if clashes:
        listed = "; ".join(clashes[:MAX_CONFLICTS])
        more = f"; and {len(clashes) - MAX_CONFLICTS:,} more" if len(clashes) > MAX_CONFLICTS else ""
        reason = f"Handles under {display_name(prefix)} would collide: {listed}{more}"
        raise StateConflict(reason, AdviceKind.KEEP_CASE(), "H5")


def _move_entry(context: Context, entry: Entry, exact: bool, note: str) -> list[Draft]:
    """The entries that move one handle to its new key; their notes say why."""
    by = (context.interface, str(context.identity), f"{NOTE}: {note}" if note else NOTE)
    action = Action.DELETE if entry.state is State.ABSENT else Action.UPDATE
    moved = Draft(action, entry.state, entry.handle, *by, entry.record(), exact)
    if moved.key == entry.key:
        return [moved]
    return [Draft(Action.DELETE, State.ABSENT, entry.handle, *by, (), entry.exact), moved]
