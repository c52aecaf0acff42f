"""Redaction: permanent, by an entry that says who and why, with an unchanged tree."""

from dataclasses import replace

import pytest

from perseid.ledger.errors import PreconditionFailed
from perseid.ledger.log.entry import Action
from perseid.ledger.log.log import Log, NothingToRedact, build_redaction
from perseid.ledger.log.signing import sign_checkpoint
from perseid.ledger.verify import verify
from perseid.proof.verifier import check_inclusion, open_checkpoint
from tests.ledger.ledgers import SIGNER, appended, change, key, look, url

WHO = ("cli", "local:alice")


def redact(log: Log, name: str, seq: int, index: int) -> int:
    with log.open_reader() as reader:
        request = build_redaction(reader, key(name), seq, index, WHO, "by order of a court")
    return appended(log.append([request])[0]).seq


def test_all_copies_and_nothing_else_are_redacted(log: Log) -> None:
    remaining, gone = url("https://example.org/kept", 1), url("https://example.org/gone-8841", 2)
    log.append(
        [
            change("a", remaining),
            change("a", remaining, gone),
            change("b", gone),
            change("a", remaining, gone, url("c", 3)),
        ]
    )
    log.append([change("a", remaining)])
    root = look(log).root(5)
    assert redact(log, "a", 4, 2) == 6
    for seq, expected in (
        (1, [remaining]),
        (2, [remaining]),
        (3, [gone]),
        (4, [remaining, url("c", 3)]),
        (5, [remaining]),
        (6, [remaining]),
    ):
        assert list(look(log).entry(seq).record()) == expected
    assert look(log).root(5) == root
    entry = look(log).entry(6)
    assert (entry.action, entry.origin) == (Action.REDACT, WHO)
    assert entry.why == "value 2 of entry 4: by order of a court"
    report = verify(log)
    assert (report.entries, report.redacted) == (6, 2)
    assert report.named == ("entry 2, 10.1/a: value 2 of 2", "entry 4, 10.1/a: value 2 of 3")


def test_a_redacted_entry_is_still_proved(log: Log) -> None:
    log.append([change("a", url("x")), change("a")])
    checkpoint = open_checkpoint(sign_checkpoint(log, SIGNER), SIGNER.public)
    redact(log, "a", 1, 1)
    leaf = look(log).entry(1).leaf_hash()
    check_inclusion(0, 2, checkpoint.root, leaf, look(log).inclusion(1, 2))


def test_same_data_is_redacted_throughout_the_history(log: Log) -> None:
    later = replace(url("x", 7), ttl=60)
    log.append(
        [change("a", url("x")), change("a"), change("a", later, url("xx", 2)), change("a"), change("b", url("x"))]
    )
    redact(log, "a", 1, 1)
    assert look(log).entry(1).record() == ()
    assert look(log).entry(3).record() == (url("xx", 2),)
    assert look(log).entry(5).record() == (url("x"),), "another record's value is another matter"


@pytest.mark.parametrize(
    ("name", "seq", "index", "words"),
    [
        ("a", 2, 1, "still in the current record"),
        ("a", 1, 7, "has no value 7"),
        ("a", 1, 2, "already redacted"),
        ("z", 1, 1, "no values at"),
        ("b", 1, 1, "no values at"),
        ("a", 99, 1, "entry 99 does not exist; the last one is 4$"),
    ],
)
def test_refused_redaction_says_why(log: Log, name: str, seq: int, index: int, words: str) -> None:
    log.append([change("a", url("x"), url("y", 2)), change("a", url("x")), change("b", url("x"))])
    redact(log, "a", 1, 2)
    with pytest.raises(NothingToRedact, match=words):
        redact(log, name, seq, index)


def test_redaction_of_a_changed_record_fails_its_precondition(log: Log) -> None:
    log.append([change("a", url("x")), change("a")])
    with log.open_reader() as reader:
        request = build_redaction(reader, key("a"), 1, 1, WHO, "reason")
    log.append([change("a", url("z"))])
    assert isinstance(log.append([request])[0], PreconditionFailed)
    assert look(log).entry(1).record() == (url("x"),)
