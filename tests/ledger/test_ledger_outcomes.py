"""Commits with an unknown outcome, and writers that hang while they hold the head, on PostgreSQL."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from perseid.ledger.backup import bulk_load
from perseid.ledger.backup.bulk_load import BulkLoad
from perseid.ledger.errors import Contention, OutcomeUnknown, ReadOnlyMode, StoreUnavailable, TooBusy
from perseid.ledger.log.entry import Draft
from perseid.ledger.log.log import Log
from perseid.ledger.store import store as stores
from perseid.ledger.store.store import BUSY_SECONDS, IDLE_SECONDS, Store
from tests.ledger.ledgers import SIGNER, appended, change, key, log_of_today, look, open_store, url, verified

pytestmark = pytest.mark.parametrize("back_end", ["postgresql"], indirect=True)

DEADLINE = 60.0
ROOT = Path(__file__).resolve().parents[2]


class Wire:
    """A connection to the database that breaks at the next COMMIT: before it arrives, or before its response does."""

    def __init__(self, where: str, folder: Path) -> None:
        address = make_url(where)
        self._server = f"{address.query['host']}/.s.PGSQL.{address.query.get('port', 5432)}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self.where = address.set(query={"host": str(folder)}).render_as_string(hide_password=False)
        self.breaks: str | None = None
        self.broken = 0
        self.gone_then = False  # whether new connections fail after the break
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        if self._listener.fileno() < 0:
            return
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE)
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._sockets += [client, server]
            deaf = threading.Event()  # set when responses of the database must be lost
            for work in (self._to_server, self._to_client):
                self._threads.append(threading.Thread(target=work, args=(client, server, deaf)))
                self._threads[-1].start()

    def _to_server(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while raw := client.recv(65536):
                how = None
                if self.breaks and b"COMMIT\0" in raw:
                    how, self.breaks = self.breaks, None
                    self.broken += 1
                    if self.gone_then:
                        self._listener.shutdown(socket.SHUT_RDWR)
                if how == "behind":
                    deaf.set()
                if how != "before":
                    server.sendall(raw)
                if how is not None:
                    if how == "before":
                        server.shutdown(socket.SHUT_RDWR)
                    return
            server.shutdown(socket.SHUT_RDWR)

    def _to_client(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (raw := server.recv(65536)) and not deaf.is_set():
                client.sendall(raw)
        for one in (client, server):  # a server that stopped may reset the connection
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire(where: str) -> Iterator[Wire]:
    folder = Path(f"/tmp/perseid-wire-{os.getpid()}-{time.monotonic_ns()}")  # a socket's path must be short
    folder.mkdir(mode=0o700)
    new_wire = Wire(where, folder)
    yield new_wire
    new_wire.close()
    (folder / ".s.PGSQL.5432").unlink()
    folder.rmdir()


def test_a_ledger_that_stays_locked_is_reported_with_a_possible_cause(log: Log, store: Store) -> None:
    expected = r"\(55P03\); if that continues, PostgreSQL may be waiting for a synchronous standby"
    with store.writing() as waiting:  # as one that waits for a standby
        waiting.execute(text(log.statements.lock_head))
        with pytest.raises(Contention, match=expected), store.writing() as other:
            other.execute(text(f"SET LOCAL lock_timeout = '1ms'; {log.statements.lock_head}"))


@pytest.mark.parametrize("how", ["before", "behind"])
def test_a_lost_commit_is_settled_by_its_token_and_written_once(store: Store, wire: Wire, how: str) -> None:
    log_of_today(store).create(SIGNER)
    log = log_of_today(open_store(wire.where))
    assert appended(log.append([change("a")])[0]).seq == 1
    wire.breaks = how
    outcomes = [appended(outcome) for outcome in log.append([change("b", url("x"), b=0), change("c", c=0)])]
    assert wire.broken == 1
    assert [outcome.seq for outcome in outcomes] == [2, 3]
    assert (look(log).latest(key("b")), look(log).latest(key("c"))) == (2, 3)
    assert appended(log.append([change("d")])[0]).seq == 4
    assert verified(log) == 4
    log.store.close()


@pytest.mark.parametrize(("how", "written"), [("before", 1), ("behind", 2)])
def test_a_lost_commit_is_settled_although_the_ledger_is_read_only_by_then(
    store: Store, wire: Wire, how: str, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = log_of_today(store)
    other.create(SIGNER)
    log = log_of_today(open_store(wire.where))
    log.append([change("a")])
    monkeypatch.setattr("perseid.ledger.log.log.time.sleep", lambda _: other.set_read_only("maintenance"))
    wire.breaks = how
    if written == 1:
        with pytest.raises(ReadOnlyMode, match="for maintenance: maintenance"):
            log.append([change("b")])
    else:
        assert appended(log.append([change("b")])[0]).seq == written
    with pytest.raises(ReadOnlyMode):
        log.append([change("c")])
    assert verified(log) == written
    log.store.close()


@pytest.mark.parametrize(("how", "written"), [("before", 1), ("behind", 2)])
def test_unsettled_commit_is_reported_as_unknown(
    store: Store, wire: Wire, how: str, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_of_today(store).create(SIGNER)
    log = log_of_today(open_store(wire.where))
    log.append([change("a")])
    monkeypatch.setattr("perseid.ledger.log.log._RETRY_DELAYS", (0.01, 0.01))
    wire.breaks, wire.gone_then = how, True
    with pytest.raises(OutcomeUnknown, match="outcome is unknown"):
        log.append([change("b")])
    log.store.close()
    deadline = time.monotonic() + DEADLINE
    while verified(log_of_today(store)) != written:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_unreachable_database_is_reported_soon(store: Store, wire: Wire) -> None:
    log_of_today(store).create(SIGNER)
    log = log_of_today(open_store(wire.where))
    wire.close()
    with pytest.raises(StoreUnavailable, match="Nothing was written"):
        log.append([change("a")])
    log.store.close()


@pytest.fixture
def loader(store: Store, wire: Wire, tmp_path: Path) -> Iterator[BulkLoad]:
    """A load over a wire, into a ledger with one entry."""
    log = log_of_today(store)
    log.create(SIGNER)
    log.append([change("first")])
    far = log_of_today(open_store(wire.where))
    with BulkLoad(far, tmp_path) as load:
        yield load
    far.store.close()


NAMES = [change("a", url("1")).draft, change("b").draft]


def make_unreachable(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Make the database unreachable for a number of attempts to settle a load."""
    ask, left = BulkLoad._has_token, [True] * times
    monkeypatch.setattr("perseid.ledger.log.log._RETRY_DELAYS", (0.0,) * 3)

    def away(load: BulkLoad) -> bool:
        if left:
            left.pop()
            raise OutcomeUnknown("the connection to the database was lost")
        return ask(load)

    monkeypatch.setattr(BulkLoad, "_has_token", away)


