"""The log's own word: signing checkpoints, handing over to another key, going on under another origin.

A checkpoint says how many entries there are and what the root of their tree is. Whoever keeps one can hold the log to
it for ever, so one key must never sign two histories: only the key named in the ledger signs, and a ledger that was
restored goes on under a new origin with a new key.
"""

from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from perseid.ledger.checkpoint import Signer
from perseid.ledger.errors import LedgerError
from perseid.ledger.merkle import Frontier
from perseid.ledger.store.rows import one_row
from perseid.ledger.store.tables import checkpoints, ledger
from perseid.proof.verifier import Checkpoint

from .clock import SECOND
from .entry import Action, Draft, State
from .log import Log
from .record_keys import LEDGER
from .requests import Append, Outcome

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
        size, _, frontier = one_row(cursor)
        _check_key(connection, signer)
        newest = select(checkpoints).order_by(checkpoints.c.size.desc())
        kept = connection.execute(newest.limit(2)).all()
        now = log.clock.now()
        if kept and (kept[0].size == size or 0 <= now - kept[0].at < INTERVAL):
            return str(kept[0].note)
        if len(kept) > 1 and 0 <= kept[0].at - kept[1].at < _KEPT_INTERVAL:
            connection.execute(delete(checkpoints).where(checkpoints.c.size == kept[0].size))
        note = signer.sign(Checkpoint(signer.name, size, Frontier.from_octets(size, frontier).root()))
        connection.execute(insert(checkpoints).values(size=size, at=now, note=note))
    return note


def rotate_key(log: Log, old: Signer, new: Signer, door: str, actor: str) -> Outcome:
    """Hand over to another key, by an entry whose note the old key signs."""
    if new.name != old.name:
        raise WrongKey(f"the new key must bear the name of the log, {old.name}, not {new.name}")

    def hand_over(connection: Connection) -> None:
        _check_key(connection, old)
        connection.execute(update(ledger).values(signer=str(new.public)))

    draft = Draft(Action.ROTATE_KEY, State.ABSENT, LEDGER, door, actor, old.hand_over(new.public))
    return log.commit([Append(draft)], hand_over).outcomes[0]


def _check_key(connection: Connection, signer: Signer) -> None:
    named = connection.execute(select(ledger.c.signer)).scalar_one()
    if str(signer.public) != named:
        raise WrongKey(f"this ledger signs with the key {named}, not with {signer.public}; use the key of the ledger")
