"""The answers view: it follows the ledger, is correct or unavailable, and is rebuilt when necessary."""

import errno
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.ledger.errors import AnswersUnavailable, CorruptData, StorageFull
from perseid.ledger.log.entry import State
from perseid.ledger.views import answers as answers_module
from perseid.ledger.views import answers_generation
from perseid.ledger.views.answers import Answers, ApplyResult
from perseid.ledger.views.answers_format import LAYOUT, DeletedItem, PrefixItem
from perseid.ledger.views.answers_generation import LOCK_SIZE, Generation
from perseid.ledger.views.answers_reader import WORD_CLEAN, WORD_GENERATION, WORD_REQUIRED, AnswersReader, StateFile
from perseid.names.handle import CaseRule
from perseid.records.record import Value
from tests.ledger.answer_ledgers import (
    BOOT,
    SMALL,
    MemoryLedger,
    bytes_on_disk,
    files_of,
    typed,
    url,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "answers"


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
def answers(folder: Path, ledger: MemoryLedger) -> Iterator[Answers]:
    with Answers(folder) as opened:
        assert opened.catch_up(ledger.look)
        yield opened


def data(answers: AnswersReader, name: str) -> list[bytes] | None:
    """The public data of a handle."""
    found = answers.find(name.encode())
    return None if found is None else [Value.from_bytes(value, 0).data for value in found.values]


def generations(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def word(folder: Path, which: int) -> int:
    return int.from_bytes((folder / "state").read_bytes()[which * 8 : which * 8 + 8], "little")


# Following and reading


def test_applied_entries_are_read_at_once(answers: Answers, ledger: MemoryLedger) -> None:
    for number in range(50):
        entry = ledger.append(f"10.1/{number % 7}", url(str(number)))
        assert answers.apply([entry]) is ApplyResult.DONE
        assert data(answers, f"10.1/{number % 7}") == [str(number).encode()]
    assert (answers.applied, answers.ready) == (50, True)
    assert data(answers, "10.1/none") is None
    assert answers.get(b"") is None
    assert answers.apply([]) is ApplyResult.DONE
    assert answers.differences(ledger.look) is None


def test_deleted_handle_is_removed_and_can_return(answers: Answers, ledger: MemoryLedger) -> None:
    assert answers.apply([ledger.append("10.1/x", url("1"))])
    assert answers.apply([ledger.append("10.1/x", state=State.ABSENT)])
    assert answers.get(b"10.1/x") is None
    assert answers.apply([ledger.append("10.1/x", state=State.ABSENT), ledger.append("10.1/X", url("2"))])
    assert data(answers, "10.1/x") == [b"2"]


@pytest.mark.parametrize("state", [State.NORMAL, State.TOMBSTONE, State.RESERVED, State.UNPUBLISHED])
def test_deleted_handle_keeps_the_entry_and_time_of_its_last_version(
    answers: Answers, ledger: MemoryLedger, state: State
) -> None:
    def deleted() -> DeletedItem | None:
        assert answers.differences(ledger.look) is None
        with answers.snapshot() as snapshot:
            return snapshot.deleted(b"10.1/X")

    assert answers.apply([ledger.append("10.1/x", url("1"))])
    last = ledger.append("10.1/x", url("2"), state=state)
    assert answers.apply([last])
    assert deleted() is None
    is_public = state in (State.NORMAL, State.TOMBSTONE)
    assert answers.apply([ledger.append("10.1/x", state=State.ABSENT)])
    assert deleted() == DeletedItem(False, (last.seq, last.at) if is_public else (0, 0))
    assert answers.has_past(b"10.1/x") is is_public
    # After a redaction, or changes of the case rule, only the ledger tells.
    assert answers.apply([ledger.append("10.1/x", state=State.ABSENT)])
    assert deleted() == DeletedItem(False, None)
    assert answers.has_past(b"10.1/x")
    assert answers.apply([ledger.append("10.1/x", state=State.RESERVED)])
    assert deleted() is None
    assert not answers.has_past(b"10.1/x")


@pytest.mark.parametrize("state", [State.RESERVED, State.UNPUBLISHED])
def test_unpublished_handle_has_an_item_without_values(
    answers: Answers, ledger: MemoryLedger, folder: Path, state: State
) -> None:
    assert answers.apply([ledger.append("10.1/x", url("not-for-the-public"), state=state)])
    found = answers.find(b"10.1/X")
    assert found is not None
    assert (found.state, found.private, found.values) == (state, True, ())
    assert b"not-for-the-public" not in bytes_on_disk(folder)


@pytest.mark.parametrize("length", [1, 2, 5, 399, 400, 401, 415, 416, 417, 511, 512, 2047, 2048])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_names_of_every_length_are_found(answers: Answers, ledger: MemoryLedger, length: int, letter: str) -> None:
    name = ("1/" + letter * 2048).encode()[:length].decode(errors="ignore") or "1"
    other = name[:-1] + "ö"
    assert answers.apply([ledger.append(name, url("right")), ledger.append(other, url("other"))])
    assert data(answers, name) == data(answers, name.replace("x", "X")) == [b"right"]
    assert data(answers, other) == [b"other"]
    assert answers.differences(ledger.look) is None


@pytest.mark.parametrize("suffix", ["name", "n" * 500])
def test_exact_records_are_case_sensitive(answers: Answers, ledger: MemoryLedger, suffix: str) -> None:
    small, capital = f"10.a/{suffix}", f"10.A/{suffix.upper()}"
    assert answers.apply([ledger.append(small, url("small"), exact=True)])
    assert data(answers, small.replace("10.a", "10.A")) == [b"small"]
    assert data(answers, capital) is None
    assert answers.apply([ledger.append(capital, url("capital"), exact=True)])
    assert (data(answers, small), data(answers, capital)) == ([b"small"], [b"capital"])
    assert data(answers, f"10.a/{suffix.title()}") is None
    assert answers.apply([ledger.append(small, url("smaller"), exact=True)])
    assert (data(answers, small), data(answers, capital)) == ([b"smaller"], [b"capital"])
    assert answers.apply([ledger.append(small, state=State.ABSENT, exact=True)])
    assert (data(answers, small), data(answers, capital)) == (None, [b"capital"])
    assert answers.rebuild(ledger.look)
    assert (data(answers, small), data(answers, capital)) == (None, [b"capital"])


def test_other_records_are_case_insensitive(answers: Answers, ledger: MemoryLedger) -> None:
    assert answers.apply([ledger.append("10.a/Name", url("1")), ledger.append("10.A/NAME", url("2"))])
    assert data(answers, "10.a/name") == [b"2"]
    found = answers.find(b"10.A/nAmE")
    assert found is not None
    assert found.spelling == b"10.A/NAME"


def test_prefix_item_is_merged_from_independent_records(answers: Answers, ledger: MemoryLedger) -> None:
    policy = typed("PERSEID_POLICY", 1, b'case = "sensitive"\nscheme = "pilin"', public=False)
    assert answers.prefix(b"10.a") is None
    assert answers.apply([ledger.append("0.SITE/HOMED/0.NA/10.A", url("x"))])
    assert answers.apply([ledger.append("0.SITE/POLICY/10.A", policy)])
    assert answers.apply([ledger.append("0.NA/10.a", typed("HS_SITE.PREFIX"), typed("URL", 3))])
    found = answers.prefix(b"10.a")
    assert found is not None
    assert (found.homed, found.case, found.scheme, len(found.referrals)) == (True, CaseRule.SENSITIVE, "pilin", 1)
    assert answers.get_prefix(b"10.A") == found.to_bytes()
    assert data(answers, "0.na/10.A") == [b"data", b"data"]
    assert answers.get(b"0.SITE/HOMED/0.NA/10.A") is None
    assert answers.get(b"0.SITE/POLICY/10.A") is None
    assert answers.differences(ledger.look) is None
    for name in ("0.SITE/HOMED/0.NA/10.A", "0.SITE/POLICY/10.A", "0.NA/10.A"):
        assert answers.apply([ledger.append(name, state=State.ABSENT)])
    assert answers.prefix(b"10.A") is None
    assert answers.differences(ledger.look) is None


HANDLES = (
    *("10.1/a", "10.1/A", "10.1/é", "10.1/" + "b" * 500, "10.1/" + "b" * 499 + "B", "0.NA/10.1", "0.NA/10.a"),
    *("0.SITE/HOMED/0.NA/10.A", "0.SITE/HOMED/10.1", "0.SITE/POLICY/10.1", "0.SITE/LEDGER", "11/z"),
)
VALUES = (
    *(url("x"), url("y"), typed("HS_SITE.PREFIX"), typed("HS_NAMESPACE", 4), typed("HS_SECKEY", 5, public=False)),
    typed("PERSEID_POLICY", 6, b'scheme = "uuid"'),
)
handles = st.sampled_from(HANDLES)
values = st.sampled_from(VALUES)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(handles, st.lists(values, max_size=3), st.sampled_from(State), st.booleans()), min_size=1, max_size=25
    )
)
def test_following_and_building_give_equal_views(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[Value], State, bool]]
) -> None:
    ledger = MemoryLedger()
    with Answers(tmp_path_factory.mktemp("answers"), map_size=SMALL) as answers:
        assert answers.catch_up(ledger.look)
        for handle, contents, state, exact in steps:
            assert answers.apply([ledger.append(handle, *contents, state=state, exact=exact)])
        assert answers.differences(ledger.look) is None
        assert answers.rebuild(ledger.look)
        assert answers.differences(ledger.look) is None


