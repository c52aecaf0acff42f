"""A ledger with its views: acknowledged writes are visible at once, whatever happens to the view."""

import os
import resource
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from perseid.ledger import ledger as ledgers
from perseid.ledger.errors import StorageFull, TooBusy
from perseid.ledger.ledger import Ledger, UnopenedLedger
from perseid.ledger.log import signing
from perseid.ledger.log.entry import Action, State
from perseid.ledger.log.log import build_redaction
from perseid.ledger.log.record_keys import homed_name, policy_name
from perseid.ledger.log.requests import Append
from perseid.ledger.log.signing import WrongKey, rotate_key
from perseid.ledger.merkle import Signer
from perseid.ledger.store import store as stores
from perseid.ledger.store.sqlite import READERS
from perseid.ledger.store.store import Store
from perseid.ledger.views.answers import Answers
from perseid.proof.verifier import InvalidProof, open_checkpoint
from perseid.records.record import Value
from tests.ledger.ledgers import (
    SIGNER,
    appended,
    change,
    key,
    log_of_today,
    open_store,
    secret,
    until,
    url,
    verified,
)

DEADLINE = 30.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance runs, retries and signs every tenth of a second, not every second."""
    monkeypatch.setattr(ledgers, "RETRY_DELAY", 0.1)
    monkeypatch.setattr(signing, "INTERVAL", signing.INTERVAL // 10)


@pytest.fixture
def opened(store: Store, tmp_path: Path) -> Iterator[Ledger]:
    log = log_of_today(store)
    log.create(SIGNER)
    with Ledger(log, Answers(tmp_path / "answers")) as ledger:
        yield ledger


def second_node(where: str, folder: Path, **options: object) -> Ledger:
    return Ledger(log_of_today(open_store(where)), Answers(folder, **options))  # type: ignore[arg-type]


def found(ledger: Ledger, name: str) -> list[bytes] | None:
    """The data of a handle's public values; None if it does not exist."""
    item = ledger.find(f"10.1/{name}".encode())
    return None if item is None else [Value.from_bytes(value, 0).data for value in item.values]


def signed_size(ledger: Ledger, signer: Signer) -> int:
    """The number of entries under the latest checkpoint, if that key signed it."""
    with ledger.open_reader() as reader:
        note = reader.checkpoint()
    try:
        return open_checkpoint(note or "", signer.public).size
    except InvalidProof:
        return 0


def test_acknowledged_writes_are_visible_at_once(opened: Ledger) -> None:
    for number in range(50):
        name = str(number % 7)
        assert appended(opened.append(change(name, url(f"x{number}"), secret(b"s")))[0]).seq == number + 1
        assert found(opened, name) == [f"x{number}".encode()]
    opened.append(change("0", action=Action.DELETE, state=State.ABSENT))
    assert found(opened, "0") is None
    until(lambda: opened.ready)
    assert opened.answers.differences(opened.log.open_reader) is None


def test_one_node_sees_what_another_appends(opened: Ledger, where: str, tmp_path: Path) -> None:
    with second_node(where, tmp_path / "other") as other:
        opened.append(change("a", url("1")))
        until(lambda: found(other, "a") == [b"1"])
        other.append(change("a", url("2")), change("b", url("3")))
        assert found(other, "a") == [b"2"]
        until(lambda: found(opened, "b") == [b"3"])
    assert verified(opened.log) == 3


