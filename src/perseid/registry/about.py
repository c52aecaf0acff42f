"""What a name says about itself as an identifier (A1), with the date of its last update.

That date is the newest timestamp of a value or, where later, the time of the latest entry that changed values: a value
that was removed leaves no timestamp behind (A3). It is found in the history whenever somebody asks, and stored nowhere.
Whoever shows authority metadata takes it from here.
"""

from collections.abc import Iterable
from typing import Final

from perseid.ledger.log.entry import Entry, State
from perseid.records.record import Record
from perseid.registry.commands.composition import known
from perseid.registry.policy.authority import Known
from perseid.registry.policy.authority_metadata import AuthorityMetadata, metadata

from . import eras
from .context import IMPORT
from .snapshot import Facts, Held

_MICROSECOND: Final = 1_000_000


def authority_of(facts: Facts, held: Held) -> AuthorityMetadata | None:
    """The authority metadata of a record, of what everybody may read in it; None if there is none, or no policy asks.

    Whether somebody may know of the record is not asked here: resolve it first.
    """
    if not held.policy.authority or held.state in (State.ABSENT, State.RESERVED):
        return None
    changed = last_change(eras.history(facts, held))
    record = Record(held.handle, held.values)
    return metadata(held.policy, record, changed, lambda party: known(facts, party) is Known.HERE_PUBLIC)


def last_change(entries: Iterable[Entry]) -> int | None:
    """When values were last changed, in seconds since 1970, given the entries of a record from the latest back.

    To publish, to hide and to erase the past change none. What an import brings was changed elsewhere, at the times
    that its values have: None, if there was nothing else.
    """
    later: Entry | None = None
    for entry in entries:
        if later is not None and _changes(later, entry):
            return later.at // _MICROSECOND
        later = entry
    return None if later is None or _is_import(later) else later.at // _MICROSECOND


def _changes(later: Entry, earlier: Entry) -> bool:
    return not _is_import(later) and _contents(later) != _contents(earlier)


def _is_import(entry: Entry) -> bool:
    return entry.who is not None and entry.who[0] == IMPORT


def _contents(entry: Entry) -> list[bytes]:
    return [slot.commitment if slot.content is None else slot.content for slot in entry.values]
