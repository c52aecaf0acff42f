"""TLS on a connection: a protocol for the event loop, and a transport for the HTTP connection behind it.

The arithmetic is OpenSSL's, by way of pyOpenSSL, and works on memory: what comes from the socket is written into one
buffer and read from another. The standard module `ssl` would be quicker and cannot be used, for it accepts only client
certificates that it can verify up to a root. Those of the Handle System are self-signed; their key is what counts.

- A client may show a certificate, any (see `tls_handshake`); it is given to the HTTP connection, and who that is
  others decide. There is no second handshake on a connection, and no session is resumed: a client that came without a
  certificate and comes again with one is always asked.
- The first step of a handshake takes half a millisecond, and so may the next one, in which a client proves that it has
  a key. So they are work for the pools and can be refused there. While a step is made nothing is read from the client,
  and nothing else touches the connection. What is too short for a proof is dealt with at once.
- What is kept of a client is bounded: in the handshake by `MAX_HANDSHAKE`, later by what is read from a socket at once.
  A part of a record waits; when the HTTP connection reads no more, neither does the socket.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, cast

from OpenSSL import SSL

from perseid.server.native.decisions import Busy

from .tls_handshake import BIO_CHUNK, MAX_RECORD, Flight, HandshakeFailure, advance, peer_certificate

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds for a handshake: two round trips and some arithmetic, also for a client at the other end of the world."""

MAX_HANDSHAKE_BYTES: Final = 32_768
"""Octets that a client may send before it has proved anything: several times what long certificates need."""

SHORT_FLIGHT: Final = 160
"""Octets of an answer of the client that can hold no certificate and no long key: it takes less than 0.1 ms."""

HANDSHAKE_RECORD: Final = 0x16
"""How a TLS connection begins; no HTTP request begins so."""

_RECORD_HEADER = 5  # octets before the contents of a record; the last two of them say how long these are
_NEVER = float("inf")


class HandshakeOwner(Protocol):
    """Who looks after connections on which a handshake is being made."""

    def now(self) -> float:
        """Seconds of the clock that deadlines are given in."""

    def handshake_started(self, tls: "TlsTransport") -> None:
        """A handshake has begun."""

    def handshake_finished(self, tls: "TlsTransport", *, done: bool) -> None:
        """It has ended, one way or the other."""

    def handshake_failed(self, failure: HandshakeFailure, reason: str, host: str) -> None:
        """It came to nothing. The reason is in words of ours, or of OpenSSL."""

    def connection_closed(self, host: str) -> None:
        """The connection is lost, and there never was a protocol inside that would say so."""


WorkRunner = Callable[[Callable[[], object], str], Awaitable[object]]
"""Has something done for an address, elsewhere; raises `Busy` where it is too much."""


