"""The file of statistics: sums, changes of the ledger, wanted identifiers, bounds, and what happens to a bad file."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perseid.ledger import statistics
from perseid.ledger.log.entry import Action, State
from perseid.ledger.log.log import Log
from perseid.ledger.statistics import DAY, DAYS_KEPT, HOUR, HOURS_KEPT, MAX_WANTED, WANTED_KEPT, Share, StatisticsStore
from tests.ledger.ledgers import NOW, Machine, change, url

TODAY = NOW // 1_000_000 - NOW // 1_000_000 % DAY


@pytest.fixture
def kept(tmp_path: Path) -> StatisticsStore:
    return StatisticsStore(tmp_path)


def total(kept: StatisticsStore, column: str, prefix: str | None = None) -> int:
    return sum(each.counts[column] for each in kept.read_sums("days", 0, 1 << 40, prefix))


def count_all(kept: StatisticsStore, log: Log, now: int = TODAY) -> None:
    more = True
    while more:
        with log.open_reader() as reader:
            more = kept.count_changes(reader, now)


def test_sums_of_several_processes_are_added_by_hour_and_day(tmp_path: Path) -> None:
    one, other = StatisticsStore(tmp_path), StatisticsStore(tmp_path)
    one.add(TODAY + HOUR, {("12345", "native"): 3, ("12345", "pages"): 1})
    other.add(TODAY + HOUR + 5, {("12345", "native"): 4, ("10.5072", "native"): 1})
    other.add(TODAY + 2 * HOUR, {("12345", "native"): 1})
    hours = one.read_sums("hours", 0, 1 << 40, "12345")
    assert [(each.start, each.counts["native"], each.counts["pages"]) for each in hours] == [
        (TODAY + HOUR, 7, 1),
        (TODAY + 2 * HOUR, 1, 0),
    ]
    days = one.read_sums("days", TODAY, TODAY + DAY)
    assert [(each.start, each.prefix, each.counts["native"]) for each in days] == [
        (TODAY, "10.5072", 1),
        (TODAY, "12345", 8),
    ]
    assert one.read_sums("days", 0, TODAY) == []


def test_processes_that_create_the_file_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    for attempt in range(10):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        barrier = threading.Barrier(4)

        def add_one(store: StatisticsStore, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            store.add(TODAY, {("12345", "native"): 1})
            store.close()

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(add_one, StatisticsStore(directory)) for _ in range(4)]:
                done.result()
        assert total(StatisticsStore(directory), "native") == 4


def test_the_file_is_private(kept: StatisticsStore) -> None:
    kept.add(TODAY, {("12345", "native"): 1})
    assert {path.stat().st_mode & 0o777 for path in kept.path.parent.glob("statistics.db*")} == {0o600}


def test_nothing_is_created_by_reading(kept: StatisticsStore) -> None:
    assert not kept.read_sums("days", 0, 1 << 40)
    assert not kept.read_wanted("12345")
    assert kept.count_public() == {}
    assert not kept.path.exists()


def test_sums_have_a_retention(kept: StatisticsStore) -> None:
    kept.add(TODAY, {("12345", "native"): 1})
    kept.add(TODAY + HOURS_KEPT + HOUR, {("12345", "native"): 2})
    assert [each.counts["native"] for each in kept.read_sums("hours", 0, 1 << 40)] == [2]
    assert total(kept, "native") == 3
    kept.add(TODAY + DAYS_KEPT + DAY, {})
    assert total(kept, "native") == 2


def test_rows_are_bounded_and_the_oldest_go_first(kept: StatisticsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_ROWS", 10)
    for hour in range(30):
        kept.add(TODAY + hour * HOUR, {("12345", "native"): 1})
    hours = [each.start for each in kept.read_sums("hours", 0, 1 << 40)]
    assert hours == [TODAY + hour * HOUR for hour in range(20, 30)]


def test_the_most_wanted_survive_a_flood_of_names(kept: StatisticsStore) -> None:
    for number in range(600):
        names = {("12345", f"12345/{number}-{each}"): 1 for each in range(3)}
        kept.add(TODAY, {}, {**names, ("12345", "12345/wanted"): 5})
    found = kept.read_wanted("12345")
    assert len(found) == MAX_WANTED
    assert (found[0].name, found[0].count) == ("12345/wanted", 3_000)
    assert kept.read_wanted("10.5072") == []
    kept.add(TODAY + WANTED_KEPT + DAY, {})
    assert kept.read_wanted("12345") == []


def test_wanted_identifiers_of_all_namespaces_are_bounded(
    kept: StatisticsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MAX_WANTED_ROWS", 5)
    kept.add(TODAY, {}, {(f"{prefix}", f"{prefix}/x"): prefix for prefix in range(1, 11)})
    assert [len(kept.read_wanted(f"{prefix}")) for prefix in range(1, 11)] == [0] * 5 + [1] * 5


def test_changes_are_counted_from_the_ledger_once(kept: StatisticsStore, log: Log, machine: Machine) -> None:
    log.append([change("a", url("1")), change("b", action=Action.RESERVE, state=State.RESERVED)])
    log.append([change("a", url("2"), action=Action.UPDATE), change("b", action=Action.CREATE)])
    machine.run(DAY * 1_000_000)
    log.append([change("a", action=Action.UNPUBLISH, state=State.UNPUBLISHED)])
    log.append([change("b", action=Action.DELETE, state=State.ABSENT), change("c")])
    log.append([change("b", action=Action.CREATE)])
    log.append([change("c", action=Action.TOMBSTONE, state=State.TOMBSTONE)])
    for _ in range(3):
        count_all(kept, log)
    first, second = [each.counts for each in kept.read_sums("days", 0, 1 << 40, "10.1")]
    columns = ("created", "updated", "deleted", "published", "withdrawn")
    assert [first[each] for each in columns] == [2, 2, 0, 2, 0]
    assert [second[each] for each in columns] == [2, 2, 1, 2, 3]
    assert kept.count_public("10.1") == {"10.1": 1}, "without the tombstone"


def test_old_changes_count_for_growth_only(kept: StatisticsStore, log: Log) -> None:
    log.append([change("a"), change("b")])
    count_all(kept, log, TODAY + DAYS_KEPT + 2 * DAY)
    assert kept.read_sums("days", 0, 1 << 40) == []
    assert kept.count_public() == {"10.1": 2}


def test_changes_are_counted_in_steps(kept: StatisticsStore, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "CHANGES_PER_STEP", 3)
    log.append([change(f"{number}") for number in range(8)])
    with log.open_reader() as reader:
        assert kept.count_changes(reader, TODAY)
    assert total(kept, "created") == 3
    count_all(kept, log)
    assert total(kept, "created") == 8


def test_changes_of_a_restored_ledger_are_counted_again(kept: StatisticsStore, log: Log) -> None:
    log.append([change("a"), change("b")])
    kept.add(TODAY, {("10.1", "native"): 7})
    count_all(kept, log)
    with sqlite3.connect(kept.path) as connection:
        connection.execute("UPDATE position SET seq = 99")
    count_all(kept, log)
    assert (total(kept, "created"), total(kept, "native"), kept.count_public()) == (2, 7, {"10.1": 2})


def test_changes_are_counted_again_with_another_share(kept: StatisticsStore, log: Log) -> None:
    log.append([change("a"), change("b"), change("c")])
    for share, names in (
        (Share(), ["a", "b", "c"]),
        (Share(b"1 of 2", lambda handle: handle.endswith("a")), ["a"]),
        (Share(b"2 of 2", lambda handle: not handle.endswith("a")), ["b", "c"]),
        (Share(), ["a", "b", "c"]),
    ):
        with log.open_reader() as reader:
            assert not kept.count_changes(reader, TODAY, share)
        assert (total(kept, "created"), kept.count_public()) == (len(names), {"10.1": len(names)})


def test_a_damaged_file_is_replaced(kept: StatisticsStore) -> None:
    kept.path.write_bytes(b"not a database" * 100)
    with pytest.raises(OSError, match="damaged"):
        kept.add(TODAY, {("12345", "native"): 1})
    kept.add(TODAY, {("12345", "native"): 2})
    assert total(kept, "native") == 2


def test_a_file_of_another_version_is_replaced(kept: StatisticsStore) -> None:
    with sqlite3.connect(kept.path) as connection:
        connection.execute("CREATE TABLE days (x)")
        connection.execute("PRAGMA user_version = 99")
    kept.add(TODAY, {("12345", "native"): 2})
    assert total(kept, "native") == 2


def test_a_deleted_file_is_created_again(kept: StatisticsStore) -> None:
    kept.add(TODAY, {("12345", "native"): 1})
    kept.path.unlink()
    kept.add(TODAY, {("12345", "native"): 2})
    assert total(StatisticsStore(kept.path.parent), "native") == 2


def test_what_another_process_is_writing_is_an_error_after_a_while(
    kept: StatisticsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "WAIT_SECONDS", 0.01)
    kept.add(TODAY, {("12345", "native"): 1})
    kept.close()
    other = sqlite3.connect(kept.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match="locked"):
        kept.add(TODAY, {("12345", "native"): 1})
    other.close()
    kept.add(TODAY, {("12345", "native"): 1})
    assert total(kept, "native") == 2


def test_an_unreadable_file_is_an_error(kept: StatisticsStore) -> None:
    kept.path.write_bytes(b"not a database" * 100)
    with pytest.raises(OSError, match="cannot read"):
        kept.read_sums("days", 0, 1)


def test_readers_do_not_wait_for_a_transaction(kept: StatisticsStore) -> None:
    """Neither of another thread nor of another process."""
    kept.add(TODAY, {("12345", "native"): 1})
    with ThreadPoolExecutor(1) as pool, kept._write() as connection:
        connection.execute("DELETE FROM days")
        assert pool.submit(total, kept, "native").result(30) == 1


def test_readers_do_not_wait_for_a_locked_file_as_writers_do(
    kept: StatisticsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "WAIT_SECONDS", 60)
    kept.add(TODAY, {("12345", "native"): 1})
    kept.close()
    other = sqlite3.connect(kept.path, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("DELETE FROM wanted")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(total, kept, "native")
        try:
            with pytest.raises(OSError, match="locked"):
                reading.result(30)
        finally:
            other.close()


def test_sums_of_a_prefix_are_found_by_an_index_also_in_an_older_file(kept: StatisticsStore) -> None:
    kept.add(TODAY, {("12345", "native"): 1})
    kept.close()
    with sqlite3.connect(kept.path) as connection:  # as the version before created it
        connection.execute("DROP INDEX IF EXISTS days_of_prefix")
        connection.execute("PRAGMA user_version = 2")
    assert total(kept, "native", "12345") == 1
    kept.add(TODAY, {("12345", "native"): 1})
    assert total(kept, "native", "12345") == 2
    for unit in ("hours", "days"):
        query = f"SELECT native FROM {unit} WHERE start >= 1 AND start < 2 AND prefix = 'x' ORDER BY start, prefix"
        with sqlite3.connect(kept.path) as connection:
            ((*_, plan),) = connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
        assert "(prefix=? AND start>? AND start<?)" in plan
