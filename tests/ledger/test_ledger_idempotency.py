"""Idempotency keys: stored by the commit, for a day, and limited in number."""

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from perseid.ledger import ledger as ledgers
from perseid.ledger.backup.archive import save_backup
from perseid.ledger.backup.restore import restore
from perseid.ledger.errors import PreconditionFailed
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Draft
from perseid.ledger.log.log import Log, build_redaction
from perseid.ledger.log.requests import (
    CALLER_LENGTH,
    KEY_LIFETIME,
    MAX_BODY,
    OWNER_LENGTH,
    Append,
    Appended,
    Execute,
    Executed,
    Failed,
    IdempotentRequest,
    LeaseProvider,
    Outcome,
    RepeatedRequest,
)
from perseid.ledger.merkle import Signer
from perseid.ledger.store import idempotency as answered
from perseid.ledger.store import idempotency as token_uses
from perseid.ledger.store.idempotency import KeyCapacity, check_capacity, find, purge
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import idempotency
from perseid.ledger.verify import verify
from perseid.ledger.views.answers import Answers
from tests.ledger.ledgers import (
    Machine,
    change,
    change_state,
    execute,
    key,
    log_of_today,
    look,
    open_store,
    secret,
    until,
    url,
)

CALLER, OTHER = bytes(32), b"\x01" * 32
DIGEST, ANOTHER = b"\x02" * 32, b"\x03" * 32


def once(
    name: bytes = b"k", digest: bytes = DIGEST, caller: bytes = CALLER, body: bytes | None = None
) -> IdempotentRequest:
    return IdempotentRequest(caller, name, digest, 201, b"made" if body is None else body)


def with_key(request: Append, of: IdempotentRequest) -> Append:
    return Append(request.draft, request.preconditions, once=of)


def minting(of: IdempotentRequest, count: int = 2) -> Execute:
    def make(lender: LeaseProvider) -> list[Draft]:
        first = lender.lease(b"10.1 pattern", count, 0) if count else 0
        return [change("", url("https://example.org/"), handle=f"10.1/{first + each}").draft for each in range(count)]

    return execute(make, once=replace(of, body=None))


def one(log: Log, request: Append | Execute) -> Outcome:
    return log.append([request])[0]


def rows(log: Log) -> int:
    with log.store.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(idempotency)).scalar_one())


# Executed once


def test_repeated_request_is_not_executed(log: Log) -> None:
    request = with_key(change("x", url("https://example.org/")), once())
    assert isinstance(one(log, request), Appended)
    again = one(log, request)
    assert isinstance(again, RepeatedRequest)
    stored = again.record
    assert (stored.digest, stored.seq, stored.count, stored.status, stored.body) == (DIGEST, 1, 1, 201, b"made")
    assert look(log).size == 1
    assert find(log, CALLER, b"k") == stored
    verify(log)


def test_another_caller_or_key_is_another_request(log: Log) -> None:
    for number, of in enumerate((once(), once(caller=OTHER), once(b"other")), 1):
        assert one(log, with_key(change(str(number)), of)) == Appended(number, look(log).entry(number).at)
    assert find(log, OTHER, b"other") is None


def test_other_request_with_the_same_key_is_not_executed(log: Log) -> None:
    one(log, with_key(change("x"), once()))
    again = one(log, with_key(change("y"), once(digest=ANOTHER)))
    assert isinstance(again, RepeatedRequest)
    assert again.record.digest == DIGEST
    assert look(log).size == 1


def test_repetitions_in_one_commit_are_executed_once(log: Log) -> None:
    first, second, third = log.append([with_key(change("x"), once()) for _ in range(3)])
    assert isinstance(first, Appended)
    assert isinstance(second, RepeatedRequest)
    assert second == third


def test_repetition_is_detected_before_preconditions(log: Log) -> None:
    """The first execution invalidates the preconditions."""
    request = Append(change("x").draft, {key("x"): 0}, once=once())
    assert isinstance(one(log, request), Appended)
    assert isinstance(one(log, request), RepeatedRequest)


def test_failed_request_does_not_use_its_key(log: Log) -> None:
    one(log, change("x"))
    moved = Append(change("x").draft, {key("x"): 0}, once=once())
    assert isinstance(one(log, moved), PreconditionFailed)

    def broken(_: object) -> list[Draft]:
        raise RuntimeError("no answer")

    failed = one(log, execute(broken, once=once()))
    assert isinstance(failed, Failed)
    assert (rows(log), look(log).size) == (0, 1), "what cannot be answered was not carried out"
    assert isinstance(one(log, with_key(change("y"), once())), Appended)