# Entries in order


def test_entries_already_applied_are_skipped(answers: Answers, ledger: MemoryLedger) -> None:
    entries = [ledger.append("10.1/x", url(str(number))) for number in range(5)]
    assert answers.apply(entries[:3])
    assert answers.apply(entries[:2])
    assert data(answers, "10.1/x") == [b"2"]
    assert answers.apply(entries)
    assert (data(answers, "10.1/x"), answers.applied) == ([b"4"], 5)


def test_gap_is_reported_and_filled(answers: Answers, ledger: MemoryLedger, folder: Path) -> None:
    entries = [ledger.append("10.1/x", url(str(number))) for number in range(5)]
    assert answers.apply(entries[3:]) is ApplyResult.BEHIND
    assert answers.apply([entries[0], entries[2]]) is ApplyResult.BEHIND
    assert (answers.applied, word(folder, WORD_REQUIRED), answers.ready) == (0, 0, True)
    assert answers.follow(ledger.look)
    assert (answers.applied, data(answers, "10.1/x")) == (5, [b"4"])


def test_catching_up_uses_chunks(answers: Answers, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "CHUNK", 10)
    for number in range(35):
        ledger.append(f"10.1/{number}", url(str(number)))
    assert answers.catch_up(ledger.look)
    assert answers.applied == 35
    assert answers.differences(ledger.look) is None


