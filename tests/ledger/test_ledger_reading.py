"""Reading the log: a record at any time, differences, listing by page, and following."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.ledger.log import reader
from perseid.ledger.log.entry import Action, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.reader import LogReader
from perseid.ledger.log.writer import ChangeWatcher
from perseid.ledger.views.search_keys import exact_url_range, host_range
from tests.ledger.ledgers import NOW, Machine, change, key, log_of_today, look, open_store, url

DEADLINE = 60.0


def test_seq_at_is_the_last_entry_dated_by_then(log: Log, machine: Machine) -> None:
    for name in "abc":
        log.append([change(name), change(name)])
        machine.run(10)
    assert [look(log).seq_at(NOW + offset) for offset in (-1, 0, 9, 10, 19, 20, 10_000)] == [0, 2, 2, 4, 4, 6, 6]


def test_as_of_returns_the_record_at_that_time(log: Log) -> None:
    for number in range(40):
        log.append([change("a", url(f"https://example.org/{number}")), change("b")])
    for number in range(40):
        entry = look(log).as_of(key("a"), 2 * number + 2)
        assert entry.record() == (url(f"https://example.org/{number}"),)
        history = look(log).history(key("a"), 2 * number + 2)
        assert [one.seq for one in history] == list(range(2 * number + 1, 0, -2))


def test_differences_list_each_changed_record_once(log: Log) -> None:
    log.append([change("a", url("1")), change("b", url("1"))])
    log.append([change("a", url("2")), change("c", url("1")), change("a", url("3"))])
    log.append([change("c", action=Action.DELETE, state=State.ABSENT), change("d")])
    found = [(one.before and one.before.seq, one.after.seq) for one in look(log).differences(2, 5)]
    assert found == [(1, 5), (None, 4)]
    found = [(one.before and one.before.seq, one.after.seq) for one in look(log).differences(0, 7)]
    assert found == [(None, 5), (None, 2), (None, 6), (None, 7)]
    assert look(log).differences(7, 7) == []


def test_names_are_listed_in_order_page_by_page(log: Log) -> None:
    names = [f"{number * 7919 % 1000:04}" for number in range(1000)]
    log.append([change(name) for name in names] + [change("zz", state=State.RESERVED)])
    found: list[str] = []
    first, end = key(""), key("") + b"\xff"
    while page := look(log).names(first, end, 64):
        found += [entry.handle for entry in page]
        first = page[-1].key + b"\0"
    assert found == [f"10.1/{name}" for name in [*sorted(names), "zz"]]


def test_records_are_found_by_current_urls_only(log: Log) -> None:
    log.append([change("a", url("https://old.example.org/x")), change("b", url("https://old.example.org/x"))])
    log.append([change("c", url("https://example.org/y")), change("a", url("https://new.example.org/x"))])
    log.append([change("b", url("https://old.example.org/x"), url("https://old.example.org/2", 2))])

    def leading(first: bytes, end: bytes) -> list[str]:
        return [entry.handle for _, entry in look(log).find_by_keys(first, end, 100)[0]]

    exact = exact_url_range("https://old.example.org/x")
    assert leading(exact.first, exact.end) == ["10.1/b"]
    wide = host_range("example.org", subdomains=True)
    assert leading(wide.first, wide.end) == ["10.1/c", "10.1/a", "10.1/b", "10.1/b"]
    page, more = look(log).find_by_keys(wide.first, wide.end, 2)
    assert more
    rest, _ = look(log).find_by_keys(wide.first, wide.end, 2, (page[-1][0], page[-1][1].seq))
    assert [entry.handle for _, entry in page + rest] == ["10.1/c", "10.1/a", "10.1/b", "10.1/b"]


def test_large_records_are_read_in_smaller_chunks(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a record larger than a chunk."""
    sizes = [10, 4_000, 10, 10, 9_000, 10, 5_000, 5_000, 10]
    log.append([change(str(number), url("https://a.example/" + "x" * size)) for number, size in enumerate(sizes)])
    wide, state = host_range("a.example", subdomains=False), look(log)
    names = [entry.handle for entry in state.names(b"", b"\xff", 100)]
    assert len(names) == len(sizes)
    assert not state.names_page(b"", b"\xff", 100)[1]
    for raw in (1, 5_000, 1 << 20):
        monkeypatch.setattr(reader, "CHUNK_BYTES", raw)
        assert [entry.seq for entry in state.log(0)] == list(range(1, len(sizes) + 1))
        found: list[str] = []
        pages, more, first = 0, True, b""
        while more:
            entries, more = state.names_page(first, b"\xff", 100)
            found += [entry.handle for entry in entries]
            pages, first = pages + 1, entries[-1].key + b"\0" if entries else first
        assert found == names
        assert pages == {1: len(sizes), 5_000: 4, 1 << 20: 1}[raw]
        led, more = state.find_by_keys(wide.first, wide.end, 100)
        assert (len(led) < len(sizes)) == more == (raw < 1 << 20)
        shown, more = state.names_in_states(b"", b"\xff", [State.NORMAL], 100)
        assert (len(shown) < len(sizes)) == more == (raw < 1 << 20)