def test_repeated_mint_is_executed_once(log: Log) -> None:
    minted = one(log, minting(once()))
    assert isinstance(minted, Executed)
    again = one(log, minting(once()))
    assert isinstance(again, RepeatedRequest)
    assert (again.record.seq, again.record.count) == (1, 2)
    assert again.record.body == b"(('10.1/0', '10.1/1'), 1)"
    other = one(log, minting(once(b"other")))
    assert isinstance(other, Executed)
    assert other.result == (("10.1/2", "10.1/3"), 3)


def test_key_is_stored_even_without_entries(log: Log) -> None:
    minted = one(log, minting(once(), 0))
    assert isinstance(minted, Executed)
    again = one(log, minting(once(), 0))
    assert isinstance(again, RepeatedRequest)
    assert (again.record.seq, again.record.count, look(log).size) == (0, 0, 0)


def test_long_response_is_not_stored_but_the_result_is(log: Log) -> None:
    for number, length in enumerate((MAX_BODY, MAX_BODY + 1), 1):
        name = b"%d" % number
        one(log, with_key(change(str(number)), once(name, body=bytes(length))))
        stored = find(log, CALLER, name)
        assert stored is not None
        assert (stored.seq, stored.count, stored.status) == (number, 1, 201)
        assert stored.body == (bytes(length) if length <= MAX_BODY else None)


