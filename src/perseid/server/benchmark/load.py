"""Load generator: requests records as fast as the server responds, and checks every response.

A generator is a separate process (`python -m perseid.server.benchmark.load ORDER`); it prints that it is ready, waits
for a line, sends requests for the given time, waits for pending responses, and prints the result. It keeps a window of
requests outstanding on each of several sockets, so that the server is always busy.

Requests are prepared in advance and get their id when they are sent. The request id and the code of a response are
checked; values are checked by tests.
"""

import json
import random
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count, cycle
from typing import Final

from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode
from perseid.wire.message import ENVELOPE_LENGTH, MESSAGE_LIFETIME, Envelope, Header, Message
from perseid.wire.requests import Resolve, encode_request

from . import processes

UDP: Final = "udp"
TCP: Final = "tcp"
"""A connection for each request."""
KEPT: Final = "kept"
"""Kept connections."""
HTTP: Final = "http"
"""Kept connections over HTTP, one request at a time on each."""

PATIENCE: Final = 1.0
"""Seconds after which a request is considered lost."""

_REQUESTS = 5_000
_RECEIVED = 65_536
_ID, _LENGTH, _CODE = slice(8, 12), slice(16, 20), slice(24, 28)


@dataclass(frozen=True, slots=True)
class LoadOptions(processes.ProcessOptions):
    """Options of a generator."""

    mode: str
    address: tuple[str, int]
    format: str
    """The handles to request, or the paths over HTTP, as a `printf` format."""
    handles: int
    """Number of handles."""
    seconds: float
    code: int = ResponseCode.SUCCESS
    """The expected code; over HTTP, the status."""
    sockets: int = 8
    window: int = 8
    """Requests outstanding on each socket; one if each request has its own connection."""
    seed: int = 1


@dataclass(slots=True)
class Tally:
    """Results."""

    answered: int = 0
    """Correct responses."""
    wrong: int = 0
    """Responses with another code, or to another request."""
    lost: int = 0
    """Requests without a response."""
    reopened: int = 0
    """Kept connections that the server closed."""
    seconds: float = 0.0
    """How long requests were sent."""
    cpu: float = 0.0
    """CPU seconds of this generator."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.answered + other.answered,
            self.wrong + other.wrong,
            self.lost + other.lost,
            self.reopened + other.reopened,
            max(self.seconds, other.seconds),
            self.cpu + other.cpu,
        )


@dataclass(slots=True)
class _Line:
    """A socket with its outstanding requests: the time of each, by id."""

    socket: socket.socket
    pending: dict[bytes, float] = field(default_factory=dict)
    buffer: bytes = b""


class Generator:
    """Sends requests as ordered."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._code = int(options.code).to_bytes(4, "big")
        self._next = (_http_requests if options.mode == HTTP else _requests)(options).__next__
        self._status = b"HTTP/1.1 %d " % options.code
        self._poll = select.epoll()
        self._lines: dict[int, _Line] = {}
        self._given_up: set[bytes] = set()
        self._ending = False
        self.tally = Tally()

    def run(self) -> Tally:
        """Send requests for the given time, then wait for outstanding ones."""
        take: Callable[[_Line, float], None] = {
            UDP: self._datagrams,
            TCP: self._once,
            KEPT: self._stream,
            HTTP: self._http,
        }[self._options.mode]
        started, cpu = time.monotonic(), time.process_time()
        end = started + self._options.seconds
        tidy = started + PATIENCE / 5
        for _ in range(self._options.sockets):
            self._open(started)
        while (now := time.monotonic()) < end or (self._outstanding() and now < end + PATIENCE):
            self._ending = now >= end
            for descriptor, _ in self._poll.poll(0.02):
                take(self._lines[descriptor], now)
            if now > tidy:
                self._give_up(now)
                tidy = now + PATIENCE / 5
        self.tally.lost += self._outstanding()
        self.tally.seconds = self._options.seconds
        self.tally.cpu = time.process_time() - cpu
        for line in self._lines.values():
            line.socket.close()
        self._poll.close()
        return self.tally

    def _outstanding(self) -> int:
        return sum(len(line.pending) for line in self._lines.values())

    def _give_up(self, now: float) -> None:
        """Count expired requests as lost, and replace them."""
        for line in list(self._lines.values()):
            old = [number for number, sent in line.pending.items() if now - sent > PATIENCE]
            self.tally.lost += len(old)
            self._given_up.update(old)
            for number in old:
                del line.pending[number]
            if old and self._options.mode != UDP:
                self._reopen(line, now)
            elif old:
                self._ask(line, len(old), now)

    def _open(self, now: float) -> None:
        kind = socket.SOCK_DGRAM if self._options.mode == UDP else socket.SOCK_STREAM
        sock = socket.socket(socket.AF_INET, kind)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect(self._options.address)  # immediate on the same machine
        sock.setblocking(False)
        line = self._lines[sock.fileno()] = _Line(sock)
        self._poll.register(sock.fileno(), select.EPOLLIN)
        self._ask(line, 1 if self._options.mode in {TCP, HTTP} else self._options.window, now)

    def _reopen(self, line: _Line, now: float) -> None:
        del self._lines[line.socket.fileno()]
        line.socket.close()
        if not self._ending:
            self._open(now)

    def _ask(self, line: _Line, requests: int, now: float) -> None:
        if not self._ending:
            for _ in range(requests):
                number, request = self._next()
                line.pending[number] = now
                line.socket.send(request)

    def _check(self, line: _Line, number: bytes, code: bytes) -> None:
        """Count a response as correct or wrong."""
        if line.pending.pop(number, None) is not None and code == self._code:
            self.tally.answered += 1
        else:
            self.tally.wrong += 1

    # The modes. The code for every response is inlined: the generator must not be slower than the server.

    def _datagrams(self, line: _Line, now: float) -> None:
        receive, send, pending, tally = line.socket.recv, line.socket.send, line.pending, self.tally
        expected, following, ending = self._code, self._next, self._ending
        try:
            while True:
                answer = receive(_RECEIVED)
                if pending.pop(answer[_ID], None) is None:
                    tally.wrong += answer[_ID] not in self._given_up  # a late response is lost, not wrong
                    continue
                if answer[_CODE] == expected:
                    tally.answered += 1
                else:
                    tally.wrong += 1
                if not ending:
                    number, request = following()
                    pending[number] = now
                    send(request)
        except BlockingIOError:
            return

    def _once(self, line: _Line, now: float) -> None:
        answer = line.socket.recv(_RECEIVED)
        if not answer:
            self.tally.lost += len(line.pending)
        elif _is_whole(line.buffer + answer):
            answer = line.buffer + answer
            self._check(line, answer[_ID], answer[_CODE])
        else:
            line.buffer += answer
            return
        self._reopen(line, now)

    def _stream(self, line: _Line, now: float) -> None:
        received = line.socket.recv(_RECEIVED)
        if not received:
            self.tally.lost += len(line.pending)
            self.tally.reopened += 1
            self._reopen(line, now)
            return
        received = line.buffer + received
        while _is_whole(received):
            end = ENVELOPE_LENGTH + int.from_bytes(received[_LENGTH], "big")
            self._check(line, received[_ID], received[_CODE])
            received = received[end:]
            self._ask(line, 1, now)
        line.buffer = received

    def _http(self, line: _Line, now: float) -> None:
        received = line.socket.recv(_RECEIVED)
        if not received:
            self.tally.lost += len(line.pending)
            self.tally.reopened += 1
            self._reopen(line, now)
            return
        line.buffer += received
        head, end, body = line.buffer.partition(b"\r\n\r\n")
        if end and len(body) >= _body_length(head):
            (number,) = line.pending
            self._check(line, number, self._code if head.startswith(self._status) else b"")
            line.buffer = b""
            self._ask(line, 1, now)


