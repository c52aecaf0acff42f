"""Proofs: documents that show what a record was and that anybody can verify without this server.

A document has one entry, the proof that it is in the tree of a signed checkpoint, and the visible values;
docs/reference/proof-format.md specifies it and `perseid.proof.document` verifies it. Proofs are made for others, so by
default they show only what the public can see.
"""

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from perseid.ledger.errors import LedgerError
from perseid.ledger.log import signing
from perseid.ledger.log.entry import Action, Entry, Slot
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import LEDGER, record_key
from perseid.ledger.log.signing import parse_key_change, sign_checkpoint
from perseid.ledger.merkle import Signer
from perseid.names.handle import Handle
from perseid.proof.document import FORMAT, MAX_DOCUMENT, MAX_LINKS
from perseid.proof.verifier import Checkpoint, LogKey, parse_note
from perseid.records.encoding import JsonObject
from perseid.registry.access.permissions import display_name
from perseid.registry.advice import AdviceKind
from perseid.registry.context import not_found
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.results import InvalidQuery, Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import ResponseCode

from .history import RecordHistory, VisibleVersion

_MICROSECOND: Final = 1_000_000


class NotCheckpointed(LedgerError):
    """No signed checkpoint covers the entry yet."""

    def __init__(self, seq: int, covered: int) -> None:
        super().__init__(
            f"Entry {seq} cannot be proved yet: the latest signed checkpoint ends at entry {covered}. A running server "
            "signs a checkpoint every second"
        )
        self.seq = seq
        self.covered = covered


@dataclass(frozen=True, slots=True)
class Proof:
    """A document that proves what a record was after one entry."""

    handle: Handle
    """The handle as registered."""
    seq: int
    """The proved entry."""
    document: JsonObject

    def to_json(self) -> str:
        """Format the document as indented JSON."""
        return json.dumps(self.document, ensure_ascii=False, indent=2) + "\n"


def prove(
    snapshot: Snapshot, identity: Identity, handle: Handle, seq: int | None = None, *, public_only: bool = True
) -> Proof:
    """Prove a record as it is now, or as of an entry (see `history.seq_at_time`).

    Raises `Refused`, or `NotCheckpointed` if no signed checkpoint covers the entry: see `ensure_checkpoint`.
    """
    history = RecordHistory(snapshot, Anonymous() if public_only else identity, handle)
    version = _latest(history) if seq is None else history.version_at(seq)
    entry = version.entry
    reader = snapshot.reader
    note, size = reader.checkpoint(), reader.checkpoint_size() or 0
    if note is None or size < entry.seq:
        raise NotCheckpointed(entry.seq, size)
    document: JsonObject = {
        "format": FORMAT,
        "handle": entry.handle,
        "seq": entry.seq,
        "entry": _inclusion_proof(reader, entry, size),
        "values": _open_slots(_visible_slots(version)),
    }
    if history.shows_actors:
        document |= _dump_slot("actor", entry.actor)
    if history.administers:
        document |= _dump_slot("note", entry.note)
    document["checkpoint"] = note
    document["keys"] = [
        _inclusion_proof(reader, link, size) | _dump_slot("note", link.note) for link in _key_changes(reader, size)
    ]
    proof = Proof(history.stored.handle, entry.seq, document)
    if len(proof.to_json().encode()) > MAX_DOCUMENT:
        reason = f"Record {display_name(handle)} is too large: a proof has at most {MAX_DOCUMENT:,} bytes"
        raise Refused(ResponseCode.ERROR, reason, AdviceKind.PROVE_EARLIER_VERSION())
    return proof


