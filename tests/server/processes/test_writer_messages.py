"""The messages of the writer, its replies and their journal."""

import os
import secrets
import socket
import struct
import time
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from perseid.ledger.errors import LedgerError
from perseid.ledger.ledger import Ledger
from perseid.ledger.log.clock import CheckedClock
from perseid.ledger.log.log import Log
from perseid.ledger.log.requests import Appended
from perseid.ledger.views.answers import Answers
from perseid.registry.codec import decode_outcome, encode_request
from perseid.registry.commands.records import Create, Delete
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.processes import writer
from perseid.server.processes.remote_ledger import FRAME, SOCKET_NAME, FrameReader, frame
from perseid.server.processes.writer import Journal, WriterServer
from tests.ledger.ledgers import change, open_store
from tests.registry.registries import OPERATOR, handle
from tests.server.processes.writers import URL, folder, opened, remote, size_of, writing

__all__ = ["folder"]


class Client:
    """A process that sends and reads single messages."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(folder / "run" / SOCKET_NAME))

    def __del__(self) -> None:
        self.socket.close()

    def exchange(self, server: WriterServer, *frames: bytes) -> list[tuple[bytes, bytes]]:
        """Send messages, let the writer work, and return its replies."""
        self.socket.sendall(b"".join(frames))
        for _ in range(3):
            server.step(0)
        self.socket.setblocking(False)
        reader = FrameReader()
        with suppress(BlockingIOError):
            while data := self.socket.recv(1 << 20):
                reader.feed(data)
        return list(iter(reader.next, None))


def request_id(client: bytes, number: int) -> bytes:
    return client * 8 + number.to_bytes(8, "big")


def test_replies_are_kept_until_they_are_confirmed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later commits of others do not displace them, nor does the replacement of the journal."""
    monkeypatch.setattr(writer, "JOURNAL_BYTES", 200)
    first, second = request_id(b"a", 1), request_id(b"a", 2)
    with opened(folder) as ledger, ExitStack() as stack:

        def restart() -> WriterServer:
            """A new writer after one that was killed."""
            return stack.enter_context(WriterServer(ledger, Registry(ledger, Rules()), folder / "run"))

        server = restart()
        before = size_of(ledger)
        message = encode_request(change("a"))
        ((_, reply),) = Client(folder).exchange(server, frame(first, message, first))
        other = Client(folder)
        for number in range(1, 20):
            latest = request_id(b"b", number)
            other.exchange(server, frame(latest, encode_request(change(f"b{number}")), latest))
        for _ in range(2):
            server = restart()
            assert Client(folder).exchange(server, frame(first, message, first)) == [(first, reply)]
        assert size_of(ledger) == before + 20
        Client(folder).exchange(server, frame(second, message, second))
        assert server._journal.find(first) is None
        assert server._journal.find(second) is not None
        monkeypatch.setattr(writer, "MAX_REPLY_BYTES", 0)
        Client(folder).exchange(server, frame(request_id(b"b", 20), message, request_id(b"b", 20)))
        assert server._journal.find(second) is None, "what was silent for longest is dropped"


@pytest.mark.parametrize("failure", ["short", "error"])
def test_journal_that_cannot_be_written_is_written_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A short write is an error too: later entries are still found."""
    write = os.pwrite

    def fail(file: int, data: bytes, offset: int) -> int:
        if failure == "error":
            raise OSError(28, "No space left on device")
        return write(file, data[:10], offset)

    keys = [request_id(b"a", number) for number in range(1, 4)]
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        client = Client(folder)
        for number, key in enumerate(keys):
            monkeypatch.setattr(os, "pwrite", fail if number == 1 else write)
            client.exchange(server, frame(key, encode_request(change(f"a{number}")), keys[0]))
        assert "cannot write the journal: No space left on device" in caplog.text
        found = Journal(folder / "run" / writer.JOURNAL_NAME, ledger.log)
        assert all(found.find(key) for key in keys)
        found.close()


def test_writer_starts_with_a_wrong_clock(folder: Path) -> None:
    """It still replies to what the earlier one has committed."""
    key, message = request_id(b"a", 1), encode_request(change("a"))
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        replies = Client(folder).exchange(server, frame(key, message, key))
    store = open_store(str(folder / "ledger.db"))
    clock = CheckedClock(lambda: time.time_ns() // 1000 - 86_400_000_000, lambda: time.monotonic_ns() // 1000)
    log = Log(store, clock, secrets.token_bytes)
    with (
        Ledger(log, Answers(folder / "answers")) as ledger,
        WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server,
    ):
        assert Client(folder).exchange(server, frame(key, message, key)) == replies


def test_journal_of_another_release_is_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = b"\x01"
    data = struct.pack(">II", len(content), zlib.crc32(content)) + content
    (folder / "run" / writer.JOURNAL_NAME).write_bytes(data)
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run"):
        assert "the journal of another release is ignored" in caplog.text


def test_too_long_message_closes_its_connection_alone(folder: Path) -> None:
    with writing(folder), remote(folder) as registry:
        registry.do(Create(handle("12345/x"), (URL,)), OPERATOR, "cli")
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(30)
            other.connect(str(folder / "run" / SOCKET_NAME))
            other.sendall(FRAME.pack(1 << 31, bytes(16), b""))
            assert other.recv(1) == b""
        registry.do(Delete(handle("12345/x")), OPERATOR, "cli")


def test_invalid_message_fails_alone(folder: Path) -> None:
    """The other requests of its connection are executed once, and get their replies."""
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        before = size_of(ledger)
        keys = [request_id(b"a", number) for number in range(1, 4)]
        messages = [encode_request(change("a")), b"hello", encode_request(change("b"))]
        replies = dict(
            Client(folder).exchange(server, *[frame(*each, keys[0]) for each in zip(keys, messages, strict=True)])
        )
        assert [type(decode_outcome(replies[key])) for key in (keys[0], keys[2])] == [Appended, Appended]
        with pytest.raises(LedgerError, match=r"cannot read the request: .* Nothing was written"):
            decode_outcome(replies[keys[1]])
        assert size_of(ledger) == before + 2


def test_writer_refuses_other_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as ledger, WriterServer(ledger, Registry(ledger, Rules()), folder / "run") as server:
        assert (folder / "run" / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(writer, "_CREDENTIALS", _Credentials())
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(folder / "run" / SOCKET_NAME))
            server.step(1.0)
            other.settimeout(30)
            assert other.recv(1) == b""


class _Credentials:
    """Says that another user has connected."""

    size = 12

    def unpack(self, _: bytes) -> tuple[int, int, int]:
        return 1, os.geteuid() + 1, 1
