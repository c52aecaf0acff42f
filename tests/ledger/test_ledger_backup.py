"""Backup and restore: consistent files, and a restored ledger that contradicts nothing."""

import errno
import io
import os
import random
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text, update

from perseid.ledger.backup.archive import (
    CHECKPOINT,
    ENTRY,
    FIRST_LINE,
    REDACTED,
    STATE,
    ArchiveReader,
    ArchiveWriter,
    InvalidBackup,
    save_backup,
    write_backup,
)
from perseid.ledger.backup.restore import RestoreResult, StoreNotEmpty, reopen_lease, restore
from perseid.ledger.errors import ClockError, CorruptData, LeaseClosed, LedgerError, OutdatedProgram
from perseid.ledger.log.clock import MAX_GAP, SECOND
from perseid.ledger.log.entry import Action
from perseid.ledger.log.log import Log, build_redaction
from perseid.ledger.log.record_keys import LEDGER, record_key
from perseid.ledger.log.requests import Lease, Leased
from perseid.ledger.log.signing import WrongKey, find_branch, rotate_key, sign_checkpoint
from perseid.ledger.merkle import Signer
from perseid.ledger.store.store import Store
from perseid.ledger.store.tables import OTHER_SCOPES, checkpoints, leases, ledger, metadata, nodes
from perseid.ledger.verify import verify
from perseid.names import pilin
from perseid.proof.verifier import MAX_NOTE, Branch, InvalidProof, check_consistency, open_checkpoint
from tests.ledger.ledgers import (
    NOW,
    ORIGIN,
    SIGNER,
    Machine,
    appended,
    change,
    key,
    log_of_today,
    look,
    open_store,
    postgres_with_tables,
    secret,
    sqlite_with_tables,
    url,
    verified,
)

BY = ("cli", "local:alice")
HOUR = 3_600_000
PLANTED = b"the-planted-secret-80351"


def new_key(origin: str) -> Signer:
    return Signer.generate(origin, bytes(32))


@pytest.fixture
def target(request: pytest.FixtureRequest, back_end: str, tmp_path: Path, machine: Machine) -> Iterator[Log]:
    """A log without a ledger, to restore into: in the same kind of database, unless the test chooses another one."""
    if getattr(request, "param", back_end) == "sqlite":
        folder = tmp_path / "target"
        folder.mkdir()
        new_store = sqlite_with_tables(folder / "ledger.db")
    else:
        new_store = open_store(postgres_with_tables(request.getfixturevalue("postgres")))
    with closing(new_store) as store:
        yield Log(store, machine.clock(), random.Random(2).randbytes)


on_sqlite = pytest.mark.parametrize("target", ["sqlite"], indirect=True)
from_sqlite = pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
on_both = pytest.mark.parametrize("target", ["sqlite", "postgresql"], indirect=True)
on_postgres = pytest.mark.parametrize("target", ["postgresql"], indirect=True)


def restored(target: Log, *files: Path, max_ahead: int = HOUR) -> RestoreResult:
    return restore(files, target, new_key, BY, max_ahead)


def contents(log: Log) -> dict[str, list[tuple[object, ...]]]:
    """The computed tables, and the entries without their tokens."""
    with log.store.reading() as connection:
        tables = {
            table.name: [tuple(row) for row in connection.execute(select(table))] for table in metadata.sorted_tables
        }
    return {name: sorted(tables[name]) for name in ("entries", "nodes", "records", "search", "redactions")}


def is_empty(log: Log) -> bool:
    with log.store.reading() as connection:
        return not any(connection.execute(select(table)).first() for table in metadata.sorted_tables)


def fill(log: Log, machine: Machine) -> None:
    """Fill a ledger with one of everything."""
    log.append([change(str(number), url(f"https://example.org/{number}")) for number in range(600)])
    machine.run(SECOND)
    log.append([change(str(number % 7), url(f"https://example.net/{number}")) for number in range(100)])
    log.append([change("key", secret(b"old")), change("key", secret(b"new"))])
    log.append([Lease(b"10.1 pattern", 5, 0)])
    sign_checkpoint(log, SIGNER)
    machine.run(SECOND)
    log.append([change("last")])


# Full and incremental backups