def test_nothing_is_applied_before_the_ledger_is_checked(folder: Path, ledger: MemoryLedger) -> None:
    with Answers(folder) as answers:
        entry = ledger.append("10.1/x", url("1"))
        assert answers.apply([entry]) is ApplyResult.BEHIND
        assert not answers.follow(ledger.look), "the view must be built first"
        assert not answers.ready
        assert answers.catch_up(ledger.look)
        assert answers.apply([entry])
        assert data(answers, "10.1/x") == [b"1"]


def test_entry_of_another_history_is_not_taken_as_applied(answers: Answers, ledger: MemoryLedger) -> None:
    for number in range(3):
        assert answers.apply([ledger.append("10.1/x", url(str(number)))])
    other = ledger.restored(2)
    entry = other.append("10.1/x", url("other"))
    assert answers.apply([entry]) is ApplyResult.BEHIND
    assert answers.apply([other.append("10.1/x", url("more"))]) is ApplyResult.BEHIND
    assert answers.catch_up(other.look)
    assert data(answers, "10.1/x") == [b"more"]


def test_restored_ledger_is_recognized_even_with_matching_numbers(folder: Path, ledger: MemoryLedger) -> None:
    for number in range(10):
        ledger.append(f"10.1/{number}", url("old"))
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
    restored = ledger.restored(4)
    with Answers(folder) as answers:
        for number in range(6):
            restored.append(f"10.1/{number}", url("new"))
        assert answers.applied == len(restored.entries) == 10
        assert answers.catch_up(restored.look)
        assert data(answers, "10.1/0") == [b"new"]
        assert data(answers, "10.1/9") is None
        assert answers.differences(restored.look) is None
    assert generations(folder) == [2]


@pytest.mark.parametrize("size", [0, 4])
def test_restored_ledger_is_recognized_before_it_is_written_to(folder: Path, ledger: MemoryLedger, size: int) -> None:
    for number in range(10):
        ledger.append(f"10.1/{number}", url("old"))
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
        assert not answers.follow(ledger.restored(size).look)
        assert not answers.ready, "nobody reads what is not in the ledger"
        assert answers.catch_up(ledger.restored(size).look)
        assert answers.applied == size
        assert data(answers, "10.1/9") is None


def test_another_ledger_is_recognized_by_its_id(answers: Answers) -> None:
    other = MemoryLedger(bytes(16))
    assert answers.differences(other.look) == "meta applied"
    assert answers.catch_up(other.look)
    assert answers.differences(other.look) is None


# Full storage


def test_table_of_readers_has_no_holes(answers: Answers) -> None:
    """A thread that used a hole on a full disk would end the process."""
    status = (answers.folder / str(word(answers.folder, WORD_GENERATION)) / "lock.mdb").stat()
    assert (status.st_size, status.st_mode & 0o777) == (LOCK_SIZE, 0o600)
    assert status.st_blocks * 512 >= LOCK_SIZE


