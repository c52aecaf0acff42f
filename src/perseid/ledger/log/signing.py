"""Signed checkpoints, key rotation, and the branch entry of a restored ledger.

A checkpoint states the number of entries and the root of their tree. Anyone who keeps one can hold the log to it, so
one key must never sign two histories: only the key named in the ledger signs. Each rotation, and each branch after a
restore, is an entry that names the old key and the new one. So the key of every checkpoint follows from the entries and
the current key.

What was signed between the backup and the loss is unknown after a restore. So a restored ledger continues under a new
origin with a new key, and its first entry (BRANCH, on the ledger's own record) says where it comes from. Its note:

    perseid ledger branch
    <old origin>
    <size>                    entries taken over, in decimal
    <root>                    of their tree, in base64
    <old public key>
    <new public key>
"""

from bisect import bisect_right
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from perseid.ledger.errors import CorruptData, LedgerError
from perseid.ledger.merkle import Frontier, Signer
from perseid.ledger.store.tables import checkpoints, fetch_one, ledger
from perseid.proof.verifier import Branch, Checkpoint, InvalidProof, LogKey, open_checkpoint, parse_key_rotation

from .clock import SECOND
from .entry import Action, Draft, Entry, State
from .log import Log
from .record_keys import LEDGER, record_key
from .requests import Append, Outcome


def parse_key_change(entry: Entry) -> tuple[LogKey, LogKey] | None:
    """Return the keys before and after an entry; None if the entry does not change the key."""
    if entry.handle != LEDGER or entry.action not in (Action.ROTATE_KEY, Action.BRANCH):
        return None
    note = entry.why or ""
    try:
        if entry.action is Action.BRANCH:
            branch = Branch.parse(note)
            return branch.old, branch.new
        return parse_key_rotation(note)
    except InvalidProof as error:
        raise CorruptData(f"entry {entry.seq} is not a valid key change: {error}") from error


class KeyChain:
    """The keys of a ledger in the order of its entries."""

    def __init__(self, current: str) -> None:
        try:
            self.current = LogKey.parse(current)
        except InvalidProof as error:
            raise CorruptData(f"the ledger's public key is invalid: {error}") from error
        self._changes: list[int] = []
        self._keys: list[LogKey] = []  # one more than changes, once there is one

    def add(self, entry: Entry) -> None:
        """Register the key change of an entry, if it is one."""
        change = parse_key_change(entry)
        if change is None:
            return
        old, new = change
        if self._keys and self._keys[-1] != old:
            raise CorruptData(f"entry {entry.seq} replaces a key that was not the current one")
        self._keys = [*(self._keys or [old]), new]
        self._changes.append(entry.seq)

    def finish(self) -> None:
        """After all entries, check that the last key is the current one."""
        if self._keys and self._keys[-1] != self.current:
            raise CorruptData("the ledger's key is not the one of the last key change")

    def check(self, checkpoint: Checkpoint, note: str) -> None:
        """Refuse a checkpoint that was not signed by the key of its time."""
        key = self._keys[bisect_right(self._changes, checkpoint.size)] if self._keys else self.current
        try:
            open_checkpoint(note, key)
        except InvalidProof as error:
            raise CorruptData(
                f"the checkpoint at entry {checkpoint.size} is not signed by the ledger: {error}"
            ) from error
        if checkpoint.origin != key.name:
            raise CorruptData(f"the checkpoint at entry {checkpoint.size} belongs to {checkpoint.origin}")


INTERVAL: Final = SECOND
"""The minimum time between two checkpoints."""

_KEPT_INTERVAL: Final = 60 * SECOND  # older checkpoints are thinned to one per minute: at most 115 MB per year


class WrongKey(LedgerError):
    """The key is not the one that this ledger signs with."""


def sign_checkpoint(log: Log, signer: Signer) -> str:
    """Return a checkpoint of the current size; sign one unless there is one, or the last is under a second old."""
    with log.store.writing() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(log.statements.lock_head)
        size, _, frontier = fetch_one(cursor)
        _check_key(connection, signer)
        newest = select(checkpoints).order_by(checkpoints.c.size.desc())
        stored = connection.execute(newest.limit(2)).all()
        now = log.clock.now()
        if stored and (stored[0].size == size or 0 <= now - stored[0].at < INTERVAL):
            return str(stored[0].note)
        if len(stored) > 1 and 0 <= stored[0].at - stored[1].at < _KEPT_INTERVAL:
            connection.execute(delete(checkpoints).where(checkpoints.c.size == stored[0].size))
        note = signer.sign(Checkpoint(signer.name, size, Frontier.from_bytes(size, frontier).root()))
        connection.execute(insert(checkpoints).values(size=size, at=now, note=note))
    return note


def rotate_key(log: Log, old: Signer, new: Signer, interface: str, actor: str) -> Outcome:
    """Replace the signing key, by an entry whose note the old key signs."""
    if new.name != old.name:
        raise WrongKey(f"the new key is named {new.name}; it must be named {old.name}, like the log")

    def hand_over(connection: Connection) -> None:
        _check_key(connection, old)
        connection.execute(update(ledger).values(signer=str(new.public)))

    draft = Draft(Action.ROTATE_KEY, State.ABSENT, LEDGER, interface, actor, old.hand_over(new.public))
    return log.commit([Append(draft)], hand_over).outcomes[0]


def _check_key(connection: Connection, signer: Signer) -> None:
    current = connection.execute(select(ledger.c.signer)).scalar_one()
    if str(signer.public) != current:
        raise WrongKey(f"{signer.public} is not the key of this ledger; use {current}")


def restored_origin(origin: str, ledger_id: bytes) -> str:
    """Return the origin of a restored ledger with a new id."""
    return f"{origin}/restored-{ledger_id[:4].hex()}"


def find_branch(log: Log) -> Branch | None:
    """Find which ledger this one continues; None if it was never restored. The last restore wins."""
    with log.open_reader() as reader:
        for entry in reader.history(record_key(LEDGER)):
            if entry.action == Action.BRANCH:
                try:
                    return Branch.parse(entry.why or "")
                except InvalidProof as error:
                    raise CorruptData(f"entry {entry.seq} has no valid branch note") from error
    return None
