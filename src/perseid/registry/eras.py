"""One name through the times of its namespace: the rule by which letters count may have changed.

A record is kept under a key that follows from the case rule (H5). Where the rule changed, every name was given an entry
under its new key and one that ends the old key, so a name has an entry in every era since it was made; see `case_rule`.
Whoever looks at a name's past looks at it through here, and sees one history.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from perseid.ledger.log.entry import Entry, State
from perseid.ledger.log.record_keys import record_key
from perseid.names.characters import fold
from perseid.names.handle import Handle

from .snapshot import SITE_PREFIX, Era, Facts, Held

_LAST: Final = (1 << 63) - 1


def history(facts: Facts, held: Held, until: int = _LAST) -> Iterator[Entry]:
    """The entries of a name, newest first, up to and including an entry of the ledger."""
    if held.entry is None or _has_one_key(held.handle):
        return facts.reading.history(held.key, until)
    return _through(facts, held, facts.eras(held.handle.prefix), until)


def as_of(facts: Facts, held: Held, seq: int) -> Entry | None:
    """The last entry of a name up to and including an entry of the ledger; None if there was none yet."""
    return next(history(facts, held, seq), None)


def ends_a_key(facts: Facts, entry: Entry) -> bool:
    """Whether an entry says nothing of its name, but that it is found under another key from then on."""
    name = Handle.keepable(entry.handle)
    if entry.state is not State.ABSENT or _has_one_key(name):
        return False
    return next(era.exact for era in facts.eras(name.prefix) if era.first <= entry.seq) != entry.exact


def _through(facts: Facts, held: Held, eras: Iterable[Era], until: int) -> Iterator[Entry]:
    is_today = True
    for era in eras:
        key = record_key(str(held.handle), exact=era.exact)
        for entry in facts.reading.history(key, min(until, era.last)):
            if entry.seq < era.first:
                break
            if entry.exact != era.exact:
                continue  # it ends the key of another era
            if not is_today and entry.handle != str(held.handle):
                return  # a name that was told from this one only later
            yield entry
        is_today = False


def _has_one_key(name: Handle) -> bool:
    """Whether letters never count in a name: the system's own."""
    return name.is_prefix_handle or fold(name.prefix) == SITE_PREFIX