@pytest.mark.parametrize("times", [0, 3])
def test_load_lost_after_its_commit_is_found(
    store: Store, wire: Wire, loader: BulkLoad, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unreachable(monkeypatch, times)
    wire.breaks = "behind"
    loaded = loader.append(NAMES, {})
    assert (wire.broken, loaded.first, loaded.count) == (1, 2, 2)
    assert verified(log_of_today(store)) == 3


@pytest.mark.parametrize("times", [0, 3])
def test_load_lost_before_its_commit_is_reported_as_unwritten(
    store: Store, wire: Wire, loader: BulkLoad, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unreachable(monkeypatch, times)
    wire.breaks = "before"
    with pytest.raises(TooBusy, match="Nothing was loaded"):
        loader.append(NAMES, {})
    assert wire.broken == 1
    assert verified(log_of_today(store)) == 1


def test_unsettled_load_is_reported_as_unknown(wire: Wire, loader: BulkLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    make_unreachable(monkeypatch, 4)
    wire.breaks = "behind"
    with pytest.raises(OutcomeUnknown, match="outcome is unknown"):
        loader.append(NAMES, {})


def test_load_lost_midway_is_reported_as_unwritten(store: Store, loader: BulkLoad) -> None:
    def source() -> Iterator[Draft]:
        yield NAMES[0]
        with store.writing() as connection:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        yield NAMES[1]

    with pytest.raises(TooBusy, match="Nothing was loaded"):
        loader.append(source(), {})
    assert verified(log_of_today(store)) == 1


def test_stalled_load_does_not_block_writers(store: Store, loader: BulkLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def source() -> Iterator[Draft]:
        for number in range(bulk_load.CHUNK):
            yield change(f"n{number}").draft
        written.append(appended(log_of_today(store).append([change("other")])[0]).seq)
        yield NAMES[0]

    limits = stores._LONG_TIMEOUTS
    assert f"idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'" in limits
    monkeypatch.setattr(stores, "_LONG_TIMEOUTS", limits.replace(f"'{IDLE_SECONDS}s'", "'1s'"))
    with pytest.raises(TooBusy, match="Nothing was loaded"):
        loader.append(source(), {})
    assert written == [2]
    assert verified(log_of_today(store)) == 2


STOPPER = textwrap.dedent(
    """
    import os, signal, sys
    from tests.ledger.ledgers import appended, change, log_of_today, open_store

    log = log_of_today(open_store(sys.argv[1]))
    stopped = []

    def stop(connection):
        if not stopped:
            stopped.append(True)
            print("holding the head", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    outcome = log.commit([change("stopped")], stop).outcomes[0]
    print(appended(outcome).seq)
    """
)


def test_hung_writer_delays_others_by_seconds_only(store: Store, where: str) -> None:
    log = log_of_today(store)
    log.create(SIGNER)
    stopper = subprocess.Popen([sys.executable, "-c", STOPPER, where], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert stopper.stdout is not None
    assert stopper.stdout.readline() == "holding the head\n"
    started = time.monotonic()
    assert appended(log.append([change("other")])[0]).seq == 1
    delay = time.monotonic() - started
    print(f"delayed by {delay:.1f} s")
    assert delay < 3 * BUSY_SECONDS
    stopper.send_signal(signal.SIGCONT)
    said, _ = stopper.communicate(timeout=DEADLINE)
    assert said == "2\n", "it found its session gone, and appended again"
    assert verified(log) == 2


def test_writer_without_the_head_must_retry(
    store: Store, log: Log, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perseid.ledger.log.log._RETRY_DELAYS", ())
    monkeypatch.setattr("perseid.ledger.store.store._TIMEOUTS", "SET LOCAL lock_timeout = '200ms'")
    other = log_of_today(open_store(where))
    with store.writing() as connection:
        connection.connection.cursor().execute(log.statements.lock_head)
        with pytest.raises(TooBusy, match="Nothing was written"):
            other.append([change("a")])
    other.store.close()
    assert verified(log) == 0
