"""The ledger in SQLite: content of its files, redacted data, tampering, and a full disk."""

import errno
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from perseid.ledger.errors import CorruptData, StorageFull, StoreUnavailable
from perseid.ledger.log.log import Log
from perseid.ledger.store import store as stores
from perseid.ledger.store import tables
from perseid.ledger.store.sqlite import has_free_space
from perseid.ledger.store.store import Store
from tests.ledger.ledgers import SIGNER, appended, change, log_of_today, look, secret, url, verified

pytestmark = pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)

PAGE = 4_096


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_replaced_secret_key_is_in_no_file_and_the_tree_is_valid(log: Log, tmp_path: Path) -> None:
    old, new = secret(b"the-old-secret-5581"), secret(b"the-new-secret-7193")
    log.append([change("a", url("x"), old), change("b", secret(b"another-secret-2270"))])
    log.append([change("a", url("y"), old)])
    root = look(log).root(3)
    assert old.data in bytes_on_disk(tmp_path)
    salt = look(log).entry(1).values[1].salt
    log.append([change("a", url("y"), new)])
    on_disk = bytes_on_disk(tmp_path)
    assert old.data not in on_disk
    assert salt not in on_disk
    assert new.data in on_disk
    assert b"another-secret-2270" in on_disk
    assert look(log).root(3) == root
    assert verified(log) == 4
    assert [slot.is_redacted for slot in look(log).entry(1).values] == [False, True]
    assert look(log).entry(1).record() == (url("x"),)


def test_a_reader_of_an_earlier_state_delays_the_erasure_only(log: Log, tmp_path: Path) -> None:
    old = secret(b"the-old-secret-9034")
    log.append([change("a", old)])
    reader = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchone()
    log.append([change("a")])
    assert old.data in bytes_on_disk(tmp_path), "the reader still sees it"
    reader.execute("COMMIT")
    reader.close()
    log.erase_traces()
    assert old.data not in bytes_on_disk(tmp_path)


def test_secret_replaced_twice_in_one_commit_leaves_no_trace(log: Log, tmp_path: Path) -> None:
    log.append([change("a", secret(b"first-4410")), change("a", secret(b"second-4411")), change("a")])
    assert b"first-4410" not in bytes_on_disk(tmp_path)
    assert b"second-4411" not in bytes_on_disk(tmp_path)
    assert verified(log) == 3


@pytest.mark.parametrize("column", ["at", "leaf", "body"])
def test_changed_byte_of_an_entry_is_reported_with_its_number(
    log: Log, store: Store, tmp_path: Path, column: str
) -> None:
    log.append([change("a", url("x"), secret(b"s")), change("b", url("y")), change("c")])
    store.close()
    plain = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    (right,) = plain.execute(f"SELECT {column} FROM entries WHERE seq = 2").fetchone()
    wrongs = [right + 1, right - 1] if column == "at" else [_flipped(right, place) for place in range(len(right))]
    for wrong in wrongs:
        plain.execute(f"UPDATE entries SET {column} = ? WHERE seq = 2", (wrong,))
        with pytest.raises(CorruptData, match=r"entry [23]\b"):
            verified(log)
    plain.execute(f"UPDATE entries SET {column} = ? WHERE seq = 2", (right,))
    assert verified(log) == 3
    plain.close()


def test_damaged_file_is_reported(log: Log, store: Store, tmp_path: Path) -> None:
    log.append([change(f"n{number}", url(f"https://example.org/{number}")) for number in range(80)])
    store.close()
    right = (tmp_path / "ledger.db").read_bytes()
    said: list[str] = []
    for place in range(0, len(right), PAGE):
        for damage in (bytes(PAGE), b"\xff" * PAGE, right[place : place + 8] + bytes(range(256)) * 16):
            damaged = tmp_path / "damaged.db"
            damaged.write_bytes(right[:place] + damage[:PAGE] + right[place + PAGE :])
            other = Store.sqlite(damaged)
            try:
                assert verified(log_of_today(other)) == 80
            except CorruptData as error:
                said.append(str(error))
            other.close()
    assert len(said) > len(right) // PAGE
    assert any("malformed" in one and "entry 1" in one for one in said)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ("entries SET body = 5 WHERE seq = 2", "entry 2"),
        ("entries SET body = 'text' WHERE seq = 2", "entry 2"),
        ("entries SET at = 'noon' WHERE seq = 2", "entry 2"),
        ("entries SET leaf = 5.5 WHERE seq = 2", "entry 2"),
        ("entries SET nth = 'x' WHERE seq = 2", "entry 2"),
        ("head SET frontier = 'x'", "the head"),
        ("ledger SET signer = x'ff'", "the ledger's origin"),
        ("records SET key = 7 WHERE seq = 2", "the view of records|the record"),
    ],
)
def test_field_of_the_wrong_type_is_reported_as_damage(log: Log, tmp_path: Path, wrong: str, what: str) -> None:
    log.append([change("a", url("x")), change("b", url("y")), change("c")])
    plain = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    plain.execute(f"UPDATE {wrong}")
    plain.close()
    with pytest.raises(CorruptData, match=what):
        verified(log)


