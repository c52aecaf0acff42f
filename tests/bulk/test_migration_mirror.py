"""Migration as a mirror: dump and transactions of a server that replicates, and the recorded exchanges."""

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseid.bulk.migration import source as source_module
from perseid.bulk.migration.copying import CopyResult
from perseid.cli.migrate import _follow
from perseid.client import replication
from perseid.client.errors import ProtocolError, Unreachable
from perseid.client.replication import ReplicationClient
from perseid.records.record import Permission, Value
from perseid.records.site import Site as SiteInformation
from perseid.wire.codes import OpCode
from perseid.wire.message import MESSAGE_LIFETIME
from perseid.wire.replication import (
    TLS_MARK,
    StreamEnd,
    StreamStatus,
    StreamWriter,
    Transaction,
    TransactionAction,
    TransactionHead,
    write_transactions,
)
from tests.bulk.replication_server import IDENTITY, ReplicationServer, tls_context
from tests.cli.installation import Site, refused, site
from tests.vector_files import load
from tests.wire.key_material import RSA_KEY, SERVER_KEY
from tests.wire.recorded import key_file

PREFIX = "20.500.12345"
SECRET_VALUE = Value(7, "NOTE", b"nobody can read this", permissions=Permission(0), timestamp=1_500_000_000)
URL = Value(1, "URL", b"https://example.org/1", timestamp=1_500_000_001)


@pytest.fixture
def source() -> Iterator[ReplicationServer]:
    server = ReplicationServer()
    server.home(f"0.NA/{PREFIX}")
    for number in range(30):
        server.put(f"{PREFIX}/{number:02}", URL, SECRET_VALUE)
    server.put(f"{PREFIX}/ODD \x1b[31m\u202e ", URL)
    with server.running():
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Site:
    return site(tmp_path)


def mirror(source: ReplicationServer, target: Site) -> str:
    key = target.directory.parent / "replpriv.bin"
    if not key.exists():
        key.touch(0o600)
        key.write_bytes(key_file("rsapriv.bin"))
    return f"127.0.0.1:{source.port} --mirror --as {IDENTITY} --key-file {key} --json"


def test_a_mirror_copies_everything_and_then_only_the_transactions(source: ReplicationServer, target: Site) -> None:
    options = mirror(source, target)
    source.breaks_after = 7
    first = target.ok(f"migrate {options}").json
    assert (first["created"], first["prefixes"]) == (31, [f"0.NA/{PREFIX}"])
    assert source.requests.count(OpCode.DUMP_HANDLES) == 4  # each is challenged first; the second continues the dump
    assert target.ok(f"migrate compare {options}").json["records"] == 31
    source.put(f"{PREFIX}/00", URL.with_timestamp(1_600_000_000))
    source.put(f"{PREFIX}/new", URL)
    source.put(f"{PREFIX}/new", SECRET_VALUE)
    source.delete(f"{PREFIX}/01")
    source.home("0.NA/20.500.99999")
    dumps = source.requests.count(OpCode.DUMP_HANDLES)
    second = target.ok(f"migrate {options}").json
    counts = (second["created"], second["updated"], second["deleted"], second["unchanged"])
    assert counts == (1, 1, 1, 1)  # a transaction has the record of today
    assert second["prefixes"] == ["0.NA/20.500.99999"]
    assert source.requests.count(OpCode.DUMP_HANDLES) == dumps
    assert target.ok(f"migrate compare {options}").json["records"] == 31
    assert target.ok(f"migrate {options}").json["unchanged"] == 0
    # The server forgets its transactions: everything is read again.
    source.first_kept = 100
    source.delete(f"{PREFIX}/02")
    third = target.ok(f"migrate {options}").json
    assert (third["deleted"], third["unchanged"]) == (1, 30)
    assert target.ok(f"migrate {options} --full").json["unchanged"] == 30


def test_a_mirror_reads_everything_that_it_has_not_copied(source: ReplicationServer, target: Site) -> None:
    options, other = mirror(source, target), "20.500.99999"
    source.home(f"0.NA/{other}")
    source.put(f"{other}/x", URL)
    assert target.ok(f"migrate {options} --prefix {other}").json["created"] == 1
    assert target.ok(f"migrate {options} --prefix {PREFIX}").json["created"] == 31
    target.ok(f"set {other}/x URL=https://example.org/changed")
    again = target(f"migrate {options}")
    assert (again.code, '"unchanged":31,"conflicts":1' in again.out) == (4, True), "everything was read"
    dumps = source.requests.count(OpCode.DUMP_HANDLES)
    source.home("0.NA/20.500.77777")
    source.unhome(f"0.NA/{PREFIX}")
    summary = target.ok(f"migrate {options} --prefix {other.upper()}").json
    assert (summary["unchanged"], summary["prefixes"]) == (0, []), "only what concerns the prefix is applied"
    assert source.requests.count(OpCode.DUMP_HANDLES) == dumps, "only transactions are read"
    assert target.ok(f"migrate {options} --overwrite").json["updated"] == 1


