"""A Handle server that replicates, as far as a mirror needs it: site information, dumps and transactions over TLS.

It has the keys and the site information of the recorded exchanges. Tests put records into it and see its requests.
"""

import secrets
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_der_private_key

from perseid.records.record import Value
from perseid.registry.installation.certificates import create_self_signed
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.framing import Frame, FrameReader
from perseid.wire.replication import (
    TLS_MARK,
    DumpedPrefix,
    DumpedRecord,
    DumpEnd,
    DumpItem,
    ServerState,
    StreamEnd,
    StreamStatus,
    StreamWriter,
    Transaction,
    TransactionAction,
    TransactionHead,
    write_dump,
    write_transactions,
)
from perseid.wire.requests import DumpHandles, RetrieveTransactions
from perseid.wire.responses import Empty, Failure, ResponseBody, SiteInfo, TransactionStream
from perseid.wire.server import ChallengeProof, Reply, Request, Server, ServerSettings
from tests.wire.key_material import RSA_KEY, SERVER_KEY
from tests.wire.recorded import key_file

IDENTITY: Final = "300:0.NA/20.500.99999"
"""The replication administrator, whose key is RSA_KEY."""

_DATE: Final = 1_794_724_100_000


@dataclass
class ReplicationServer:
    """A server with records; it can lose its connections in the middle of a dump."""

    records: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    prefixes: list[str] = field(default_factory=list)
    log: list[tuple[TransactionAction, str]] = field(default_factory=list)
    first_kept: int = 1
    """The first transaction that the server still has."""
    breaks_after: int = 0
    """Close the connection of the next dump after so many records; 0 to complete it."""
    signed: bool = False
    """Whether streams are signed block by block instead of sent over TLS."""
    tls_key: str = "server"
    """`server`, or `other` for a wrong one."""
    endless: str = ""
    """`records` or `prefixes` of which a dump has no end."""
    requests: list[OpCode] = field(default_factory=list)
    port: int = 0

    def put(self, handle: str, *values: Value) -> None:
        """Create or update a record, with its transaction."""
        action = TransactionAction.UPDATE if handle in self.records else TransactionAction.CREATE
        self.records[handle] = values
        self.log.append((action, handle))

    def delete(self, handle: str) -> None:
        """Delete a record, with its transaction."""
        del self.records[handle]
        self.log.append((TransactionAction.DELETE, handle))

    def home(self, prefix: str) -> None:
        """Host a prefix, with its transaction."""
        self.prefixes.append(prefix)
        self.log.append((TransactionAction.HOME, prefix))

    def unhome(self, prefix: str) -> None:
        """Host a prefix no longer, with its transaction."""
        self.prefixes.remove(prefix)
        self.log.append((TransactionAction.UNHOME, prefix))

    @contextmanager
    def running(self) -> Iterator["ReplicationServer"]:
        """Serve on a port of the system's choice."""
        self._server = Server(ServerSettings(SERVER_KEY), secrets.token_bytes)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            thread = threading.Thread(target=self._serve, args=(listener,))
            thread.start()
            try:
                yield self
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join(30)

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(30)
                with connection, suppress(ConnectionError, ssl.SSLError):
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        """Answer the one request of a connection."""
        reader = FrameReader()
        frames: list[Frame] = []
        while not frames:
            data = connection.recv(65_536)
            if not data:
                return
            reader.feed(data)
            frames = list(reader.frames())
        received = self._server.receive(frames[0], time.time())
        if isinstance(received, ChallengeProof):
            received = self._check(received)
        if isinstance(received, Request):
            self.requests.append(received.opcode)
            if received.opcode == OpCode.GET_SITE_INFO:
                self._respond(connection, received, SiteInfo(key_file("siteinfo.bin")))
                return
            identified = self._server.identify(received, time.time())
            if not isinstance(identified, Reply):
                is_dump = received.opcode == OpCode.DUMP_HANDLES
                self._respond(connection, received, Empty() if is_dump else TransactionStream())
                self._stream(connection, received)
                return
            received = identified
        connection.sendall(self._server.sign(received).to_stream())

    def _check(self, proof: ChallengeProof) -> Request | Reply:
        if proof.check_key(RSA_KEY.public):
            return self._server.accept(proof, proof.identity, time.time())
        failure = Failure.of("wrong key")
        return self._server.respond(proof.request, ResponseCode.AUTHENTICATION_FAILED, failure, time.time())

    def _respond(self, connection: socket.socket, request: Request, body: ResponseBody) -> None:
        reply = self._server.respond(request, ResponseCode.SUCCESS, body, time.time())
        connection.sendall(self._server.sign(reply).to_stream())

    def _stream(self, connection: socket.socket, request: Request) -> None:
        if self.signed:
            writer = StreamWriter(connection.sendall, lambda block: SERVER_KEY.sign("SHA1", block))
            writer.begin_signed("SHA1")
            self._write(writer, request)
            return
        connection.sendall(TLS_MARK.to_bytes(4, "big"))
        with tls_context(self.tls_key).wrap_socket(connection, server_side=True) as secure:
            self._write(StreamWriter(secure.sendall), request)

    def _write(self, writer: StreamWriter, request: Request) -> None:
        if isinstance(request.body, DumpHandles):
            write_dump(writer, 2, self._dump(request.body))
        elif isinstance(request.body, RetrieveTransactions):
            self._write_transactions(writer, request.body)

    def _dump(self, body: DumpHandles) -> Iterator[DumpItem]:
        yield ServerState(_DATE, len(self.log))
        if body.start is None or body.start_kind == 2:
            sent = 0
            for name in sorted(self.records):
                if body.start is not None and name.encode() <= body.start:
                    continue
                if self.breaks_after and sent == self.breaks_after:
                    self.breaks_after = 0
                    raise ConnectionResetError
                sent += 1
                yield DumpedRecord(name.encode(), tuple([value.to_bytes() for value in self.records[name]]))
        for number in count() if self.endless else ():
            prefix = f"20.500.{number}"
            is_record = self.endless == "records"
            yield DumpedRecord(f"{prefix}/x".encode(), ()) if is_record else DumpedPrefix(f"0.NA/{prefix}".encode())
        for prefix in self.prefixes:
            yield DumpedPrefix(prefix.encode())
        yield DumpEnd()

    def _write_transactions(self, writer: StreamWriter, body: RetrieveTransactions) -> None:
        if body.last_id + 1 < self.first_kept:
            write_transactions(writer, TransactionHead(1, StreamStatus.DUMP_NEEDED), (StreamEnd(body.last_date),))
            return
        items: list[Transaction | StreamEnd] = []
        for number, (action, name) in enumerate(self.log[body.last_id :], body.last_id + 1):
            is_record = action in (TransactionAction.CREATE, TransactionAction.UPDATE)
            if is_record and name not in self.records:
                continue
            values = tuple([value.to_bytes() for value in self.records[name]]) if is_record else None
            items.append(Transaction(number, name.encode(), action, _DATE + number, values))
        head = TransactionHead(1, StreamStatus.TRANSACTIONS)
        write_transactions(writer, head, (*items, StreamEnd(_DATE + len(self.log))))


def tls_context(key: str = "server") -> ssl.SSLContext:
    """TLS with a self-signed certificate, of the key of the server or of another one."""
    chosen = load_der_private_key((SERVER_KEY if key == "server" else RSA_KEY).to_pkcs8(), None)
    certificate = create_self_signed(chosen, ["anonymous"])  # type: ignore[arg-type]
    pem = chosen.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # as deployed
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(pem + certificate.public_bytes(Encoding.PEM))
        context.load_cert_chain(file.name)
    return context
