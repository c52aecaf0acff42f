"""Reading a server as a mirror does: a dump of everything it has, and its transactions since.

    with ReplicationClient("id.example.org", identity="300:0.NA/12345", key=private_key) as client:
        for item in client.dump():
            ...
        batch = client.transactions(last_id, last_date)

The identity must be one of the server's replication administrators. Every stream is verified: it comes over TLS with
the key of the server, or its blocks are signed by that key. The key is the pinned one, or that of the site information.
Each request has a connection of its own, as in deployed software.
"""

import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from perseid.records.errors import InvalidData
from perseid.records.keys import PublicKey
from perseid.records.partition import HashOption
from perseid.records.private_keys import PrivateKey
from perseid.records.record import ValueRef
from perseid.records.site import Site
from perseid.wire.client import Client, VerifiedResponse
from perseid.wire.codes import (
    DEFAULT_FLAGS,
    OpCode,
    OpFlag,
    RemoteProtocolError,
    ResponseCode,
    Version,
    common_version,
)
from perseid.wire.codes import ProtocolError as WireError
from perseid.wire.framing import Frame
from perseid.wire.message import ENVELOPE_LENGTH, MAX_MESSAGE, Envelope, Message
from perseid.wire.replication import (
    SIGNED_MARK,
    TLS_MARK,
    ChangeDate,
    DumpedPrefix,
    DumpedRecord,
    DumpEnd,
    DumpItem,
    Payload,
    PlainPayload,
    ServerState,
    SignedPayload,
    StreamEnd,
    StreamStatus,
    Transaction,
    TransactionItem,
    read_dump,
    read_mark,
    read_transactions,
)
from perseid.wire.requests import DumpHandles, MirrorShare, RequestBody, RetrieveTransactions
from perseid.wire.sessions import Identity

from .errors import ProtocolError, Unreachable
from .native import DEFAULT_PORT, NativeClient, describe
from .native_exchange import refusal
from .options import parse_identity, read_key

DEFAULT_TIMEOUT: Final = 300.0
"""Seconds without a byte until a stream counts as lost, as deployed mirrors wait."""

MAX_BATCH_BYTES: Final = 32 << 20
"""Bytes of records after which a batch of transactions ends: a record can be large, and the batch is in memory."""

MAX_RECONNECTS: Final = 5
"""Connections after the first one that continue a dump without a new record in between."""

_WHOLE: Final = MirrorShare(HashOption.ALL, 1, 0)
_START_KINDS: Final = {"date": 0, "prefix date": 1, "record": 2, "prefix": 3}
_CIPHERS: Final = "ALL:!aNULL:!eNULL:@SECLEVEL=0"  # deployed keys are old; the key itself is what is trusted


@dataclass(frozen=True, slots=True)
class TransactionBatch:
    """The transactions since a state, and the next state."""

    needs_dump: bool
    """Whether the server no longer has them: the receiver needs a dump."""
    transactions: tuple[Transaction, ...] = ()
    last_id: int = 0
    last_date: int = 0
    """Milliseconds since 1970, by the clock of the server."""
    has_more: bool = False
    """Whether the batch ended because it was large enough."""