def _is_whole(received: bytes) -> bool:
    """Whether the data starts with a complete message."""
    return len(received) >= ENVELOPE_LENGTH and len(received) >= ENVELOPE_LENGTH + int.from_bytes(
        received[_LENGTH], "big"
    )


def _body_length(head: bytes) -> int:
    """The length of the body of an HTTP response."""
    return int(head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0] or b"0")


def _random_names(options: LoadOptions) -> Iterator[str]:
    numbers = random.Random(options.seed)  # noqa: S311 - no secret
    return ((options.format % numbers.randrange(options.handles)) for _ in range(min(_REQUESTS, options.handles)))


def _http_requests(options: LoadOptions) -> Iterator[tuple[bytes, bytes]]:
    """Endless requests with their ids, which are not sent."""
    requests = cycle(
        [f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n".encode() for path in _random_names(options)]
    )
    return ((number.to_bytes(4, "big"), request) for number, request in enumerate(requests))


def _requests(options: LoadOptions) -> Iterator[tuple[bytes, bytes]]:
    """Endless requests with their ids, for random handles."""
    flags = DEFAULT_FLAGS | (OpFlag.KEEP_CONNECTION if options.mode == KEPT else OpFlag(0))
    header = Header(OpCode.RESOLUTION, flags=flags, expires=int(time.time()) + MESSAGE_LIFETIME)
    messages = []
    for name in _random_names(options):
        body = encode_request(Resolve(name.encode()), CURRENT_VERSION)
        messages.append(Message.build(Envelope(), header, body).to_bytes())
    before, after = messages[0][: _ID.start], cycle([raw[_ID.stop :] for raw in messages])
    for number in count(1):
        request_id = number.to_bytes(4, "big")
        yield request_id, before + request_id + next(after)


def main() -> None:
    """Report readiness, wait, send, report."""
    generator = Generator(LoadOptions.from_json(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asdict(generator.run())))


if __name__ == "__main__":
    main()