def test_comparing_on_a_full_disk_says_so(
    answers: Answers, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise lmdb.DiskError("No space left on device")

    monkeypatch.setattr(Generation, "fill", fail)
    with pytest.raises(StorageFull, match="is full; comparing the answers view needs space"):
        answers.differences(ledger.look)


def test_full_map_does_not_fail_the_ledger_and_stale_view_is_not_read(
    folder: Path, ledger: MemoryLedger, caplog: pytest.LogCaptureFixture
) -> None:
    with Answers(folder, map_size=1 << 18) as answers:
        assert answers.catch_up(ledger.look)
        assert answers.apply([ledger.append("10.1/x", url("1"))])
        large = ledger.append("10.1/large", url("secret" * 100_000))
        assert answers.apply([large]) is ApplyResult.FAILED
        assert word(folder, WORD_REQUIRED) == 2
        assert answers.apply([large]) is ApplyResult.FAILED
        assert not answers.follow(ledger.look)
        assert [record.message.partition(":")[0] for record in caplog.records] == ["the answers view cannot be updated"]
        assert caplog.text.endswith(
            "Resolution uses the records until it can. To see what is wrong, run: perseid check\n"
        )
        assert "secret" not in caplog.text
        assert not answers.ready
        with pytest.raises(AnswersUnavailable, match=r"^the answers view is behind the ledger$"):
            answers.get(b"10.1/x")
        assert answers.apply([ledger.append("10.1/y", url("3"))]) is ApplyResult.BEHIND
        assert not answers.follow(ledger.look)
        assert word(folder, WORD_REQUIRED) == 3
        assert not answers.rebuild(ledger.look)
        assert not answers.ready
        with pytest.raises(AnswersUnavailable, match="cannot compare"):
            answers.differences(ledger.look)
        assert generations(folder) == [1]
    with Answers(folder) as answers:
        assert not answers.ready
        assert answers.catch_up(ledger.look)
        assert (word(folder, WORD_REQUIRED), generations(folder)) == (0, [1])
        assert data(answers, "10.1/y") == [b"3"]
        assert answers.differences(ledger.look) is None


def test_view_that_passes_the_required_entry_becomes_usable(answers: Answers, ledger: MemoryLedger) -> None:
    state = StateFile(answers.folder / "state", writable=True)
    state.require(2)
    state.close()
    first, second = ledger.append("10.1/x", url("1")), ledger.append("10.1/x", url("2"))
    assert answers.apply([first])
    assert not answers.ready
    assert answers.apply([second])
    assert data(answers, "10.1/x") == [b"2"]


def test_required_entry_is_dropped_after_a_restore(answers: Answers, ledger: MemoryLedger) -> None:
    assert answers.apply([ledger.append("10.1/x", url("1"))])
    state = StateFile(answers.folder / "state", writable=True)
    state.require(100)
    state.close()
    assert not answers.ready
    assert answers.catch_up(ledger.look)
    assert answers.ready


def test_ledger_with_a_missing_entry_is_not_followed(
    answers: Answers, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.append("10.1/x", url("1"))
    monkeypatch.setattr("tests.ledger.answer_ledgers.MemorySource.changes", lambda *_: [])
    assert not answers.catch_up(ledger.look)
    assert not answers.ready
    ledger.meanwhile = lambda: ledger.append("10.1/y")
    assert not answers.rebuild(ledger.look)
    assert "entry 3 is missing" in caplog.text


# Opening


def test_files_are_private(answers: Answers, folder: Path) -> None:
    assert answers.ready
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files_of(folder))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "1")] == [0o700, 0o700]


def test_cleanly_closed_view_survives_a_reboot(folder: Path, ledger: MemoryLedger) -> None:
    with Answers(folder, boot=BOOT) as answers:
        assert answers.catch_up(ledger.look)
        assert answers.apply([ledger.append("10.1/x", url("1"))])
    with Answers(folder, boot=bytes(16)) as answers:
        assert data(answers, "10.1/x") == [b"1"]
        assert word(folder, WORD_CLEAN) == 1, "reading alone changes nothing"
        assert answers.catch_up(ledger.look)
        assert answers.apply([ledger.append("10.1/x", url("2"))])
        assert word(folder, WORD_CLEAN) == 0
        assert answers.apply([ledger.append("10.1/x", url("3"))])
    assert generations(folder) == [1]


