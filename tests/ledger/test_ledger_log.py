"""The log: numbered without gaps, independent requests, provable, and tampering is detected."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.engine.interfaces import DBAPICursor

from perseid.ledger.errors import ClockError, CorruptData, NewerFormat, PreconditionFailed
from perseid.ledger.log import entry
from perseid.ledger.log.clock import SECOND, TOLERANCE
from perseid.ledger.log.commit import MIN_PREFETCH, Commit, CommitReader
from perseid.ledger.log.entry import Action, Draft, State
from perseid.ledger.log.log import LARGE_GROUP, MAX_GROUP, Log
from perseid.ledger.log.requests import Append, Failed
from perseid.ledger.log.signing import sign_checkpoint
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import metadata
from perseid.ledger.views.search_keys import index_keys
from perseid.proof.verifier import check_consistency, check_inclusion, open_checkpoint
from perseid.records.binary import MAX_BYTES
from tests.ledger.ledgers import (
    NOW,
    ORIGIN,
    SIGNER,
    Machine,
    appended,
    change,
    execute,
    key,
    log_of_today,
    look,
    url,
    verified,
)


def test_entries_are_numbered_from_one_without_gaps_and_dated_in_order(log: Log, machine: Machine) -> None:
    first = [appended(outcome) for outcome in log.append([change("a"), change("b")])]
    machine.run(5)
    second = [appended(outcome) for outcome in log.append([change("c")])]
    assert [one.seq for one in first + second] == [1, 2, 3]
    assert [one.at for one in first + second] == [NOW, NOW, NOW + 5]
    assert look(log).size == verified(log) == 3


def test_an_entry_is_read_back_with_everything_in_it(log: Log) -> None:
    log.append([change("a", url("https://example.org/"), action=Action.CREATE)])
    entry = look(log).entry(1)
    assert (entry.action, entry.state, entry.handle) == (Action.CREATE, State.NORMAL, "10.1/a")
    assert entry.record() == (url("https://example.org/"),)
    assert entry.origin == ("cli", "local:alice")
    with pytest.raises(KeyError):
        look(log).entry(2)


def test_the_history_of_a_record_is_its_own_newest_first(log: Log) -> None:
    log.append([change("a", url("1")), change("b", url("2"))])
    log.append([change("a", url("3")), change("a", url("4"))])
    assert [entry.seq for entry in look(log).history(key("a"))] == [4, 3, 1]
    assert [entry.seq for entry in look(log).history(key("b"))] == [2]
    assert list(look(log).history(key("c"))) == []
    assert (look(log).latest(key("a")), look(log).latest(key("c"))) == (4, 0)


def test_a_record_is_known_as_of_every_entry(log: Log) -> None:
    log.append([change("a", url("1")), change("b"), change("a", url("2"))])
    found = [look(log).as_of(key("a"), seq) for seq in range(4)]
    assert [entry and entry.seq for entry in found] == [None, 1, 1, 3]


def test_precondition_that_held_in_the_last_commit_is_checked_again_after_others_append(log: Log) -> None:
    """A commit reuses what the last one looked up, unless another process has appended, or it changed it itself."""
    log.append([change("group"), change("other")])
    leaf = look(log).leaf(1)

    def depending(name: str, seq: int, leaf_hash: bytes) -> Append:
        return replace(change(name, group=seq), expected_leaves={key("group"): leaf_hash})

    for name in ("a", "b"):
        assert [appended(outcome).seq > 0 for outcome in log.append([depending(name, 1, leaf)])] == [True]
    assert isinstance(log.append([depending("c", 1, bytes(32))])[0], PreconditionFailed)
    other = Log(log.store, log.clock, log.random)
    assert appended(other.append([change("group")])[0]).seq == 5
    assert isinstance(log.append([depending("d", 1, leaf)])[0], PreconditionFailed)
    new = look(log).leaf(5)
    assert appended(log.append([depending("e", 5, new)])[0]).seq == 6
    outcomes = log.append([depending("f", 5, new), change("group"), depending("g", 5, new)])
    assert [isinstance(outcome, PreconditionFailed) for outcome in outcomes] == [False, False, True]
    assert isinstance(log.append([depending("h", 5, new)])[0], PreconditionFailed)


def test_failed_precondition_fails_one_request_alone(log: Log) -> None:
    log.append([change("group"), change("a")])
    outcomes = log.append(
        [
            change("new", new=0),
            change("new", new=0),  # another request was earlier in the same commit
            change("a", a=2, group=1),
            change("b", group=9),
            change("c", group=1),
        ]
    )
    assert [isinstance(outcome, PreconditionFailed) for outcome in outcomes] == [False, True, False, True, False]
    assert [appended(outcome).seq for outcome in (outcomes[0], outcomes[2], outcomes[4])] == [3, 4, 5]
    moved = outcomes[1]
    assert isinstance(moved, PreconditionFailed)
    assert (moved.key, moved.expected, moved.actual) == (key("new"), 0, 3)
    assert verified(log) == 5


def test_group_without_a_success_changes_nothing(log: Log) -> None:
    log.append([change("a")])
    log.append([change("a", a=0)])
    log.append([])
    assert look(log).size == verified(log) == 1


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_unencodable_request_fails_alone(log: Log, text: str) -> None:
    draft = change("a", url("x")).draft
    wrong = [replace(draft, note=text), replace(draft, handle=f"10.1/{text}"), replace(draft, actor=text)]
    erases_nothing = Append(draft, redactions={7: frozenset((b"x",))})
    outcomes = log.append([*(Append(one) for one in wrong), erases_nothing, change("b")])
    assert [isinstance(outcome, Failed) for outcome in outcomes] == [True, True, True, True, False]
    assert verified(log) == 1


def test_value_that_is_too_long_fails_alone_and_an_existing_one_is_read(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = url("x" * (MAX_BYTES + 1))
    assert [isinstance(outcome, Failed) for outcome in log.append([change("a", longer), change("b")])] == [True, False]
    with monkeypatch.context() as patch:
        patch.setattr(entry, "MAX_BYTES", 2 * MAX_BYTES)
        log.append([change("a", longer)])
    appended(log.append([change("a", longer, url("y", 2))])[0])
    stored = look(log).entry(3)
    assert longer.data in [value.data for value in stored.record()]
    assert entry.Entry.from_body(3, stored.at, stored.body()) == stored
    assert verified(log) == 3


def test_group_size_is_limited(log: Log) -> None:
    with pytest.raises(ValueError, match=r"^too many requests in a group: 10,001, maximum 10,000$"):
        log.append([change("a")] * (MAX_GROUP + 1))


def test_an_unchanged_value_keeps_its_commitment_from_entry_to_entry(log: Log) -> None:
    unchanged, old, new = url("kept", 1), url("old", 2), url("new", 2)
    log.append([change("a", unchanged, old)])
    log.append([change("a", unchanged, new), change("a", unchanged, new, url("more", 3))])
    first, second, third = (look(log).entry(seq).values for seq in (1, 2, 3))
    assert first[0] == second[0] == third[0]
    assert first[1] != second[1] == third[1]


def test_every_entry_is_proved_against_a_signed_checkpoint(log: Log, machine: Machine) -> None:
    log.append([change(str(number), url(str(number))) for number in range(600)])
    early = open_checkpoint(sign_checkpoint(log, SIGNER), SIGNER.public)
    machine.run(SECOND)
    log.append([change(str(number)) for number in range(77)])
    late = open_checkpoint(sign_checkpoint(log, SIGNER), SIGNER.public)
    assert (early.origin, early.size, late.size) == (ORIGIN, 600, 677)
    assert (look(log).root(600), look(log).root(677)) == (early.root, late.root)
    for seq in (1, 2, 255, 256, 257, 512, 600, 677):
        path = look(log).inclusion(seq, late.size)
        check_inclusion(seq - 1, late.size, late.root, look(log).entry(seq).leaf_hash(), path)
    check_consistency(early.size, early.root, late.size, late.root, look(log).consistency(600, 677))
    check_consistency(0, look(log).root(0), late.size, late.root, look(log).consistency(0, 677))


def test_unchanged_ledger_signs_no_new_checkpoint(log: Log, store: Store) -> None:
    log.append([change("a")])
    assert sign_checkpoint(log, SIGNER) == sign_checkpoint(log, SIGNER)
    with store.reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM checkpoints")).scalar_one() == 1


def test_wrong_clock_stops_writing_and_changes_nothing(log: Log, machine: Machine) -> None:
    log.append([change("a")])
    machine.wall -= TOLERANCE + SECOND
    for attempt in (log.check_clock, lambda: log.append([change("b")])):
        with pytest.raises(ClockError):
            attempt()
    assert look(log).size == verified(log) == 1
    machine.wall += TOLERANCE + SECOND
    log.check_clock()
    log.store.check_space(thorough=True)  # nothing is changed
    assert verified(log) == 1
    assert appended(log.append([change("b")])[0]).seq == 2


def test_entry_dated_before_the_previous_one_is_reported(log: Log, store: Store) -> None:
    log.append([change("a"), change("b")])
    with store.writing() as connection:
        connection.execute(text("UPDATE entries SET at = at - 1 WHERE seq = 2"))
    with pytest.raises(CorruptData, match="entry 2 is dated before"):
        verified(log)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM entries WHERE seq = 2", "entry 2 is missing"),
        ("DELETE FROM nodes", "the tree over entry 256"),
        ("UPDATE head SET seq = seq - 1", r"the head \("),
        ("UPDATE head SET frontier = :zero", r"the head \("),
        ("UPDATE records SET seq = 1 WHERE seq = 300", "is not its latest"),
        ("DELETE FROM records WHERE seq = 300", "records instead of"),
    ],
)
def test_missing_or_inconsistent_rows_are_reported(log: Log, store: Store, statement: str, words: str) -> None:
    log.append([change(str(number % 299)) for number in range(300)])
    assert verified(log) == 300
    with store.writing() as connection:
        connection.execute(text(statement), {"zero": bytes(32)} if ":zero" in statement else {})
    with pytest.raises(CorruptData, match=words):
        verified(log)


def test_tables_equal_those_of_the_migrations(store: Store) -> None:
    with store.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    store.upgrade()


def test_ledger_of_a_newer_program_is_refused_unchanged(log: Log, store: Store) -> None:
    log.append([change("a")])
    with store.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NewerFormat, match=r"^A newer version of Perseid wrote the ledger \(tables 9999\); upgrade"):
        store.upgrade()
    assert verified(log) == 1


WRITER = textwrap.dedent(
    """
    import sys
    from tests.ledger.ledgers import appended, change, log_of_today, open_store, url

    where, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    log = log_of_today(open_store(where))
    for number in range(count):
        outcome = appended(log.append([change(f"{who}-{number}", url(f"{who} {number}"))])[0])
        print(outcome.seq, f"{who}-{number}", flush=True)
    """
)


def start_writer(where: str, identity: str, count: int) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", WRITER, where, identity, str(count)]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)


def test_several_processes_append_to_one_ledger_without_gaps(store: Store, where: str) -> None:
    log = _of_today(store)
    writers = [start_writer(where, identity, 60) for identity in "xyz"]
    lines = [line.split() for writer in writers for line in writer.communicate()[0].splitlines()]
    assert all(writer.returncode == 0 for writer in writers)
    assert sorted(int(seq) for seq, _ in lines) == list(range(1, 181))
    assert verified(log) == 180
    for seq, name in lines:
        assert look(log).entry(int(seq)).handle == f"10.1/{name}"


@pytest.mark.parametrize("after", [1, 7, 23])
def test_acknowledged_writes_survive_a_killed_writer(store: Store, where: str, after: int) -> None:
    log = _of_today(store)
    writer = start_writer(where, "x", 10_000)
    assert writer.stdout is not None
    acknowledged = [writer.stdout.readline().split() for _ in range(after)]
    writer.kill()
    acknowledged += [line.split() for line in writer.communicate()[0].splitlines() if line.count(" ") == 1]
    size = verified(log)
    print(f"{len(acknowledged)} acknowledged, {size} there")
    assert len(acknowledged) <= size <= len(acknowledged) + 1
    for seq, name in acknowledged:
        assert look(log).entry(int(seq)).handle == f"10.1/{name}"
    assert appended(log.append([change("after")])[0]).seq == size + 1


def _of_today(store: Store) -> Log:
    log = log_of_today(store)
    log.create(SIGNER)
    return log


def test_records_that_share_values_have_search_keys_of_their_own(log: Log) -> None:
    one, other = change("a", url("https://example.org/")).draft, change("b", url("https://example.org/b")).draft
    outcome = log.append([Append(one, more=(one.with_handle("10.1/c"), other, one.with_handle("10.1/d")))])[0]
    assert appended(outcome).seq == 1
    expected = {(search_key, seq) for seq in (1, 2, 4) for search_key in index_keys(one.contents())}
    expected |= {(search_key, 3) for search_key in index_keys(other.contents())}
    with log.store.writing_cursor() as cursor:
        cursor.execute(log.statements.search_rows, (b"", 0, b"z", 1_000, 0))
        assert {(bytes(search_key), seq) for search_key, seq in cursor.fetchall()} == expected
    assert verified(log) == 4


@pytest.mark.parametrize("number", [MIN_PREFETCH - 1, MIN_PREFETCH])
def test_a_decision_can_look_many_records_up_together(log: Log, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append([change("3", url("https://old.example/"))])
    keys = [key(str(each)) for each in range(number)]
    found: list[int] = []
    queries: list[str] = []
    run_query = Commit._query

    def note_query(self: Commit, statement: str, parameters: tuple[object, ...]) -> DBAPICursor:
        queries.append(statement)
        return run_query(self, statement, parameters)

    def look_up(reader: CommitReader) -> list[Draft]:
        reader.prefetch(set(keys))
        found.extend(reader.latest(each) for each in keys)
        return []

    monkeypatch.setattr(Commit, "_query", note_query)
    log.append([execute(look_up)])
    assert found == [int(each == key("3")) for each in keys]
    assert queries.count(log.statements.record_seqs) == int(number >= MIN_PREFETCH)


def test_a_large_request_looks_its_records_up_together(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append([change("3", url("https://old.example/"))])
    drafts = [change(str(number), url("https://example.org/")).draft for number in range(LARGE_GROUP)]
    expected = {draft.key: int(draft.handle == "10.1/3") for draft in drafts}
    queries: list[str] = []
    run_query = Commit._query

    def note_query(self: Commit, statement: str, parameters: tuple[object, ...]) -> DBAPICursor:
        queries.append(statement)
        return run_query(self, statement, parameters)

    monkeypatch.setattr(Commit, "_query", note_query)
    appended(log.append([Append(drafts[0], expected, more=tuple(drafts[1:]))])[0])
    assert log.statements.record_seq not in queries
    assert queries.count(log.statements.record_seqs) == 1
    assert look(log).latest_of([key("0"), key("3"), key("none")]) == {key("0"): 2, key("3"): 5, key("none"): 0}
    failed = log.append([Append(drafts[0], expected, more=tuple(drafts[1:]))])[0]
    assert isinstance(failed, PreconditionFailed)
    assert verified(log)
