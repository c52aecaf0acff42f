"""Proving what a name was: a document that anybody can check without this server, for as long as they like.

The document holds one entry, the proof that it is in the tree of a signed checkpoint, and those values that may be
seen; docs/reference/proof-format.md specifies it, and `perseid.proof.document` checks it. It is made for
others, so it shows what the public may see unless somebody asks for all that they may see themselves.
"""

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from perseid.ledger.errors import LedgerError
from perseid.ledger.log.entry import Action, Entry, Slot
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.record_keys import LEDGER, record_key
from perseid.ledger.log.signing import INTERVAL, parse_key_change, sign_checkpoint
from perseid.ledger.merkle import Signer
from perseid.names.handle import Handle
from perseid.proof.document import FORMAT, MAX_DOCUMENT, MAX_LINKS
from perseid.proof.verifier import Checkpoint, LogKey, parse_note
from perseid.records.json_parsing import JsonObject
from perseid.registry.access.permissions import display_name
from perseid.registry.context import not_found
from perseid.registry.identity import Anonymous, Identity
from perseid.registry.results import InvalidQuery, Refused
from perseid.registry.snapshot import Snapshot
from perseid.wire.codes import ResponseCode

from .history import RecordHistory, VisibleVersion

_MICROSECOND: Final = 1_000_000


class NotCheckpointed(LedgerError):
    """No signed checkpoint has come to the entry yet."""

    def __init__(self, seq: int, covered: int) -> None:
        super().__init__(
            f"entry {seq} cannot be proved yet: the latest signed checkpoint ends at entry {covered}. A server that is "
            "running signs one every second; otherwise sign one with the key of the ledger (sign_checkpoint)"
        )
        self.seq = seq
        self.covered = covered


@dataclass(frozen=True, slots=True)
class Proof:
    """A document that proves what a name was after one entry."""

    handle: Handle
    """The name as it is registered."""
    seq: int
    """The entry that is proved."""
    document: JsonObject
    """Ready for any JSON writer."""

    def to_json(self) -> str:
        """The document as text, with its members one below the other."""
        return json.dumps(self.document, ensure_ascii=False, indent=2) + "\n"


def prove(
    snapshot: Snapshot, identity: Identity, handle: Handle, seq: int | None = None, *, public_only: bool = True
) -> Proof:
    """The proof of what a name is, or was after an entry of the ledger (see `past.moment`).

    Raises `Refused`, or `NotCovered` if no signed checkpoint has come to the entry: see `cover`.
    """
    past = RecordHistory(snapshot, Anonymous() if public_only else identity, handle)
    seen = _latest(past) if seq is None else past.version_at(seq)
    entry = seen.entry
    reading = snapshot.reading
    note, size = reading.checkpoint(), reading.checkpoint_size() or 0
    if note is None or size < entry.seq:
        raise NotCheckpointed(entry.seq, size)
    document: JsonObject = {
        "format": FORMAT,
        "handle": entry.handle,
        "seq": entry.seq,
        "entry": _inclusion_proof(reading, entry, size),
        "values": _open_slots(_visible_slots(seen)),
    }
    if past.shows_actors:
        document |= _dump_slot("actor", entry.actor)
    if past.administers:
        document |= _dump_slot("note", entry.note)
    document["checkpoint"] = note
    document["keys"] = [
        _inclusion_proof(reading, link, size) | _dump_slot("note", link.note) for link in _key_changes(reading, size)
    ]
    proof = Proof(past.stored.handle, entry.seq, document)
    if len(proof.to_json().encode()) > MAX_DOCUMENT:
        reason = f"the record of {display_name(handle)} is too large for a proof of {MAX_DOCUMENT:,} octets"
        raise Refused(ResponseCode.ERROR, reason, "prove an entry of it with fewer or shorter values")
    return proof


