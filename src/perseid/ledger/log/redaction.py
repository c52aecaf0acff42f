"""Erasing data for good: which entries hold it, and the entry that says who erased it and why.

All values of the record's past with the same data go, whatever else of them differs: time, TTL, permissions, index. The
tree holds commitments only and stays as it is.
"""

from perseid.ledger.errors import LedgerError
from perseid.records.value import Value

from .entry import Action, Draft, Entry, Slot
from .reader import LogReader
from .requests import Append


class NothingToRedact(LedgerError):
    """There is no such value, or it is part of the record still."""


def build_redaction(reading: LogReader, key: bytes, seq: int, index: int, by: tuple[str, str], reason: str) -> Append:
    """The request that erases the value which had an index in an entry of a record, wherever it was copied.

    `by` is the door and the actor. A value that the record still has is not redacted: remove or replace it first.
    """
    latest = reading.record(key)
    entry = reading.as_of(key, seq)
    if latest is None or entry is None:
        raise NothingToRedact(f"the record had no values yet at entry {seq}")
    data = _value_data(entry, index)
    copies: dict[int, frozenset[bytes]] = {}
    for one in reading.history(key):
        found = frozenset(slot.commitment for slot in one.values if _contains_data(slot, data))
        if found:
            copies[one.seq] = found
    if latest.seq in copies:
        message = f"what value {index} held is part of the record of {latest.handle} still; remove or replace it first"
        raise NothingToRedact(message)
    note = f"value {index} of entry {entry.seq}: {reason}"
    draft = Draft(Action.REDACT, latest.state, latest.handle, *by, note, latest.record(), latest.exact)
    return Append(draft, {key: latest.seq}, copies)


def _value_data(entry: Entry, index: int) -> bytes:
    for value in entry.record():
        if value.index == index:
            return value.data
    raise NothingToRedact(f"entry {entry.seq} of {entry.handle} has no value {index}, or it is redacted already")


def _contains_data(slot: Slot, data: bytes) -> bool:
    return slot.content is not None and data in slot.content and Value.from_bytes(slot.content, 0).data == data