def test_concurrent_repetitions_get_the_same_result(where: str, tmp_path: Path) -> None:
    store = open_store(where)
    store.upgrade()
    first = log_of_today(store)
    first.create(Signer.generate("ledger.example.org", bytes(32)))
    nodes = [Ledger(log_of_today(open_store(where)), Answers(tmp_path / f"answers{each}")) for each in range(2)]
    outcomes: list[Outcome] = []

    def ask(ledger: Ledger) -> None:
        outcomes.extend(ledger.append(minting(once())))

    threads = [threading.Thread(target=ask, args=(ledger,)) for ledger in nodes for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ledger in nodes:
        ledger.close()
    assert sorted(type(each).__name__ for each in outcomes) == ["Executed", *["RepeatedRequest"] * 11]
    assert look(first).size == 2
    store.close()


# Stored for a day, limited in number


def test_key_is_stored_for_a_day(log: Log, machine: Machine) -> None:
    one(log, with_key(change("x"), once()))
    machine.run(KEY_LIFETIME - 1)
    assert find(log, CALLER, b"k") is not None
    assert purge(log) == 0
    assert isinstance(one(log, with_key(change("x"), once())), RepeatedRequest)
    machine.run(1)
    assert find(log, CALLER, b"k") is None
    assert isinstance(one(log, with_key(change("x"), once(digest=ANOTHER))), Appended), "the key is free again"
    stored = find(log, CALLER, b"k")
    assert stored is not None
    assert (stored.digest, rows(log)) == (ANOTHER, 1)


def test_expired_keys_are_purged(log: Log, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered, "_PURGE_BATCH", 3)
    for number in range(10):
        one(log, with_key(change("x"), once(b"%d" % number)))
        machine.run(KEY_LIFETIME // 10)
    assert purge(log) == 1
    machine.run(KEY_LIFETIME // 2)
    assert purge(log) == 5
    assert rows(log) == 4
    machine.run(KEY_LIFETIME)
    assert purge(log) == 4
    assert rows(log) == 0
    assert isinstance(one(log, with_key(change("x"), once(b"0"))), Appended)


@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
def test_maintenance_purges_expired_keys(
    log: Log, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[None] = []

    def sign(_: Ledger) -> None:
        rounds.append(None)

    monkeypatch.setattr(ledgers, "PURGE_INTERVAL", 0.0)
    monkeypatch.setattr(ledgers, "RETRY_DELAY", 0.01)
    monkeypatch.setattr(Ledger, "_sign", sign)
    with Ledger(log, Answers(tmp_path / "answers")) as ledger:
        ledger.append(with_key(change("x"), once()))
        assert rows(log) == 1
        log.set_read_only("")
        until(lambda: ledger.write_problem is not None)
        machine.run(KEY_LIFETIME)
        rounds.clear()
        until(lambda: len(rounds) > 2)
        assert rows(log) == 1, "nothing is deleted in read-only mode"
        log.set_read_only(None)
        until(lambda: rows(log) == 0)


def test_number_of_keys_is_limited(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered, "MAX_KEYS_PER_OWNER", 3)
    monkeypatch.setattr(answered, "MAX_KEYS", 5)
    for number in range(3):
        assert check_capacity(log, CALLER) == KeyCapacity(3 - number, 5 - number)
        one(log, with_key(change("x"), once(b"%d" % number)))
    assert check_capacity(log, CALLER) == KeyCapacity(0, 2)
    assert check_capacity(log, OTHER) == KeyCapacity(3, 2)
    for number in range(2):
        one(log, with_key(change("x"), once(b"%d" % number, caller=OTHER)))
    assert check_capacity(log, OTHER) == KeyCapacity(1, 0)


def test_limit_applies_to_all_callers_of_an_owner(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answered, "MAX_KEYS_PER_OWNER", 3)
    same = [OTHER[:OWNER_LENGTH] + bytes((byte,)) * (CALLER_LENGTH - OWNER_LENGTH) for byte in (0, 7, 255)]
    for number, caller in enumerate(same):
        assert check_capacity(log, caller).owner == 3 - number
        one(log, with_key(change("x"), once(caller=caller)))
    assert [check_capacity(log, caller).owner for caller in (*same, OTHER)] == [0] * 4
    for byte in (0, 2, 255):
        assert check_capacity(log, bytes((byte,)) * CALLER_LENGTH).owner == 3


@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
def test_capacity_check_uses_indexes(log: Log) -> None:
    """An index must answer it: no query scans the table, whose rows may be long."""
    with log.store.reading_cursor() as cursor:
        for statement, parameters in (
            (log.statements.count_idempotency, (CALLER, CALLER, 9, 0)),
            (log.statements.idempotency_range, ()),
        ):
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plan = [str(row[3]) for row in cursor.fetchall() if "idempotency" in str(row[3])]
            assert plan
            assert all(line.startswith("SEARCH") for line in plan), plan


# Redaction and backup


def test_redaction_clears_responses_but_keeps_results(log: Log) -> None:
    one(log, with_key(change("x", url("https://example.org/private")), once(body=b"https://example.org/private")))
    one(log, change("x", url("https://example.org/2")))
    with log.open_reader() as reader:
        request = build_redaction(reader, key("x"), 1, 1, ("cli", "local:alice"), "law")
    log.append([request])
    stored = find(log, CALLER, b"k")
    assert stored is not None
    assert (stored.body, stored.seq, stored.status) == (None, 1, 201)


def test_replaced_secret_is_removed_from_responses(log: Log, where: str) -> None:
    planted = b"the-planted-secret-20771"
    one(log, with_key(change("key", secret(planted)), once(body=b"made with " + planted)))
    log.append([change("key", secret(b"new"))])
    log.erase_traces()
    if not where.startswith("postgresql"):
        log.store.close()
        for path in Path(where).parent.glob("ledger.db*"):
            assert planted not in path.read_bytes()
    else:
        stored = find(log, CALLER, b"k")
        assert stored is not None
        assert stored.body is None


def test_a_backup_has_keys_and_days_of_use(log: Log, machine: Machine, tmp_path: Path) -> None:
    one(log, with_key(change("x"), once()))
    one(log, with_key(change("y"), once(b"long", body=bytes(MAX_BODY + 1))))
    change_state(log, token_uses.RecordUse("abcdefgh", 20_000))
    stored = [find(log, CALLER, name) for name in (b"k", b"long")]
    save_backup(log, tmp_path / "backup")
    store = Store.sqlite(tmp_path / "again.db")
    store.upgrade()
    again = Log(store, machine.clock(), random.Random(2).randbytes)
    restore([tmp_path / "backup"], again, lambda origin: Signer.generate(origin, bytes(32)), ("cli", "local:alice"))
    assert [find(again, CALLER, name) for name in (b"k", b"long")] == stored
    assert isinstance(one(again, with_key(change("x"), once())), RepeatedRequest)
    assert isinstance(one(again, with_key(change("z"), once(b"new"))), Appended)
    assert token_uses.last_used_days(again) == {"abcdefgh": 20_000}
    store.close()


def test_the_day_of_use_never_goes_back(log: Log) -> None:
    for token, day, last in (("abcdefgh", 5, 5), ("abcdefgh", 5, 5), ("abcdefgh", 4, 5), ("abcdefgh", 6, 6)):
        change_state(log, token_uses.RecordUse(token, day))
        assert token_uses.last_used_days(log) == {token: last}
    change_state(log, token_uses.RecordUse("zzzzzzzz", 1))
    assert token_uses.last_used_days(log) == {"abcdefgh": 6, "zzzzzzzz": 1}