def test_dirty_mark_is_on_disk_before_lmdb_writes(
    folder: Path, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Answers(folder, boot=BOOT) as answers:
        assert answers.catch_up(ledger.look)
    happened: list[str] = []
    dirty, write = StateFile.mark_dirty, Generation.write

    def recorder(word: str, method: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            happened.append(word)
            method(*arguments)

        return call

    monkeypatch.setattr(StateFile, "mark_dirty", recorder("dirty", dirty))
    monkeypatch.setattr(Generation, "write", recorder("write", write))
    with Answers(folder, boot=BOOT) as answers:
        assert answers.catch_up(ledger.look)
        for _ in range(2):
            assert answers.apply([ledger.append("10.1/x", url("2"))])
    assert happened == ["dirty", "write", "write"]


def test_view_not_closed_before_a_reboot_is_rebuilt(folder: Path, ledger: MemoryLedger) -> None:
    first = Answers(folder, boot=BOOT)
    assert first.catch_up(ledger.look)
    assert first.apply([ledger.append("10.1/x", url("1"))])
    AnswersReader.close(first)  # the process died without marking the view clean
    with AnswersReader(folder, boot=bytes(16)) as reader, pytest.raises(AnswersUnavailable):
        reader.get(b"10.1/x")
    with Answers(folder, boot=bytes(16)) as answers:
        assert not answers.ready
        assert answers.catch_up(ledger.look)
        assert data(answers, "10.1/x") == [b"1"]
        assert generations(folder) == [2]


def test_killed_process_loses_nothing(folder: Path, ledger: MemoryLedger) -> None:
    first = Answers(folder, boot=BOOT)
    assert first.catch_up(ledger.look)
    assert first.apply([ledger.append("10.1/x", url("1"))])
    AnswersReader.close(first)
    with Answers(folder, boot=BOOT) as answers:
        assert data(answers, "10.1/x") == [b"1"]
        assert generations(folder) == [1]


def test_copied_folder_is_rebuilt(folder: Path, ledger: MemoryLedger) -> None:
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    with Answers(copy) as answers:
        assert not answers.ready
        assert answers.catch_up(ledger.look)
        assert generations(copy) == [2]


def test_reader_is_unavailable_until_the_view_exists(folder: Path, ledger: MemoryLedger) -> None:
    AnswersReader(folder).close()
    with AnswersReader(folder) as reader:
        with pytest.raises(AnswersUnavailable, match=r"^there is no answers view yet$"):
            reader.get(b"10.1/x")
        with Answers(folder) as answers:
            with pytest.raises(AnswersUnavailable, match="at the moment"):
                reader.get(b"10.1/x")
            ledger.append("10.1/x", url("1"))
            assert answers.catch_up(ledger.look)
        assert data(reader, "10.1/x") == [b"1"]
        assert (reader.applied, reader.ready) == (1, True)


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: shutil.rmtree(folder / "1"),
        lambda folder: (folder / "1" / "data.mdb").write_bytes(b"no database" * 2000),
        lambda folder: emptied(folder, b"meta"),
        lambda folder: emptied(folder, b"handles"),
        lambda folder: rewritten(folder, bytes((LAYOUT - 1,)) + bytes(63)),
        lambda folder: rewritten(folder, bytes((LAYOUT + 1,)) + bytes(63)),
        lambda folder: emptied(folder, b"past"),
        lambda folder: rewritten(folder, b"short"),
    ],
    ids=[
        "gone",
        "no LMDB",
        "no position",
        "no handles",
        "older layout",
        "newer layout",
        "no past",
        "no position at all",
    ],
)
def test_damaged_view_is_not_read_and_is_rebuilt(folder: Path, ledger: MemoryLedger, harm: object) -> None:
    ledger.append("10.1/x", url("1"))
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
    assert callable(harm)
    harm(folder)
    with AnswersReader(folder) as reader:
        assert not reader.ready
        with pytest.raises(AnswersUnavailable):
            assert reader.applied
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
        assert data(answers, "10.1/x") == [b"1"]
        assert generations(folder) == [2]


def emptied(folder: Path, name: bytes) -> None:
    with lmdb.open(str(folder / "1"), max_dbs=5) as env, env.begin(write=True) as txn:
        txn.drop(env.open_db(name, txn=txn), delete=True)


def rewritten(folder: Path, position: bytes) -> None:
    with lmdb.open(str(folder / "1"), max_dbs=5) as env, env.begin(write=True) as txn:
        txn.put(b"applied", position, db=env.open_db(b"meta", txn=txn))


