"""Bare servers that only send back a response of the right size: the cost of the sockets.

On a busy machine everything takes longer, so figures of the same run are compared: how much more than this does the
server do? `python -m perseid.server.benchmark.bare KIND` serves until it is killed, either UDP in a plain blocking
loop, which is fastest, or TCP on uvloop, as workers do.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

import uvloop

from perseid.wire.codes import OpCode, OpFlag, ResponseCode
from perseid.wire.message import Envelope, Header, Message
from perseid.wire.responses import ResolutionResult, encode_response

from .installation import FORMAT, three_values

UDP: Final = "udp"
TCP: Final = "tcp"

_ID = slice(8, 12)
_FLAGS, _KEEP = 28, OpFlag.KEEP_CONNECTION >> 24


@dataclass(frozen=True, slots=True)
class Bare:
    """A running bare server."""

    pid: int
    native: tuple[str, int]


def _answer() -> tuple[bytes, bytes]:
    """The bytes before and after the request id in a response with three values."""
    name = FORMAT % 0
    body = encode_response(ResolutionResult(name.encode(), three_values(name)), None)
    header = Header(OpCode.RESOLUTION, ResponseCode.SUCCESS)
    raw = Message.build(Envelope(), header, body).to_bytes()
    return raw[: _ID.start], raw[_ID.stop :]


def _serve_udp() -> None:
    before, behind = _answer()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        print(sock.getsockname()[1], flush=True)
        receive, send = sock.recvfrom, sock.sendto
        while True:
            datagram, address = receive(513)
            send(before + datagram[_ID] + behind, address)


class _Echo(asyncio.Protocol):
    before, behind = _answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(self.before + data[_ID] + self.behind)
        if not data[_FLAGS] & _KEEP:
            self._transport.close()


async def _serve_tcp() -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0, backlog=1_024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def bare(kind: str) -> Iterator[Bare]:
    """Run a bare server during the block."""
    command = [sys.executable, "-P", "-m", __spec__.name, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - this module
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            yield Bare(process.pid, ("127.0.0.1", int(process.stdout.readline())))
        finally:
            process.kill()


def main() -> None:
    """Serve until killed."""
    if sys.argv[1] == UDP:
        _serve_udp()
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve_tcp())


if __name__ == "__main__":
    main()
