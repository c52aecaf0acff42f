"""Cost of TLS: the server's part of a handshake; and as a program, connections and requests compared with plain ones.

    python -m bench.tls [--handshakes N] [--requests N] [--idle N]

The program starts a TLS front end with an HTTP connection that responds at once, in a separate process, and prints the
CPU time and the memory of that process. Client and server take turns, so the client's work is not included.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from threading import Thread
from typing import Any, Final

import uvloop
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_private_key
from OpenSSL import SSL

from perseid.records.private_keys import read_key_file
from perseid.records.site import Transport
from perseid.registry.installation.certificates import create_self_signed
from perseid.registry.installation.settings import Config
from perseid.server.http.clients import Peer
from perseid.server.http.connection.connection import Connection
from perseid.server.http.connection.listener import ConnectionManager, HttpListener
from perseid.server.http.connection.requests import ParsedRequest
from perseid.server.http.connection.tls import advance, make_server_context
from perseid.server.http.messages import Request, Response
from perseid.server.limits.budgets import Connections
from perseid.server.native.work import Work, WorkKind
from perseid.server.observe.metrics import WorkerCounters
from perseid.server.processes.pools import Pools

KEYS = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "keys"
RSA_KEY = load_der_private_key(read_key_file((KEYS / "privkey.bin").read_bytes(), None).to_pkcs8(), None)
"""2,048 bits, as `init` creates them."""

HOSTS: Final = ("localhost", "127.0.0.1")
REQUEST: Final = b"GET /20.500.99999/a-name HTTP/1.1\r\nHost: localhost:8000\r\nAccept: */*\r\n\r\n"
ANSWER: Final = (
    b"HTTP/1.1 302 Found\r\nLocation: https://example.org/a/typical/address\r\nContent-Type: text/html\r\n"
    b"Date: Sun, 15 Nov 2026 12:00:00 GMT\r\nContent-Length: 400\r\n\r\n" + b"x" * 400
)
VERSIONS: Final = {"TLS 1.3": ssl.TLSVersion.TLSv1_3, "TLS 1.2": ssl.TLSVersion.TLSv1_2}


def benches() -> dict[str, Callable[[], object]]:
    """Return functions by name."""
    keys: dict[str, Any] = {"RSA-2048": RSA_KEY, "P-256": ec.generate_private_key(ec.SECP256R1())}
    found: dict[str, Callable[[], object]] = {}
    for kind, key in keys.items():
        context = make_server_context([create_self_signed(key, HOSTS)], key)
        for name, version in VERSIONS.items():
            found[f"first flight of the server, {name}, {kind}"] = _flight(context, _hello(version))
    return found


def _flight(context: SSL.Context, hello: bytes) -> Callable[[], object]:
    def flight() -> object:
        connection = SSL.Connection(context, None)
        connection.set_accept_state()
        return advance(connection, hello)

    return flight


def _hello(version: ssl.TLSVersion) -> bytes:
    """The first message of a client, which can be repeated."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        _client(version).wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("nobody has answered")


def _client(version: ssl.TLSVersion) -> ssl.SSLContext:
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    client_context.minimum_version = client_context.maximum_version = version
    return client_context


# The server


class _AtOnce:
    """Responds to everything at once."""

    def handle_fast(self, _: ParsedRequest) -> bytes | None:
        return ANSWER

    def is_streamed(self, _: ParsedRequest) -> bool:
        return False

    async def handle(self, _: Request) -> Response:
        raise AssertionError("every response is immediate")

    def reject(self, status: int, _: str, __: bytes) -> Response:
        return Response(status)