@on_both
def test_restored_ledger_has_the_same_content_and_a_new_identity(
    log: Log, machine: Machine, target: Log, tmp_path: Path
) -> None:
    fill(log, machine)
    header = save_backup(log, tmp_path / "full")
    assert (header.origin, header.since, header.until) == (ORIGIN, 0, 703)
    machine.run(SECOND)
    result = restored(target, tmp_path / "full")
    before, after = contents(log), contents(target)
    assert after["entries"][:-1] == before["entries"]
    assert set(after["records"]) - set(before["records"]) == {(record_key(LEDGER), 704)}
    assert (after["nodes"], after["search"], after["redactions"]) == (
        before["nodes"],
        before["search"],
        before["redactions"],
    )
    assert verified(target) == result.seq == 704
    assert look(target).ledger_id != look(log).ledger_id
    assert look(target).origin == f"{ORIGIN}/restored-{look(target).ledger_id[:4].hex()}"
    assert appended(target.append([change("0", url("new"))])[0]).seq == 705
    assert [entry.seq for entry in look(target).history(key("0"))][:2] == [705, 699]
    assert verified(target) == 705


def test_increments_are_restored_in_order(log: Log, machine: Machine, target: Log, tmp_path: Path) -> None:
    fill(log, machine)
    files = [tmp_path / f"part-{number}" for number in range(4)]
    since = save_backup(log, files[0]).until
    for file in files[1:3]:
        log.append([change(str(number), url(f"{file.name}/{number}")) for number in range(300)])
        since = save_backup(log, file, since).until
    log.append([Lease(b"10.1 another", 9, 0)])  # only other tables
    assert save_backup(log, files[3], since).until == since == 1_303
    result = restored(target, *files)
    assert contents(target)["entries"][:-1] == contents(log)["entries"]
    assert verified(target) == 1_304
    assert result.closed == (b"10.1 another", b"10.1 pattern")


@on_both
def test_an_empty_ledger_is_restored_as_well(log: Log, target: Log, tmp_path: Path) -> None:
    save_backup(log, tmp_path / "full")
    assert restored(target, tmp_path / "full").seq == 1
    assert verified(target) == 1


