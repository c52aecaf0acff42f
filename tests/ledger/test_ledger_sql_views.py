"""SQL views, rebuilt from the entries during writes."""

import threading

import pytest
from sqlalchemy import text

from perseid.ledger.errors import CorruptData
from perseid.ledger.log.entry import Action, State
from perseid.ledger.log.log import Log, build_redaction
from perseid.ledger.store.store import Store
from perseid.ledger.views import rebuild as rebuild_module
from perseid.ledger.views.rebuild import Superseded, drop_unfinished, rebuild, rebuild_outdated, unfinished_tables
from tests.ledger.ledgers import appended, change, key, log_of_today, open_store, url, verified

VIEWS = ("records", "search")


def fill(log: Log, count: int = 300) -> int:
    requests = [change(str(number % 100), url(f"https://example.org/{number}")) for number in range(count)]
    log.append([*requests, change("5", action=Action.DELETE, state=State.ABSENT)])
    return count + 1


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("harm", ["DELETE FROM {}", "UPDATE {} SET seq = 1 WHERE seq = 250", "DROP TABLE {}"])
def test_damaged_view_is_repaired_by_rebuild(log: Log, store: Store, view: str, harm: str) -> None:
    size = fill(log)
    with store.writing() as connection:
        connection.execute(text(harm.format(view)))
        if harm.startswith("DROP"):  # so that the view is not empty
            connection.execute(text(f"CREATE TABLE {view} AS SELECT * FROM views"))
    if not harm.startswith("DROP"):
        with pytest.raises(CorruptData, match="rebuild"):
            verified(log)
    done: list[int] = []
    assert rebuild(log, view, done.append) == size
    assert done[-1] == size
    assert verified(log) == size
    assert appended(log.append([change("new", url("https://example.org/new"))])[0]).seq == size + 1
    assert verified(log) == size + 1


def test_view_invalidated_by_an_upgrade_is_rebuilt_before_writes(log: Log, store: Store) -> None:
    size = fill(log)
    with store.writing() as connection:
        connection.execute(text("DELETE FROM search"))
        connection.execute(text("UPDATE views SET seq = -1 WHERE name = 'search'"))
    with pytest.raises(CorruptData, match="rebuild"):
        log.append([change("new")])
    done: list[int] = []
    rebuild_outdated(log, done.append)
    assert done[-1] == verified(log) == size
    rebuild_outdated(log, done.append)
    assert done.count(size) == 1, "there was nothing left to do"


@pytest.mark.parametrize("view", VIEWS)
def test_an_empty_ledger_has_empty_views(log: Log, view: str) -> None:
    assert rebuild(log, view) == 0
    assert verified(log) == 0


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_rebuilt_while_others_write(log: Log, where: str, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild_module, "CHUNK", 20)
    fill(log)
    other = log_of_today(open_store(where))
    other.clock.accept()
    stop = threading.Event()
    appended_meanwhile = 0

    def write() -> None:
        nonlocal appended_meanwhile
        while not stop.is_set():
            other.append([change(str(appended_meanwhile % 100), url(f"https://example.org/w{appended_meanwhile}"))])
            appended_meanwhile += 1

    writer = threading.Thread(target=write)
    writer.start()
    rebuild(log, view)
    stop.set()
    writer.join()
    other.store.close()
    assert appended_meanwhile > 0
    assert verified(log) == 301 + appended_meanwhile


def test_leftovers_of_an_interrupted_rebuild_are_removed(log: Log, store: Store) -> None:
    fill(log)

    def break_off(done: int) -> None:
        raise KeyboardInterrupt(done)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild_module, "CHUNK", 20)
        with pytest.raises(KeyboardInterrupt):
            rebuild(log, "records", break_off)
    with store.reading() as connection:
        assert [name.rpartition("_")[0] for name in unfinished_tables(connection)] == ["records_next"]
    assert verified(log) == 301
    rebuild(log, "records")
    with store.reading() as connection:
        assert unfinished_tables(connection) == []


@pytest.mark.parametrize("view", VIEWS)
def test_later_rebuild_supersedes_the_earlier(log: Log, view: str) -> None:
    fill(log)

    def begin_another(done: int) -> None:
        if done == 20:
            rebuild(log, view)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild_module, "CHUNK", 20)
        with pytest.raises(Superseded):
            rebuild(log, view, begin_another)
    assert verified(log) == 301


def test_data_redacted_during_a_rebuild_is_not_in_the_view(log: Log, store: Store) -> None:
    fill(log)
    log.append([change("gone", url("https://example.org/planted-4711")), change("gone")])

    erased: list[int] = []

    def erase(done: int) -> None:
        if done == 300 and not erased:
            erased.append(done)
            with log.open_reader() as reader:
                request = build_redaction(reader, key("gone"), 302, 1, ("cli", "local:alice"), "a reason")
            log.append([request])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild_module, "CHUNK", 20)
        assert rebuild(log, "search", erase) == 304
    assert verified(log) == 304
    drop_unfinished(log)
    with store.reading() as connection:
        assert unfinished_tables(connection) == []
        assert not [row for row in connection.execute(text("SELECT key FROM search")) if b"planted" in row[0]]
