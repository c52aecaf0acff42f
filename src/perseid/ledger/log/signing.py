"""Which key signed when: the chain of hand-overs in the entries of the ledger itself.

Each rotation, and each branch after a restore, is an entry that names the old key and the new one. So the key of every
checkpoint is known from the entries and from the key that signs now.

The log's own word: signing checkpoints, handing over to another key, going on under another origin.

A checkpoint says how many entries there are and what the root of their tree is. Whoever keeps one can hold the log to
it for ever, so one key must never sign two histories: only the key named in the ledger signs, and a ledger that was
restored goes on under a new origin with a new key.

A ledger that was restored goes on under a new origin, and says in an entry which one it continues.

What was signed between the backup and the loss is not known any more. If the restored ledger signed with the old key,
that key might vouch for two histories that contradict each other. So it takes a new name and a new key, and its first
entry after the restore (BRANCH, on the ledger's own record) says where it comes from. Its note has these lines:

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
from perseid.ledger.store.rows import fetch_one
from perseid.ledger.store.tables import checkpoints, ledger
from perseid.proof.verifier import Branch, Checkpoint, InvalidProof, LogKey, open_checkpoint, parse_key_rotation

from .clock import SECOND
from .entry import Action, Draft, Entry, State
from .log import Log
from .record_keys import LEDGER, record_key
from .requests import Append, Outcome


def parse_key_change(entry: Entry) -> tuple[LogKey, LogKey] | None:
    """The key that signed before an entry and the one that does after it; None if the entry does not change it."""
    if entry.handle != LEDGER or entry.action not in (Action.ROTATE_KEY, Action.BRANCH):
        return None
    note = entry.why or ""
    try:
        if entry.action is Action.BRANCH:
            branch = Branch.parse(note)
            return branch.old, branch.new
        return parse_key_rotation(note)
    except InvalidProof as error:
        raise CorruptData(f"entry {entry.seq} does not hand over to another key: {error}") from error


class KeyChain:
    """The keys of a ledger, as its entries tell of them, in order."""

    def __init__(self, current: str) -> None:
        try:
            self.current = LogKey.parse(current)
        except InvalidProof as error:
            raise CorruptData(f"the key with which the ledger signs cannot be read: {error}") from error
        self._changes: list[int] = []
        self._keys: list[LogKey] = []  # one more than changes, once there is one

    def add(self, entry: Entry) -> None:
        """Look whether an entry changes the key."""
        change = parse_key_change(entry)
        if change is None:
            return
        old, new = change
        if self._keys and self._keys[-1] != old:
            raise CorruptData(f"entry {entry.seq} hands over from a key that did not sign by then")
        self._keys = [*(self._keys or [old]), new]
        self._changes.append(entry.seq)

    def finish(self) -> None:
        """All entries have been taken: the last key is the one that signs now."""
        if self._keys and self._keys[-1] != self.current:
            raise CorruptData("the ledger signs with another key than the last one that was handed over to")

    def check(self, checkpoint: Checkpoint, note: str) -> None:
        """Refuse a checkpoint that the key of its time has not signed."""
        key = self._keys[bisect_right(self._changes, checkpoint.size)] if self._keys else self.current
        try:
            open_checkpoint(note, key)
        except InvalidProof as error:
            raise CorruptData(
                f"the checkpoint kept for entry {checkpoint.size} is not the ledger's own: {error}"
            ) from error
        if checkpoint.origin != key.name:
            raise CorruptData(f"the checkpoint kept for entry {checkpoint.size} is one of {checkpoint.origin}")


INTERVAL: Final = SECOND
"""The least time between two checkpoints: whoever waits for one waits a second, and a busy log signs no more."""

_KEPT_INTERVAL: Final = 60 * SECOND  # older checkpoints are thinned to one a minute: 115 MB for a year without a pause


class WrongKey(LedgerError):
    """The key is not the one with which this ledger signs."""


def sign_checkpoint(log: Log, signer: Signer) -> str:
    """The checkpoint of the present size, signed now unless there is one, or one that is less than a second old."""
    with log.store.writing() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(log.statements.lock_head)
        size, _, frontier = fetch_one(cursor)
        _check_key(connection, signer)
        newest = select(checkpoints).order_by(checkpoints.c.size.desc())
        kept = connection.execute(newest.limit(2)).all()
        now = log.clock.now()
        if kept and (kept[0].size == size or 0 <= now - kept[0].at < INTERVAL):
            return str(kept[0].note)
        if len(kept) > 1 and 0 <= kept[0].at - kept[1].at < _KEPT_INTERVAL:
            connection.execute(delete(checkpoints).where(checkpoints.c.size == kept[0].size))
        note = signer.sign(Checkpoint(signer.name, size, Frontier.from_bytes(size, frontier).root()))
        connection.execute(insert(checkpoints).values(size=size, at=now, note=note))
    return note


def rotate_key(log: Log, old: Signer, new: Signer, interface: str, actor: str) -> Outcome:
    """Hand over to another key, by an entry whose note the old key signs."""
    if new.name != old.name:
        raise WrongKey(f"the new key must bear the name of the log, {old.name}, not {new.name}")

    def hand_over(connection: Connection) -> None:
        _check_key(connection, old)
        connection.execute(update(ledger).values(signer=str(new.public)))

    draft = Draft(Action.ROTATE_KEY, State.ABSENT, LEDGER, interface, actor, old.hand_over(new.public))
    return log.commit([Append(draft)], hand_over).outcomes[0]


def _check_key(connection: Connection, signer: Signer) -> None:
    named = connection.execute(select(ledger.c.signer)).scalar_one()
    if str(signer.public) != named:
        raise WrongKey(f"this ledger signs with the key {named}, not with {signer.public}; use the key of the ledger")


def restored_origin(origin: str, ledger_id: bytes) -> str:
    """The name under which a ledger goes on when it has been restored and got a new id."""
    return f"{origin}/restored-{ledger_id[:4].hex()}"


def find_branch(log: Log) -> Branch | None:
    """Which ledger this one continues; None if it was never restored. After several restores it is the last one."""
    with log.reading() as reading:
        for entry in reading.history(record_key(LEDGER)):
            if entry.action == Action.BRANCH:
                try:
                    return Branch.parse(entry.why or "")
                except InvalidProof as error:
                    raise CorruptData(f"entry {entry.seq} does not say which ledger this one continues") from error
    return None
