"""TLS: the server's context, steps of a handshake, and a transport for the HTTP connection inside.

Cryptography is OpenSSL's, through pyOpenSSL, on memory buffers. The standard module `ssl` would be faster but cannot be
used: it accepts only client certificates that it can verify up to a root. Those of the Handle System are self-signed;
only their key matters.

- The server requests a client certificate in the first handshake; it is optional. Every certificate is accepted if the
  handshake proves possession of its key: RSA, elliptic curves, and with TLS 1.2 also DSA, which TLS 1.3 lacks. A client
  with a DSA key that offers both versions sends no certificate; it must offer TLS 1.2 only.
- The HTTP connection gets the certificate, and authentication happens later. There is no renegotiation and no
  resumption: a client that returns with a certificate is always asked for it.
- The first step of a handshake takes half a millisecond, and so may the next, in which a client proves possession of a
  key. They run in the pools and can be refused there. During a step nothing is read from the client, and nothing else
  uses the connection. Input too short for a proof is processed at once.
- Memory per client is bounded: in the handshake by `MAX_HANDSHAKE_BYTES`, later by the size of one read. A partial
  record waits; when the HTTP connection pauses reading, so does the socket.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, cast

from cryptography.x509 import Certificate
from OpenSSL import SSL
from OpenSSL.crypto import FILETYPE_ASN1, dump_certificate

from perseid.server.native.decisions import Busy

CIPHERS: Final = b"ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: ciphers with forward secrecy and authenticated encryption. All of TLS 1.3 have both."""

PROTOCOL: Final = b"http/1.1"
"""The ALPN protocol."""

MAX_RECORD: Final = 16_384
"""Bytes of the longest record, decrypted."""

BIO_CHUNK: Final = MAX_RECORD + 512
"""Bytes exchanged with OpenSSL at a time: an encrypted record is longer, and buffers stay small."""

_TEXT = 2  # position of the message in an OpenSSL error


class HandshakeFailure(StrEnum):
    """Why a handshake failed, for counters."""

    GONE = "gone"
    """The client disconnected."""
    SLOW = "slow"
    """It was not complete in time."""
    TOO_LONG = "too long"
    """The client sent more than any handshake needs."""
    BUSY = "busy"
    """The server was overloaded."""
    ALERT = "alert"
    """The client refused, most often because it does not trust the certificate."""
    REFUSED = "refused"
    """The server refused a version, a cipher or an invalid proof of the client."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The result of a handshake step."""

    raw: bytes
    """The bytes to send."""
    done: bool = False
    failure: HandshakeFailure | None = None
    reason: str = ""


