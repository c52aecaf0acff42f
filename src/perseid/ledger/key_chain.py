"""Which key signed when: the chain of hand-overs in the entries of the ledger itself.

Each rotation, and each branch after a restore, is an entry that names the old key and the new one. So the key of every
checkpoint is known from the entries and from the key that signs now.
"""

from bisect import bisect_right

from perseid.ledger.log.entry import Action, Entry
from perseid.ledger.log.record_keys import LEDGER
from perseid.proof.verifier import Branch, Checkpoint, InvalidProof, LogKey, handed_over, open_checkpoint

from .errors import Damaged


def key_change(entry: Entry) -> tuple[LogKey, LogKey] | None:
    """The key that signed before an entry and the one that does after it; None if the entry does not change it."""
    if entry.handle != LEDGER or entry.action not in (Action.ROTATE_KEY, Action.BRANCH):
        return None
    note = entry.why or ""
    try:
        if entry.action is Action.BRANCH:
            branch = Branch.parse(note)
            return branch.old, branch.new
        return handed_over(note)
    except InvalidProof as error:
        raise Damaged(f"entry {entry.seq} does not hand over to another key: {error}") from error


class KeyChain:
    """The keys of a ledger, as its entries tell of them, in order."""

    def __init__(self, current: str) -> None:
        try:
            self.current = LogKey.parse(current)
        except InvalidProof as error:
            raise Damaged(f"the key with which the ledger signs cannot be read: {error}") from error
        self._changes: list[int] = []
        self._keys: list[LogKey] = []  # one more than changes, once there is one

    def take(self, entry: Entry) -> None:
        """Look whether an entry changes the key."""
        change = key_change(entry)
        if change is None:
            return
        old, new = change
        if self._keys and self._keys[-1] != old:
            raise Damaged(f"entry {entry.seq} hands over from a key that did not sign by then")
        self._keys = [*(self._keys or [old]), new]
        self._changes.append(entry.seq)

    def finish(self) -> None:
        """All entries have been taken: the last key is the one that signs now."""
        if self._keys and self._keys[-1] != self.current:
            raise Damaged("the ledger signs with another key than the last one that was handed over to")

    def check(self, checkpoint: Checkpoint, note: str) -> None:
        """Refuse a checkpoint that the key of its time has not signed."""
        key = self._keys[bisect_right(self._changes, checkpoint.size)] if self._keys else self.current
        try:
            open_checkpoint(note, key)
        except InvalidProof as error:
            raise Damaged(
                f"the checkpoint kept for entry {checkpoint.size} is not the ledger's own: {error}"
            ) from error
        if checkpoint.origin != key.name:
            raise Damaged(f"the checkpoint kept for entry {checkpoint.size} is one of {checkpoint.origin}")