def _serve(listener: socket.socket, pipe: Pipe) -> None:
    """The measured process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_front(listener, pipe))


async def _front(listener: socket.socket, pipe: Pipe) -> None:
    loop = asyncio.get_running_loop()
    config = Config.parse("", {})
    pools, manager, connections = Pools(config), ConnectionManager(), Connections(config)
    service = _AtOnce()

    def greet(call: Callable[[], object], host: str) -> Awaitable[object]:
        return pools.do(Work(WorkKind.HANDSHAKE, call), host, Transport.HTTPS)

    def make(host: str, *, secure: bool, certificate: bytes | None) -> asyncio.Protocol:
        return Connection(service, manager, Peer(host, secure, certificate), ended=lambda: connections.leave(host))

    context = make_server_context([create_self_signed(RSA_KEY, HOSTS)], RSA_KEY)  # type: ignore[arg-type]
    front = HttpListener(connections, WorkerCounters(), make=make, work=greet, context=context)
    front.start(loop, listener)
    ended = asyncio.Event()

    def report() -> None:
        while pipe.recv():
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            pipe.send((time.process_time(), pages * os.sysconf("SC_PAGE_SIZE")))
        loop.call_soon_threadsafe(ended.set)

    Thread(target=report, daemon=True).start()
    await ended.wait()
    front.stop(loop, listener)
    pools.close()


# The client


@contextmanager
def _running() -> Iterator[tuple[tuple[str, int], Callable[[], tuple[float, int]]]]:
    """A server: its address, and a function that returns its CPU time and memory."""
    with socket.create_server(("127.0.0.1", 0), backlog=1_024) as listener:
        mine, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(listener, theirs))
        process.start()

        def read_usage() -> tuple[float, int]:
            mine.send(True)
            found: tuple[float, int] = mine.recv()
            return found

        try:
            yield listener.getsockname(), read_usage
        finally:
            mine.send(False)
            process.join()


def _open(stack: ExitStack, address: tuple[str, int], context: ssl.SSLContext | None) -> socket.socket:
    plain = stack.enter_context(socket.create_connection(address))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain if context is None else stack.enter_context(context.wrap_socket(plain))


def _ask(client: socket.socket) -> None:
    client.sendall(REQUEST)
    left = len(ANSWER)
    while left:
        left -= len(client.recv(left))


def _measured(read_usage: Callable[[], tuple[float, int]], times: int, call: Callable[[], None]) -> float:
    """CPU microseconds of the server for each call."""
    call()
    before, _ = read_usage()
    for _ in range(times):
        call()
    after, _ = read_usage()
    return (after - before) / times * 1_000_000


def measure(handshakes: int, requests: int, idle: int) -> dict[str, dict[str, float]]:
    """Cost of a connection with one request, a request over a kept one, and an idle one, by protocol."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * idle)), hard))
    found: dict[str, dict[str, float]] = {}
    spoken: dict[str, ssl.SSLContext | None] = {"plain": None}
    spoken |= {name: _client(version) for name, version in VERSIONS.items()}
    for name, context in spoken.items():
        with _running() as (address, read_usage), ExitStack() as stack:

            def once(address: tuple[str, int] = address, context: ssl.SSLContext | None = context) -> None:
                with ExitStack() as inner:
                    _ask(_open(inner, address, context))

            connection = _measured(read_usage, handshakes, once)
            kept = _open(stack, address, context)
            request = _measured(read_usage, requests, lambda kept=kept: _ask(kept))  # type: ignore[misc]
            _, before = read_usage()
            for _ in range(idle):
                _ask(_open(stack, address, context))
            _, after = read_usage()
            found[name] = {
                "connection with one request, µs": connection,
                "request on a kept connection, µs": request,
                "idle connection, bytes": (after - before) / idle,
            }
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What TLS costs beside plain connections.")
    parser.add_argument("--handshakes", type=int, default=1_000)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--idle", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.handshakes, options.requests, options.idle)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'':<36}" + "".join(f"{name:>12}" for name in found))
    for what in next(iter(found.values())):
        print(f"{what:<36}" + "".join(f"{stats[what]:>12,.1f}" for stats in found.values()))


if __name__ == "__main__":
    main()