def test_damaged_item_leads_to_a_rebuild(answers: Answers, ledger: MemoryLedger, folder: Path) -> None:
    assert answers.apply([ledger.append("10.1/x", url("1"))])
    generation = answers._current()
    with generation.begin(write=True) as txn:
        txn.put(b"10.1/X", b"\xff", db=generation.handles)
    with pytest.raises(CorruptData):
        answers.find(b"10.1/x")
    assert answers.differences(ledger.look) == "handles 10.1/X"
    assert answers.apply([ledger.append("10.1/x", url("2"))]) is ApplyResult.FAILED
    assert (word(folder, WORD_GENERATION), answers.ready) == (0, False)
    assert answers.apply([ledger.append("10.1/x", url("3"))]) is ApplyResult.FAILED
    assert not answers.follow(ledger.look)
    assert answers.catch_up(ledger.look)
    assert data(answers, "10.1/x") == [b"3"]


@pytest.mark.parametrize(
    ("database", "key", "raw", "expected"),
    [
        ("handles", b"10.1/A", b"\x01\x00", "handles 10.1/A"),
        ("handles", b"10.1/X", None, "handles 10.1/X"),
        ("handles", b"10.1/Z\xff", b"\x01\x00", "handles 10.1/Z\\xff"),
        ("prefixes", b"10.1", None, "prefixes 10.1"),
        ("prefixes", b"10.2", b"\x01\x00\x00", "prefixes 10.2"),
    ],
)
def test_any_difference_from_the_ledger_is_reported(
    answers: Answers, ledger: MemoryLedger, database: str, key: bytes, raw: bytes | None, expected: str
) -> None:
    assert answers.apply([ledger.append("10.1/x", url("1")), ledger.append("0.SITE/HOMED/10.1", url("1"))])
    assert answers.differences(ledger.look) is None
    generation = answers._current()
    with generation.begin(write=True) as txn:
        if raw is None:
            txn.delete(key, db=getattr(generation, database))
        else:
            txn.put(key, raw, db=getattr(generation, database))
    assert answers.differences(ledger.look) == expected
    assert generations(answers.folder) == [1]


def test_comparison_runs_during_writes(answers: Answers, ledger: MemoryLedger) -> None:
    ledger.append("10.1/x", url("1"))
    ledger.meanwhile = lambda: answers.apply([ledger.append("10.1/x", url("2")), ledger.append("10.1/y", url("3"))])
    assert answers.differences(ledger.look) is None


# LMDB failures that are hard to cause


def failing(error: Callable[[], Exception]) -> Callable[..., None]:
    """A replacement for a method that raises."""

    def fail(*_: object, **__: object) -> None:
        raise error()

    return fail


