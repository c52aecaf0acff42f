"""The ledger in SQLite: what is in its files, what is no longer there, tampering, and a full disk."""

import sqlite3
from pathlib import Path

import pytest

from perseid.ledger.errors import Damaged, StorageFull
from perseid.ledger.log import Log
from perseid.ledger.store import Store
from tests.ledger.ledgers import appended, change, look, secret, url, verified

pytestmark = pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)


def octets_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_a_replaced_secret_key_is_in_no_file_any_more_and_the_tree_still_holds(log: Log, tmp_path: Path) -> None:
    old, new = secret(b"the-old-secret-5581"), secret(b"the-new-secret-7193")
    log.append([change("a", url("x"), old), change("b", secret(b"another-secret-2270"))])
    log.append([change("a", url("y"), old)])
    root = look(log).root(3)
    assert old.data in octets_on_disk(tmp_path)
    salt = look(log).entry(1).values[1].salt
    log.append([change("a", url("y"), new)])
    on_disk = octets_on_disk(tmp_path)
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
    assert old.data in octets_on_disk(tmp_path), "the reader still sees it"
    reader.execute("COMMIT")
    reader.close()
    log.forget()
    assert old.data not in octets_on_disk(tmp_path)


def test_a_secret_replaced_twice_in_one_commit_leaves_nothing_either(log: Log, tmp_path: Path) -> None:
    log.append([change("a", secret(b"first-4410")), change("a", secret(b"second-4411")), change("a")])
    assert b"first-4410" not in octets_on_disk(tmp_path)
    assert b"second-4411" not in octets_on_disk(tmp_path)
    assert verified(log) == 3


@pytest.mark.parametrize("column", ["at", "leaf", "body"])
def test_a_change_of_any_octet_of_an_entry_is_told_with_its_number(
    log: Log, store: Store, tmp_path: Path, column: str
) -> None:
    log.append([change("a", url("x"), secret(b"s")), change("b", url("y")), change("c")])
    store.close()
    plain = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    (right,) = plain.execute(f"SELECT {column} FROM entries WHERE seq = 2").fetchone()
    wrongs = [right + 1, right - 1] if column == "at" else [_flipped(right, place) for place in range(len(right))]
    for wrong in wrongs:
        plain.execute(f"UPDATE entries SET {column} = ? WHERE seq = 2", (wrong,))
        with pytest.raises(Damaged, match=r"entry [23]\b"):
            verified(log)
    plain.execute(f"UPDATE entries SET {column} = ? WHERE seq = 2", (right,))
    assert verified(log) == 3
    plain.close()


def _flipped(octets: bytes, place: int) -> bytes:
    return octets[:place] + bytes((octets[place] ^ 1,)) + octets[place + 1 :]


def test_a_full_disk_refuses_writing_reading_goes_on_and_writing_resumes(log: Log, store: Store) -> None:
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