class ProtocolFactory(Protocol):
    """Makes the protocol for HTTP, when it is known who is at the other end."""

    def __call__(self, host: str, *, secure: bool, certificate: bytes | None) -> asyncio.Protocol: ...


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """TLS on one connection: a protocol to the event loop, a transport to the protocol inside."""

    __slots__ = (
        "_answered",
        "_busy",
        "_came",
        "_closing",
        "_connection",
        "_ended",
        "_incoming",
        "_inner",
        "_lost",
        "_make",
        "_open",
        "_outer",
        "_owner",
        "_paused",
        "_pumping",
        "_said_all",
        "_taken",
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
        """Take on a client that was admitted; `make` makes what is inside when the handshake is done."""
        self.host = host
        self.deadline = owner.now() + HANDSHAKE_TIMEOUT
        """When the handshake must be done."""
        self._make, self._work, self._owner = make, work, owner
        self._connection = SSL.Connection(context, None)
        self._connection.set_accept_state()
        self._outer: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._incoming = bytearray()  # what has come and was not given to OpenSSL
        self._came = False  # whether anything has come
        self._taken = 0  # octets that steps of the handshake were made of
        self._task: asyncio.Task[None] | None = None
        self._answered = False  # whether the client has had an answer to its first words
        self._busy = False  # whether a step of the handshake is being made elsewhere
        self._open = False  # whether the handshake is done
        self._paused = False  # whether the protocol inside wants nothing more
        self._pumping = False
        self._ended = False  # whether the client has said that nothing more comes
        self._said_all = False  # whether the client was told that nothing more comes
        self._closing = False
        self._lost = False

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client, who speaks first."""
        self._outer = cast("asyncio.Transport", transport)
        self._owner.handshake_started(self)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
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
        self._came = True
        if not self._busy:
            self._continue_handshake()

    def eof_received(self) -> bool:
        """The client sends nothing more; what is being answered still goes out, if the protocol inside says so."""
        if not self._open:
            return False
        if not self._ended and not self._end():
            self.close()
        return True  # `close` ends it, now or when it was answered

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol inside."""
        if self._lost:
            return
        self._lost = True
        if not self._open:
            self._owner.handshake_finished(self, done=False)
            if not self._closing:
                self._owner.handshake_failed(HandshakeFailure.GONE, "the client went away", self.host)
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
        """The client takes slowly what it asked for."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """It can take more."""
        if self._inner is not None:
            self._inner.resume_writing()

    # The handshake

    def _complete_records(self) -> int:
        """How many octets of whole records have come: OpenSSL would do nothing with a part of one."""
        incoming, at = self._incoming, 0
        while len(incoming) >= (content := at + _RECORD_HEADER):
            end = content + int.from_bytes(incoming[content - 2 : content], "big")
            if len(incoming) < end:
                break
            at = end
        return at

    def _continue_handshake(self) -> None:
        """Make the next steps of the handshake, or have them made."""
        while not self._open and not self._closing and (end := self._complete_records()):
            raw = bytes(self._incoming[:end])
            del self._incoming[:end]
            self._taken += end
            if not self._answered or end > SHORT_FLIGHT:
                self._busy = True
                assert self._outer is not None  # noqa: S101 - it brought the octets
                self._outer.pause_reading()
                self._task = asyncio.get_running_loop().create_task(self._run_handshake_step(raw))
                return
            self._apply_flight(advance(self._connection, raw))
        if not self._open and len(self._incoming) > MAX_HANDSHAKE_BYTES:
            self._fail_too_long()

    async def _run_handshake_step(self, raw: bytes) -> None:
        """Have a step of the handshake made elsewhere, and go on."""
        outer = self._outer
        assert outer is not None  # noqa: S101 - it brought the octets
        try:
            flight = cast("Flight", await self._work(partial(advance, self._connection, raw), self.host))
        except Busy:
            self._fail(HandshakeFailure.BUSY, "the server is too busy for it")
            return
        except BaseException:
            outer.abort()  # nobody would look after it any more
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
        """Send what a step came to; then it is done, or the client has to say something."""
        self._answered = True
        if flight.raw and self._outer is not None:
            self._outer.write(flight.raw)
        if flight.failure is not None:
            self._fail(flight.failure, flight.reason)
        elif flight.done:
            self._finish_handshake()
        elif self._taken > MAX_HANDSHAKE_BYTES:
            self._fail_too_long()  # only now: behind the last words of a handshake a client may send a request at once

    def _fail_too_long(self) -> None:
        self._fail(HandshakeFailure.TOO_LONG, f"more than {MAX_HANDSHAKE_BYTES} octets have come before it was done")

    def _finish_handshake(self) -> None:
        """The handshake is done: make the protocol inside, and give it what has come for it."""
        self._open = True
        self.deadline = _NEVER
        self._owner.handshake_finished(self, done=True)
        self._inner = self._make(self.host, secure=True, certificate=peer_certificate(self._connection))
        self._inner.connection_made(self)
        if not self._closing:
            self._pump()

    def _fail(self, failure: HandshakeFailure, reason: str) -> None:
        """End a connection on which no handshake comes to an end."""
        if self._closing or self._open:
            return
        self._closing = True
        self._incoming.clear()
        self._owner.handshake_failed(failure, reason, self.host)
        if self._outer is not None:
            self._outer.close()
        self.deadline = self._owner.now() + HANDSHAKE_TIMEOUT  # to take what tells the client why

    def cut(self) -> None:
        """End it now: the handshake took too long."""
        self._fail(HandshakeFailure.SLOW, f"it was not done in {HANDSHAKE_TIMEOUT:.0f} s")
        self.abort()

    def close_if_idle(self) -> None:
        """End it, unless a handshake has begun."""
        if not self._open and not self._came and self._outer is not None:
            self._closing = True
            self._outer.close()

    # What comes

    def _pump(self) -> None:
        """Give the protocol inside what can be read."""
        if self._pumping:
            return  # it is being given something, and has asked for more
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
                self._flush()  # it may have been for OpenSSL alone, which answers it
        except SSL.ZeroReturnError:
            if not self._end():
                self.close()
        except SSL.Error as error:
            self._abort_on_error(error)
        finally:
            self._pumping = False

    def _end(self) -> bool:
        """The client has said everything; whether the connection stays, for what the protocol inside still has."""
        self._ended = True
        self._incoming.clear()
        return bool(self._inner is not None and self._inner.eof_received())

    def _abort_on_error(self, error: SSL.Error) -> None:
        """What came is no TLS: tell the client, and end it."""
        self._ended = True
        self._incoming.clear()
        if self._outer is not None and not self._lost:
            self._flush()
            self._closing = True
            self._outer.close()
        del error  # whoever is outside can make any of them happen, so there is nothing to tell

    def _flush(self) -> None:
        """Send what OpenSSL has to say."""
        assert self._outer is not None  # noqa: S101 - there was a handshake
        with suppress(SSL.Error):
            while raw := self._connection.bio_read(BIO_CHUNK):
                self._outer.write(raw)

    # What the protocol inside calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send something."""
        if self._said_all or self._closing or self._outer is None or not data:
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
        """Send several parts of something: as few records as they fit into."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """A client can be told that nothing more comes, and go on sending."""
        return True

    def write_eof(self) -> None:
        """Tell the client that nothing more comes; what it sends is still read."""
        if not self._said_all and not self._closing and self._outer is not None:
            self._send_close_notify()
            self._outer.write_eof()

    def close(self) -> None:
        """End the connection when everything is sent."""
        if self._outer is None:
            return
        if not self._said_all and not self._closing:
            self._send_close_notify()
        self._closing = True
        self._outer.close()

    def _send_close_notify(self) -> None:
        """Tell the client that what it has got is all: otherwise somebody might have cut it short."""
        self._said_all = True
        with suppress(SSL.Error):
            self._connection.shutdown()
        self._flush()

    def abort(self) -> None:
        """End the connection now."""
        self._closing = True
        if self._outer is not None:
            self._outer.abort()

    def is_closing(self) -> bool:
        """Whether it is being ended."""
        return self._closing or self._outer is None or self._outer.is_closing()

    def pause_reading(self) -> None:
        """Read nothing more for the moment."""
        if not self._paused and self._outer is not None:
            self._paused = True
            if not self._ended and not self._lost:
                self._outer.pause_reading()

    def resume_reading(self) -> None:
        """Read on; what has come meanwhile is given soon, but not from within this call."""
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
        """Whether what comes is given on."""
        return not self._paused and not self._ended and not self._lost

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the event loop knows about the connection."""
        return default if self._outer is None else self._outer.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """From how much on that waits to be sent the protocol inside is told to write no more."""
        if self._outer is not None:
            self._outer.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The same, the lower one first."""
        assert self._outer is not None  # noqa: S101 - nobody has this transport before
        return self._outer.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        """How much waits to be sent."""
        return 0 if self._outer is None else self._outer.get_write_buffer_size()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Put another protocol inside."""
        self._inner = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol inside."""
        assert self._inner is not None  # noqa: S101 - nobody has this transport before
        return self._inner