def test_a_view_in_one_folder_serves_several_processes(opened: Ledger, where: str, tmp_path: Path) -> None:
    appender = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from tests.ledger.ledgers import appended, change, log_of_today, open_store, url
        from perseid.ledger.views.answers import Answers
        from perseid.ledger.ledger import Ledger

        with Ledger(log_of_today(open_store(sys.argv[1])), Answers(Path(sys.argv[2]))) as ledger:
            for number in range(40):
                appended(ledger.append(change(f"{sys.argv[3]}-{number}", url(str(number))))[0])
                assert ledger.find(f"10.1/{sys.argv[3]}-{number}".encode()) is not None
        """
    )
    arguments = [sys.executable, "-c", appender, where, str(tmp_path / "answers")]
    others = [subprocess.Popen([*arguments, identity], cwd=ROOT) for identity in "xy"]
    for number in range(40):
        opened.append(change(f"z-{number}", url(str(number))))
        assert found(opened, f"z-{number}") == [str(number).encode()]
    assert [other.wait(DEADLINE) for other in others] == [0, 0]
    until(lambda: opened.answers.applied == 120)
    assert opened.answers.differences(opened.log.open_reader) is None
    assert verified(opened.log) == 120


def test_prefixes_and_names_are_the_same_from_records_as_from_answers(opened: Ledger) -> None:
    policy = Value.text(1, "PERSEID_POLICY", 'case = "sensitive"\nscheme = "free"\n')
    opened.append(
        change("a", url("1"), secret(b"x")),
        change("b", state=State.RESERVED),
        change("c", action=Action.DELETE, state=State.ABSENT),
        *(
            Append(change("x", *values, state=State.NORMAL, handle=name).draft)
            for name, values in (
                (homed_name("0.NA/10.1"), ()),
                (policy_name("10.1"), (policy,)),
                ("0.NA/10.1", (Value.text(1, "HS_SERV.PREFIX", "0.NA/10"),)),
            )
        ),
        Append(change("Exact", url("1"), exact=True).draft),
        Append(change("EXACT", url("2"), exact=True).draft),
    )
    names = [b"10.1/a", b"10.1/A", b"10.1/b", b"10.1/c", b"10.1/Exact", b"10.1/EXACT", b"10.1/exact", b"0.NA/10.1"]
    names += [b"0.SITE/POLICY/10.1", b"", b"\xff", b"nothing"]
    prefixes = [b"10.1", b"10.2", b"0.NA", b"\xff"]
    answers = [opened.find(name) for name in names], [opened.prefix(prefix) for prefix in prefixes]
    records = [opened._find_in_records(name) for name in names], [opened._prefix_in_records(p) for p in prefixes]
    assert answers == records
    assert answers[1][0] is not None
    assert (answers[1][0].homed, answers[1][0].sensitive, len(answers[1][0].referrals)) == (True, True, 1)
    assert [item and item.spelling for item in answers[0][:2]] == [b"10.1/a", b"10.1/a"]


def test_full_view_keeps_writes_durable_and_resolution_correct(opened: Ledger, where: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    with second_node(where, small, map_size=200_000) as node:
        for number in range(60):
            assert appended(node.append(change(str(number), url("x" * 5_000), url(str(number), 2)))[0]).seq
            data = found(node, str(number))
            assert data is not None
            assert data[1] == str(number).encode()
        assert not node.answers.ready
    # With free space the same folder is repaired.
    with second_node(where, small) as node:
        until(lambda: node.answers.ready)
        assert found(node, "59") is not None
        assert node.answers.differences(node.log.open_reader) is None
    assert verified(opened.log) == 60


def test_a_redacted_public_value_is_in_no_file_of_the_views(opened: Ledger, tmp_path: Path) -> None:
    opened.append(change("a", url("https://example.org/planted-6631")), change("b", url("https://example.org/kept-1")))
    opened.append(change("a", url("https://example.org/other")))

    def files() -> bytes:
        return b"".join(path.read_bytes() for path in (tmp_path / "answers").rglob("*") if path.is_file())

    with opened.open_reader() as reader:
        request = build_redaction(reader, key("a"), 1, 1, ("cli", "local:alice"), "a reason")
    assert appended(opened.append(request)[0]).seq == 4
    assert opened.wait_until_erased(DEADLINE)
    assert b"planted-6631" not in files()
    assert b"kept-1" in files()
    assert found(opened, "a") == [b"https://example.org/other"]
    if opened.log.store.dialect == "sqlite":
        everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert b"planted-6631" not in everything


def test_unfinished_redaction_is_finished_at_the_next_start(store: Store, where: str, tmp_path: Path) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    answers = Answers(tmp_path / "answers")
    answers.catch_up(log.open_reader)
    assert answers.apply(log.commit([change("a", url("https://example.org/planted-2207")), change("b")]).changes)
    assert answers.apply(log.commit([change("a")]).changes)
    with log.open_reader() as reader:
        request = build_redaction(reader, key("a"), 1, 1, ("cli", "local:alice"), "a reason")
    assert answers.apply(log.commit([request]).changes)
    answers.close()  # as if the process had died here with an intact view
    with second_node(where, tmp_path / "answers") as ledger:
        assert ledger.wait_until_erased(DEADLINE)
        files = [path.read_bytes() for path in (tmp_path / "answers").rglob("*") if path.is_file()]
        assert b"planted-2207" not in b"".join(files)


def test_erased_means_that_the_old_view_is_removed(
    opened: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.append(change("a", url("https://example.org/planted-4410")), change("b"))
    opened.append(change("a"))
    until(lambda: opened.answers.ready)
    remove, removes, may_remove = shutil.rmtree, threading.Event(), threading.Event()

    def remove_later(path: Path, *, ignore_errors: bool) -> None:
        removes.set()
        may_remove.wait(DEADLINE)
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", remove_later)
    with opened.open_reader() as reader:
        opened.append(build_redaction(reader, key("a"), 1, 1, ("cli", "local:alice"), "a reason"))
    assert removes.wait(DEADLINE)
    assert not opened.wait_until_erased(2 * ledgers.RETRY_DELAY)
    may_remove.set()
    assert opened.wait_until_erased(DEADLINE)
    files = [path.read_bytes() for path in (tmp_path / "answers").rglob("*") if path.is_file()]
    assert b"planted-4410" not in b"".join(files)


def test_view_left_over_by_a_killed_rebuild_is_removed(opened: Ledger, where: str, tmp_path: Path) -> None:
    opened.append(change("a"))
    with second_node(where, tmp_path / "second") as node:
        until(lambda: node.answers.ready)
    left = tmp_path / "second" / "4711"
    left.mkdir()
    (left / "data.mdb").write_bytes(b"planted-9034")
    with second_node(where, tmp_path / "second") as node:
        assert node.wait_until_erased(DEADLINE)
        assert not left.exists()
        assert found(node, "a") == []


def test_checkpoints_are_signed_while_there_are_changes(store: Store, tmp_path: Path) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    with Ledger(log, Answers(tmp_path / "answers"), SIGNER) as ledger:
        ledger.append(change("a"))
        until(lambda: signed_size(ledger, SIGNER) == 1)
        ledger.append(change("b"))
        until(lambda: signed_size(ledger, SIGNER) == 2)


def test_a_view_that_fails_in_any_way_does_not_fail_a_write(opened: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no view today")

    with monkeypatch.context() as broken:
        broken.setattr(opened.answers, "apply", fail)
        assert appended(opened.append(change("a", url("1")))[0]).seq == 1
        assert found(opened, "a") == [b"1"]
    until(lambda: opened.ready)
    assert found(opened, "a") == [b"1"]


@pytest.mark.parametrize("back_end", ["postgresql"], indirect=True)
def test_maintenance_survives_a_lost_connection(opened: Ledger, where: str, tmp_path: Path) -> None:
    with second_node(where, tmp_path / "other") as other:
        other.append(change("a", url("1")))
        until(lambda: found(opened, "a") == [b"1"])
        with other.log.store.connect() as connection:
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            connection.execute(text(end))
        other.append(change("a", url("2")))
        until(lambda: found(opened, "a") == [b"2"])
        until(lambda: opened.ready)


def test_many_readers_do_not_block_writers(opened: Ledger) -> None:
    with ExitStack() as readings:
        for _ in range(READERS - 4):
            assert readings.enter_context(opened.open_reader()).size == 0
        assert appended(opened.append(change("a", url("1")))[0]).seq == 1


def test_too_many_readers_are_refused(opened: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened.log.store
    if store._driver is None:
        monkeypatch.setattr(store.engine.pool, "_timeout", 0.1)
    else:
        monkeypatch.setattr(store._driver, "wait_seconds", 0.1)
    with ExitStack() as readings:

        def read() -> None:
            for _ in range(READERS + 1):
                readings.enter_context(opened.open_reader())

        with pytest.raises(TooBusy, match=r"^too many concurrent readers; retry later$"):
            read()


def test_a_running_ledger_signs_with_the_next_key_after_a_rotation(store: Store, tmp_path: Path) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    successor = Signer.generate(SIGNER.name, bytes(range(9, 41)))
    with Ledger(log, Answers(tmp_path / "answers"), SIGNER) as ledger:
        ledger.append(change("a"))
        ledger.rotate_key(successor, "cli", "local:alice")
        ledger.append(change("b"))
        until(lambda: signed_size(ledger, successor) == 3)
    assert verified(log_of_today(store)) == 3
    without = Ledger(log_of_today(store), Answers(tmp_path / "answers"))
    with pytest.raises(WrongKey):
        without.rotate_key(SIGNER, "cli", "local:alice")
    without.close()


def test_damaged_answers_view_is_not_used_and_is_rebuilt(opened: Ledger) -> None:
    opened.append(change("a", url("1")), Append(change("x", handle=homed_name("0.NA/10.9")).draft))
    until(lambda: opened.ready)
    generation = opened.answers._current()
    with generation.begin(write=True) as txn:
        txn.put(b"10.1/A", b"\x81\xff\xff", db=generation.handles)
        txn.put(b"10.9", b"\xff", db=generation.prefixes)
    assert found(opened, "a") == [b"1"]
    prefix = opened.prefix(b"10.9")
    assert prefix is not None
    assert prefix.homed
    until(lambda: opened.ready)
    assert opened.answers.find(b"10.1/a") == opened._find_in_records(b"10.1/a")


FULL_DISK = textwrap.dedent(
    """
    import resource, signal, sys
    from pathlib import Path
    from perseid.ledger.views.answers import Answers
    from perseid.ledger.errors import StorageFull
    from perseid.ledger.ledger import Ledger
    from tests.ledger.ledgers import appended, change, log_of_today, open_store, until, url, verified

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    with Ledger(log_of_today(open_store(str(folder / "ledger.db"))), Answers(folder / "answers")) as ledger:
        ledger.append(change("first", url("1")))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
        refused = None
        written = 0
        while refused is None and written < 2_000:
            try:
                ledger.append(change(f"n{written}", url("x" * 3_000)))
            except StorageFull as error:
                refused = error
            else:
                written += 1
        assert str(refused).endswith("ledger.db is full"), refused
        for number in range(3):
            try:
                ledger.append(change(f"n{written}", url("x" * 3_000)))
            except StorageFull as error:
                assert isinstance(ledger.write_problem, StorageFull)
            else:
                written += 1  # there was space again
        for number in range(written):
            assert ledger.find(f"10.1/n{number}".encode()) is not None
        assert ledger.find(b"10.1/first") is not None
        assert ledger.find(f"10.1/n{written}".encode()) is None
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        until(lambda: ledger.write_problem is None)
        assert appended(ledger.append(change("after", url("2")))[0]).seq == written + 2
        ledger.answers.catch_up(ledger.log.open_reader)
        assert ledger.answers.ready
        assert ledger.answers.differences(ledger.log.open_reader) is None
        assert verified(ledger.log) == written + 2
        print(written)
    """
)


@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
def test_full_disk_refuses_writes_with_the_reason_and_writing_resumes(store: Store, tmp_path: Path) -> None:
    log_of_today(store).create(SIGNER)
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
    logged = done.stderr.splitlines()
    assert len(logged) <= 1, logged
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2_000_000
    assert os.getpid() > 0


@pytest.mark.parametrize("back_end", ["sqlite"], indirect=True)
def test_unopened_ledger_finds_handles_and_refuses_everything_else(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    with Ledger(log, Answers(tmp_path / "answers")) as ledger:
        ledger.append(change("a", url("1")))
        assert ledger.answers.catch_up(ledger.open_reader)
    with UnopenedLedger(log_of_today(store), Answers(tmp_path / "new"), StorageFull("the disk is full")) as ledger:
        assert not ledger.ready
    unopened = UnopenedLedger(log_of_today(store), Answers(tmp_path / "answers"), StorageFull("the disk is full"))
    with unopened as ledger:
        assert ledger.ready
        assert ledger.find(b"10.1/a") is not None
        for attempt in (lambda: ledger.append(change("b")), lambda: ledger.load([])):
            with pytest.raises(StorageFull, match=r"^the disk is full\. The ledger cannot be opened"):
                attempt()
        assert not ledger.checkpoint()
        assert isinstance(ledger.write_problem, StorageFull)
        with monkeypatch.context() as patch:
            patch.setattr(stores, "has_free_space", lambda _: False)
            assert not unopened.can_open()
        assert unopened.can_open()


def test_a_ledger_is_closed_while_its_view_is_built(store: Store, where: str, tmp_path: Path) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    log.append([change(str(number), url("x")) for number in range(3_000)])
    second_node(where, tmp_path / "answers").close()
    with second_node(where, tmp_path / "answers") as ledger:
        assert found(ledger, "2999") == [b"x"], "from the records, or from the view, whichever is there"
        until(lambda: ledger.answers.ready)
        assert found(ledger, "2999") == [b"x"]


def test_readers_are_never_wrong_while_prefixes_come_and_go(opened: Ledger) -> None:
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            item = opened.prefix(b"10.9")
            if item is not None and not item.homed:
                wrong.append(item)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(40):
        state = State.ABSENT if number % 2 else State.NORMAL
        action = Action.UNHOME if number % 2 else Action.HOME
        opened.append(Append(change("x", action=action, state=state, handle=homed_name("0.NA/10.9")).draft))
        assert (opened.prefix(b"10.9") is not None) == (state is State.NORMAL)
    stop.set()
    reader.join()
    assert wrong == []


def test_key_rotated_by_another_process_is_reloaded(store: Store, where: str, tmp_path: Path) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    successor = Signer.generate(SIGNER.name, bytes(range(9, 41)))
    with (
        Ledger(log, Answers(tmp_path / "answers"), SIGNER, lambda: successor) as ledger,
        second_node(where, tmp_path / "other") as other,
    ):
        rotate_key(other.log, SIGNER, successor, "cli", "local:alice")
        ledger.append(change("a"))
        until(lambda: signed_size(ledger, successor) == 2)
