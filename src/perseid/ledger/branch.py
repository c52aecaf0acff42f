"""A ledger that was restored goes on under a new origin, and says in an entry which one it continues.

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

from perseid.ledger.log.entry import Action
from perseid.ledger.log.log import Log
from perseid.ledger.log.record_keys import LEDGER, record_key
from perseid.proof.verifier import Branch, InvalidProof

from .errors import Damaged


def origin_after_restore(origin: str, ledger_id: bytes) -> str:
    """The name under which a ledger goes on when it has been restored and got a new id."""
    return f"{origin}/restored-{ledger_id[:4].hex()}"


def branch_of(log: Log) -> Branch | None:
    """Which ledger this one continues; None if it was never restored. After several restores it is the last one."""
    with log.reading() as reading:
        for entry in reading.history(record_key(LEDGER)):
            if entry.action == Action.BRANCH:
                try:
                    return Branch.parse(entry.why or "")
                except InvalidProof as error:
                    raise Damaged(f"entry {entry.seq} does not say which ledger this one continues") from error
    return None
