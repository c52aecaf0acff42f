"""A client that creates records as fast as they are acknowledged, and checks every acknowledgement.

Like a load generator it is a process of its own (`python -m bench.serving.writing ORDER`). In a session everything is
made beforehand, the MACs included, so that the time measured is the server's: the client only sends, receives and looks
at request id and code. Without a session a client has to prove who it is for each record: it signs, or derives a key
from its secret, which takes as long as it takes the server to check it, or longer. That is part of the time.
"""

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Final

from bench.serving import orders
from bench.serving.installations import PREFIX, Filled, three_values
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.message import ENVELOPE_LENGTH
from perseid.wire.requests import ValuesRequest
from tests.server.native.native_client import NativeClient, Via

PREPARED_A_SECOND: Final = 6_000
"""Requests that are made beforehand for each second: more than any server acknowledges to one client."""

_SUCCESS = int(ResponseCode.SUCCESS).to_bytes(4, "big")
_ID, _LENGTH, _CODE = slice(8, 12), slice(16, 20), slice(24, 28)
_RECEIVED = 65_536


@dataclass(frozen=True, slots=True)
class Order(orders.Order):
    """What a client shall do."""

    address: tuple[str, int]
    directory: str
    """Where the server's installation is; nothing is read there."""
    secret: str
    proof: str
    """`rsa` or `secret`."""
    in_session: bool
    via: str
    label: str
    """What the names of the new records begin with: no client gets in the way of another."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Written:
    """What came of it."""

    acknowledged: int
    refused: int
    seconds: float
    cpu: float
    """CPU seconds that this client has taken."""
    last: str
    """The last record that was acknowledged."""


def create(order: Order, wait: Callable[[], object]) -> Written:
    """Create records, from when `wait` returns, for the ordered time."""
    filled = Filled(Path(order.directory), 0, order.secret)
    with NativeClient(order.address, Via(order.via)) as client:
        client.act_as(*filled.proof(order.proof))
        names = (f"{PREFIX}/{order.label}-{number:06d}" for number in count())
        if order.in_session:
            client.begin_session()
            _must_be_done(client, next(names))  # who it is gets proved once
            prepared = int(order.seconds * PREPARED_A_SECOND)
            steps = _prepared(client, [next(names) for _ in range(prepared)])
        else:
            steps = ((name, client.create(name, three_values(name)).code == ResponseCode.SUCCESS) for name in names)
        wait()
        began, cpu = time.monotonic(), time.process_time()
        acknowledged = refused = 0
        last = ""
        for name, done in steps:
            if done:
                acknowledged += 1
                last = name
            else:
                refused += 1
            if time.monotonic() - began > order.seconds:
                break
        return Written(acknowledged, refused, time.monotonic() - began, time.process_time() - cpu, last)


def _must_be_done(client: NativeClient, name: str) -> None:
    answer = client.create(name, three_values(name))
    if answer.code != ResponseCode.SUCCESS:
        raise RuntimeError(f"{name} was not created: {answer.body}")


def _prepared(client: NativeClient, names: list[str]) -> Iterator[tuple[str, bool]]:
    """Send what has been made beforehand; whether each was done."""
    session = client.session
    made = []
    for name in names:
        body = ValuesRequest(name.encode(), three_values(name))
        frame = client.client.pack(client.request(OpCode.CREATE_HANDLE, body, session=session), session)
        made.append((name, frame.envelope.to_bytes() + frame.payload))
    return _sent(client, made)


def _sent(client: NativeClient, made: list[tuple[str, bytes]]) -> Iterator[tuple[str, bool]]:
    keep = client.via is Via.KEPT
    stream: socket.socket | None = None
    for name, request in made:
        if stream is None:
            stream = socket.create_connection(client.address)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sendall(request)
        answer = stream.recv(_RECEIVED)
        while len(answer) < ENVELOPE_LENGTH or len(answer) < ENVELOPE_LENGTH + int.from_bytes(answer[_LENGTH], "big"):
            more = stream.recv(_RECEIVED)
            if not more:
                raise ConnectionError("the server ended the connection before its answer")
            answer += more
        yield name, answer[_ID] == request[_ID] and answer[_CODE] == _SUCCESS
        if not keep:
            stream.close()
            stream = None
    raise RuntimeError("the server is faster than requests were prepared")


def main() -> None:
    """Be ready, wait, create, report."""

    def wait() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    print(json.dumps(asdict(create(Order.from_json(sys.argv[1]), wait))))


if __name__ == "__main__":
    main()
