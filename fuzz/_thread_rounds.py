"""The thread of the compiled module over loopback: random requests, and a view with random values.

`_sanitized.py` runs it with sanitizers, and valgrind can: every round has sockets, a thread and a generation of its
own, and changes limits and log. The generation is closed and opened again, and the thread stopped and started, while
its counts are read. What the thread answers or leaves to the event loop is counted: nothing is lost. Over TCP, requests
are divided anywhere, several are on one connection, and some clients do not read, or reset the connection. Every
connection ends or is left to the event loop, and no descriptor stays open.
"""

import importlib
import os
import socket
import struct
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event, Thread

import lmdb

from perseid.compiled import native
from perseid.ledger.views.answers_reader import StateFile
from perseid.server.limits.connections import SharedConnections
from perseid.server.limits.udp import TOO_MUCH_TEXT, TrafficLimit
from perseid.server.native.resolution import ResolutionSettings

_target = importlib.import_module("answering")
_changed = importlib.import_module("_plain").changed

DATABASES = (b"handles", b"prefixes", b"policies", b"past", b"meta")
DATAGRAMS = 1_600
"""Datagrams of a round: so many that the queue for the event loop wraps around."""

BATCH = 32
"""Datagrams sent at a time, which the queue for the event loop has room for."""

CONNECTIONS = 200
"""Connections of a round: so many that the queue for the event loop wraps around."""

RESET = struct.pack("ii", 1, 0)
DEADLINE = 30.0
_REQUESTS = [seed[1:] for seed in _target.SEEDS if not seed[0]]
_MARK = b"the end of a batch"


def drive(rounds: int, seconds: float | None = None) -> None:
    """Run rounds, always the same ones; or other ones, as many as fit into a time. Print how many."""
    random = Random(1 if seconds is None else None)  # noqa: S311 - not for secrets
    end, done = time.monotonic() + (float("inf") if seconds is None else seconds), 0
    memory, counters = TrafficLimit.create(16), SharedConnections.create(1)
    connections = SharedConnections(counters, 0)
    with tempfile.TemporaryDirectory() as folder:
        state = StateFile.create(Path(folder, "state"))
        while done < rounds and time.monotonic() < end:
            done += 1
            before = _count_descriptors()
            _run(random, Path(folder, str(done)), state, done, memory, connections)
            if _count_descriptors() != before:
                raise AssertionError("a descriptor was left open")
        state.close()
    os.close(memory)
    os.close(counters)
    print(f"Done {done} rounds")


def _count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _write_view(random: Random, folder: Path) -> None:
    """Write a generation in which some values are random."""
    folder.mkdir()
    with lmdb.open(str(folder), max_dbs=len(DATABASES), map_size=1 << 22, sync=False) as env:
        opened = {name: env.open_db(name) for name in DATABASES}
        with env.begin(write=True) as txn:
            for name, items in ((b"handles", _target.HANDLES), (b"prefixes", _target.PREFIXES)):
                values = [*items.values()]
                for key, value in items.items():
                    txn.put(
                        key,
                        _changed(random, values, _target.WORDS) if random.random() < 0.5 else value,
                        db=opened[name],
                    )


