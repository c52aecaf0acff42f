"""Bulk loads: all or none, with the same views as single writes."""

import gc
import io
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perseid.ledger import ledger as ledgers
from perseid.ledger.backup import bulk_load, load_encoding
from perseid.ledger.backup.bulk_load import NameTaken
from perseid.ledger.backup.load_encoding import (
    EncodedChunk,
    EncoderProcess,
    EncodingFailed,
    LoadEncoding,
    PackedDraft,
    ViewRows,
    pack_draft,
    random_size,
)
from perseid.ledger.errors import Contention, LostEntries, PreconditionFailed, ReadOnlyMode, StorageFull
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.entry import Change, Draft, State
from perseid.ledger.log.log import Log
from perseid.ledger.log.record_keys import record_key
from perseid.ledger.log.writer import ChangeWatcher
from perseid.ledger.merkle import Signer
from perseid.ledger.store.sorting import ExternalSorter, split_batches
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import insert_rows
from perseid.ledger.verify import verify
from perseid.ledger.views import answers
from perseid.ledger.views.answers import Answers, ApplyResult
from perseid.ledger.views.answers_format import HandleItem, encode_item, store_key
from perseid.ledger.views.answers_generation import Generation, Transaction
from perseid.records.record import Permission, Value
from tests.ledger.ledgers import SIGNER, appended, change, key, log_of_today, open_store, secret, until, url

DEADLINE = 60.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def opened(store: Store, tmp_path: Path) -> Iterator[Ledger]:
    log = log_of_today(store)
    log.create(SIGNER)
    with Ledger(log, Answers(tmp_path / "answers")) as ledger:
        until(lambda: ledger.ready)
        yield ledger


def drafts(names: Iterator[str] | list[str], exact: bool = False) -> list[Draft]:
    return [change(name, url(f"https://example.org/{name}"), secret(b"s"), exact=exact).draft for name in names]


def sound(ledger: Ledger, entries: int) -> None:
    """Check that the ledger verifies and all views match its entries."""
    assert verify(ledger.log).entries == entries
    assert ledger.answers.ready
    assert ledger.answers.differences(ledger.log.open_reader) is None


def shuffled(number: int) -> list[str]:
    names = [f"n{each}" for each in range(number)]
    random.Random(5).shuffle(names)
    return names


def test_a_read_only_ledger_is_not_loaded(opened: Ledger) -> None:
    opened.log.set_read_only("")
    with pytest.raises(ReadOnlyMode, match=r"^the service is read-only for maintenance$"):
        opened.load(drafts(["a"]))
    opened.log.set_read_only(None)
    assert opened.load(drafts(["a"])).count == 1


def test_a_ledger_that_has_lost_entries_is_not_continued(store: Store, tmp_path: Path) -> None:
    """Such as that of a promoted standby, where a load or a rotation would begin a second history."""
    log = log_of_today(store)
    log.create(SIGNER)
    with Ledger(log, Answers(tmp_path / "answers"), SIGNER) as ledger, pytest.MonkeyPatch.context() as patch:
        until(lambda: ledger.ready)
        ledger.append(change("a", url("1")))
        patch.setattr(Store, "is_remote", True)  # as of a database that nodes share
        patch.setattr(Answers, "end", (1, bytes(32)))
        with pytest.raises(LostEntries, match="has another entry 1, which this node has seen"):
            ledger.load(drafts(["b"]))
        log._known = log.known_end = None  # as in another process
        with pytest.raises(LostEntries):
            ledger.rotate_key(Signer.generate(SIGNER.name, bytes(32)), "cli", "local:ann")
        with ledger.open_reader() as reader:
            assert reader.size == 1