def test_a_dump_without_end_fills_neither_memory_nor_disk(
    source: ReplicationServer, target: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = mirror(source, target).removesuffix("--json")
    source.endless = "prefixes"
    monkeypatch.setattr(source_module, "MAX_PREFIXES", 500)
    refused(target(f"migrate {options}"), "hosts more than 500 prefixes", code=1)
    source.endless = "records"
    free = os.statvfs(target.directory)
    monkeypatch.setattr(source_module, "_CHECK_BYTES", 10_000)
    monkeypatch.setattr(source_module, "MIN_FREE_BYTES", free.f_blocks * free.f_frsize + 1)
    refused(target(f"migrate {options}"), "does not fit on the disk", "stay free for the ledger", code=1)
    assert [path.name for path in target.directory.iterdir() if "tmp" in path.name] == []


def test_large_transactions_are_read_in_several_batches(
    source: ReplicationServer, target: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = mirror(source, target)
    target.ok(f"migrate {options}")
    for number in range(5):
        source.put(f"{PREFIX}/large-{number}", URL)
    source.requests.clear()
    monkeypatch.setattr(replication, "MAX_BATCH_BYTES", 100)
    assert target.ok(f"migrate {options}").json["created"] == 5
    assert source.requests.count(OpCode.RETRIEVE_TXN_LOG) > 2 * 2  # each is challenged first


def test_signed_streams_of_old_servers_are_read(source: ReplicationServer, target: Site) -> None:
    source.signed = True
    assert target.ok(f"migrate {mirror(source, target)}").json["created"] == 31


def test_a_stream_from_another_key_and_a_wrong_identity_are_refused(source: ReplicationServer, target: Site) -> None:
    source.tls_key = "other"
    refused(target(f"migrate {mirror(source, target)}".removesuffix("--json")), "another key", code=1)
    source.tls_key = "server"
    other = target.directory.parent / "other.bin"
    other.touch(0o600)
    other.write_bytes(key_file("privkey.bin"))
    options = f"migrate 127.0.0.1:{source.port} --mirror --as {IDENTITY} --key-file {other}"
    refused(target(options), "refused a request", code=1)
    refused(target(f"migrate 127.0.0.1:{source.port} --mirror"), "--secret-file", code=1)


def test_the_recorded_exchange_is_replayed_byte_by_byte() -> None:
    """The client sends exactly what the deployed one sent, and reads the stream after the recorded response."""
    first, second = load("replication.json")
    transaction = Transaction(3, b"20.500.99999/X", TransactionAction.UPDATE, 5, (URL.to_bytes(),))
    seen: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for vector in (first, second):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(30)
                expected = bytes.fromhex(vector["request_hex"])
                received = b""
                while len(received) < len(expected) and (data := connection.recv(len(expected) - len(received))):
                    received += data
                seen.append(received)
                if received != expected:
                    return
                connection.sendall(bytes.fromhex(vector["response_hex"]))
                if vector is second:
                    connection.sendall(TLS_MARK.to_bytes(4, "big"))
                    with tls_context().wrap_socket(connection, server_side=True) as secure:
                        head = TransactionHead(1, StreamStatus.TRANSACTIONS)
                        write_transactions(StreamWriter(secure.sendall), head, (transaction, StreamEnd(9)))

    ids = deque((int(vector["request_hex"][16:24], 16) - 1).to_bytes(4, "big") for vector in (first, second))
    now = int(first["request_hex"][72:80], 16) - MESSAGE_LIFETIME
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        client = ReplicationClient(
            *("127.0.0.1", listener.getsockname()[1], IDENTITY, RSA_KEY, SERVER_KEY.public),
            clock=lambda: now,
            random=lambda _: ids.popleft(),
            _site=SiteInformation.from_bytes(key_file("siteinfo.bin")),
        )
        batch = client.transactions(0, 0)
        thread.join(30)
    assert seen == [bytes.fromhex(vector["request_hex"]) for vector in (first, second)]
    assert (batch.transactions, batch.last_id, batch.last_date) == ((transaction,), 3, 9)


def test_an_unprotected_stream_is_refused(source: ReplicationServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bulk.replication_server.TLS_MARK", 0xFFFF_FFFF)
    client = ReplicationClient("127.0.0.1", source.port, IDENTITY, RSA_KEY)
    with pytest.raises(ProtocolError, match="not protected"):
        client.transactions(0, 0)


def test_following_continues_after_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    passes = 0

    def copy_once() -> CopyResult:
        nonlocal passes
        passes += 1
        if passes == 2:
            raise Unreachable("Cannot connect")
        if passes == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return CopyResult(job=f"job {passes}")

    assert _follow(copy_once, 0, "hdl://old", json=True).job == "job 3"
    assert "Cannot connect. Retrying" in capsys.readouterr().err


def test_a_second_signal_interrupts_a_pass_that_follows() -> None:
    def copy_once() -> CopyResult:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        raise AssertionError("the pass continues")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            _follow(copy_once, 0, "hdl://old", json=True)
    finally:
        signal.signal(signal.SIGINT, before)
