"""The state file: durable, changed atomically, and refused when it must not be trusted."""

import shutil
import stat
import struct
import threading
from pathlib import Path
from uuid import UUID

import pytest

from perseid.ledger.errors import CorruptData, NewerFormat
from perseid.ledger.views.answers_reader import STATE_SIZE, WORD_GENERATION, WORD_REQUIRED, StateFile, boot_id
from tests.ledger.answer_ledgers import BOOT

OTHER_BOOT = bytes(16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_new_state_file_is_a_private_page_without_a_generation(path: Path) -> None:
    state = StateFile.create(path)
    assert path.stat().st_size == STATE_SIZE
    assert path.stat().st_blocks > 0, "room is taken, not promised"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert state.usable_generation(BOOT) == 0
    assert [each.name for each in path.parent.iterdir()] == ["state"]
    state.close()


def test_every_field_is_at_the_specified_offset(path: Path) -> None:
    state = StateFile.create(path)
    state.next_generation()
    state.next_generation()
    state.switch(2)
    state.require(77)
    state.mark_dirty(BOOT)
    page = path.read_bytes()
    expected = struct.pack("<8sQQQQQ16sQ", b"PRSDANSW", 1, 2, 77, 2, 0, BOOT, path.stat().st_ino)
    assert page == expected.ljust(STATE_SIZE, b"\0")
    state.mark_clean()
    assert path.read_bytes()[40:48] == b"\1" + bytes(7)
    state.close()


def test_second_creator_opens_the_file_of_the_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = StateFile.create(path)
    first.switch(5)
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as if the file did not exist yet
    second = StateFile.create(path)
    assert second.words[WORD_GENERATION] == 5
    assert [each.name for each in path.parent.iterdir()] == ["state"]
    first.close()
    second.close()


def test_readers_see_changes_at_once_and_cannot_write(path: Path) -> None:
    state = StateFile.create(path)
    reader = StateFile(path, writable=False)
    state.switch(3)
    state.mark_dirty(BOOT)
    assert reader.usable_generation(BOOT) == 3
    with pytest.raises(TypeError):
        reader.words[WORD_GENERATION] = 4
    reader.close()
    state.close()


def test_after_a_reboot_only_a_clean_generation_is_usable(path: Path) -> None:
    state = StateFile.create(path)
    state.switch(3)
    state.mark_dirty(BOOT)
    assert (state.usable_generation(BOOT), state.usable_generation(OTHER_BOOT)) == (3, 0)
    state.mark_clean()
    assert (state.usable_generation(BOOT), state.usable_generation(OTHER_BOOT)) == (3, 3)
    state.discard_unusable(OTHER_BOOT)
    assert state.usable_generation(OTHER_BOOT) == 3
    state.mark_dirty(BOOT)
    state.discard_unusable(OTHER_BOOT)
    assert state.usable_generation(BOOT) == 0
    state.close()


def test_copied_state_file_is_unusable(path: Path) -> None:
    state = StateFile.create(path)
    state.switch(state.next_generation())
    state.mark_clean()
    state.close()
    shutil.copy2(path, path.with_name("copy"))
    copy = StateFile.create(path.with_name("copy"))
    assert copy.usable_generation(BOOT) == 0
    copy.discard_unusable(BOOT)
    assert copy.words[WORD_GENERATION] == 0
    copy.switch(copy.next_generation())
    assert copy.usable_generation(BOOT) == 2
    copy.close()


def test_required_entry_only_increases_until_reached(path: Path) -> None:
    state = StateFile.create(path)
    state.require(7)
    state.require(5)
    assert state.words[WORD_REQUIRED] == 7
    state.reached(6)
    assert state.words[WORD_REQUIRED] == 7
    state.reached(7)
    assert state.words[WORD_REQUIRED] == 0
    state.reached(8)
    state.require(9)
    state.forget(8)
    assert state.words[WORD_REQUIRED] == 9
    state.forget(9)
    assert state.words[WORD_REQUIRED] == 0
    state.close()


def test_only_the_named_generation_is_invalidated(path: Path) -> None:
    state = StateFile.create(path)
    state.switch(4)
    state.invalidate(3)
    assert state.words[WORD_GENERATION] == 4
    state.invalidate(4)
    assert state.words[WORD_GENERATION] == 0
    state.close()


def test_generation_numbers_are_unique(path: Path) -> None:
    states = [StateFile.create(path) for _ in range(4)]
    generations: list[int] = []
    threads = [
        threading.Thread(target=lambda state=state: generations.extend(state.next_generation() for _ in range(200)))
        for state in states
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(generations) == list(range(1, 801))
    for state in states:
        state.close()


@pytest.mark.parametrize("raw", [b"", b"PRSDANSW", bytes(STATE_SIZE), bytes(STATE_SIZE + 1)])
def test_invalid_state_file_is_refused_with_the_fix(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    with pytest.raises(CorruptData, match="remove its folder"):
        StateFile.create(path)


def test_a_file_of_a_newer_program_is_refused(path: Path) -> None:
    StateFile.create(path).close()
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"\2")
    with pytest.raises(NewerFormat, match=r" was written by a newer program version; upgrade this one$"):
        StateFile(path, writable=False)


def test_no_descriptor_is_left_open_when_a_file_is_refused(path: Path) -> None:
    path.write_bytes(bytes(STATE_SIZE))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        with pytest.raises(CorruptData):
            StateFile(path, writable=False)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_boot_id_is_that_of_the_machine() -> None:
    assert boot_id() == UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