@pytest.mark.parametrize("run_size", [1 << 30, 10_000])
def test_a_load_is_appended_with_all_views(opened: Ledger, run_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_load.BulkLoad.__init__, "__defaults__", (run_size,))
    monkeypatch.setattr(bulk_load, "CHUNK", 100)
    opened.append(change("before", url("1")), change("x", url("2"), handle="99.9/behind"))
    progress: list[int] = []
    loaded = opened.load(drafts(shuffled(250)), {key("before"): 1}, progress.append)
    assert (loaded.first, loaded.count, loaded.last) == (3, 250, 252)
    assert progress == [100, 200, 250]
    sound(opened, 252)
    assert appended(opened.append(change("n7", url("3"), n7=loaded.first + shuffled(250).index("n7")))[0]).seq == 253
    item = opened.find(b"10.1/N7")
    assert item is not None
    assert item.private is False
    with opened.open_reader() as reader:
        assert [entry.handle for entry in reader.names(key("n"), key("n10"), 9)] == ["10.1/n0", "10.1/n1"]
        assert reader.entry(3).at == reader.entry(252).at == loaded.at
    sound(opened, 253)


def in_two_processes(monkeypatch: pytest.MonkeyPatch) -> list[EncoderProcess]:
    """Encode all chunks but the first in a second process, and in this one whenever it could be busy."""
    started: list[EncoderProcess] = []
    create = EncoderProcess.__init__

    def watched(process: EncoderProcess, folder: Path, run_size: int, at: int, rows: ViewRows) -> None:
        create(process, folder, run_size, at, rows)
        started.append(process)

    turns = itertools.cycle([False, True, True])
    monkeypatch.setattr(EncoderProcess, "__init__", watched)
    monkeypatch.setattr(EncoderProcess, "is_working", property(lambda _: next(turns)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(bulk_load, "CHUNK", 100)
    monkeypatch.setattr(bulk_load, "CHUNKS_ALONE", 1)
    monkeypatch.setattr(load_encoding, "SLICE", 30)
    return started


@pytest.mark.parametrize("run_size", [1 << 30, 100_000])
def test_two_processes_append_the_same_load(opened: Ledger, run_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_load.BulkLoad.__init__, "__defaults__", (run_size,))
    started = in_two_processes(monkeypatch)
    opened.append(change("before", url("1")))
    progress: list[int] = []
    loaded = opened.load(drafts(shuffled(990)), {}, progress.append)
    assert (loaded.first, loaded.count, len(started)) == (2, 990, 1)
    assert progress == sorted(progress)
    assert progress[-1] == 990
    with opened.open_reader() as reader:
        handles = [reader.entry(seq).handle for seq in range(2, 992)]
    assert handles == [f"10.1/{name}" for name in shuffled(990)]
    sound(opened, 991)
    with pytest.raises(NameTaken, match=r"10\.1/N500 already exists \(entry"):
        opened.load(drafts([*[f"m{number}" for number in range(500)], "n500"]))
    with pytest.raises(NameTaken, match=r"10\.1/M7 occurs twice"):
        opened.load(drafts([*[f"m{number}" for number in range(500)], "M7"]))
    sound(opened, 991)


@pytest.mark.parametrize(
    ("most", "taken"),
    [(1 << 20, [100, 100, 100, 30, 30, 30, 30]), (10_000, [100, 100, 100, 30, 30, 100, 30])],
    ids=["one waits", "what comes after it has a limit"],
)
def test_a_chunk_waits_for_the_second_process_while_that_works(
    opened: Ledger, most: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_two_processes(monkeypatch)
    monkeypatch.setattr(EncoderProcess, "is_working", property(lambda process: process._is_busy))
    monkeypatch.setattr(load_encoding, "MAX_LATER", most)
    sizes: list[int] = []
    encode = LoadEncoding.encode

    def watched(encoding: LoadEncoding, chunk: list[PackedDraft], random: bytes) -> Iterator[EncodedChunk]:
        sizes.append(len(chunk))
        return encode(encoding, chunk, random)

    monkeypatch.setattr(LoadEncoding, "encode", watched)
    assert opened.load(drafts(shuffled(500))).count == 500
    assert sizes[:7] == taken, "one here, one there, one that waits, and some here meanwhile"
    sound(opened, 500)


def test_a_small_load_needs_one_process(opened: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    started = in_two_processes(monkeypatch)
    opened.load(drafts(shuffled(100)))
    assert started == []
    opened.load(drafts([f"m{number}" for number in range(101)]))
    assert len(started) == 1
    sound(opened, 201)


def test_a_load_ends_with_the_second_process(opened: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    started = in_two_processes(monkeypatch)

    def source() -> Iterator[Draft]:
        yield from drafts(shuffled(400))
        os.kill(started[0]._process.pid, signal.SIGKILL)
        yield from drafts([f"m{number}" for number in range(400)])

    with pytest.raises(EncodingFailed, match="Nothing was loaded; retry"):
        opened.load(source())
    assert started[0]._process.returncode == -signal.SIGKILL
    sound(opened, 0)


def test_the_second_process_reports_a_full_disk(tmp_path: Path) -> None:
    process = EncoderProcess(tmp_path / "nowhere", 0, 1, ViewRows([], [], []))
    packed = [pack_draft(draft, draft.contents()) for draft in drafts(["a"])]
    try:
        process.submit(packed, 1, bytes(random_size(packed[0][-1])), [])
        assert len(process.results()[0].bodies) == 1
        assert os.getpgid(process._process.pid) == process._process.pid, "Ctrl-C in a terminal is not for it"
        with pytest.raises(StorageFull, match="temporary file"):
            _finish(process)
    finally:
        process.close()


def _finish(process: EncoderProcess) -> None:
    """The first of these calls that finds no second process says why."""
    process.finish([])
    next(process.records())


@pytest.mark.parametrize("cut", [0, 3, 20])
def test_the_second_process_ends_with_the_first(tmp_path: Path, cut: int) -> None:
    requests, results = io.BytesIO(), io.BytesIO()
    load_encoding._write_frame(requests, b"M", (str(tmp_path), 1_000, 1, ([], [], [])))
    load_encoding._write_frame(requests, b"M", ([], 0, b"", []))
    load_encoding.serve(io.BytesIO(requests.getvalue()[:cut]), results)
    assert results.getvalue() == b""


@pytest.mark.parametrize("number", [0, 1, 31, 32, 33, 64, 100])
def test_rows_are_inserted_in_groups(log: Log, number: int) -> None:
    rows = [(b"key %d" % each, each) for each in range(number)]
    with log.store.writing_cursor() as cursor:
        insert_rows(cursor, log.statements.insert_search_key, rows)
        insert_rows(cursor, log.statements.upsert_record, rows)
        insert_rows(cursor, log.statements.upsert_record, [(key, seq + 1) for key, seq in rows])
        cursor.execute(log.statements.search_rows, (b"", 0, b"z", 1_000, 0))
        assert sorted((bytes(key), seq) for key, seq in cursor.fetchall()) == sorted(rows)
        for key, seq in rows:
            cursor.execute(log.statements.record_seq, (key,))
            assert cursor.fetchone()[0] == seq + 1


def test_a_load_of_nothing_writes_nothing(opened: Ledger) -> None:
    loaded = opened.load([])
    assert (loaded.first, loaded.count) == (1, 0)
    sound(opened, 0)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a", "b", "A"], "10.1/A occurs twice in the load"),
        (["a", "there", "z"], "10.1/THERE already exists"),
    ],
)
def test_load_with_an_existing_handle_leaves_no_trace(opened: Ledger, names: list[str], why: str) -> None:
    opened.append(change("there", url("1")))
    with pytest.raises(NameTaken, match=why):
        opened.load(drafts(names))
    assert opened.find(b"10.1/a") is None
    sound(opened, 1)
    assert opened.load(drafts(["a"])).first == 2


def test_garbage_of_the_source_is_collected_during_a_load(opened: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collection is paused, as it would scan all drafts in memory again and again."""
    monkeypatch.setattr(bulk_load, "CHUNK", 10)
    monkeypatch.setattr(bulk_load, "MAX_GARBAGE", 0)
    left: list[weakref.ref[Garbage]] = []
    states: list[tuple[bool, int]] = []

    def source() -> Iterator[Draft]:
        for draft in drafts(shuffled(50)):
            garbage = Garbage()
            garbage.itself = garbage
            left.append(weakref.ref(garbage))
            del garbage
            states.append((gc.isenabled(), sum(one() is not None for one in left)))
            yield draft

    opened.load(source())
    assert {enabled for enabled, _ in states} == {False}
    assert max(number for _, number in states) <= 11
    assert gc.isenabled()


class Garbage:
    """An object that refers to itself."""

    itself: "Garbage"


def test_failed_load_leaves_no_trace(opened: Ledger) -> None:
    def failing() -> Iterator[Draft]:
        yield from drafts(shuffled(150))
        raise OSError("the source has gone")

    with pytest.raises(OSError, match="gone"):
        opened.load(failing())
    with pytest.raises(ValueError, match="a prefix record"):
        opened.load([*drafts(["a"]), change("x", handle="0.NA/10.2").draft])
    with pytest.raises(UnicodeEncodeError):
        opened.load([*drafts(["a"]), change("x", handle="10.1/\ud800").draft])
    with pytest.raises(ValueError, match="longer than 1,048,576 bytes"):
        opened.load([*drafts(["a"]), change("x", url("x" * 1_048_576)).draft])
    sound(opened, 0)


def test_load_with_a_failed_precondition_is_refused(opened: Ledger) -> None:
    opened.append(change("policy"), change("policy"))
    with pytest.raises(PreconditionFailed):
        opened.load(drafts(["a"]), {key("policy"): 1})
    with pytest.raises(PreconditionFailed):
        opened.load(drafts(["a"]), {key("none"): 1})
    sound(opened, 2)


def test_names_that_differ_only_in_case_share_a_view_key(opened: Ledger) -> None:
    opened.append(change("B", url("1"), exact=True))
    opened.load(drafts(["aa", "aA", "b", "AA", "c"], exact=True))
    sound(opened, 6)
    item = opened.find(b"10.1/aA")
    assert item is not None
    assert item.spelling == b"10.1/aA"


def test_requests_during_a_load_are_executed_after_it(opened: Ledger) -> None:
    waiting: list[threading.Thread] = []
    done: list[int] = []

    def source() -> Iterator[Draft]:
        yield from drafts(["a"])
        for number in range(3):
            request = change(f"other-{number}", url("1"))
            waiting.append(threading.Thread(target=lambda: done.append(appended(opened.append(request)[0]).seq)))  # noqa: B023
            waiting[-1].start()
        yield from drafts(["b"])

    assert opened.load(source()).count == 2
    for thread in waiting:
        thread.join(DEADLINE)
    assert sorted(done) == [3, 4, 5]
    sound(opened, 5)


@pytest.mark.parametrize("applied", [ApplyResult.BEHIND, ApplyResult.FAILED, None])
def test_a_view_that_cannot_follow_a_load_does_not_fail_it(
    opened: Ledger, applied: ApplyResult | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> ApplyResult:
        opened.answers.mark_behind(3)
        if applied is None:
            raise RuntimeError("no view today")
        return applied

    with monkeypatch.context() as broken:
        broken.setattr(opened.answers, "apply_sorted", fail)
        assert opened.load(drafts(["a", "b", "c"])).last == 3
        assert opened.find(b"10.1/b") is not None
    until(lambda: opened.ready)
    sound(opened, 3)


def test_another_process_may_apply_a_load_first(opened: Ledger) -> None:
    apply_sorted = opened.answers.apply_sorted

    def late(*arguments: object) -> ApplyResult:
        assert opened.answers.follow(opened.log.open_reader)
        return apply_sorted(*arguments)  # type: ignore[arg-type]

    opened.answers.apply_sorted = late  # type: ignore[assignment,method-assign]
    opened.load(drafts(shuffled(50)))
    sound(opened, 50)


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from perseid.ledger.backup import bulk_load
    from perseid.ledger.views import answers
    from perseid.ledger.views.answers import Answers
    from perseid.ledger.ledger import Ledger
    from tests.ledger.ledgers import log_of_today, open_store, until
    from tests.ledger.test_ledger_load import drafts, shuffled

    where, folder, moment = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    answers.BATCH = bulk_load.CHUNK = 100
    bulk_load.CHUNKS_ALONE = int(sys.argv[4])

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    ledger = Ledger(log_of_today(open_store(where)), Answers(folder / "answers"))
    until(lambda: ledger.ready)
    apply_batch = ledger.answers._apply_batch

    def half(after, last, leaf, batch, generation, txn):
        if len(batch) < 100:
            die()
        return apply_batch(after, last, leaf, batch, generation, txn)

    if moment == "views":
        ledger.answers._apply_batch = half
    elif moment == "committed":
        ledger.answers.apply_sorted = die
    ledger.load(drafts(shuffled(250)), progress=die if moment == "entries" else lambda _: None)
    """
)


@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
@pytest.mark.parametrize("alone", [0, 4])
@pytest.mark.parametrize(("moment", "entries"), [("entries", 1), ("committed", 251), ("views", 251)])
def test_killed_load_is_complete_or_absent(
    store: Store, where: str, tmp_path: Path, moment: str, entries: int, alone: int
) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    with Ledger(log, Answers(tmp_path / "answers")) as ledger:
        ledger.append(change("first", url("1")))
        until(lambda: ledger.ready)
    command = [sys.executable, "-c", KILLED, where, str(tmp_path), moment, str(alone)]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with Ledger(log_of_today(open_store(where)), Answers(tmp_path / "answers")) as ledger:
        there = ledger.find(b"10.1/n249") is not None
        assert there == (entries > 1), "from the view or from the records, it is never wrong"
        until(lambda: ledger.ready)
        sound(ledger, entries)
    assert not [path for path in (tmp_path / "answers").iterdir() if path.name.startswith("tmp")]


def write_ahead_log(store: Store) -> int:
    """The bytes of SQLite's write-ahead log."""
    return Path(f"{store.engine.url.database}-wal").stat().st_size


def without_cache(store: Store) -> None:
    """Disable the cache of the writing connection, so that a small load is written like a large one."""
    with store.writing_cursor() as cursor:
        cursor.execute("PRAGMA cache_size = 10")


@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
def test_a_load_that_fails_leaves_no_write_ahead_log_of_its_size(opened: Ledger, store: Store) -> None:
    written: list[int] = []

    def failing() -> Iterator[Draft]:
        yield from drafts(shuffled(4_000))
        written.append(write_ahead_log(store))
        raise OSError("the source has gone")

    without_cache(store)
    with pytest.raises(OSError, match="gone"):
        opened.load(failing())
    assert written[0] > 1_000_000
    assert write_ahead_log(store) < 100_000
    sound(opened, 0)


@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
def test_write_ahead_log_is_shortened_after_a_long_reader(opened: Ledger, store: Store) -> None:
    opened.append(change("before", url("1")))
    with opened.open_reader() as reader:
        assert reader.size == 1
        opened.load(drafts(shuffled(4_000)))
        assert write_ahead_log(store) > 1_000_000
    until(lambda: write_ahead_log(store) < 100_000)
    sound(opened, 4_001)


FULL_DISK = textwrap.dedent(
    """
    import resource, signal, sys
    from pathlib import Path
    from perseid.ledger.views.answers import Answers
    from perseid.ledger.errors import StorageFull
    from perseid.ledger.ledger import Ledger
    from tests.ledger.ledgers import change, log_of_today, open_store, until, url
    from tests.ledger.test_ledger_load import drafts, shuffled, sound, without_cache, write_ahead_log

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    with Ledger(log_of_today(open_store(str(folder / "ledger.db"))), Answers(folder / "answers")) as ledger:
        until(lambda: ledger.ready)
        ledger.append(*[change(f"first-{number}", url("1")) for number in range(100)])
        store = ledger.log.store
        if sys.argv[2] == "on the way":
            without_cache(store)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        refused = None
        try:
            ledger.load(drafts(shuffled(4_000)))
        except StorageFull as error:
            refused = error
        assert str(refused).endswith("ledger.db is full"), refused
        assert write_ahead_log(store) < 100_000, write_ahead_log(store)
        ledger.append(change("meanwhile", url("1")))
        sound(ledger, 101)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert ledger.load(drafts(shuffled(4_000))).first == 102
        sound(ledger, 4_101)
        print("done")
    """
)


@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
@pytest.mark.parametrize("moment", ["on the way", "at the end"])
def test_load_on_a_full_disk_frees_its_space(store: Store, tmp_path: Path, moment: str) -> None:
    log_of_today(store).create(SIGNER)
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), moment]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "done\n", ended.stderr


def test_maintenance_that_a_load_locks_out_is_no_failure(
    opened: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[bool] = []

    def locked(_: object) -> None:
        tried.append(opened._in_load)
        raise Contention("the ledger is locked by another writer")

    def source() -> Iterator[Draft]:
        monkeypatch.setattr(ledgers, "RETRY_DELAY", 0.0)
        monkeypatch.setattr(opened, "_maintain", locked)
        monkeypatch.setattr(ChangeWatcher, "wait", locked)
        until(lambda: len(tried) > 2)
        monkeypatch.undo()
        yield from drafts(["a"])

    assert opened.load(source()).count == 1
    assert all(tried)
    assert "maintenance failed" not in caplog.text


def test_maintenance_does_not_wait_for_a_load(opened: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[bool] = []
    done: list[str] = []
    wait = ChangeWatcher.wait

    def counted(watch: ChangeWatcher, stop: threading.Event) -> bool:
        moved = wait(watch, stop)
        rounds.append(moved)
        return moved

    def follow(_: object) -> bool:
        done.append("follow")
        return True

    def source() -> Iterator[Draft]:
        yield from drafts(["a"])
        seen = len(rounds)
        until(lambda: len(rounds) > seen + 1)  # everything started before the load is finished
        done.clear()
        until(lambda: len(rounds) > seen + 5)
        assert done == []
        yield from drafts(["b"])

    monkeypatch.setattr(ledgers, "RETRY_DELAY", 0.0)
    monkeypatch.setattr(ChangeWatcher, "wait", counted)
    monkeypatch.setattr(opened, "_sign", lambda: done.append("sign"))
    monkeypatch.setattr(opened.answers, "follow", follow)
    until(lambda: {"sign", "follow"} <= set(done))
    assert opened.load(source()).count == 2
    done.clear()
    until(lambda: {"sign", "follow"} <= set(done))


def test_large_records_are_processed_in_smaller_chunks(opened: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_load, "LOAD_CHUNK_BYTES", 10_000)
    batches: list[int] = []
    write_sorted = Generation.write_sorted

    def watched(generation: Generation, txn: Transaction, batch: Sequence[tuple[bytes, bytes]]) -> None:
        batches.append(len(batch))
        write_sorted(generation, txn, batch)

    monkeypatch.setattr(answers, "BATCH_BYTES", 20_000)
    monkeypatch.setattr(Generation, "write_sorted", watched)
    progress: list[int] = []
    large = [change(f"large-{number:02}", url("x" * 4_000)).draft for number in range(7)]
    opened.load([*large, *drafts(shuffled(100))], progress=progress.append)
    assert progress[:2] == [3, 6], "the third one makes it large enough"
    assert progress[2:] == [107]
    assert batches[0] == 5
    assert sum(batches) == 107
    sound(opened, 107)


@given(st.lists(st.integers(0, 50)), st.integers(1, 5), st.integers(1, 100))
def test_batches_are_limited_in_number_and_size(sizes: list[int], most: int, raw: int) -> None:
    found = list(split_batches(sizes, most, raw, lambda size: size))
    assert [size for part in found for size in part] == sizes
    for part in found:
        assert 0 < len(part) <= most
        assert sum(part[:-1]) < raw
    for part in found[:-1]:
        assert len(part) == most or sum(part) >= raw


def test_large_rows_are_read_back_in_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    pread = os.pread

    def counted(file: int, raw: int, at: int) -> bytes:
        read.append(raw)
        return pread(file, raw, at)

    monkeypatch.setattr(os, "pread", counted)
    rows = [(b"%05d" % number, bytes(10_000)) for number in range(300)]
    with ExternalSorter(tuple[bytes, bytes], tmp_path, 1) as runs:
        runs.add(rows, 1)
        assert list(runs.sorted()) == rows
    assert max(read) < 100_000


@given(st.lists(st.tuples(st.binary(max_size=6), st.integers(0, 1 << 62))), st.integers(0, 4_000))
def test_sorter_returns_everything_in_order(rows: list[tuple[bytes, int]], limit: int) -> None:
    with ExternalSorter(tuple[bytes, int], Path(tempfile.gettempdir()), limit) as runs:
        for first in range(0, len(rows), 7):
            part = rows[first : first + 7]
            runs.add(part, sum(len(key) for key, _ in part))
        assert list(runs.sorted()) == sorted(rows)


@given(st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 9)), max_size=60), st.integers(0, 3_000), st.booleans())
@example([(b"k", number) for number in (9, 8, 7, 1)], 3_000, False)
def test_sorter_by_key_keeps_the_order_of_equal_keys(rows: list[tuple[bytes, int]], limit: int, ascend: bool) -> None:
    """Otherwise it returns all rows by ascending key."""
    if ascend:
        rows = [(key, number) for number, (key, _) in enumerate(rows)]
    with ExternalSorter(tuple[bytes, int], Path(tempfile.gettempdir()), limit, by_key=True) as runs:
        for first in range(0, len(rows), 7):
            part = rows[first : first + 7]
            runs.add(part, sum(len(key) for key, _ in part))
        found = list(runs.sorted())
    assert sorted(found) == sorted(rows)
    assert [key for key, _ in found] == sorted(key for key, _ in rows)
    if ascend:
        assert found == sorted(rows)


