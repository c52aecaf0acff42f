"""The answers view across processes: concurrent writers, killed processes, and readers."""

from pathlib import Path

import pytest

from perseid.ledger.log.entry import State
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader
from tests.ledger.answer_ledgers import (
    MemoryLedger,
    apply_everything,
    apply_until_killed,
    die_reading,
    limited,
    numbered_ledger,
    process,
    rebuild_slowly,
    report_reads,
    url,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "answers"


def test_another_process_reads_applied_entries_at_once(folder: Path) -> None:
    ledger = MemoryLedger()
    with Answers(folder) as answers, process(report_reads, folder, b"10.1/x") as (_, pipe):
        assert pipe.recv() == "reading"
        pipe.send("look")
        assert pipe.recv() == "unavailable"
        assert answers.catch_up(ledger.look)
        for number in range(60):
            homed = State.ABSENT if number % 2 else State.NORMAL
            entries = [
                ledger.append("10.1/X", url(str(number))),
                ledger.append("0.SITE/HOMED/0.NA/10.1", state=homed),
            ]
            assert answers.apply(entries)
            pipe.send("look")
            assert pipe.recv() == (tuple(entries[0].contents), homed == State.NORMAL)
            if number % 20 == 10:
                assert answers.rebuild(ledger.look)
        pipe.send("stop")


def test_processes_that_apply_the_same_entries_get_equal_views(folder: Path) -> None:
    with Answers(folder) as answers:
        assert answers.catch_up(MemoryLedger().look)
    with process(apply_everything, folder, 400, 3) as (_, one), process(apply_everything, folder, 400, 7) as (_, other):
        assert one.recv() == other.recv() == "done"
    ledger = numbered_ledger(400)
    with Answers(folder) as answers:
        assert answers.applied == 400
        assert answers.catch_up(ledger.look)
        assert answers.differences(ledger.look) is None


def test_concurrent_processes_build_a_missing_view_once(folder: Path) -> None:
    with (
        process(apply_everything, folder, 200, 200) as (_, one),
        process(apply_everything, folder, 200, 200) as (_, two),
    ):
        assert one.recv() == two.recv() == "done"
    with Answers(folder) as answers:
        assert answers.catch_up(numbered_ledger(200).look)
        assert answers.differences(numbered_ledger(200).look) is None


@pytest.mark.parametrize("when", [1, 50, 200, None])
def test_a_process_killed_while_it_applies_loses_nothing(folder: Path, when: int | None) -> None:
    ledger = numbered_ledger(300)
    with process(apply_until_killed, folder, 300, 1) as (child, pipe):
        said = 0
        while when is None or said < when:
            try:
                said = pipe.recv()
            except EOFError:
                break
        child.kill()
        child.join()
    with Answers(folder) as answers:
        assert answers.applied >= said > 0, "what it was told to have applied is there"
        assert answers.catch_up(ledger.look)
        assert answers.applied == 300
        assert answers.differences(ledger.look) is None
        assert not (folder / "2").exists(), "nothing was built anew"


def test_slot_of_a_killed_reader_is_freed(folder: Path) -> None:
    with Answers(folder) as answers:
        assert answers.catch_up(MemoryLedger().look)
        with process(die_reading, folder) as (child, pipe):
            assert pipe.recv() == "read"
            child.join()
        assert answers._current().env.reader_check() == 1


def test_file_size_limit_does_not_fail_the_ledger(folder: Path) -> None:
    with process(limited, folder, 1 << 19) as (_, pipe):
        refused, followed, ready, difference = pipe.recv()
    assert refused == (False, False, False)
    assert (followed, ready, difference) == (True, True, None)


def test_rebuild_in_another_process_misses_no_entry(folder: Path) -> None:
    size = 20
    with Answers(folder) as answers:
        assert answers.catch_up(numbered_ledger(size).look)
        with process(rebuild_slowly, folder, size) as (_, pipe):
            looks = 0
            while pipe.recv() == "look":
                looks += 1
                if looks != 3:  # the third is the last before the switch; entries cannot be applied then
                    size += 10
                    assert answers.apply(numbered_ledger(size).entries[-10:])
                pipe.send(size)
        assert looks == 4
        size += 1
        assert answers.apply(numbered_ledger(size).entries[-1:]), "now in the new generation"
        assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["2"]
        assert answers.applied == size
        assert answers.differences(numbered_ledger(size).look) is None


def test_reader_of_a_removed_generation_opens_the_new_one(folder: Path) -> None:
    ledger = MemoryLedger()
    ledger.append("10.1/x", url("1"))
    with Answers(folder) as answers, process(report_reads, folder, b"10.1/x") as (_, pipe):
        assert pipe.recv() == "reading"
        for _ in range(3):
            assert answers.rebuild(ledger.look)
            pipe.send("look")
            assert pipe.recv() == (tuple(ledger.entries[0].contents), False)
        pipe.send("stop")
    with AnswersReader(folder) as reader:
        assert reader.applied == 1