@dataclass(slots=True)
class ReplicationClient:
    """Reads one server as a mirror. Use it in one thread, and in a `with` statement."""

    host: str
    port: int = DEFAULT_PORT
    identity: str | ValueRef = ""
    key: PrivateKey | Path | bytes | str = field(default=b"", repr=False)
    server_key: PublicKey | None = None
    """The expected key of the server; None to accept that of its site information."""
    timeout: float = DEFAULT_TIMEOUT
    clock: Callable[[], float] = time.time
    random: Callable[[int], bytes] = secrets.token_bytes
    _site: Site | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Do nothing: no connection outlives its request."""

    def site(self) -> Site:
        """Return the site information of the server, signed by its key."""
        if self._site is None:
            with NativeClient(self.host, self.port, server_key=self.server_key, timeout=self.timeout) as client:
                self._site = client.site()
                self.server_key = client.server_key
        return self._site

    def dump(self) -> Iterator[DumpItem]:
        """Yield everything that the server has; the last item is `DumpEnd`. Raises `ClientError`.

        A lost connection is continued after the last item, if the server supports it.
        """
        start: tuple[bytes, int] | None = None
        reconnects = 0
        while True:
            try:
                for item in self._dump_once(start):
                    yield item
                    if (found := _position(item)) is not None:
                        start, reconnects = found, 0
            except Unreachable:
                reconnects += 1
                if start is None or reconnects > MAX_RECONNECTS:
                    raise
            else:
                return

    def _dump_once(self, start: tuple[bytes, int] | None) -> Iterator[DumpItem]:
        body = DumpHandles(_WHOLE) if start is None else DumpHandles(_WHOLE, *start)
        with self._stream(OpCode.DUMP_HANDLES, body) as payload:
            format_, items = read_dump(payload)
            for item in items:
                yield item
                if format_ == 1 and isinstance(item, ServerState):
                    yield DumpEnd()

    def transactions(self, last_id: int, last_date: int, limit: int = 10_000) -> TransactionBatch:
        """Return the transactions after one, at most `limit` and some MiB. Raises `ClientError`."""
        body = RetrieveTransactions(_WHOLE, last_id, last_date)
        found: list[Transaction] = []
        with self._stream(OpCode.RETRIEVE_TXN_LOG, body) as payload:
            head, items = read_transactions(payload)
            if head.status == StreamStatus.DUMP_NEEDED:
                return TransactionBatch(needs_dump=True)
            end, has_more = self._collect(items, found, limit)
        last = max([last_id, *[each.id for each in found]])
        # Without the end of the stream its date is not known yet: the next request starts where this one stopped.
        date = last_date if end is None or end.date is None else end.date
        return TransactionBatch(False, tuple(found), last, date, has_more)

    @staticmethod
    def _collect(
        items: Iterator[TransactionItem], found: list[Transaction], limit: int
    ) -> tuple[StreamEnd | None, bool]:
        """Take transactions until the end of the stream, which is returned, or until there are enough."""
        size = 0
        for item in items:
            if isinstance(item, StreamEnd):
                return item, False
            if isinstance(item, Transaction):
                found.append(item)
                size += len(item.handle) + sum(map(len, item.values or ()))
                if len(found) >= limit or size >= MAX_BATCH_BYTES:
                    return None, True
        return None, False

    # The connection

    @contextmanager
    def _stream(self, opcode: OpCode, body: RequestBody) -> Iterator[Payload]:
        """Send an authenticated request, and open the stream after its response."""
        site = self.site()
        reference = parse_identity(self.identity)
        identity = Identity(reference.handle.encode(), reference.index)
        key = read_key(self.key) if isinstance(self.key, Path) else self.key
        proof = key.encode() if isinstance(key, str) else key
        client = Client(self.random)
        request = client.request(
            opcode,
            body,
            self.clock(),
            flags=DEFAULT_FLAGS | OpFlag.CERTIFY,
            peer_version=common_version(Version(*site.protocol_version)),
            site_serial=site.serial,
        )
        with self._translate_errors():
            connection, response = self._exchange(client, request, None)
            if response.code is ResponseCode.AUTHENTICATION_NEEDED:
                connection.close()
                answer = client.answer_challenge(response, request, identity, proof, self.clock())
                connection, response = self._exchange(client, answer, request)
            try:
                if response.code is not ResponseCode.SUCCESS:
                    raise refusal(response)
                protected, payload = self._protect(connection)
                with protected:
                    yield payload
            finally:
                connection.close()

    def _exchange(
        self, client: Client, message: Message, about: Message | None
    ) -> tuple[socket.socket, VerifiedResponse]:
        """Send a message over a new connection, and read the response, not a byte more."""
        connection = socket.create_connection((self.host, self.port), self.timeout)
        try:
            connection.settimeout(self.timeout)
            packed = client.pack(message, None)
            connection.sendall(packed.envelope.to_bytes() + packed.payload)
            envelope = Envelope.from_bytes(_receive(connection, ENVELOPE_LENGTH))
            if not 0 <= envelope.length <= MAX_MESSAGE:
                raise RemoteProtocolError("the response has an invalid length")
            frame = Frame(envelope, _receive(connection, envelope.length))
            return connection, client.read(frame, message, self.clock(), server_key=self.server_key, about=about)
        except BaseException:
            connection.close()
            raise

    def _protect(self, connection: socket.socket) -> tuple[socket.socket, Payload]:
        """Verify who sends the stream; the connection to read it from, and its payload."""
        key = self.server_key
        mark = read_mark(lambda count: _receive(connection, count))
        if key is None or mark not in (SIGNED_MARK, TLS_MARK):
            raise RemoteProtocolError("the stream of the server is not protected")
        if mark == SIGNED_MARK:
            return connection, SignedPayload(lambda count: _receive(connection, count), key.verify)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # its key is compared below
        context.set_ciphers(_CIPHERS)
        secure = context.wrap_socket(connection)
        certificate = secure.getpeercert(binary_form=True)
        try:
            pem = ssl.DER_cert_to_PEM_cert(certificate or b"").encode()
            is_known = PublicKey.from_file(pem) == key
        except InvalidData:
            is_known = False
        if not is_known:
            secure.close()
            raise RemoteProtocolError("the stream comes from another key than that of the server")
        return secure, PlainPayload(lambda count: _receive(secure, count))

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = "no data in time" if isinstance(error, TimeoutError) else describe(error)
            raise Unreachable(f"Cannot read from {self.host}:{self.port}: {reason}") from error
        except (WireError, InvalidData) as error:
            raise ProtocolError(f"The server sent invalid data: {error}") from error


def _receive(connection: socket.socket, count: int) -> bytes:
    """Read exactly `count` bytes; the memory grows with what arrives."""
    pieces = bytearray()
    while len(pieces) < count:
        with suppress(ssl.SSLWantReadError):
            data = connection.recv(min(count - len(pieces), 1 << 16))
            if not data:
                raise ConnectionResetError(0, "the connection ended early")
            pieces += data
    return bytes(pieces)


def _position(item: DumpItem) -> tuple[bytes, int] | None:
    """Where a dump continues after an item."""
    match item:
        case DumpedRecord():
            return item.handle, _START_KINDS["record"]
        case DumpedPrefix():
            return item.handle, _START_KINDS["prefix"]
        case ChangeDate():
            return item.handle, _START_KINDS["prefix date" if item.is_prefix else "date"]
    return None
