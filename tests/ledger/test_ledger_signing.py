"""Checkpoints: at most one per second, one key at a time, and a chain of keys that a verifier can follow."""

import pytest
from sqlalchemy import text

from perseid.ledger.log.clock import SECOND
from perseid.ledger.log.entry import Action
from perseid.ledger.log.log import Log
from perseid.ledger.log.signing import WrongKey, rotate_key, sign_checkpoint
from perseid.ledger.merkle import Signer
from perseid.proof.verifier import Leaf, check_inclusion, open_checkpoint, parse_key_rotation
from tests.ledger.ledgers import ORIGIN, SIGNER, Machine, appended, change, look, verified

OTHER = Signer.generate(ORIGIN, bytes(range(1, 33)))


def signed_size(log: Log, signer: Signer = SIGNER) -> int:
    return open_checkpoint(sign_checkpoint(log, signer), signer.public).size


def test_at_most_one_checkpoint_per_second_and_none_without_changes(log: Log, machine: Machine) -> None:
    log.append([change("a")])
    sizes = []
    for _ in range(5):
        sizes.append(signed_size(log))
        log.append([change("a")])
        machine.run(SECOND // 2)
    assert sizes == [1, 1, 3, 3, 5]
    machine.run(10 * SECOND)
    assert sign_checkpoint(log, SIGNER) == sign_checkpoint(log, SIGNER) == look(log).checkpoint()


def test_old_checkpoints_are_thinned_to_one_a_minute(log: Log, machine: Machine) -> None:
    for _ in range(200):
        log.append([change("a")])
        sign_checkpoint(log, SIGNER)
        machine.run(2 * SECOND)
    with log.store.reading() as connection:
        sizes = list(connection.execute(text("SELECT size FROM checkpoints ORDER BY size")).scalars())
    assert sizes[0] == 1
    assert sizes[-1] == 200
    assert len(sizes) <= 2 + 400 // 60
    assert verified(log) == 200


def test_only_the_key_of_the_ledger_signs(log: Log) -> None:
    with pytest.raises(WrongKey, match="not the key of this ledger"):
        sign_checkpoint(log, OTHER)
    with pytest.raises(WrongKey):
        rotate_key(log, OTHER, SIGNER, "cli", "local:alice")
    assert look(log).size == 0


def test_key_is_rotated_by_an_entry_it_signs(log: Log, machine: Machine) -> None:
    log.append([change("a")])
    before = open_checkpoint(sign_checkpoint(log, SIGNER), SIGNER.public)
    assert appended(rotate_key(log, SIGNER, OTHER, "cli", "local:alice")).seq == 2
    machine.run(2 * SECOND)
    with pytest.raises(WrongKey):
        sign_checkpoint(log, SIGNER)
    # What a verifier does that trusts only the first key and has the entry with its opened note.
    entry = look(log).entry(2)
    assert entry.action is Action.ROTATE_KEY
    assert entry.note.content is not None
    leaf = Leaf.parse(entry.leaf())
    leaf.check_note(entry.note.salt, entry.note.content)
    old, key = parse_key_rotation(entry.note.content.decode())
    assert old == SIGNER.public
    after = open_checkpoint(sign_checkpoint(log, OTHER), key)
    check_inclusion(1, after.size, after.root, entry.leaf_hash(), look(log).inclusion(2, after.size))
    assert (before.size, after.size) == (1, 2)


def test_key_with_another_name_is_refused(log: Log) -> None:
    with pytest.raises(WrongKey, match="like the log"):
        rotate_key(log, SIGNER, Signer.generate("elsewhere.example.org", bytes(32)), "cli", "local:alice")