def test_sorter_leaves_no_file(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ExternalSorter(tuple[bytes, bytes], tmp_path, 1_000) as runs:
        for number in range(100):
            runs.add([(b"%d" % (number * 7 % 100), b"x" * 100)], 102)
            assert list(tmp_path.iterdir()) == []
        assert [len(row) for _, row in runs.sorted()] == [100] * 100
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_sorter_reports_full_storage(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageFull, match="temporary file"),
        ExternalSorter(tuple[bytes, int], tmp_path / "nowhere", 0) as runs,
    ):
        runs.add([(b"a", 1)], 1)


VALUES = st.builds(
    Value,
    st.integers(1, 1_000),
    st.sampled_from(["URL", "HS_ADMIN", "HS_ALIAS", "hs_alias.x", "10320/loc", "10320/LOC.y", "EMAIL", "X"]),
    st.binary(max_size=300),
    permissions=st.sampled_from([Permission(0x0C), Permission(0x0E)]),
)


@given(
    st.sampled_from(["10.1/a", "10.1/A", "10.1/ä", "0.SITE/x", "0.NA/10.1", "10.1/" + "x" * 450]),
    st.booleans(),
    st.sampled_from([*State, State(5), State(9)]),
    st.lists(VALUES, max_size=4),
)
def test_fast_encoding_of_items_is_equal(handle: str, exact: bool, state: State, values: list[Value]) -> None:
    contents = [value.to_bytes() for value in values]
    place = store_key(record_key(handle, exact=exact))
    change_ = Change(1, 1, bytes(32), record_key(handle, exact=exact), handle, exact, state, contents)
    item = HandleItem.of(change_)
    assert encode_item(change_, place) == (None if item is None else item.to_bytes(place))


@pytest.mark.parametrize(
    ("size", "lost"), [(2, "lost the entries 3 to 4,"), (3, "lost entry 4,"), (4, "another entry 4,")]
)
def test_lost_entries_are_named(size: int, lost: str) -> None:
    assert str(LostEntries.after(4, size)).startswith(f"the database has {lost}")