@pytest.mark.parametrize("name", ["a%20b", "what?", "a#b", "x?mode=ro", "ü &=+", "%", "file:x"])
def test_every_spelling_of_a_directory_opens_it(back_end: str, tmp_path: Path, name: str) -> None:
    assert back_end == "sqlite"
    folder = tmp_path / name
    folder.mkdir()
    store = Store.sqlite(folder / "ledger.db")
    store.upgrade()
    log = log_of_today(store)
    log.create(SIGNER)
    assert appended(log.append([change("a")])[0]).seq == 1
    assert verified(log) == 1
    store.close()
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.db*")] == [Path(name) / "ledger.db"]


def test_file_that_cannot_be_opened_is_reported(log: Log, store: Store, tmp_path: Path) -> None:
    log.append([change("a")])
    store.close()
    (tmp_path / "ledger.db").unlink()
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(StoreUnavailable, match="cannot open"):
        look(log).entry(1)
    with pytest.raises(StoreUnavailable, match="cannot open"), store.reading():
        pass
    with pytest.raises(StoreUnavailable, match="cannot open"):
        log.append([change("b")])


def fail_query(store: Store, method: str, words: str) -> None:
    """Make a query fail with a message of SQLite."""
    with getattr(store, method)():
        raise sqlite3.OperationalError(words)


@pytest.mark.parametrize("method", ["reading", "reading_cursor", "writing", "writing_cursor"])
def test_disk_error_is_reported_as_full_only_if_it_is(
    store: Store, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreUnavailable, match=r"I/O error on the disk"):
        fail_query(store, method, "disk I/O error")
    with pytest.raises(StorageFull, match=r"^the disk of \S+ is full$"):
        fail_query(store, method, "database or disk is full")
    with pytest.raises(CorruptData, match="verify"):
        fail_query(store, method, "database disk image is malformed")
    monkeypatch.setattr(stores, "has_free_space", lambda _: False)
    with pytest.raises(StorageFull, match=r"^the disk of \S+ is full$"):
        fail_query(store, method, "disk I/O error")


@pytest.mark.parametrize(("error", "room"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EACCES, True)])
def test_free_space_is_probed(
    store: Store, tmp_path: Path, error: int, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()

    def fail(**_: object) -> None:
        raise OSError(error, os.strerror(error))

    assert has_free_space(str(tmp_path / "ledger.db"))
    assert list(tmp_path.glob("tmp*")) == []
    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    assert has_free_space(str(tmp_path / "ledger.db")) == room


def test_erased_data_is_not_in_memory(log: Log) -> None:
    log.append([change("a", secret(b"the-old-secret"))])
    assert look(log).entry(1).record() == (secret(b"the-old-secret"),)
    log.append([change("a")])
    assert tables._cached_entry.cache_info().currsize == 0


def _flipped(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes((raw[place] ^ 1,)) + raw[place + 1 :]


def test_full_disk_refuses_writes_and_writing_resumes(log: Log, store: Store) -> None:
    log.append([change("a", url("x"))])
    with store.reading_cursor() as cursor:
        pages = cursor.execute("PRAGMA page_count").fetchone()[0]
    large = url("x" * 500_000)

    def limit(pages: int) -> None:
        # The limit belongs to a connection, and one connection writes.
        with store.writing_cursor() as cursor:
            cursor.execute(f"PRAGMA max_page_count = {pages}")

    limit(pages + 10)
    with pytest.raises(StorageFull):
        log.append([change("b", large)])
    assert look(log).entry(1).record() == (url("x"),)
    assert verified(log) == 1
    limit(1_000_000)
    assert appended(log.append([change("b", large)])[0]).seq == 2
    assert verified(log) == 2