def make_server_context(chain: Iterable[Certificate], key: Any, *, request_certificate: bool = True) -> SSL.Context:
    """Create the context for a certificate with its chain and private key.

    The key is one of `cryptography`, and the caller has checked that it belongs to the certificate.
    `request_certificate`: whether clients are asked for a certificate.
    """
    leaf, *others = chain
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(CIPHERS)
    context.set_options(SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # most connections are idle most of the time
    # Without tickets and cache nothing can be resumed. (OpenSSL still sends a session id to TLS 1.3 clients, which has
    # no effect.)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(b"perseid")
    if request_certificate:
        context.set_verify(SSL.VERIFY_PEER, _accept_any_certificate)
        # Chains are not verified, so no time is spent on them: untrusted clients might send long ones.
        context.set_verify_depth(0)
    context.set_alpn_select_callback(_choose_protocol)
    context.use_certificate(leaf)
    for each in others:
        context.add_extra_chain_cert(each)
    context.use_privatekey(key)
    context.check_privatekey()
    return context


def _accept_any_certificate(*_: object) -> bool:
    """Accept any certificate; the proof of possession is checked separately, by its signature."""
    return True


def _choose_protocol(_: SSL.Connection, offered: list[bytes]) -> Any:
    """Choose HTTP/1.1 if the client offers it; otherwise no protocol is selected."""
    return PROTOCOL if PROTOCOL in offered else SSL.NO_OVERLAPPING_PROTOCOLS


def advance(connection: SSL.Connection, raw: bytes) -> Flight:
    """Run a step of a handshake; in any thread, but only one at a time."""
    done, failure, reason = False, None, ""
    try:
        if raw:
            connection.bio_write(raw)
        connection.do_handshake()
        done = True
    except SSL.WantReadError:
        pass
    except SSL.Error as error:
        failure, reason = _classify_error(error)
    output = bytearray()
    with suppress(SSL.Error):
        while True:
            output += connection.bio_read(BIO_CHUNK)
    return Flight(bytes(output), done, failure, reason)


def _classify_error(error: SSL.Error) -> tuple[HandshakeFailure, str]:
    """Classify an OpenSSL error, with its message; that never contains data of the client."""
    if isinstance(error, SSL.ZeroReturnError | SSL.SysCallError):
        return HandshakeFailure.GONE, "the client disconnected"
    messages = [entry[_TEXT] for entry in error.args[0]] if error.args else []
    message = messages[-1] if messages else type(error).__name__  # the earlier ones are its causes
    return (HandshakeFailure.ALERT if "alert" in message else HandshakeFailure.REFUSED), message


def peer_certificate(connection: SSL.Connection) -> bytes | None:
    """The certificate whose key the client has proved to hold, in DER."""
    certificate = connection.get_peer_certificate()
    return None if certificate is None else dump_certificate(FILETYPE_ASN1, certificate)


HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds for a handshake: two round trips and some computation, even for distant clients."""

MAX_HANDSHAKE_BYTES: Final = 32_768
"""Bytes that a client may send before the handshake is complete: several times what long certificates need."""

SHORT_FLIGHT: Final = 160
"""Bytes of a client's message that cannot contain a certificate or a long key: processing takes less than 0.1 ms."""

HANDSHAKE_RECORD: Final = 0x16
"""The first byte of a TLS connection; no HTTP request starts with it."""

_RECORD_HEADER = 5  # bytes before the content of a record; the last two are its length
_NEVER = float("inf")


class HandshakeOwner(Protocol):
    """Manages connections during their handshake."""

    def now(self) -> float:
        """The clock of deadlines, in seconds."""

    def handshake_started(self, tls: "TlsTransport") -> None:
        """A handshake has started."""

    def handshake_finished(self, tls: "TlsTransport", *, done: bool) -> None:
        """A handshake has ended, successfully or not."""

    def handshake_failed(self, failure: HandshakeFailure, reason: str, host: str) -> None:
        """A handshake has failed. The reason is in our words, or those of OpenSSL."""

    def connection_closed(self, host: str) -> None:
        """The connection was lost before there was an inner protocol."""


WorkRunner = Callable[[Callable[[], object], str], Awaitable[object]]
"""Runs a call for an address in a pool; raises `Busy` under overload."""


class ProtocolFactory(Protocol):
    """Creates the HTTP protocol when the peer is known."""

    def __call__(self, host: str, *, secure: bool, certificate: bytes | None) -> asyncio.Protocol: ...


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """TLS on one connection: a protocol to the event loop, a transport to the inner protocol."""

    __slots__ = (
        "_answered",
        "_busy",
        "_closing",
        "_connection",
        "_consumed",
        "_ended",
        "_eof_sent",
        "_incoming",
        "_inner",
        "_lost",
        "_make",
        "_open",
        "_outer",
        "_owner",
        "_paused",
        "_pumping",
        "_received",
        "_task",
        "_work",
        "deadline",
        "host",
    )

    def __init__(
        self,
        context: SSL.Context,
        host: str,
        *,
        make: ProtocolFactory,
        work: WorkRunner,
        owner: HandshakeOwner,
    ) -> None:
        """Serve a client that was admitted; `make` creates the inner protocol after the handshake."""
        self.host = host
        self.deadline = owner.now() + HANDSHAKE_TIMEOUT
        """When the handshake must be complete."""
        self._make, self._work, self._owner = make, work, owner
        self._connection = SSL.Connection(context, None)
        self._connection.set_accept_state()
        self._outer: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._incoming = bytearray()  # received, and not passed to OpenSSL
        self._received = False  # whether anything has arrived
        self._consumed = 0  # bytes that handshake steps have used
        self._task: asyncio.Task[None] | None = None
        self._answered = False  # whether the server has sent its first flight
        self._busy = False  # whether a handshake step runs in a pool
        self._open = False  # whether the handshake is complete
        self._paused = False  # whether the inner protocol has paused reading
        self._pumping = False
        self._ended = False  # whether the client has finished sending
        self._eof_sent = False  # whether close_notify was sent
        self._closing = False
        self._lost = False

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client, which sends first."""
        self._outer = cast("asyncio.Transport", transport)
        self._owner.handshake_started(self)

    def data_received(self, data: bytes) -> None:
        """Receive data."""
        if self._ended or (self._closing and not self._open):
            return
        if self._open and not self._incoming and not self._paused and len(data) <= BIO_CHUNK:
            try:
                self._connection.bio_write(data)
            except SSL.Error as error:
                self._abort_on_error(error)
            else:
                self._pump()
            return
        self._incoming += data
        if self._open:
            self._pump()
            return
        self._received = True
        if not self._busy:
            self._continue_handshake()

    def eof_received(self) -> bool:
        """The client has finished sending; pending responses are still sent if the inner protocol says so."""
        if not self._open:
            return False
        if not self._ended and not self._end():
            self.close()
        return True  # `close` ends it, now or after the response

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the inner protocol."""
        if self._lost:
            return
        self._lost = True
        if not self._open:
            self._owner.handshake_finished(self, done=False)
            if not self._closing:
                self._owner.handshake_failed(HandshakeFailure.GONE, "the client disconnected", self.host)
        self._closing = True
        if self._task is not None:
            self._task.cancel()
        self._incoming.clear()
        inner, self._inner = self._inner, None
        if inner is None:
            self._owner.connection_closed(self.host)
        else:
            inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client receives slowly."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The client can receive more."""
        if self._inner is not None:
            self._inner.resume_writing()

    # Handshake

    def _complete_records(self) -> int:
        """The length of the complete records in the buffer: OpenSSL does nothing with a partial one."""
        incoming, at = self._incoming, 0
        while len(incoming) >= (content := at + _RECORD_HEADER):
            end = content + int.from_bytes(incoming[content - 2 : content], "big")
            if len(incoming) < end:
                break
            at = end
        return at

    def _continue_handshake(self) -> None:
        """Run the next steps of the handshake, or start them in a pool."""
        while not self._open and not self._closing and (end := self._complete_records()):
            raw = bytes(self._incoming[:end])
            del self._incoming[:end]
            self._consumed += end
            if not self._answered or end > SHORT_FLIGHT:
                self._busy = True
                assert self._outer is not None  # noqa: S101 - data has arrived
                self._outer.pause_reading()
                self._task = asyncio.get_running_loop().create_task(self._run_handshake_step(raw))
                return
            self._apply_flight(advance(self._connection, raw))
        if not self._open and len(self._incoming) > MAX_HANDSHAKE_BYTES:
            self._fail_too_long()

    async def _run_handshake_step(self, raw: bytes) -> None:
        """Run a step of the handshake in a pool, then continue."""
        outer = self._outer
        assert outer is not None  # noqa: S101 - data has arrived
        try:
            flight = cast("Flight", await self._work(partial(advance, self._connection, raw), self.host))
        except Busy:
            self._fail(HandshakeFailure.BUSY, "the server is too busy")
            return
        except BaseException:
            outer.abort()  # nothing else would close it
            raise
        finally:
            self._busy = False
            self._task = None
        if self._closing:
            return
        self._apply_flight(flight)
        self._continue_handshake()
        if not self._busy and self.is_reading() and not outer.is_closing():
            outer.resume_reading()

    def _apply_flight(self, flight: Flight) -> None:
        """Send the output of a step; then the handshake is complete, or the client's turn comes."""
        self._answered = True
        if flight.raw and self._outer is not None:
            self._outer.write(flight.raw)
        if flight.failure is not None:
            self._fail(flight.failure, flight.reason)
        elif flight.done:
            self._finish_handshake()
        elif self._consumed > MAX_HANDSHAKE_BYTES:
            self._fail_too_long()  # only now: a request may follow the end of a handshake directly

    def _fail_too_long(self) -> None:
        self._fail(HandshakeFailure.TOO_LONG, f"the client sent more than {MAX_HANDSHAKE_BYTES} bytes")

    def _finish_handshake(self) -> None:
        """Create the inner protocol, and pass it the data that has arrived."""
        self._open = True
        self.deadline = _NEVER
        self._owner.handshake_finished(self, done=True)
        self._inner = self._make(self.host, secure=True, certificate=peer_certificate(self._connection))
        self._inner.connection_made(self)
        if not self._closing:
            self._pump()

    def _fail(self, failure: HandshakeFailure, reason: str) -> None:
        """End a connection whose handshake failed."""
        if self._closing or self._open:
            return
        self._closing = True
        self._incoming.clear()
        self._owner.handshake_failed(failure, reason, self.host)
        if self._outer is not None:
            self._outer.close()
        self.deadline = self._owner.now() + HANDSHAKE_TIMEOUT  # to receive the alert

    def cut(self) -> None:
        """Close the connection immediately: the handshake took too long."""
        self._fail(HandshakeFailure.SLOW, f"it was not complete after {HANDSHAKE_TIMEOUT:.0f} s")
        self.abort()

    def close_if_idle(self) -> None:
        """Close the connection unless a handshake has started."""
        if not self._open and not self._received and self._outer is not None:
            self._closing = True
            self._outer.close()

    # Receiving

    def _pump(self) -> None:
        """Pass readable data to the inner protocol."""
        if self._pumping:
            return  # called from within `data_received`
        self._pumping = True
        silent = True
        try:
            while not self._paused and not self._ended and self._inner is not None:
                try:
                    raw = self._connection.recv(MAX_RECORD)
                except SSL.WantReadError:
                    if not self._incoming:
                        break
                    self._connection.bio_write(bytes(self._incoming[:BIO_CHUNK]))
                    del self._incoming[:BIO_CHUNK]
                    continue
                silent = False
                self._inner.data_received(raw)
            if silent and not self._lost:
                self._flush()  # it may have been for OpenSSL only, which responds
        except SSL.ZeroReturnError:
            if not self._end():
                self.close()
        except SSL.Error as error:
            self._abort_on_error(error)
        finally:
            self._pumping = False

    def _end(self) -> bool:
        """The client has finished sending; return whether the inner protocol keeps the connection open."""
        self._ended = True
        self._incoming.clear()
        return bool(self._inner is not None and self._inner.eof_received())

    def _abort_on_error(self, error: SSL.Error) -> None:
        """Send an alert for invalid TLS, and close."""
        self._ended = True
        self._incoming.clear()
        if self._outer is not None and not self._lost:
            self._flush()
            self._closing = True
            self._outer.close()
        del error  # untrusted clients can cause any of them, so they are not logged

    def _flush(self) -> None:
        """Send the output of OpenSSL."""
        assert self._outer is not None  # noqa: S101 - after a handshake
        with suppress(SSL.Error):
            while raw := self._connection.bio_read(BIO_CHUNK):
                self._outer.write(raw)

    # Called by the inner protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data."""
        if self._eof_sent or self._closing or self._outer is None or not data:
            return
        connection, outer = self._connection, self._outer
        try:
            if len(data) <= MAX_RECORD:
                connection.send(data)
                raw = connection.bio_read(BIO_CHUNK)
                outer.write(raw)
                if len(raw) == BIO_CHUNK:
                    self._flush()
                return
            view = memoryview(data)
            for at in range(0, len(view), MAX_RECORD):
                connection.send(view[at : at + MAX_RECORD])
                self._flush()
        except SSL.Error as error:
            self._abort_on_error(error)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several parts in as few records as possible."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """TLS supports half-closed connections."""
        return True

    def write_eof(self) -> None:
        """Send close_notify; input is still read."""
        if not self._eof_sent and not self._closing and self._outer is not None:
            self._send_close_notify()
            self._outer.write_eof()

    def close(self) -> None:
        """Close the connection when everything is sent."""
        if self._outer is None:
            return
        if not self._eof_sent and not self._closing:
            self._send_close_notify()
        self._closing = True
        self._outer.close()

    def _send_close_notify(self) -> None:
        """Tell the client that the data is complete, which shows that it was not truncated by others."""
        self._eof_sent = True
        with suppress(SSL.Error):
            self._connection.shutdown()
        self._flush()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._closing = True
        if self._outer is not None:
            self._outer.abort()

    def is_closing(self) -> bool:
        """Whether it is being closed."""
        return self._closing or self._outer is None or self._outer.is_closing()

    def pause_reading(self) -> None:
        """Pause reading."""
        if not self._paused and self._outer is not None:
            self._paused = True
            if not self._ended and not self._lost:
                self._outer.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading; buffered data is passed on soon, but not within this call."""
        if self._paused and self._outer is not None:
            self._paused = False
            if not self._lost:
                asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self.is_reading():
            self._pump()
        if self.is_reading() and self._outer is not None and not self._outer.is_closing():
            self._outer.resume_reading()

    def is_reading(self) -> bool:
        """Whether data is passed on."""
        return not self._paused and not self._ended and not self._lost

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Information of the outer transport."""
        return default if self._outer is None else self._outer.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the inner protocol is told to pause writing."""
        if self._outer is not None:
            self._outer.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The low and high limits."""
        assert self._outer is not None  # noqa: S101 - set before others use this transport
        return self._outer.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        """The size of the unsent data."""
        return 0 if self._outer is None else self._outer.get_write_buffer_size()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the inner protocol."""
        self._inner = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The inner protocol."""
        assert self._inner is not None  # noqa: S101 - set before others use this transport
        return self._inner