def _run(
    random: Random, folder: Path, state: StateFile, number: int, memory: int, connections: SharedConnections
) -> None:
    _write_view(random, folder)
    state.switch(number)

    def open_generation() -> native.Environment:
        return native.Environment(str(folder), 1 << 22, DATABASES, state.descriptor, number, _to_error)

    env: native.Environment | None = open_generation()
    family = random.choice((socket.AF_INET, socket.AF_INET6))
    with (
        socket.socket(family, socket.SOCK_DGRAM) as udp,
        socket.socket(family, socket.SOCK_DGRAM) as client,
        socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family) as listener,
    ):
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        if family == socket.AF_INET6:
            udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            udp.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        udp.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))  # noqa: S104 - as servers do
        client.connect(("::1" if family == socket.AF_INET6 else "127.0.0.1", udp.getsockname()[1]))
        loop = native.Loop(udp.fileno(), [listener.fileno()])
        loop.start()
        loop.use(env)
        is_over = Event()
        collector = Thread(target=_collect, args=(loop, is_over), daemon=True)
        collector.start()
        for _ in range(0, DATAGRAMS, BATCH):
            limit = TrafficLimit(memory, random.choice((0, 1)), 1, random.choice(((), ("127.0.0.0/9", "::1/127"))))
            settings = ResolutionSettings(is_primary=random.random() < 0.5, templates=random.random() < 0.2)
            logs, resolves = random.random() < 0.5, random.random() < 0.9
            loop.configure(settings, limit.buckets, TOO_MUCH_TEXT, resolves=resolves, logs=logs)
            if random.random() < 0.3:
                env = None  # closed while the loop refers to it
                if random.random() < 0.8:
                    env = open_generation()
                    loop.use(env)
            if random.random() < 0.2:
                loop.stop()
                loop.start()
            state.switch(number if random.random() < 0.9 else 0)
            limits = connections.limits(random.choice((0, 20, 1_000)), random.choice((0, 20, 1_000)), 1.0)
            loop.configure_tcp(limits, resolves=resolves, logs=logs)
            _ask(random, loop, client)
            _connect(random, loop, listener, CONNECTIONS * BATCH // DATAGRAMS)
            loop.take_tally()
        is_over.set()
        collector.join()
        loop.stop()
        _take_connections(random, loop)
        if connections.count_others():
            raise AssertionError("connections that have ended are counted")


def _collect(loop: native.Loop, is_over: Event) -> None:
    """Read the counts as metrics do."""
    while not is_over.wait(0.001):
        loop.counts()
        loop.tcp_counts()


def _ask(random: Random, loop: native.Loop, client: socket.socket) -> None:
    """Send a batch and wait until all of it was handled."""
    for _ in range(BATCH):
        client.send(
            _changed(random, _REQUESTS, _target.WORDS)[:600] if random.random() < 0.7 else random.choice(_REQUESTS)
        )
    client.send(_MARK)
    end = time.monotonic() + DEADLINE
    while not any(datagram == _MARK for datagram, _, _ in loop.take_datagrams()):
        loop.take_log()
        _take_connections(random, loop)
        if time.monotonic() > end:
            raise AssertionError("the thread does not handle what it was sent")
    loop.take_log()
    while True:
        try:
            if not 20 <= len(client.recv(1_000, socket.MSG_DONTWAIT)) <= 512:
                raise AssertionError("a packet has 20 to 512 bytes")
        except BlockingIOError:
            break
    if loop.counts()[4]:
        raise AssertionError("the queue had no room")


def _connect(random: Random, loop: native.Loop, listener: socket.socket, count: int) -> None:
    """Make connections that send something, in any parts, and end in any way."""
    clients = []
    for _ in range(count):
        client = socket.create_connection(listener.getsockname()[:2], DEADLINE)
        clients.append(client)
        data = b"".join(
            _changed(random, _REQUESTS, _target.WORDS) if random.random() < 0.3 else _kept(random.choice(_REQUESTS))
            for _ in range(random.choice((0, 1, 1, 3, 60)))
        )
        parts = random.choice((1, 1, 1, 2, 5))
        for start in range(0, len(data), len(data) // parts + 1):
            try:
                client.sendall(data[start : start + len(data) // parts + 1])
                if random.random() < 0.5:
                    client.settimeout(0.01)
                    client.recv(10_000)
            except (ConnectionError, TimeoutError):
                break
        if random.random() < 0.3:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if random.random() < 0.3:
            clients.remove(client)
            client.close()
        _take_connections(random, loop)
        loop.take_log()
    for client in clients:
        client.close()


def _kept(request: bytes) -> bytes:
    """A request with the flag that keeps the connection."""
    return request[:28] + bytes([request[28] | 2]) + request[29:]


def _take_connections(random: Random, loop: native.Loop) -> None:
    """Take what is left to the event loop, and some bytes from it."""
    for descriptor, family, _, is_admitted, received, unsent, _ in loop.take_connections():
        with socket.socket(family, socket.SOCK_STREAM, 0, descriptor) as client:
            if not is_admitted and (received or unsent):
                raise AssertionError("nothing is read from a connection that may be one too many")
            if len(received) > 2_048 or len(unsent or b"") > 20 + 16 * 492:
                raise AssertionError("what is read or sent has a limit")
            if random.random() < 0.5:
                with suppress(OSError):
                    client.recv(100, socket.MSG_DONTWAIT)


def _to_error(number: int, text: str) -> Exception:
    return OSError(number, text)


if __name__ == "__main__":
    drive(int(sys.argv[1]))
