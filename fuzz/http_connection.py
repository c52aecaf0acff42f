"""HTTP connections: any bytes, in any pieces, give sound answers and an end; never an error, and nothing is left over.

The first byte of the input says how long the pieces are in which the rest comes. Every request that is taken is looked
for by another reader (h11) in the same bytes: what two readers understand differently is how requests are smuggled. It
takes less than we do in two things, which are left out: bytes beyond ASCII in a target, and an empty line before a
request.
"""

import asyncio
from typing import Any, Final

import h11

from perseid.server.http.clients import Peer
from perseid.server.http.connection.connection import Connection
from perseid.server.http.connection.listener import ConnectionManager
from perseid.server.http.connection.requests import MAX_HEADERS, ParsedRequest
from perseid.server.http.messages import MAX_BODY, MAX_HEAD, BadRequest, Request, Response
from perseid.server.limits.udp import NetworkSet

TURNS: Final = 2_000
"""Iterations of the event loop after which something hangs."""

AT_ONCE: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnow\n"


class _Wire(asyncio.Transport):
    """A transport that records what is written."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.protocol: Connection | None = None
        self.written = bytearray()
        self.closing = self.lost = self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closing:
            raise AssertionError("something is written to a connection that is closed")
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self._lose)

    def abort(self) -> None:
        self.close()

    def _lose(self) -> None:
        self.lost = True
        if self.protocol is not None:
            self.protocol.connection_lost(None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - it knows nothing
        return default


class _Service:
    """Answers some requests at once and the others later, and remembers all."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def handle_fast(self, request: ParsedRequest) -> bytes | None:
        if request.target.startswith(b"/a") and request.method == "GET" and request.keep and request.version == "1.1":
            self.requests.append(request)
            return AT_ONCE
        return None

    def is_streamed(self, request: ParsedRequest) -> bool:
        return request.target.startswith(b"/s")

    async def handle(self, request: Request) -> Response:
        self.requests.append(request)
        await asyncio.sleep(0)
        body = request.body
        if request.stream is not None:
            try:
                body = b"".join([part async for part in request.stream])
            except BadRequest as problem:
                return Response(problem.status)
        return Response(200, (("Content-Type", "text/plain"),), body)

    def reject(self, status: int, problem: str, path: bytes) -> Response:
        if not 400 <= status < 600 or not problem.isascii() or not isinstance(path, bytes):
            raise AssertionError(f"{status} {problem} {path!r} is no refusal")
        return Response(status, (), problem.encode())


_LOOP = asyncio.new_event_loop()


def fuzz(data: bytes) -> None:
    """Send one input."""
    if data:
        _LOOP.run_until_complete(_drive(data[1:], data[0] or len(data)))


async def _drive(data: bytes, size: int) -> None:
    clock = [0.0]
    service, manager = _Service(), ConnectionManager(now=lambda: clock[0])
    wire = _Wire(_LOOP)
    peer = Peer("127.0.0.1", trusted_networks=NetworkSet(["127.0.0.1"]))
    wire.protocol = connection = Connection(service, manager, peer)
    connection.connection_made(wire)
    for at in range(0, len(data), size):
        await _until(lambda: wire.closing or not wire.paused, "it does not read again")
        if wire.closing:
            break
        connection.data_received(data[at : at + size])
    await _until(lambda: wire.closing or not wire.paused, "it does not read again")
    if not wire.closing and not connection.eof_received():
        wire.close()
    for _ in range(3):
        await asyncio.sleep(0)
        clock[0] += 100.0
        manager.check_deadlines()
    await _until(lambda: wire.lost and connection._task is None, "it does not end")  # noqa: SLF001 - nobody else knows
    if manager.open or manager.unfinished.total:
        raise AssertionError("something is left over")
    _check_answers(bytes(wire.written), service.requests)
    _check_requests(data, service.requests)


async def _until(condition: Any, what: str) -> None:
    for _ in range(TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(what)


def _check_answers(data: bytes, requests: list[Request]) -> None:
    """Every request has its response, and at most an error follows."""
    answered = 0
    for request in [*requests, None]:
        while data.startswith(b"HTTP/1.1 100 "):
            data = data.partition(b"\r\n\r\n")[2]
        if not data:
            break
        reader = h11.Connection(h11.CLIENT)
        method = "HEAD" if request is not None and request.method == "HEAD" else "GET"
        if request is None and b"Content-Length" in data and data.endswith(b"\r\n\r\n"):
            method = "HEAD"  # a refusal of a request that was not taken
        reader.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        reader.send(h11.EndOfMessage())
        reader.receive_data(data)
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                raise AssertionError("an answer is not whole")
        data = reader.trailing_data[0]
        answered += 1
    if data or answered < len(requests):
        raise AssertionError("there are more answers than requests, or fewer")


def _check_requests(data: bytes, requests: list[Request]) -> None:
    for request in requests:
        if len(request.headers) > MAX_HEADERS or len(request.body) > MAX_BODY or len(request.target) > MAX_HEAD:
            raise AssertionError("a request is larger than it may be")
        data = data.removeprefix(b"\r\n")
        line = data.partition(b"\r\n")[0]
        reader = h11.Connection(h11.SERVER)
        reader.receive_data(data if line.isascii() else b"GET /" + _rest(data, line))
        head = reader.next_event()
        if not isinstance(head, h11.Request):
            raise TypeError("what is taken for a request is none to another reader")
        headers = [(name.decode(), value.decode("latin-1")) for name, value in head.headers]
        if line.isascii() and head.method.decode() != request.method:
            raise AssertionError(f"{head.method!r} is {request.method}")
        ours = [(name, value.lower() if name == "transfer-encoding" else value) for name, value in request.headers]
        if headers != ours:
            raise AssertionError(f"{headers} are {ours}")
        body = b""
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise TypeError("what is taken for a body has no end for another reader")
            body += event.data
        if body != request.body:
            raise AssertionError(f"{body!r} is {request.body!r}")
        data = reader.trailing_data[0]


def _rest(data: bytes, line: bytes) -> bytes:
    """A request without the part before its version."""
    return line[line.rindex(b" ") :] + data[len(line) :]


_GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
_POST = b"POST /b?c HTTP/1.1\r\nHost: example.org\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"
SEEDS = [
    b"\0" + _GET,
    b"\1" + _GET * 3,
    b"\0" + _GET * 40,
    b"\5" + _POST + b"Content-Length: 4\r\n\r\nbody" + _GET,
    b"\0" + _POST + b"Content-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\nbody" + _GET,
    b"\7" + _CHUNKED + b'4;a="b"\r\nbody\r\n0\r\nTrailer: x\r\n\r\n' + _GET,
    b"\0" + _CHUNKED + b"A\r\n0123456789\r\n00\r\n\r\n",
    b"\0GET http://example.org/a#b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + _GET,
    b"\0OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"\0\r\nHEAD /\xc3\xa4 HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1, 10.0.0.1\r\nVia: 1.1 x\r\n\r\n",
    b"\0PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\0CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\0GET /a\r\n",
]
WORDS = [
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b"Content-Length: ",
    b"Content_Length: 1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Host: x\r\n",
    b"HEAD ",
    b"0\r\n\r\n",
]
