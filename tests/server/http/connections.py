"""A small HTTP service on real sockets under uvloop, and a client that sends raw bytes: for connection tests.

Responses are parsed by h11, which is strict about what a server may send.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Self, TypeVar

import h11
import uvloop

from perseid.server.http.clients import Peer
from perseid.server.http.connection.connection import Connection
from perseid.server.http.connection.listener import ConnectionManager
from perseid.server.http.connection.requests import ParsedRequest
from perseid.server.http.connection.tls import HandshakeFailure, TlsTransport
from perseid.server.http.messages import BadRequest, Request, Response
from tests.server.http.listeners import client_context, context_of_server

T = TypeVar("T")

SECONDS: Final = 60.0
"""How long a test waits for something that should happen at once."""

LARGE: Final = 20_000_000
"""Octets of a large answer: more than the system takes for a client that does not read."""

MEDIUM: Final = 60_000
"""Octets of an answer that is sent in one piece."""

TEXT: Final = (("Content-Type", "text/plain"),)


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


class Echo:
    """Responds to each path, and remembers every request."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.refusals: list[tuple[int, str, bytes]] = []
        self.go = asyncio.Event()
        """What `/wait` waits for."""
        self.streams_closed = 0
        self.refused_uploads = False
        self.upload_problems: list[tuple[int, int]] = []
        """Streamed bodies that did not arrive completely: the status, and the bytes that did."""
        self.largest = 0
        """Bytes of the largest part of a streamed body."""

    def handle_fast(self, request: ParsedRequest) -> bytes | None:
        if request.path == b"/broken-at-once":
            raise RuntimeError("a secret")
        if request.path != b"/now":
            return None
        self.requests.append(request)
        connection = b"" if request.version == "1.1" else b"Connection: keep-alive\r\n"
        if not request.keep:
            connection = b"Connection: close\r\n"
        body = b"now\n" * (25_000 if request.query == b"large" else 1)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n" % (len(body), connection)
        return head if request.method == "HEAD" else head + body

    def is_streamed(self, request: ParsedRequest) -> bool:
        return request.path.startswith(b"/upload")

    async def handle(self, request: Request) -> Response:
        self.requests.append(request)
        path = request.path
        if path == b"/upload":
            return await self.upload(request)
        if path == b"/wait":
            await self.go.wait()
        if path == b"/broken":
            raise RuntimeError("a secret")
        if path in STREAMS:
            return Response(200, TEXT, stream=STREAMS[path](self))
        if path[1:].isdigit():
            return Response(int(path[1:]), TEXT, b"four")
        echo = Response(200, TEXT, b"%s %s %s" % (request.method.encode(), request.target, request.body))
        return FIXED.get(path, echo)

    async def upload(self, request: Request) -> Response:
        """Read a streamed body, one part for each `go` if the query says so, and return its size and end."""
        size, end = 0, b""
        if self.refused_uploads:
            return Response(403, TEXT)
        try:
            async for part in request.read_parts():
                self.largest = max(self.largest, len(part))
                size, end = size + len(part), part[-1:]
                if request.query == b"wait":
                    await self.go.wait()
        except BadRequest as problem:
            self.upload_problems.append((problem.status, size))
            return Response(problem.status, TEXT, problem.message.encode())
        return Response(200, TEXT, b"%d %s" % (size, end))

    async def stream(self) -> AsyncIterator[bytes]:
        try:
            for part in (b"one ", b"", b"two ", b"three"):
                await asyncio.sleep(0)
                yield part
        finally:
            self.streams_closed += 1

    async def endless(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(10_000)
        finally:
            self.streams_closed += 1

    async def torn(self) -> AsyncIterator[bytes]:
        yield b"one "
        raise RuntimeError("a secret")

    def reject(self, status: int, problem: str, path: bytes) -> Response:
        self.refusals.append((status, problem, path))
        if path == b"/broken-refusal":
            raise RuntimeError("a secret")
        return Response(status, TEXT, problem.encode())


STREAMS: Final[dict[bytes, Callable[[Echo], AsyncIterator[bytes]]]] = {
    b"/stream": Echo.stream,
    b"/endless": Echo.endless,
    b"/torn": Echo.torn,
}
FIXED: Final = {
    b"/bad-header": Response(200, (("not a name", "x"),)),
    b"/medium": Response(200, TEXT, bytes(MEDIUM)),
    b"/large": Response(200, TEXT, bytes(LARGE)),
    b"/close": Response(200, TEXT, b"bye\n", close=True),
    b"/contradicting": Response(200, (("Content-Length", "9"), ("connection", "upgrade"), ("Date", "never")), b"x"),
}


@dataclass
class Running:
    """A service that runs in its own event loop."""

    loop: asyncio.AbstractEventLoop
    port: int
    service: Echo
    manager: ConnectionManager
    clock: Clock
    errors: list[dict[str, Any]] = field(default_factory=list)
    """What the loop had to complain about."""
    limited: list[str] = field(default_factory=list)
    ended: int = 0
    tls: bool = False

    def do(self, call: Callable[[], T]) -> T:
        """Call a function in the event loop."""

        async def called() -> T:
            return call()

        return self.wait_for(called())

    def wait_for(self, something: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(something, self.loop).result(SECONDS)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, and check deadlines."""

        def looked_at() -> None:
            self.clock.seconds += seconds
            self.manager.check_deadlines()

        self.do(looked_at)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds in the event loop."""
        end = monotonic() + SECONDS
        while not self.do(condition):
            assert monotonic() < end, "it does not happen"

    def connect(self) -> "Caller":
        sock = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        return Caller(client_context().wrap_socket(sock) if self.tls else sock, self)

    def ask(self, octets: bytes, method: str = "GET", *, by: int = 0) -> "Answer":
        """Send bytes on a new connection, this many at a time; return the first response."""
        with self.connect() as caller:
            caller.send(octets, by=by)
            return caller.answer(method)


class _Greetings:
    """A handshake owner without timeouts."""

    def now(self) -> float:
        return monotonic()

    def handshake_started(self, tls: TlsTransport) -> None:
        pass

    def handshake_finished(self, tls: TlsTransport, *, done: bool) -> None:
        pass

    def handshake_failed(self, failure: HandshakeFailure, reason: str, host: str) -> None:
        pass

    def connection_closed(self, host: str) -> None:
        pass


async def _work(call: Callable[[], object], _: str) -> object:
    return call()


@contextmanager
def running(peer: Peer | None = None, *, tls: bool = False, **options: Any) -> Iterator[Running]:
    """Run a service while the block runs; at the end nothing may be left of it."""
    loop = uvloop.new_event_loop()
    clock = Clock()
    made: list[Running] = []
    complaints: list[dict[str, Any]] = []
    limited: list[str] = []
    manager = ConnectionManager(now=clock, count_limit=limited.append, **options)

    def ended() -> None:
        made[0].ended += 1

    async def start() -> asyncio.AbstractServer:
        service = Echo()
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        made.append(Running(loop, port, service, manager, clock, complaints, limited, tls=tls))

        def make(host: str, *, secure: bool, certificate: bytes | None) -> Connection:
            return Connection(service, manager, peer or Peer(host, secure, certificate), ended=ended)

        def outer() -> asyncio.Protocol:
            if tls:
                return TlsTransport(context_of_server(), "127.0.0.1", make=make, work=_work, owner=_Greetings())
            return make("127.0.0.1", secure=False, certificate=None)

        return await loop.create_server(outer, sock=listener)

    def cut_all() -> None:
        for one in list(manager.open):
            one.cut()

    loop.set_exception_handler(lambda _, context: complaints.append(context))
    server = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield made[0]
        made[0].do(cut_all)
        made[0].until(lambda: not manager.open)
        assert manager.unfinished.total == 0
        assert not complaints
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@dataclass
class Answer:
    """A response parsed by h11."""

    status: int
    headers: dict[str, str]
    body: bytes
    octets: bytes
    """The head, as it came."""

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"


class Closed(Exception):
    """The connection ended where a response was expected."""


class Caller:
    """A client that sends raw bytes over a connection."""

    def __init__(self, sock: socket.socket, server: Running) -> None:
        self.sock = sock
        self.server = server
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, octets: bytes, *, by: int = 0) -> None:
        """Send bytes, this many at a time; each part is read before the next is sent."""
        if not by:
            self.sock.sendall(octets)
            return
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for at in range(0, len(octets), by):
                self.sock.sendall(octets[at : at + by])
                self.server.do(lambda: None)  # a turn of the loop
        except OSError:
            pass  # refused on the way; what was answered is still there

    def feed(
        self,
        parts: Iterable[bytes],
        *,
        then: Callable[[Connection], bool] = lambda _: True,
        ended: bool = False,
    ) -> None:
        """Pass bytes to the server in exactly these parts, as if each had been read separately.

        `then` must hold afterwards, before anything else happens; the client may have `ended` with that.
        """
        ours = self.sock.getsockname()

        def feed() -> bool:
            (connection,) = (one for one in self.server.manager.open if _peer_of(one) == ours)
            for part in parts:
                connection.data_received(part)
            if ended:
                assert connection.eof_received()
            return then(connection)

        self.server.until(lambda: any(_peer_of(one) == ours for one in self.server.manager.open))
        assert self.server.do(feed)

    def receive(self) -> bytes:
        """The next bytes; empty at the end."""
        if self._unread:
            octets, self._unread = self._unread, b""
            return octets
        try:
            return self.sock.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def answer(self, method: str = "GET") -> Answer:
        reader = h11.Connection(h11.CLIENT)
        request = h11.Request(method=method, target="/", headers=[("Host", "x")])
        reader.send(request)
        reader.send(h11.EndOfMessage())
        head: h11.Response | None = None
        body = bytearray()
        came = bytearray()
        while True:
            event = reader.next_event()
            if event is h11.NEED_DATA:
                octets = self.receive()
                if not octets and head is None:
                    raise Closed
                came += octets
                reader.receive_data(octets)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
        assert head is not None
        self._unread = reader.trailing_data[0]
        headers: dict[str, str] = {}
        for name, value in head.headers:
            key = name.decode()
            assert key not in headers, f"{key} is there twice"
            headers[key] = value.decode("latin-1")
        return Answer(head.status_code, headers, bytes(body), bytes(came).partition(b"\r\n\r\n")[0])

    def is_closed(self) -> bool:
        """Whether nothing more arrives, and the connection ends."""
        return self.receive() == b""


def _peer_of(connection: Connection) -> object:
    transport = connection._transport
    return None if transport is None else transport.get_extra_info("peername")