def test_the_log_is_read_between_two_points(log: Log) -> None:
    log.append([change(str(number)) for number in range(2_500)])
    assert [entry.seq for entry in look(log).log(3, 2_100)] == list(range(4, 2_101))
    assert [entry.seq for entry in look(log).log(2_490)] == list(range(2_491, 2_501))


def test_reader_sees_one_state(log: Log) -> None:
    log.append([change("a", url("1"))])
    with log.open_reader() as reader:
        assert reader.size == 1
        second = log_of_today(open_store(_address(log)))
        second.clock.accept()
        second.append([change("a", url("2")), change("b")])
        second.store.close()
        assert (reader.size, reader.latest(key("a")), reader.latest(key("b"))) == (1, 1, 0)
    assert (look(log).size, look(log).latest(key("a"))) == (3, 2)


def _address(log: Log) -> str:
    return log.store.url or str(log.store.engine.url.database)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=25), st.data())
def test_reader_agrees_with_a_model_in_memory(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    """Compared with a plain list."""
    from tests.ledger.memory import memory_log  # noqa: PLC0415 - a new log for each example

    log = memory_log()
    log.append([change(name, *([url(str(number))] if number else [])) for name, number in steps])
    reader: LogReader
    with log.open_reader() as reader:
        for name in "abc":
            until = data.draw(st.integers(0, len(steps) + 1))
            mine = [seq for seq, (other, _) in enumerate(steps, 1) if other == name and seq <= until]
            found = reader.as_of(key(name), until)
            assert (found.seq if found else None) == (mine[-1] if mine else None)
            assert [one.seq for one in reader.history(key(name), until)] == mine[::-1]
    log.store.close()


def test_the_log_is_followed_while_others_append(log: Log, where: str) -> None:
    log.append([change("early")])
    stop = threading.Event()
    seen: list[str] = []

    def watch() -> None:
        following = log_of_today(open_store(where))
        watcher = ChangeWatcher(following)
        while not stop.is_set():
            seen.extend(entry.handle for entry in look(following).log(len(seen)))
            watcher.wait(stop)
        watcher.close()
        following.store.close()

    thread = threading.Thread(target=watch)
    thread.start()
    other = log_of_today(open_store(where))
    other.clock.accept()
    for number in range(5):
        other.append([change(str(number))])
        time.sleep(0.02)
    deadline = time.monotonic() + DEADLINE
    while len(seen) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    thread.join(DEADLINE)
    other.store.close()
    assert seen == ["10.1/early", *(f"10.1/{number}" for number in range(5))]


def test_unknown_entry_number_raises_key_error(log: Log) -> None:
    with pytest.raises(KeyError):
        look(log).entry(1)