def ensure_checkpoint(log: Log, signer: Signer, seq: int, pause: Callable[[float], None]) -> None:
    """Make sure that a signed checkpoint covers an entry. It takes up to a second: checkpoints are at least that far
    apart.

    `pause` sleeps for a number of seconds.
    """
    if _checkpoint_size(log, signer) < seq:
        pause(signing.INTERVAL / _MICROSECOND)
        if (size := _checkpoint_size(log, signer)) < seq:
            raise NotCheckpointed(seq, size)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key that signs the ledger, or has signed it."""

    key: LogKey
    since: Entry | None
    """The entry that introduced it; None if it is the first known key."""
    until: Entry | None
    """The entry that replaced it; None if it signs now."""


def signing_keys(reader: LogReader) -> list[SigningKey]:
    """Return the keys of the ledger, the current one last; at most the last `MAX_LINKS`."""
    entries = list(islice(reader.history(record_key(LEDGER)), MAX_LINKS))[::-1]
    changes = [(entry, change) for entry in entries if (change := parse_key_change(entry)) is not None]
    if not changes:
        return [SigningKey(LogKey.parse(reader.signer), None, None)]
    keys = [changes[0][1][0], *[new for _, (_, new) in changes]]
    starts = [None, *[entry for entry, _ in changes]]
    return [SigningKey(key, *ends) for key, ends in zip(keys, pairwise([*starts, None]), strict=True)]


@dataclass(frozen=True, slots=True)
class Consistency:
    """Proof that one state of the ledger extends another: no earlier entry was changed or removed."""

    old_size: int
    old_root: bytes
    new_size: int
    new_root: bytes
    path: tuple[bytes, ...]
    """The hashes that connect both roots."""


def consistency(reader: LogReader, old: int, new: int | None = None) -> Consistency:
    """Prove that a tree extends a smaller one; by default the tree of the last checkpoint.

    Raises `Refused` for sizes that no signed checkpoint covers yet.
    """
    signed = reader.checkpoint_size() or 0
    size = signed if new is None else new
    if max(old, size) > signed:
        raise _beyond_checkpoint(signed, max(old, size))
    if not 0 <= old <= size:
        reason = f"A tree of {size} entries cannot extend one of {old}"
        raise InvalidQuery(reason, AdviceKind.GIVE_SMALLER_SIZE_FIRST())
    path = tuple(reader.consistency(old, size))
    return Consistency(old, reader.root(old), size, reader.root(size), path)


def _beyond_checkpoint(signed: int, size: int) -> Refused:
    """Return the refusal of a size beyond the ledger; a checkpoint of that size would be evidence."""
    reason = f"Size {size} is beyond the latest signed checkpoint, which has {signed} entries"
    return InvalidQuery(reason, AdviceKind.KEEP_CHECKPOINT(size=signed))


def _checkpoint_size(log: Log, signer: Signer) -> int:
    """Return the size of a checkpoint signed now or a moment ago."""
    return Checkpoint.parse(parse_note(sign_checkpoint(log, signer))[0]).size


def _latest(history: RecordHistory) -> VisibleVersion:
    """Return the latest visible version."""
    for version in history.versions():
        return version
    raise not_found(history.stored)


def _visible_slots(version: VisibleVersion) -> list[Slot]:
    """Return the slots of the visible values."""
    indexes = {value.index for value in version.values}
    # A value's binary form starts with its index.
    return [
        slot
        for slot in version.entry.values
        if slot.content is not None and int.from_bytes(slot.content[:4], "big", signed=True) in indexes
    ]


def _key_changes(reader: LogReader, size: int) -> list[Entry]:
    """Return the entries that led to today's key, oldest first, since the last restore."""
    entries = []
    for entry in reader.history(record_key(LEDGER), size):
        entries.append(entry)
        if entry.action is Action.BRANCH or len(entries) == MAX_LINKS:
            break
    return entries[::-1]


def _inclusion_proof(reader: LogReader, entry: Entry, size: int) -> JsonObject:
    """Return the leaf of an entry and its path to the root of a tree."""
    path = [_base64(each) for each in reader.inclusion(entry.seq, size)]
    return {"leaf": _base64(entry.leaf()), "path": path}


def _dump_slot(name: str, slot: Slot) -> JsonObject:
    """Return an opened slot as a member of the document; empty if redacted."""
    opened = _open_slots([slot])
    return {name: opened[0]} if opened else {}


def _open_slots(slots: Iterable[Slot]) -> list[JsonObject]:
    """Return salt and content, from which anybody can compute the commitment."""
    pairs = [(slot.salt, slot.content) for slot in slots if slot.content is not None]
    return [{"salt": _base64(salt), "content": _base64(content)} for salt, content in pairs]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
