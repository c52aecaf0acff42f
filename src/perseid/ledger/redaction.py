"""Erasing data for good: which entries hold it, and the entry that says who erased it and why.

A value that did not change keeps its commitment from entry to entry, so all its copies are found by it, and all of them
go. The tree holds commitments only and stays as it is.
"""

from .entry import Action, Draft, Entry, Slot
from .errors import LedgerError
from .reading import Reading
from .requests import Append


class NothingToRedact(LedgerError):
    """There is no such value, or it is part of the record still."""


def redaction(reading: Reading, key: bytes, seq: int, index: int, by: tuple[str, str], reason: str) -> Append:
    """The request that erases the value which had an index in an entry of a record, wherever it was copied.

    `by` is the door and the actor. A value that the record still has is not redacted: remove or replace it first.
    """
    latest = reading.record(key)
    entry = reading.as_of(key, seq)
    if latest is None or entry is None:
        raise NothingToRedact(f"the record had no values yet at entry {seq}")
    slot = _slot(entry, index)
    copies = {}
    for one in reading.history(key):
        holds = any(other.commitment == slot.commitment for other in one.values)
        if holds:
            copies[one.seq] = frozenset((slot.commitment,))
        elif one.seq < entry.seq:
            break  # copies lie in one stretch
    if latest.seq in copies:
        message = f"value {index} is part of the record of {latest.handle} still; remove or replace it, then redact"
        raise NothingToRedact(message)
    note = f"value {index} of entry {entry.seq}: {reason}"
    draft = Draft(Action.REDACT, latest.state, latest.handle, *by, note, latest.record(), latest.exact)
    return Append(draft, {key: latest.seq}, copies)


def _slot(entry: Entry, index: int) -> Slot:
    for slot in entry.values:
        if slot.content is not None and int.from_bytes(slot.content[:4], "big") == index:
            return slot
    raise NothingToRedact(f"entry {entry.seq} of {entry.handle} has no value {index}, or it is redacted already")