def test_temporary_open_failure_does_not_lead_to_a_rebuild(
    folder: Path, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.append("10.1/x", url("1"))
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
    with Answers(folder) as answers:
        with monkeypatch.context() as patch:
            patch.setattr(
                "perseid.ledger.views.answers_generation.lmdb.open",
                failing(lambda: lmdb.Error("no memory", errno.ENOMEM)),
            )
            assert not answers.catch_up(ledger.look)
            assert word(folder, WORD_REQUIRED) == 1
            with pytest.raises(AnswersUnavailable, match="no memory"):
                answers.get(b"10.1/x")
        assert answers.catch_up(ledger.look)
        assert data(answers, "10.1/x") == [b"1"]
    assert generations(folder) == [1]


def test_generation_is_reopened_after_a_broken_transaction(
    answers: Answers, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = ledger.append("10.1/x", url("1"))
    with monkeypatch.context() as patch:
        patch.setattr(Generation, "write", failing(lambda: lmdb.PanicError("update of meta page failed")))
        assert answers.apply([entry]) is ApplyResult.FAILED
    assert answers.apply([entry])
    assert data(answers, "10.1/x") == [b"1"]
    generation_in_use = answers._current()
    generation_in_use.env.close()
    del generation_in_use
    assert data(answers, "10.1/x") == [b"1"]


def test_view_that_is_behind_is_not_compared(
    answers: Answers, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.append("10.1/x", url("1"))
    with monkeypatch.context() as patch:
        patch.setattr(Generation, "write", failing(lambda: lmdb.DiskError("full", errno.ENOSPC)))
        with pytest.raises(AnswersUnavailable, match="behind the ledger"):
            answers.differences(ledger.look)
    assert answers.catch_up(ledger.look)
    assert answers.differences(ledger.look) is None


def test_writer_waiting_for_an_invalidated_generation_uses_the_new_one(
    answers: Answers, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = answers._current()
    assert answers.rebuild(ledger.look)
    found = [old]
    current = Answers._current
    monkeypatch.setattr(Answers, "_current", lambda self: found.pop() if found else current(self))
    assert answers.apply([ledger.append("10.1/x", url("1"))])
    assert found == []
    assert data(answers, "10.1/x") == [b"1"]
    with old.begin(old.handles) as txn:
        assert txn.get(b"10.1/X") is None


def test_damaged_page_invalidates_the_generation(
    answers: Answers, ledger: MemoryLedger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Generation, "write", failing(lambda: lmdb.CorruptedError("a page")))
        assert answers.apply([ledger.append("10.1/x", url("1"))]) is ApplyResult.FAILED
    assert word(folder, WORD_GENERATION) == 0
    assert answers.catch_up(ledger.look)
    assert generations(folder) == [2]


def test_rebuild_that_cannot_lock_the_old_generation_invalidates_it(
    answers: Answers, ledger: MemoryLedger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answers.apply([ledger.append("10.1/x", url("1"))])
    monkeypatch.setattr(Answers, "_writing", failing(lambda: lmdb.PanicError("fatal")))
    assert answers.rebuild(ledger.look)
    assert data(answers, "10.1/x") == [b"1"]
    assert generations(folder) == [2]
    monkeypatch.undo()


def test_generation_replaced_while_opened_is_followed(
    folder: Path, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.append("10.1/x", url("1"))
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
        state = answers._file
        opened = Generation.__init__

        def slow(
            self: Generation,
            folder: Path,
            number: int,
            map_size: int,
            *,
            readonly: bool = False,
            state_file: int | None,
        ) -> None:
            if number == 1:
                shutil.rmtree(folder / "1")
                state.switch(2)
            opened(self, folder, number, map_size, readonly=readonly, state_file=state_file)

        shutil.copytree(folder / "1", folder / "2")
        monkeypatch.setattr(Generation, "__init__", slow)
        with AnswersReader(folder) as reader:
            assert data(reader, "10.1/x") == [b"1"]
        state.switch(1)
        (folder / "1").mkdir()

        def never(_self: Generation, _folder: Path, number: int, *_: object, **__: object) -> None:
            state.switch(number + 1)
            raise CorruptData("gone")

        monkeypatch.setattr(Generation, "__init__", never)
        with AnswersReader(folder) as reader, pytest.raises(AnswersUnavailable, match="at the moment"):
            reader.get(b"10.1/x")
        monkeypatch.undo()


def test_closing_without_space_or_view_does_not_mark_clean(
    folder: Path, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    Answers(folder).close()
    assert word(folder, WORD_CLEAN) == 0
    answers = Answers(folder)
    assert answers.catch_up(ledger.look)
    monkeypatch.setattr(StateFile, "mark_clean", failing(lambda: OSError(errno.ENOSPC, "full")))
    answers.close()
    assert word(folder, WORD_CLEAN) == 0


def test_reader_slots_are_checked_periodically(
    answers: Answers, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "READER_CHECK_EVERY", 2)
    for _ in range(4):
        assert answers.apply([ledger.append("10.1/x", url("1"))])


# Building


def test_rebuild_reports_progress_and_leaves_one_generation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_generation, "BATCH", 10)
    ledger = MemoryLedger()
    for number in range(25):
        ledger.append(f"10.1/{number}", url("x"))
    progress: list[int] = []
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look, progress.append)
        assert progress == [10, 20, 25]
        (folder / "77").mkdir()
        (folder / "77" / "data.mdb").write_bytes(b"what an interrupted rebuild left")
        (folder / "note").write_text("of somebody")
        assert answers.rebuild(ledger.look)
        assert generations(folder) == [2]
        assert (folder / "note").exists()
        assert answers.differences(ledger.look) is None


def test_rebuild_erases_deleted_and_unpublished_data(folder: Path, ledger: MemoryLedger) -> None:
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
        assert answers.apply([ledger.append("10.1/gone-1234567", url("erased-1234567"))])
        assert answers.apply([ledger.append("10.1/hidden", url("hidden-1234567"))])
        assert answers.apply([ledger.append("10.1/kept", url("kept-1234567"))])
        assert answers.apply([ledger.append("10.1/draft", url("draft-1234567"), state=State.UNPUBLISHED)])
        assert answers.apply([ledger.append("10.1/hidden", typed("URL", 1, b"hidden-1234567", public=False))])
        assert answers.apply([ledger.append("10.1/gone-1234567", state=State.ABSENT)])
        assert b"erased-1234567" in bytes_on_disk(folder)
        assert answers.rebuild(ledger.look)
        assert answers.differences(ledger.look) is None
    on_disk = bytes_on_disk(folder)
    for gone in (b"erased-1234567", b"hidden-1234567", b"draft-1234567", b"GONE-1234567", b"gone-1234567"):
        assert gone not in on_disk
    assert b"kept-1234567" in on_disk


def test_rebuild_includes_entries_appended_meanwhile(answers: Answers, ledger: MemoryLedger, folder: Path) -> None:
    """Entries are appended before every read; the last read happens while the view is locked."""
    looks = 0

    def append() -> None:
        nonlocal looks
        looks += 1
        entry = ledger.append("10.1/x", url(str(looks)))
        if looks == 1:
            assert answers.apply([entry])

    ledger.meanwhile = append
    assert answers.rebuild(ledger.look)
    ledger.meanwhile = lambda: None
    assert generations(folder) == [2]
    assert data(answers, "10.1/x") == [str(looks).encode()]
    assert answers.differences(ledger.look) is None


def test_rebuild_chases_a_fast_writer_for_limited_rounds(
    answers: Answers, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "CHUNK", 1)
    looks = 0

    def append() -> None:
        nonlocal looks
        looks += 1
        ledger.append("10.1/x", url(str(looks)))

    ledger.meanwhile = append
    assert answers.rebuild(ledger.look)
    assert looks == 1 + answers_module.MAX_CATCH_UP_ROUNDS + 2


def test_entries_acknowledged_during_the_first_build_are_required(folder: Path, ledger: MemoryLedger) -> None:
    """Without a generation nothing can be applied; entries acknowledged meanwhile must not be missed."""
    outcomes: list[ApplyResult] = []
    with Answers(folder) as answers:
        assert not answers.follow(ledger.look)

        def append() -> None:
            if len(outcomes) < 4:
                answers._checked = True
                outcomes.append(answers.apply([ledger.append("10.1/x", url(str(len(outcomes))))]))

        ledger.meanwhile = append
        assert answers.catch_up(ledger.look)
        assert ApplyResult.FAILED in outcomes
        assert data(answers, "10.1/x") == [b"3"]
        assert word(folder, WORD_REQUIRED) == 0


def test_view_built_by_another_process_is_not_built_again(
    answers: Answers, ledger: MemoryLedger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [None]
    follow = Answers._follow
    monkeypatch.setattr(Answers, "_follow", lambda self, look: found.pop() if found else follow(self, look))
    assert answers.catch_up(ledger.look)
    assert (found, generations(folder)) == ([], [1])


def test_rebuild_without_space_keeps_the_old_view(
    answers: Answers, ledger: MemoryLedger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answers.apply([ledger.append("10.1/x", url("1"))])
    with monkeypatch.context() as patch:
        patch.setattr(Generation, "fill", failing(lambda: lmdb.DiskError("full", errno.ENOSPC)))
        assert not answers.rebuild(ledger.look)
    assert (data(answers, "10.1/x"), generations(folder)) == ([b"1"], [1])
    assert answers.rebuild(ledger.look)
    assert generations(folder) == [3]


def test_ledger_failure_during_a_rebuild_is_reported(
    answers: Answers, ledger: MemoryLedger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.ledger.answer_ledgers.MemorySource.current", failing(lambda: ZeroDivisionError("of the ledger"))
    )
    with pytest.raises(ZeroDivisionError):
        answers.rebuild(ledger.look)
    assert generations(folder) == [1]


# Threads


def test_threads_read_while_one_writes_and_one_rebuilds(answers: Answers, ledger: MemoryLedger) -> None:
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        last = -1
        while not done.is_set():
            number = int((data(answers, "10.1/x") or [b"-1"])[0])
            prefix = answers.prefix(b"10.1") or PrefixItem(homed=True)
            if number < last or not prefix.homed:
                wrong.append((last, number, prefix))
            last = number

    def rebuild() -> None:
        while not done.is_set():
            if not answers.rebuild(ledger.look):
                wrong.append("rebuild")

    with ThreadPoolExecutor() as pool:
        running = [pool.submit(run) for run in (read, read, rebuild)]
        for number in range(300):
            state = State.NORMAL if number % 3 else State.ABSENT
            entries = [ledger.append("10.1/x", url(str(number))), ledger.append("0.SITE/HOMED/0.NA/10.1", state=state)]
            if not answers.apply(entries) or data(answers, "10.1/x") != [str(number).encode()]:
                wrong.append(number)
        done.set()
    assert [each.result() for each in running] == [None] * 3
    assert wrong == []
    assert answers.differences(ledger.look) is None
