"""Requests over the network: what the protocol logic asks for, and the two drivers that do it.

Protocol logic is written once, as generators (`Steps`). A generator yields an `Exchange`, `Lookup` or `Turn` and is
resumed with its result, or with an exception: OSError (a time-out is one) or RemoteProtocolError. `run` does the steps
with blocking sockets; `AsyncTransport.run` does them in an event loop. Neither knows the protocol: an exchange says
what to send, and its receiver when the response is complete.
"""

import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from perseid.records.site import Transport
from perseid.wire.codes import RemoteProtocolError
from perseid.wire.fragments import MAX_PACKET, Reassembler
from perseid.wire.framing import Frame, FrameReader, HttpResponseReader
from perseid.wire.message import ENVELOPE_LENGTH, Envelope

from .connections import look_up, look_up_async, seconds_until

if TYPE_CHECKING:
    import asyncio
    import ssl

_RECEIVED: Final = 65_536
"""Bytes that are read at once: the largest datagram."""

_MAX_SOCKETS: Final = 64
"""Open UDP sockets of an event loop, one per server: a resolver talks to a handful at a time."""

_MAX_BATCH: Final = 64
"""Datagrams that are read before other tasks run."""

_TICK: Final = 0.05
"""Seconds between checks for time-outs: one timer for all requests costs less than one for each."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    transport: Transport
    host: str
    """An IP address."""
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.transport.name.lower()}://{host}:{self.port}"


class Receiver(Protocol):
    """Collects the data of a response."""

    def __call__(self, data: bytes, /) -> bool:
        """Add a datagram or a part of a stream (`b""`: it ended); return whether the response is complete."""
        ...


@dataclass(slots=True, eq=False)
class Exchange:
    """A request to one address."""

    address: Address
    data: tuple[bytes, ...]
    """Datagrams, or the parts of a stream."""
    receive: Receiver
    timeout: float
    """Seconds until the response must be complete."""
    request_id: int = 0
    """The id that datagrams of the response have."""
    check_certificate: Callable[[bytes], None] | None = None
    """For HTTPS: raises RemoteProtocolError if the certificate (DER) is not that of the server."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The IP addresses of a domain; the result is a tuple of texts."""

    domain: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn to find something out, which concurrent generators then need not ask again.

    It ends when the generator yields it with `is_over`, or returns. A generator has one turn at a time, so that no two
    wait for each other. Blocking calls do not wait: threads are few.
    """

    key: str
    timeout: float = 0.0
    is_over: bool = False


Step: TypeAlias = "Exchange | Lookup | Turn"
Steps: TypeAlias = Generator[Step, Any, T]
"""Protocol logic that yields what it needs, and returns a result."""


class DatagramReceiver:
    """Reassembles the datagrams of one response; others are ignored."""

    __slots__ = ("_packets", "_request_id", "frames")

    def __init__(self, request_id: int) -> None:
        self._request_id = request_id
        self._packets: Reassembler | None = None
        self.frames: list[Frame] = []
        """The response, once it is complete."""

    def __call__(self, data: bytes) -> bool:
        if len(data) < ENVELOPE_LENGTH:
            return False
        envelope = Envelope.from_bytes(data)
        if envelope.request_id != self._request_id:
            return False
        if envelope.sequence == 0 and envelope.length == len(data) - ENVELOPE_LENGTH <= MAX_PACKET - ENVELOPE_LENGTH:
            self.frames.append(Frame(envelope, data[ENVELOPE_LENGTH:]))
            return True
        if self._packets is None:
            self._packets = Reassembler()
        whole = self._packets.receive(None, data, time.monotonic())
        if whole is not None:
            self.frames.append(Frame(*whole))
        return whole is not None


class StreamReceiver:
    """Reads the messages of a response from a TCP stream, until `is_last` is true for one."""

    def __init__(self, is_last: Callable[[Frame], bool] = lambda _: True) -> None:
        self._reader = FrameReader()
        self._is_last = is_last
        self.frames: list[Frame] = []
        """The messages so far."""

    def __call__(self, data: bytes) -> bool:
        if not data:
            raise ConnectionError("the server closed the connection before its response was complete")
        self._reader.feed(data)
        for frame in self._reader.frames():
            self.frames.append(frame)
            if self._is_last(frame):
                return True
        return False


class HttpReceiver:
    """Reads the first message of a response from an HTTP response."""

    def __init__(self) -> None:
        self._reader = HttpResponseReader()
        self.frames: list[Frame] = []
        """The message, once it is complete."""

    def __call__(self, data: bytes) -> bool:
        self.frames += self._reader.feed(data)
        if not self.frames and (self._reader.is_finished or not data):
            raise RemoteProtocolError("the HTTP response does not have a native message")
        return bool(self.frames)


FAILURES: Final = (OSError, RemoteProtocolError)
"""Exceptions that the protocol logic gets instead of a result."""


# Blocking sockets


def run(steps: Steps[T]) -> T:
    """Do the steps with blocking sockets."""
    try:
        step = next(steps)
        while True:
            try:
                result = _do(step)
            except FAILURES as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _do(step: Step) -> tuple[str, ...] | None:
    if isinstance(step, Exchange):
        _exchange(step)
    elif isinstance(step, Lookup):
        return look_up(step.domain, step.timeout)
    return None


def _exchange(exchange: Exchange) -> None:
    deadline = time.monotonic() + exchange.timeout
    address = exchange.address
    if address.transport is Transport.UDP:
        with _open_datagrams(address) as udp:
            for packet in exchange.data:
                udp.send(packet)
            _receive(udp, exchange, deadline)
        return
    with socket.create_connection((address.host, address.port), exchange.timeout) as tcp:
        if address.transport is Transport.HTTPS:
            tcp.settimeout(seconds_until(deadline))
            with _tls_context().wrap_socket(tcp) as tls:
                _check_certificate(exchange, tls.getpeercert(binary_form=True))
                _talk(tls, exchange, deadline)
        else:
            _talk(tcp, exchange, deadline)


def _talk(stream: socket.socket, exchange: Exchange, deadline: float) -> None:
    stream.settimeout(seconds_until(deadline))
    stream.sendall(b"".join(exchange.data))
    _receive(stream, exchange, deadline)


def _receive(source: socket.socket, exchange: Exchange, deadline: float) -> None:
    while True:
        source.settimeout(seconds_until(deadline))
        if exchange.receive(source.recv(_RECEIVED)):
            return


def _open_datagrams(address: Address) -> socket.socket:
    """A socket that receives from this address only, with a port of its own."""
    udp = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.connect((address.host, address.port))
    except BaseException:
        udp.close()
        raise
    return udp


def _tls_context() -> "ssl.SSLContext":
    """Servers have self-signed certificates: their key is compared with that of the site instead, as deployed."""
    import ssl  # noqa: PLC0415 - rarely needed, and slow to import

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _check_certificate(exchange: Exchange, certificate: bytes | None) -> None:
    if exchange.check_certificate is not None:
        exchange.check_certificate(certificate or b"")


# An event loop


class AsyncTransport:
    """Does steps in an event loop, with one UDP socket for all concurrent requests to a server."""

    def __init__(self) -> None:
        self._sockets: OrderedDict[Address, _SharedSocket] = OrderedDict()
        self._turns: dict[str, _Queue] = {}

    async def run(self, steps: Steps[T]) -> T:
        """Do the steps."""
        turn: Turn | None = None
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Turn):
                        turn, result = await self._change_turn(turn, step), None
                    else:
                        result = await self._do(step)
                except FAILURES as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            if turn is not None:
                self._end_turn(turn)

    async def _change_turn(self, held: Turn | None, turn: Turn) -> Turn | None:
        """Begin or end a turn, and return the one that is held then."""
        if turn.is_over:
            if held is not None:
                self._end_turn(held)
            return None
        import asyncio  # noqa: PLC0415 - blocking clients do not need it

        queue = self._turns.get(turn.key)
        if queue is None:
            queue = self._turns[turn.key] = _Queue(asyncio.Lock())
        queue.length += 1
        try:
            async with asyncio.timeout(turn.timeout):
                await queue.lock.acquire()
        except BaseException:
            self._leave(turn.key, queue)
            raise
        return turn

    def _end_turn(self, turn: Turn) -> None:
        queue = self._turns[turn.key]
        queue.lock.release()
        self._leave(turn.key, queue)

    def _leave(self, key: str, queue: "_Queue") -> None:
        queue.length -= 1
        if queue.length == 0:
            del self._turns[key]

    async def _do(self, step: Exchange | Lookup) -> tuple[str, ...] | None:
        if isinstance(step, Exchange) and step.address.transport is Transport.UDP:
            await self._socket(step.address).exchange(step)
            return None
        if isinstance(step, Lookup):
            return await look_up_async(step.domain, step.timeout)
        import asyncio  # noqa: PLC0415 - blocking clients do not need it

        async with asyncio.timeout(step.timeout):
            await _exchange_stream(step)
        return None

    def _socket(self, address: Address) -> "_SharedSocket":
        shared = self._sockets.get(address)
        if shared is None or shared.is_closed:
            shared = self._sockets[address] = _SharedSocket(address)
            idle = [each for each, other in self._sockets.items() if other.is_idle and other is not shared]
            for each in idle[: max(0, len(self._sockets) - _MAX_SOCKETS)]:
                self._sockets.pop(each).close()
        self._sockets.move_to_end(address)
        return shared

    def close(self) -> None:
        """Close all sockets."""
        while self._sockets:
            self._sockets.popitem()[1].close()


@dataclass(slots=True)
class _Queue:
    """The generators that have a turn or wait for it."""

    lock: "asyncio.Lock"
    length: int = 0


@dataclass(slots=True, eq=False)
class _SharedSocket:
    """A UDP socket for all requests to one address; responses are matched by request id."""

    address: Address
    _udp: socket.socket = field(init=False)
    _loop: "asyncio.AbstractEventLoop" = field(init=False)
    _pending: "dict[int, tuple[Exchange, asyncio.Future[None], float]]" = field(default_factory=dict)
    """Requests without a response, each with the time of its time-out."""
    _timer: "asyncio.TimerHandle | None" = None

    def __post_init__(self) -> None:
        import asyncio  # noqa: PLC0415 - blocking clients do not need it

        self._loop = asyncio.get_running_loop()
        self._udp = _open_datagrams(self.address)
        self._udp.setblocking(False)
        self._loop.add_reader(self._udp.fileno(), self._receive)

    @property
    def is_idle(self) -> bool:
        """Whether no response is expected."""
        return not self._pending

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._udp.fileno() < 0

    async def exchange(self, exchange: Exchange) -> None:
        """Send a request and wait for its response."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._pending[exchange.request_id] = exchange, future, self._loop.time() + exchange.timeout
        if self._timer is None:
            self._timer = self._loop.call_later(_TICK, self._check_timeouts)
        try:
            for packet in exchange.data:
                try:
                    self._udp.send(packet)
                except BlockingIOError:
                    break  # a full buffer is like a lost packet: the request is repeated
            await future
        finally:
            del self._pending[exchange.request_id]

    def _check_timeouts(self) -> None:
        now = self._loop.time()
        for _, future, end in self._pending.values():
            if end <= now:
                _fail(future, TimeoutError("timed out"))
        self._timer = self._loop.call_later(_TICK, self._check_timeouts) if self._pending else None

    def _receive(self) -> None:
        for _ in range(_MAX_BATCH):
            try:
                data = self._udp.recv(_RECEIVED)
            except BlockingIOError:
                return
            except OSError as error:  # no server listens there
                for _, future, _ in self._pending.values():
                    _fail(future, error)
                return
            pending = self._pending.get(int.from_bytes(data[8:12], "big", signed=True))
            if pending is None:
                continue
            exchange, future, _ = pending
            try:
                if exchange.receive(data) and not future.done():
                    future.set_result(None)
            except RemoteProtocolError as error:
                _fail(future, error)

    def close(self) -> None:
        """Close the socket; pending requests fail."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._udp.fileno())
            if self._timer is not None:
                self._timer.cancel()
            for _, future, _ in self._pending.values():
                _fail(future, ConnectionAbortedError("the client was closed"))
        self._udp.close()


def _fail(future: "asyncio.Future[None]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


async def _exchange_stream(exchange: Exchange) -> None:
    import asyncio  # noqa: PLC0415 - blocking clients do not need it

    address = exchange.address
    tls = _tls_context() if address.transport is Transport.HTTPS else None
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    try:
        if tls is not None:
            _check_certificate(exchange, writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.writelines(exchange.data)
        while not exchange.receive(await reader.read(_RECEIVED)):
            pass
    finally:
        writer.transport.abort()
