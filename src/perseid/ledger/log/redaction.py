"""Permanent redaction of a value, with the entry that says who redacted it and why.

All values in the record's history with the same data are redacted, whatever their time, TTL, permissions or index. The
tree contains only commitments and does not change.
"""

from perseid.ledger.errors import LedgerError
from perseid.records.value import Value

from .entry import Action, Draft, Entry, Slot
from .reader import LogReader
from .requests import Append


class NothingToRedact(LedgerError):
    """The value does not exist, or is still part of the record."""


def build_redaction(reader: LogReader, key: bytes, seq: int, index: int, by: tuple[str, str], reason: str) -> Append:
    """Build the request that redacts the value with `index` at entry `seq`, and all copies of its data.

    `by` is (interface, actor). A value that the record still has is not redacted: remove or replace it first.
    """
    latest = reader.record(key)
    entry = reader.as_of(key, seq)
    if latest is None or entry is None:
        raise NothingToRedact(f"the record had no values at entry {seq}")
    data = _value_data(entry, index)
    copies: dict[int, frozenset[bytes]] = {}
    for one in reader.history(key):
        commitments = frozenset(slot.commitment for slot in one.values if _contains_data(slot, data))
        if commitments:
            copies[one.seq] = commitments
    if latest.seq in copies:
        message = f"value {index} is still in the current record of {latest.handle}; remove or replace it first"
        raise NothingToRedact(message)
    note = f"value {index} of entry {entry.seq}: {reason}"
    draft = Draft(Action.REDACT, latest.state, latest.handle, *by, note, latest.record(), latest.exact)
    return Append(draft, {key: latest.seq}, copies)


def _value_data(entry: Entry, index: int) -> bytes:
    for value in entry.record():
        if value.index == index:
            return value.data
    raise NothingToRedact(f"entry {entry.seq} of {entry.handle} has no value {index}, or it is already redacted")


def _contains_data(slot: Slot, data: bytes) -> bool:
    return slot.content is not None and data in slot.content and Value.from_bytes(slot.content, 0).data == data
