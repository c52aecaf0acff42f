"""Client that creates records as fast as they are acknowledged, and checks every response.

Like a load generator it is a separate process (`python -m bench.serving.writing ORDER`). In a session all requests are
prepared in advance, including MACs, so that the measured time is the server's: the client only sends, receives and
checks request id and code. Without a session the client authenticates for each record: it signs, or derives a key from
its secret, which takes as long as the server's check, or longer. That is part of the time.
"""

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Final

from bench.serving.installations import Filled
from perseid import client as perseid_client
from perseid.client import native_operations
from perseid.server.benchmark import processes
from perseid.server.benchmark.installation import PREFIX, three_values
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.message import ENVELOPE_LENGTH
from perseid.wire.requests import ValuesRequest
from tests.server.native.native_client import NativeClient, Via

PREPARED_A_SECOND: Final = 6_000
"""Requests prepared for each second: more than any server acknowledges to one client."""
MOST_UNEQUAL: Final = 4
"""How many times its share one of many clients may create."""

_SUCCESS = int(ResponseCode.SUCCESS).to_bytes(4, "big")
_ID, _LENGTH, _CODE = slice(8, 12), slice(16, 20), slice(24, 28)
_RECEIVED = 65_536


@dataclass(frozen=True, slots=True)
class WriteOptions(processes.ProcessOptions):
    """Options of a client."""

    address: tuple[str, int]
    directory: str
    """The server's installation; nothing is read there."""
    secret: str
    proof: str
    """`rsa` or `secret`."""
    in_session: bool
    via: str
    label: str
    """Prefix of the new suffixes, unique for each client."""
    seconds: float
    pipelined: bool = False
    """Whether the client of the product creates, many at once in one session."""
    clients: int = 1
    """Clients that create at the same time."""


@dataclass(frozen=True, slots=True)
class Written:
    """Results."""

    acknowledged: int
    refused: int
    seconds: float
    cpu: float
    """CPU seconds of this client."""
    last: str
    """The last acknowledged record."""


def create(options: WriteOptions, wait: Callable[[], object]) -> Written:
    """Create records for the given time, after `wait` returns."""
    filled = Filled(Path(options.directory), 0, options.secret)
    if options.pipelined:
        return _pipeline(options, filled, wait)
    with NativeClient(options.address, Via(options.via)) as client:
        client.act_as(*filled.proof(options.proof))
        names = (f"{PREFIX}/{options.label}-{number:06d}" for number in count())
        if options.in_session:
            client.begin_session()
            _must_be_done(client, next(names))  # authenticate once
            prepared = int(options.seconds * PREPARED_A_SECOND * min(1.0, MOST_UNEQUAL / options.clients)) + 1
            steps = _prepared(client, [next(names) for _ in range(prepared)])
        else:
            steps = ((name, client.create(name, three_values(name)).code == ResponseCode.SUCCESS) for name in names)
        wait()
        started, cpu = time.monotonic(), time.process_time()
        acknowledged = refused = 0
        last = ""
        for name, done in steps:
            if done:
                acknowledged += 1
                last = name
            else:
                refused += 1
            if time.monotonic() - started > options.seconds:
                break
        return Written(acknowledged, refused, time.monotonic() - started, time.process_time() - cpu, last)


def _pipeline(options: WriteOptions, filled: Filled, wait: Callable[[], object]) -> Written:
    """Create as programs do, with the client of the product."""
    identity, key = filled.proof(options.proof)
    names = (f"{PREFIX}/{options.label}-{number:06d}" for number in count())
    with perseid_client.NativeClient(*options.address, identity=identity, key=key) as native:
        native.create(name := next(names), three_values(name))  # authenticate once
        wait()
        started, cpu = time.monotonic(), time.process_time()
        wanted = takewhile(lambda _: time.monotonic() - started < options.seconds, names)
        results = list(native.do_many(native_operations.create(name, three_values(name)) for name in wanted))
        created = [result for result in results if isinstance(result, str)]
        seconds, spent = time.monotonic() - started, time.process_time() - cpu
    return Written(len(created), len(results) - len(created), seconds, spent, created[-1] if created else "")


def _must_be_done(client: NativeClient, name: str) -> None:
    answer = client.create(name, three_values(name))
    if answer.code != ResponseCode.SUCCESS:
        raise RuntimeError(f"{name} was not created: {answer.body}")


def _prepared(client: NativeClient, names: list[str]) -> Iterator[tuple[str, bool]]:
    """Send prepared requests; yield whether each succeeded."""
    session = client.session
    messages = []
    for name in names:
        body = ValuesRequest(name.encode(), three_values(name))
        frame = client.client.pack(client.request(OpCode.CREATE_HANDLE, body, session=session), session)
        messages.append((name, frame.envelope.to_bytes() + frame.payload))
    return _sent(client, messages)


def _sent(client: NativeClient, messages: list[tuple[str, bytes]]) -> Iterator[tuple[str, bool]]:
    keep = client.via is Via.KEPT
    stream: socket.socket | None = None
    for name, request in messages:
        if stream is None:
            stream = socket.create_connection(client.address)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sendall(request)
        answer = stream.recv(_RECEIVED)
        while len(answer) < ENVELOPE_LENGTH or len(answer) < ENVELOPE_LENGTH + int.from_bytes(answer[_LENGTH], "big"):
            more = stream.recv(_RECEIVED)
            if not more:
                raise ConnectionError("the server closed the connection before its response")
            answer += more
        yield name, answer[_ID] == request[_ID] and answer[_CODE] == _SUCCESS
        if not keep:
            stream.close()
            stream = None
    raise RuntimeError("not enough prepared requests for this server")


def main() -> None:
    """Report readiness, wait, create, report."""

    def wait() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    print(json.dumps(asdict(create(WriteOptions.from_json(sys.argv[1]), wait))))


if __name__ == "__main__":
    main()