def test_a_restored_ledger_names_the_oldest_program_that_can_write_it(
    log: Log, target: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_backup(log, tmp_path / "empty")
    monkeypatch.setattr("perseid.ledger.backup.restore.OLDEST_PROGRAM", "9999")
    restore([tmp_path / "empty"], target, new_key, BY)
    with pytest.raises(OutdatedProgram):
        target.check_mode()


def test_backup_is_consistent_during_writes(where: str, store: Store, target: Log, tmp_path: Path) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    log.append([change(str(number)) for number in range(2_000)])
    stop = threading.Event()

    def write() -> None:
        with closing(open_store(where)) as own:
            mine = log_of_today(own)
            while not stop.is_set():
                mine.append([change(str(number)) for number in range(50)])

    writer = threading.Thread(target=write)
    writer.start()
    files = [tmp_path / str(number) for number in range(4)]
    try:
        since = 0
        for file in files:
            reached = look(log).size
            until = save_backup(log, file, since).until
            assert until >= reached
            since = until
            while look(log).size == since:
                pass
    finally:
        stop.set()
        writer.join()
    assert look(log).size > since > 2_000
    target.clock = log.clock
    assert restored(target, *files).seq == since + 1 == verified(target)


def test_backup_goes_to_any_stream_and_reports_progress(log: Log, machine: Machine) -> None:
    fill(log, machine)
    stream, progress = io.BytesIO(), list[int]()
    write_backup(log, stream, progress=progress.append)
    first, second, third, _ = stream.getvalue().split(b"\n", 3)
    assert first + b"\n" == FIRST_LINE
    assert b"secrets" in second
    assert ORIGIN.encode() in third
    assert progress == [200, 400, 600, 703]


def test_a_restored_ledger_can_be_backed_up_and_restored(
    log: Log, machine: Machine, target: Log, tmp_path: Path
) -> None:
    fill(log, machine)
    save_backup(log, tmp_path / "first")
    restored(target, tmp_path / "first")
    save_backup(target, tmp_path / "second")
    with closing(Store.sqlite(tmp_path / "third.db")) as store:
        store.upgrade()
        third = Log(store, machine.clock(), random.Random(3).randbytes)
        restore([tmp_path / "second"], third, lambda origin: Signer.generate(origin, bytes(31) + b"\1"), BY)
        assert verified(third) == 705
        branch = find_branch(third)
        assert branch is not None
        assert branch.predecessor.origin == look(target).origin
        assert branch.new.name.startswith(branch.predecessor.origin + "/restored-")


# The file


def test_backup_is_private_and_overwrites_nothing(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "full"
    before = os.umask(0)
    try:
        save_backup(log, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    raw = path.read_bytes()
    with pytest.raises(FileExistsError):
        save_backup(log, path)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        save_backup(log, tmp_path / "link")
    assert path.read_bytes() == raw
    assert not list(tmp_path.glob(".*"))


def test_file_created_meanwhile_is_not_overwritten(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "full"

    def take_the_name(_: int) -> None:
        path.write_text("somebody else's")

    with pytest.raises(FileExistsError):
        save_backup(log, path, progress=take_the_name)
    assert path.read_text() == "somebody else's"
    assert not list(tmp_path.glob(".*"))


def test_failed_backup_leaves_no_file(log: Log, tmp_path: Path) -> None:
    log.append([change("a")])
    folder = tmp_path / "backups"
    folder.mkdir()
    with pytest.raises(LedgerError, match="entry 2 does not exist"):
        save_backup(log, folder / "full", since=2)
    with pytest.raises(LedgerError, match="entry -1 does not exist"):
        save_backup(log, folder / "full", since=-1)

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(OSError, match="no room"):
        save_backup(log, folder / "full", progress=no_room)
    assert list(folder.iterdir()) == []


def test_damaged_ledger_is_not_backed_up(log: Log, machine: Machine) -> None:
    fill(log, machine)

    write_backup(log, io.BytesIO())
    for words, statement in (
        (
            "does not match its leaf hash",
            "UPDATE entries SET body = (SELECT body FROM entries WHERE seq = 1) WHERE seq = 500",
        ),
        ("cannot be read", "UPDATE entries SET body = leaf WHERE seq = 500"),
        ("is missing", "DELETE FROM entries WHERE seq = 500"),
    ):
        with log.store.writing() as connection:
            connection.execute(text(statement))
        for since in (0, 300):
            with pytest.raises(CorruptData, match=f"entry 500 {words}"):
                write_backup(log, io.BytesIO(), since)
    with pytest.raises(CorruptData, match=r"^tree hashes over entry 497 are missing\. Run: perseid verify --all$"):
        write_backup(log, io.BytesIO(), 500)


def test_wrong_tree_is_not_backed_up(log: Log, machine: Machine) -> None:
    fill(log, machine)
    with log.store.writing() as connection:
        connection.execute(update(nodes).where(nodes.c.position == 1).values(hash=bytes(32)))
    with pytest.raises(CorruptData, match="the tree does not match"):
        write_backup(log, io.BytesIO(), 300)


# Redacted data stays redacted


def erase_after_a_backup(log: Log, folder: Path, mark: bytes = b"") -> list[Path]:
    """A full backup with two planted secrets, and increments that redact them."""
    files = [folder / f"part-{number}" for number in range(3)]
    planted, private, remaining = (
        PLANTED + mark,
        f"https://example.org/planted{mark.decode()}",
        url(f"kept{mark.decode()}"),
    )
    log.append([change("a", secret(planted), remaining), change("b", url(private))])
    log.append([change("a", secret(planted), url("changed")), change("b")])
    since = save_backup(log, files[0]).until
    log.append([change("a", secret(b"another"), url("changed"))])
    since = save_backup(log, files[1], since).until
    with log.open_reader() as reader:
        request = build_redaction(reader, key("b"), 2, 1, BY, "a court said so")
    log.append([request])
    save_backup(log, files[2], since)
    for erased in (planted, private.encode()):
        assert [erased in file.read_bytes() for file in files] == [True, False, False]
    return files


def test_data_redacted_after_the_full_backup_is_not_restored(log: Log, target: Log, tmp_path: Path) -> None:
    files = erase_after_a_backup(log, tmp_path)
    restored(target, *files)
    assert contents(target)["entries"][:-1] == contents(log)["entries"]
    assert contents(target)["redactions"] == contents(log)["redactions"]
    assert verify(target).redacted == 3
    assert look(target).entry(1).record() == (url("kept"),)


@from_sqlite
@on_both
def test_redacted_data_never_reaches_the_files_of_the_restored_ledger(
    log: Log, target: Log, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_postgres = target.store.dialect == "postgresql"
    # In PostgreSQL this includes the write-ahead log, which contains every write.
    folder = request.getfixturevalue("postgres").folder if is_postgres else tmp_path / "target"
    mark = random.randbytes(8).hex().encode()
    files = erase_after_a_backup(log, tmp_path, mark)
    restored(target, *files)
    assert traces(folder, b"kept" + mark) != []
    assert traces(folder, PLANTED + mark) == []
    assert traces(folder, b"planted" + mark) == []


def traces(folder: Path, raw: bytes) -> list[Path]:
    """The files below a folder that contain the bytes."""
    found = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # the server removes files at any time
            if path.is_file() and raw in path.read_bytes():
                found.append(path)
    return found


def test_entry_can_be_redacted_repeatedly(log: Log, target: Log, tmp_path: Path) -> None:
    files = [tmp_path / f"part-{number}" for number in range(3)]
    secrets = [secret(b"first"), secret(b"second", 301)]
    since = 0
    for file in files:
        log.append([change("a", url("x"), *secrets)])
        secrets = secrets[1:]
        since = save_backup(log, file, since).until
    restored(target, *files)
    assert look(target).entry(1).record() == (url("x"),)
    assert contents(target)["entries"][:-1] == contents(log)["entries"]


def test_an_entry_of_some_megabytes_is_restored_as_well(log: Log, target: Log, tmp_path: Path) -> None:
    log.append([change("a", *[url("x" * 1_000_000, index) for index in range(1, 14)]), change("b")])
    save_backup(log, tmp_path / "full")
    assert restored(target, tmp_path / "full").seq == verified(target) == 3


@on_sqlite
def test_redacted_entry_that_differs_is_refused(log: Log, target: Log, tmp_path: Path) -> None:
    first, second, third = erase_after_a_backup(log, tmp_path)
    whole = second.read_bytes()
    assert whole.count(b"kept") == 1
    second.write_bytes(whole.replace(b"kept", b"KEPT"))
    refused(target, first, second, third, match="part-0: entry 1: as redacted in a later file, does not match")
    start = whole.index(b"R\0\0") + 5
    second.write_bytes(whole[:start] + (7).to_bytes(8, "big") + whole[start + 8 :])
    refused(target, first, second, third, match="part-1: entry 7: redacted here, but not in an earlier file")


def test_increments_before_the_redaction_restore_the_data(log: Log, target: Log, tmp_path: Path) -> None:
    files = erase_after_a_backup(log, tmp_path)
    restored(target, files[0])
    assert look(target).entry(1).record() == (secret(PLANTED), url("kept"))


# Refused backups


def small_backup(log: Log, path: Path) -> bytes:
    log.append([change("a", url("x"))])
    save_backup(log, path.with_name("before"))
    log.append([change("a", secret(b"s")), change("a"), Lease(b"10.1 pattern", 5, 0)])
    sign_checkpoint(log, SIGNER)
    save_backup(log, path)
    return path.read_bytes()


def refused(target: Log, *files: Path, match: str = "") -> str:
    with pytest.raises(InvalidBackup, match=match) as error:
        restored(target, *files)
    assert is_empty(target)
    return str(error.value)


@from_sqlite
@on_sqlite
def test_every_changed_byte_or_length_of_a_backup_is_detected(log: Log, target: Log, tmp_path: Path) -> None:
    path = tmp_path / "full"
    raw = small_backup(log, path)
    wrong = [raw[:length] for length in (*range(0, len(raw), 11), len(raw) - 1)] + [
        raw + b"\0",
        raw + raw,
    ]
    places = (*range(700), *range(700, len(raw), 5))  # the header, and a part of each entry
    wrong += [raw[:place] + bytes((raw[place] ^ 1 << place % 8,)) + raw[place + 1 :] for place in places]
    for each in wrong:
        path.write_bytes(each)
        with pytest.raises((InvalidBackup, ClockError), match=r"^full: .*nothing was restored$|clock"):
            restored(target, path)
    assert is_empty(target)
    path.write_bytes(raw)
    assert restored(target, path).seq == 4


@from_sqlite
@on_postgres
def test_damage_is_reported_on_postgresql(log: Log, target: Log, tmp_path: Path) -> None:
    path = tmp_path / "full"
    raw = small_backup(log, path)
    for place in range(700, len(raw), 29):
        path.write_bytes(raw[:place] + bytes((raw[place] ^ 4,)) + raw[place + 1 :])
        refused(target, path, match=r"^full: ")


@on_sqlite
def test_damage_names_the_file_and_the_entry(log: Log, target: Log, tmp_path: Path) -> None:
    path = tmp_path / "monday.backup"
    log.append([change(name, url(f"planted-{name}")) for name in "abc"])
    save_backup(log, path)
    path.write_bytes(path.read_bytes().replace(b"planted-b", b"planted-B"))
    refused(target, path, match=r"^monday.backup: entry 2: does not match its leaf hash")


def parts(log: Log, folder: Path) -> list[Path]:
    files = [folder / f"part-{number}" for number in range(4)]
    since = 0
    for file in files:
        log.append([change(file.name), change("a")])
        since = save_backup(log, file, since).until
    return files


@on_sqlite
def test_files_must_be_consecutive(log: Log, target: Log, tmp_path: Path) -> None:
    first, second, third, last = parts(log, tmp_path)
    refused(target, match="name the full backup")
    refused(target, second, match="part-1: starts after entry 2; name the backups with entries 1 to 2 before it")
    refused(target, first, third, match="part-2: starts after entry 4; the next file must be the increment that st")
    refused(target, first, third, second, last, match=r"^part-2: starts after entry 4; the next file must be the")
    refused(target, first, second, second, match=r"^part-1: starts after entry 2; the next file must be the increment")
    refused(target, first, first, match=r"^part-0: starts after entry 0; the next file must be the increment")
    assert restored(target, first, second, third, last).seq == 9


@on_sqlite
def test_an_increment_of_another_ledger_is_refused(log: Log, target: Log, machine: Machine, tmp_path: Path) -> None:
    first, *_ = parts(log, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with closing(Store.sqlite(other / "ledger.db")) as store:
        store.upgrade()
        foreign = Log(store, machine.clock(), random.Random(5).randbytes)
        foreign.create(SIGNER)
        _, second, *_ = parts(foreign, other)
        refused(target, first, second, match="part-1: belongs to another ledger")
        with store.writing() as connection:  # a copy of the first ledger with different later entries
            connection.execute(update(ledger).values(id=look(log).ledger_id))
        second.unlink()
        save_backup(foreign, second, 2)
        refused(target, first, second, match="part-1: continues other entries")


def rewritten(log: Log, path: Path, change_rows: Callable[[], None]) -> None:
    """A backup with other table rows and a correct hash."""
    change_rows()
    path.unlink(missing_ok=True)
    save_backup(log, path)


@on_sqlite
def test_checkpoint_of_other_entries_is_refused(log: Log, target: Log, tmp_path: Path) -> None:
    log.append([change("a"), change("b")])
    note = sign_checkpoint(log, SIGNER)
    path = tmp_path / "full"

    def replace_note(note: str) -> Callable[[], None]:
        def change_rows() -> None:
            with log.store.writing() as connection:
                connection.execute(update(checkpoints).values(note=note))

        return change_rows

    lying = open_checkpoint(note, SIGNER.public)
    other = Signer.generate(ORIGIN, bytes(31) + b"\7")
    for wrong, words in (
        (SIGNER.sign(type(lying)(ORIGIN, 2, bytes(32))), "at entry 2 does not match the entries"),
        (SIGNER.sign(type(lying)(ORIGIN, 3, bytes(32))), "belongs to another ledger"),
        (SIGNER.sign(type(lying)("elsewhere", 2, lying.root)), "belongs to another ledger"),
        (other.sign(lying), "invalid checkpoint: the checkpoint is not signed"),
        (note.replace("\n\u2014", "\n\u2014\u2014"), "invalid checkpoint"),
    ):
        rewritten(log, path, replace_note(wrong))
        refused(target, path, match=words)
    rewritten(log, path, replace_note(note))
    assert restored(target, path).seq == 3


@on_sqlite
def test_checkpoint_from_before_a_key_rotation_is_accepted(log: Log, target: Log, tmp_path: Path) -> None:
    log.append([change("a")])
    sign_checkpoint(log, SIGNER)
    successor = Signer.generate(ORIGIN, bytes(31) + b"\7")
    rotate_key(log, SIGNER, successor, *BY)
    save_backup(log, tmp_path / "full")
    branch = restored(target, tmp_path / "full").branch
    assert branch.old == successor.public
    assert verified(target) == 3
    rotate_key(target, new_key(branch.new.name), Signer.generate(branch.new.name, bytes(31) + b"\5"), *BY)
    assert find_branch(target) == branch


def test_restore_needs_an_empty_store(log: Log, target: Log, tmp_path: Path) -> None:
    log.append([change("a")])
    save_backup(log, tmp_path / "full")
    with pytest.raises(StoreNotEmpty):
        restored(log, tmp_path / "full")
    assert verified(log) == 1
    restored(target, tmp_path / "full")
    with pytest.raises(StoreNotEmpty):
        restored(target, tmp_path / "full")
    assert verified(target) == 2


def test_wrong_clock_is_reported_before_the_restore(log: Log, machine: Machine, target: Log, tmp_path: Path) -> None:
    log.append([change("a")])
    save_backup(log, tmp_path / "full")
    machine.run(MAX_GAP + SECOND)
    progress: list[int] = []
    with pytest.raises(ClockError):
        restore([tmp_path / "full"], target, new_key, BY, progress=progress.append)
    assert progress == []
    assert is_empty(target)
    target.clock.accept()
    assert restored(target, tmp_path / "full").seq == 2


def test_restore_refuses_the_old_key(log: Log, target: Log, tmp_path: Path) -> None:
    save_backup(log, tmp_path / "full")
    for wrong in (lambda _: SIGNER, lambda origin: Signer(origin, SIGNER._seed)):
        with pytest.raises(WrongKey):
            restore([tmp_path / "full"], target, wrong, BY)
        assert is_empty(target)


def test_rows_of_a_newer_version_are_refused(log: Log, target: Log, tmp_path: Path) -> None:
    path = tmp_path / "full"
    save_backup(log, path)
    # The lengths are unchanged, so the frames are complete; the hash is checked last.
    path.write_bytes(path.read_bytes().replace(b'"table":"ledger"', b'"table":"LEDGER"'))
    refused(target, path, match="newer program version")


def forged(log: Log, path: Path, header: dict[str, object], *frames: tuple[bytes, bytes], state: bytes = b"") -> None:
    """A backup of two entries with a correct hash and something else wrong."""
    whole, stream = io.BytesIO(), io.BytesIO()
    write_backup(log, whole)
    whole.seek(0)
    archive = ArchiveReader("whole", whole)
    copy = ArchiveWriter(stream, msgspec.structs.replace(archive.header, **header))
    for kind, content in frames or archive.frames():
        copy._frame(kind, state if state and kind == STATE else content)
    copy.end()
    path.write_bytes(stream.getvalue())


@on_sqlite
def test_forged_backup_with_a_correct_hash_is_refused(log: Log, target: Log, machine: Machine, tmp_path: Path) -> None:
    log.append([change("a")])
    machine.run(SECOND)
    log.append([change("b")])
    whole = io.BytesIO()
    at = write_backup(log, whole).at
    whole.seek(0)
    first, second, *_ = [content for kind, content in ArchiveReader("whole", whole).frames() if kind == ENTRY]
    path = tmp_path / "forged"

    def check_refusal(words: str, *frames: tuple[bytes, bytes], state: bytes = b"", **header: object) -> None:
        forged(log, path, header, *frames, state=state)
        refused(target, path, match=f"^forged: {words}")

    check_refusal("the tree root of its entries up to 2 does not match", root_until=bytes(32))
    check_refusal("ends with entry 2; its header says 3", until=3)
    check_refusal("ends with entry 2", at=at - 1)
    check_refusal("entry 2: after the last entry of its header, 1", until=1)
    check_refusal("invalid header", origin="")
    check_refusal("invalid header", signer="nonsense")
    check_refusal("entry 1: found entry 2 instead", (ENTRY, second))
    check_refusal("entry 1: too short", (ENTRY, first[:48]))
    check_refusal("entry 1: cannot be read", (ENTRY, first[:-1]))
    check_refusal("damaged: redacted entry too short", (REDACTED, b"1234567"))
    check_refusal("damaged: unexpected frame", (ENTRY, first), (REDACTED, first))
    check_refusal("damaged: frame too long", (CHECKPOINT, bytes(MAX_NOTE + 1)))
    check_refusal("damaged: invalid rows of table leases", state=b'{"table":"leases","columns":["scope"],"rows":[[7]]}')
    check_refusal(
        "damaged: invalid rows of table leases",
        state=b'{"table":"leases","columns":["last"],"rows":[[%d]]}' % (1 << 63),
    )
    check_refusal(
        "damaged: invalid rows of table leases", state=b'{"table":"leases","columns":["scope"],"rows":[["YQ=="]]}'
    )
    check_refusal(
        "damaged: invalid rows of table leases", state=b'{"table":"leases","columns":["scope"],"rows":[["YQ==",1]]}'
    )
    check_refusal("damaged", state=b"\xff")
    check_refusal("written by a newer program version", state=b'{"table":"leases","columns":["until"],"rows":[]}')
    forged(log, path, {})
    assert restored(target, path).seq == 3


@on_sqlite
def test_entries_whose_dates_go_back_are_refused(log: Log, target: Log, tmp_path: Path) -> None:
    log.append([change("a")])
    with log.store.writing() as connection:
        connection.execute(text("UPDATE head SET at = at - 60000000"))
    target.clock._wall = log.clock._wall = lambda: NOW - 60 * SECOND  # a program without clock checks
    log.append([change("b")])
    save_backup(log, tmp_path / "full")
    refused(target, tmp_path / "full", match="entry 2: dated before the previous entry")


KILLED = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    from perseid.ledger.merkle import Signer
    from perseid.ledger.backup.restore import restore
    from tests.ledger.ledgers import Machine, log_of_today, open_store

    log = log_of_today(open_store(sys.argv[1]))
    log.clock = Machine().clock(accepted=True)
    what = {"written": {"progress": lambda _: os._exit(9)}, "at the end": {}}[sys.argv[3]]
    restore([Path(sys.argv[2])], log, lambda origin: os._exit(9), ("cli", "local:alice"), **what)
    """
)


@from_sqlite
@on_both
@pytest.mark.parametrize("when", ["written", "at the end"])
def test_killed_restore_leaves_an_empty_store(
    log: Log, machine: Machine, target: Log, tmp_path: Path, when: str
) -> None:
    fill(log, machine)
    save_backup(log, tmp_path / "full")
    where = target.store.url or str(target.store.engine.url.database)
    command = [sys.executable, "-c", KILLED, where, str(tmp_path / "full"), when]
    assert subprocess.run(command, cwd=Path(__file__).resolve().parents[2], check=False).returncode == 9
    assert is_empty(target)
    assert restored(target, tmp_path / "full").seq == 704


# One key never signs two histories


def test_the_new_ledger_contradicts_no_checkpoint_of_the_old_one(
    log: Log, machine: Machine, target: Log, tmp_path: Path
) -> None:
    fill(log, machine)
    save_backup(log, tmp_path / "full")
    old = open_checkpoint(sign_checkpoint(log, SIGNER), SIGNER.public)
    log.append([change("lost")])  # and signed, but not in the backup
    machine.run(2 * SECOND)
    lost = open_checkpoint(sign_checkpoint(log, SIGNER), SIGNER.public)
    result = restored(target, tmp_path / "full")
    assert result.branch == find_branch(target) == Branch(old, SIGNER.public, new_key(look(target).origin).public)
    assert find_branch(log) is None
    assert look(target).entry(704).action == Action.BRANCH
    assert look(target).entry(704).origin == BY
    first = look(target).checkpoint()
    assert first == sign_checkpoint(target, new_key(look(target).origin))
    with pytest.raises(InvalidProof, match="not signed by"):
        open_checkpoint(first, SIGNER.public)
    with pytest.raises(LedgerError):
        sign_checkpoint(target, SIGNER)
    new = open_checkpoint(first, result.branch.new)
    assert (new.origin, new.size, lost.size) == (look(target).origin, 704, 704)
    check_consistency(old.size, old.root, new.size, new.root, look(target).consistency(old.size, new.size))
    assert new.root != lost.root, "the same size, another history, and another origin"
    with target.store.reading() as connection:
        sizes = connection.execute(select(checkpoints.c.size).order_by(checkpoints.c.size)).scalars().all()
    assert sizes == [702, 704]


@from_sqlite
def test_unreadable_branch_is_reported(log: Log) -> None:
    log.append([change("a", action=Action.BRANCH)])
    assert find_branch(log) is None, "it is about another record"
    draft = change("a", action=Action.BRANCH).draft
    log.append([type(change("a"))(type(draft)(Action.BRANCH, draft.state, LEDGER, *BY, "nonsense"))])
    with pytest.raises(CorruptData, match="entry 2"):
        find_branch(log)


# Leases


def millisecond(machine: Machine) -> int:
    return pilin.from_unix_ns(machine.wall * 1000)


def numbers(outcome: object) -> set[int]:
    assert isinstance(outcome, Leased)
    return set(range(outcome.first, outcome.first + outcome.count))


def test_numbers_leased_after_the_backup_are_not_leased_again(
    log: Log, machine: Machine, target: Log, tmp_path: Path
) -> None:
    def lease(which: Log, scope: bytes = b"10.1 pilin", count: int = 1_000) -> set[int]:
        return numbers(which.append([Lease(scope, count, millisecond(machine))])[0])

    leased = lease(log)
    save_backup(log, tmp_path / "full")
    while max(leased) < millisecond(machine) + HOUR - 200_000:
        leased |= lease(log, count=200_000)
    machine.run(5 * SECOND)
    assert restored(target, tmp_path / "full").closed == ()
    again = lease(target)
    assert not again & leased
    assert min(again) == millisecond(machine) + HOUR + 1


def test_counters_are_closed_until_reopened(log: Log, target: Log, tmp_path: Path) -> None:
    scope = b"10.1 pattern"
    log.append([Lease(scope, 7, 0)])
    save_backup(log, tmp_path / "full")
    log.append([Lease(scope, 30, 0)])
    assert restored(target, tmp_path / "full").closed == (scope,)
    closed = target.append([Lease(scope, 1, 0)])[0]
    assert isinstance(closed, LeaseClosed)
    assert closed.last == 6
    with pytest.raises(LeaseClosed):
        reopen_lease(target, scope, 5)
    assert isinstance(target.append([Lease(scope, 1, 0)])[0], LeaseClosed)
    reopen_lease(target, scope, 36)
    assert target.append([Lease(scope, 3, 0)]) == [Leased(37, 3)]
    with pytest.raises(LedgerError, match="not closed"):
        reopen_lease(target, scope, 100)
    with pytest.raises(LedgerError, match="not closed"):
        reopen_lease(log, b"unknown", 100)


def test_scope_unknown_to_the_backup_can_be_reopened(log: Log, target: Log, machine: Machine, tmp_path: Path) -> None:
    save_backup(log, tmp_path / "full")
    restored(target, tmp_path / "full")
    with target.store.reading() as connection:
        noted = connection.execute(select(leases)).one()
    assert tuple(noted) == (OTHER_SCOPES, millisecond(machine) + HOUR, 1, 0)
    reopen_lease(target, b"10.1 pattern", 41)
    assert target.append([Lease(b"10.1 pattern", 1, 0)]) == [Leased(42, 1)]


_steps = st.lists(
    st.tuples(st.integers(1, 4_000), st.integers(0, 3_000)), min_size=1, max_size=5
)  # numbers leased, then milliseconds until the next lease


@settings(max_examples=25, deadline=None)
@given(before=_steps, lost=st.lists(st.tuples(st.integers(1, 4_000), st.integers(0, 3_000)), max_size=5), after=_steps)
def test_no_number_is_leased_again_after_any_restore(
    before: list[tuple[int, int]], lost: list[tuple[int, int]], after: list[tuple[int, int]]
) -> None:
    ahead = 10_000
    machine = Machine()
    leased: set[int] = set()

    def lease(which: Log, steps: list[tuple[int, int]], *, bounded: bool = True) -> None:
        for count, pause in steps:
            now = millisecond(machine)
            outcome = which.append([Lease(b"10.1 pilin", 0, now)])[0]
            assert isinstance(outcome, Leased)
            if outcome.first + count <= now + ahead or not bounded:
                new = numbers(which.append([Lease(b"10.1 pilin", count, now)])[0])
                assert not new & leased
                leased.update(new)
            machine.run(pause * 1_000)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with closing(sqlite_with_tables(path / "a.db")) as one, closing(sqlite_with_tables(path / "b.db")) as two:
            log = Log(one, machine.clock(), random.Random(1).randbytes)
            target = Log(two, machine.clock(), random.Random(2).randbytes)
            log.create(SIGNER)
            lease(log, before)
            save_backup(log, path / "full")
            lease(log, lost)
            restored(target, path / "full", max_ahead=ahead)
            lease(target, after, bounded=False)