def ensure_checkpoint(log: Log, signer: Signer, seq: int, pause: Callable[[float], None]) -> None:
    """See to it that a signed checkpoint has come to an entry. It takes up to a second: no two are signed in less.

    `pause` waits so many seconds.
    """
    if _checkpoint_size(log, signer) < seq:
        pause(INTERVAL / _MICROSECOND)
        if (size := _checkpoint_size(log, signer)) < seq:
            raise NotCheckpointed(seq, size)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key with which the ledger signs, or has signed."""

    key: LogKey
    since: Entry | None
    """The entry with which it began; None if it is the first one that is known."""
    until: Entry | None
    """The entry with which it ended; None if it signs now."""


def signing_keys(reading: LogReader) -> list[SigningKey]:
    """The keys of the ledger, the one that signs now last; of very many the last `MAX_LINKS`."""
    entries = list(islice(reading.history(record_key(LEDGER)), MAX_LINKS))[::-1]
    changes = [(entry, change) for entry in entries if (change := parse_key_change(entry)) is not None]
    if not changes:
        return [SigningKey(LogKey.parse(reading.signer), None, None)]
    keys = [changes[0][1][0], *[new for _, (_, new) in changes]]
    began = [None, *[entry for entry, _ in changes]]
    return [SigningKey(key, *ends) for key, ends in zip(keys, pairwise([*began, None]), strict=True)]


@dataclass(frozen=True, slots=True)
class Consistency:
    """That one state of the ledger continues another: no entry before was changed or taken away."""

    old_size: int
    old_root: bytes
    new_size: int
    new_root: bytes
    path: tuple[bytes, ...]
    """The hashes that lead from the one root to the other."""


def consistency(reading: LogReader, old: int, new: int | None = None) -> Consistency:
    """The proof that the tree of a size continues a smaller one; without a second size, that of the last checkpoint.

    Raises `Refused` for what no signed checkpoint has come to yet.
    """
    signed = reading.checkpoint_size() or 0
    size = signed if new is None else new
    if max(old, size) > signed:
        raise _beyond_checkpoint(signed, max(old, size))
    if not 0 <= old <= size:
        reason = f"a tree of {size} entries cannot continue one of {old}"
        raise InvalidQuery(reason, "name the smaller size first")
    path = tuple(reading.consistency(old, size))
    return Consistency(old, reading.root(old), size, reading.root(size), path)


def _beyond_checkpoint(signed: int, size: int) -> Refused:
    """The refusal of a size beyond the ledger; whoever has a checkpoint of that size has something to tell."""
    reason = f"no checkpoint has come so far: the latest signed one has {signed} entries, and {size} were named"
    advice = (
        "if you have a signed checkpoint of that size, the ledger was put back to an earlier state since, or is "
        "another one: keep the checkpoint and ask the operator; otherwise name a size up to that of the latest one"
    )
    return InvalidQuery(reason, advice)


def _checkpoint_size(log: Log, signer: Signer) -> int:
    """How many entries a checkpoint is about that is signed now, or was a moment ago."""
    return Checkpoint.parse(parse_note(sign_checkpoint(log, signer))[0]).size


def _latest(past: RecordHistory) -> VisibleVersion:
    """The latest version that may be seen."""
    for seen in past.versions():
        return seen
    raise not_found(past.stored)


def _visible_slots(seen: VisibleVersion) -> list[Slot]:
    """Where the values stand that may be seen."""
    indexes = {value.index for value in seen.values}
    # A value's binary form begins with its index.
    return [
        slot
        for slot in seen.entry.values
        if slot.content is not None and int.from_bytes(slot.content[:4], "big", signed=True) in indexes
    ]


def _key_changes(reading: LogReader, size: int) -> list[Entry]:
    """The entries by which today's key came to sign, oldest first: from where the ledger was restored, if it was."""
    found = []
    for entry in reading.history(record_key(LEDGER), size):
        found.append(entry)
        if entry.action is Action.BRANCH or len(found) == MAX_LINKS:
            break
    return found[::-1]


def _inclusion_proof(reading: LogReader, entry: Entry, size: int) -> JsonObject:
    """An entry's leaf, and the path from it to the root of the tree of a size."""
    path = [_base64(each) for each in reading.inclusion(entry.seq, size)]
    return {"leaf": _base64(entry.leaf()), "path": path}


def _dump_slot(name: str, slot: Slot) -> JsonObject:
    """What is under a commitment, as a member of the document; none if it was redacted."""
    opened = _open_slots([slot])
    return {name: opened[0]} if opened else {}


def _open_slots(slots: Iterable[Slot]) -> list[JsonObject]:
    """Salt and content: with them anybody can compute the commitment."""
    found = [(slot.salt, slot.content) for slot in slots if slot.content is not None]
    return [{"salt": _base64(salt), "content": _base64(content)} for salt, content in found]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
