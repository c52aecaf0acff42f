"""Shared tables are bounded, expire, and survive the death of a process inside a transaction."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.server.state.runtime import RuntimeDirectory
from perseid.server.state.state import (
    KEY_BYTES,
    MAX_EVICTIONS,
    MAX_KEY_BYTES,
    SWEEP_ENTRIES,
    Entry,
    SharedState,
    StateFull,
    StateUnavailable,
    Table,
    TableSize,
    Transaction,
    read_entry,
)

MAP_BYTES = 16 << 20
DEADLINE = 30.0

STOPS_INSIDE = """
import sys, time
from pathlib import Path
from perseid.server.state.state import Entry, SharedState

state = SharedState(Path(sys.argv[1]), int(sys.argv[2]))
table = state.table("things", version=1, max_entries=4, max_bytes=1 << 20)
table.put(b"before", Entry(b"committed", 10.0))

def change(txn):
    table.write(txn, b"inside", Entry(b"never committed", 10.0))
    print("inside", flush=True)
    time.sleep(600)

state.write(change)
"""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SharedState]:
    opened = SharedState(tmp_path, MAP_BYTES)
    yield opened
    opened.close()


def table_of(state: SharedState, max_entries: int = 4, max_bytes: int = 1 << 20, version: int = 1) -> Table:
    return state.table("things", version=version, max_entries=max_entries, max_bytes=max_bytes)


def present(table: Table, now: float = 0.0) -> list[int]:
    return [number for number in range(MAX_EVICTIONS * 4) if table.get(b"%d" % number, now) is not None]


def test_missing_directory_is_not_created(tmp_path: Path) -> None:
    """The server that had it has ended."""
    with pytest.raises(StateUnavailable):
        SharedState(tmp_path / "gone", MAP_BYTES)
    assert read_entry(tmp_path / "gone", "table", 1, b"key", 0.0) is None
    assert not (tmp_path / "gone").exists()


def test_entry_is_stored_replaced_taken_and_deleted(state: SharedState) -> None:
    table = table_of(state)
    assert table.get(b"key", 0.0) is None
    assert table.put(b"key", Entry(b"value", 10.0, ((b"network", 4),)))
    assert table.get(b"key", 9.9) == b"value"
    assert table.put(b"key", Entry(b"", 20.0))
    assert table.get(b"key", 10.0) == b""
    assert table.size().entries == 1
    assert table.take(b"key", 10.0) == b""
    assert table.take(b"key", 10.0) is None
    assert not table.delete(b"key")
    assert table.put(b"key", Entry(b"value", 10.0))
    assert table.delete(b"key")
    assert table.get(b"key", 0.0) is None


def test_expired_entry_is_absent(state: SharedState) -> None:
    table = table_of(state)
    for key in (b"read", b"taken", b"updated"):
        table.put(key, Entry(b"value", 10.0))
    seen: list[bytes | None] = []
    assert table.get(b"read", 10.0) is None
    assert table.take(b"taken", 10.0) is None
    assert not table.update(b"updated", 10.0, seen.append)
    assert seen == [None]


def test_update_reads_and_writes_in_one_transaction(state: SharedState) -> None:
    table = table_of(state)

    def count(old: bytes | None) -> Entry:
        return Entry(str(int(old or b"0") + 1).encode(), 10.0)

    threads = [threading.Thread(target=lambda: [table.update(b"key", 0.0, count) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert table.get(b"key", 0.0) == b"200"


def test_failed_change_leaves_nothing(state: SharedState) -> None:
    table = table_of(state)

    def change(txn: Transaction) -> None:
        table.write(txn, b"key", Entry(b"value", 10.0))
        raise KeyError

    with pytest.raises(KeyError):
        state.write(change)
    assert table.get(b"key", 0.0) is None


def test_entry_that_expires_first_is_evicted(state: SharedState) -> None:
    table = table_of(state, max_entries=3)
    for number, expires in enumerate((30.0, 10.0, 20.0, 5.0)):
        assert table.put(b"%d" % number, Entry(b"value", expires))
    assert present(table) == [0, 2, 3]  # what is new stays
    table.put(b"3", Entry(b"value", 40.0))  # replaced, so nothing is evicted
    assert present(table) == [0, 2, 3]
    table.put(b"4", Entry(b"value", 40.0))
    assert present(table) == [0, 3, 4]


def test_full_group_evicts_its_own_entries(state: SharedState) -> None:
    table = table_of(state, max_entries=10)
    table.put(b"0", Entry(b"value", 1.0, ((b"other", 2),)))
    for number in range(1, 5):
        table.put(b"%d" % number, Entry(b"value", 10.0 + number, ((b"narrow", 2), (b"wide", 3))))
    assert present(table) == [0, 3, 4]
    table.delete(b"4")
    table.put(b"5", Entry(b"value", 10.0, ((b"narrow", 2), (b"wide", 3))))
    assert present(table) == [0, 3, 5]


def test_table_is_limited_in_bytes(state: SharedState) -> None:
    table = table_of(state, max_entries=100, max_bytes=100_000)
    for number in range(20):
        assert table.put(b"%d" % number, Entry(bytes(9_000), float(number + 1)))
        assert table.size().bytes <= 100_000
    assert 5 < len(present(table)) < 12
    assert max(present(table)) == 19
    kept = present(table)
    assert not table.put(b"long", Entry(bytes(100_000), 100.0))  # it would never fit, so nothing is evicted
    assert present(table) == kept


def test_change_that_would_evict_too_much_is_refused(state: SharedState) -> None:
    count = MAX_EVICTIONS * 3
    table = table_of(state, max_entries=count)
    for number in range(count):
        table.put(b"%d" % number, Entry(b"value", 10.0 + number))
    smaller = table_of(state, max_entries=1)
    stored = [smaller.put(b"new", Entry(b"value", 10_000.0)) for _ in range(3)]
    assert stored == [False, False, True]
    assert smaller.size().entries == 1


def test_entry_that_cannot_be_replaced_stays(state: SharedState) -> None:
    count = MAX_EVICTIONS * 2
    table = table_of(state, max_entries=count)
    for number in range(count):
        table.put(b"%d" % number, Entry(b"value", 10.0 + number, ((b"network", count),)))
    last = b"%d" % (count - 1)
    smaller = table_of(state, max_entries=1)
    assert not smaller.put(last, Entry(b"longer value", 10_000.0))
    assert smaller.get(last, 0.0) == b"value"
    assert smaller.put(last, Entry(b"longer value", 10_000.0))
    assert smaller.delete(last)
    assert (smaller.size().entries, smaller.sweep(1e9)) == (0, 0)


def test_sweep_removes_expired_entries_in_bounded_steps(state: SharedState) -> None:
    table = table_of(state, max_entries=1_000)
    for number in range(SWEEP_ENTRIES + 10):
        table.put(b"%d" % number, Entry(b"value", 10.0, ((b"group", 1_000),)))
    table.put(b"later", Entry(b"value", 20.0))
    assert [table.sweep(now) for now in (9.0, 10.0, 10.0, 10.0)] == [0, SWEEP_ENTRIES, 10, 0]
    assert table.size().entries == 1
    table.put(b"new", Entry(b"value", 20.0, ((b"group", 1),)))
    assert table.size().entries == 2
    assert state.sizes() == {"things": table.size()}
    table.clock = lambda: 20.0
    state.sweep()
    assert state.sizes()["things"].entries == 0


def test_table_of_another_version_is_another_table(state: SharedState) -> None:
    table_of(state).put(b"key", Entry(b"value", 10.0))
    assert table_of(state, version=2).get(b"key", 0.0) is None


@pytest.mark.parametrize("key", [b"", bytes(MAX_KEY_BYTES + 1)])
def test_key_of_invalid_length_is_refused(state: SharedState, key: bytes) -> None:
    with pytest.raises(ValueError, match="a key has"):
        table_of(state).put(key, Entry(b"value", 10.0))


def test_full_map_refuses_and_recovers(tmp_path: Path) -> None:
    state = SharedState(tmp_path, 1 << 20)
    table = table_of(state, max_entries=1_000, max_bytes=MAP_BYTES)
    stored = [table.put(b"%d" % number, Entry(bytes(100_000), 10.0)) for number in range(12)]
    assert stored[0]
    assert not stored[-1]
    assert table.get(b"0", 0.0) is not None
    assert table.sweep(10.0) > 0
    table.put(b"small", Entry(b"value", 20.0))  # frees what the sweep has removed
    assert table.put(b"again", Entry(bytes(100_000), 20.0))
    state.close()


def test_full_file_system_refuses_and_recovers(state: SharedState, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(state, max_entries=1_000, max_bytes=64 << 20)

    def fail(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", fail)
        stored = [table.put(b"%d" % number, Entry(bytes(1 << 20), 10.0)) for number in range(12)]
        assert stored[0]
        assert not stored[-1]
        with pytest.raises(StateFull, match="No space"):
            state.write(lambda _: None, 8 << 20)
        assert table.get(b"0", 0.0) is not None
        assert not table.update(b"0", 0.0, lambda _: Entry(bytes(4 << 20), 10.0), 4 << 20)
    assert table.put(b"again", Entry(bytes(1 << 20), 20.0))


def test_processes_share_key_and_entries(state: SharedState, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from perseid.server.state.state import Entry, SharedState\n"
        "state = SharedState(Path(sys.argv[1]), int(sys.argv[2])); "
        "table = state.table('things', version=1, max_entries=4, max_bytes=4096 * 4)\n"
        "table.put(b'key', Entry(state.key, 10.0))"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path), str(MAP_BYTES)], check=True)
    assert len(state.key) == KEY_BYTES
    assert table_of(state).get(b"key", 0.0) == state.key


def test_writer_goes_on_after_one_was_stopped_and_killed_inside_a_transaction(
    state: SharedState, tmp_path: Path
) -> None:
    table = table_of(state)
    directory = RuntimeDirectory(tmp_path, -1)
    command = [sys.executable, "-c", STOPS_INSIDE, str(tmp_path), str(MAP_BYTES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"inside\n"
            other.send_signal(signal.SIGSTOP)
            assert table.get(b"before", 0.0) == b"committed"  # reading does not wait
            writer = threading.Thread(target=lambda: table.put(b"after", Entry(b"value", 10.0)))
            writer.start()
            writer.join(0.1)
            assert writer.is_alive()
            assert directory.last_writer() == other.pid  # so the supervisor knows which one to kill
        finally:
            other.kill()
        writer.join(DEADLINE)
        assert not writer.is_alive()
    assert directory.last_writer() == os.getpid()
    assert table.get(b"before", 0.0) == b"committed"
    assert table.get(b"inside", 0.0) is None
    assert table.get(b"after", 0.0) == b"value"
    assert table.size() == TableSize(2, 4096)
