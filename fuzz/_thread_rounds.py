"""The thread of the compiled module over loopback: random requests, and a view with random values.

`_sanitized.py` runs it with sanitizers, and valgrind can: every round has a socket, a thread and a generation of its
own, and changes limits and log. The generation is closed and opened again, and the thread stopped and started, while
its counts are read. What the thread answers or leaves to the event loop is counted: nothing is lost.
"""

import importlib
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from threading import Event, Thread

import lmdb

from perseid.compiled import native
from perseid.ledger.views.answers_reader import StateFile
from perseid.server.limits.udp import TOO_MUCH_TEXT, TrafficLimit
from perseid.server.native.resolution import ResolutionSettings

_target = importlib.import_module("answering")
_changed = importlib.import_module("_plain").changed

DATABASES = (b"handles", b"prefixes", b"policies", b"past", b"meta")
DATAGRAMS = 1_600
"""Datagrams of a round: so many that the queue for the event loop wraps around."""

BATCH = 32
"""Datagrams sent at a time, which the queue for the event loop has room for."""

DEADLINE = 30.0
_REQUESTS = [seed[1:] for seed in _target.SEEDS if not seed[0]]
_MARK = b"the end of a batch"


def drive(rounds: int, seconds: float | None = None) -> None:
    """Run rounds, always the same ones; or other ones, as many as fit into a time. Print how many."""
    random = Random(1 if seconds is None else None)  # noqa: S311 - not for secrets
    end, done = time.monotonic() + (float("inf") if seconds is None else seconds), 0
    memory = TrafficLimit.create(16)
    with tempfile.TemporaryDirectory() as folder:
        state = StateFile.create(Path(folder, "state"))
        while done < rounds and time.monotonic() < end:
            done += 1
            _run(random, Path(folder, str(done)), state, done, memory)
        state.close()
    os.close(memory)
    print(f"Done {done} rounds")


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


def _run(random: Random, folder: Path, state: StateFile, number: int, memory: int) -> None:
    _write_view(random, folder)
    state.switch(number)

    def open_generation() -> native.Environment:
        return native.Environment(str(folder), 1 << 22, DATABASES, state.descriptor, number, _to_error)

    env: native.Environment | None = open_generation()
    family = random.choice((socket.AF_INET, socket.AF_INET6))
    with (
        socket.socket(family, socket.SOCK_DGRAM) as udp,
        socket.socket(family, socket.SOCK_DGRAM) as client,
    ):
        if family == socket.AF_INET6:
            udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            udp.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        udp.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))  # noqa: S104 - as servers do
        client.connect(("::1" if family == socket.AF_INET6 else "127.0.0.1", udp.getsockname()[1]))
        loop = native.UdpLoop(udp.fileno())
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
            _ask(random, loop, client)
            loop.take_tally()
        is_over.set()
        collector.join()
        loop.stop()


def _collect(loop: native.UdpLoop, is_over: Event) -> None:
    """Read the counts as metrics do."""
    while not is_over.wait(0.001):
        loop.counts()


def _ask(random: Random, loop: native.UdpLoop, client: socket.socket) -> None:
    """Send a batch and wait until all of it was handled."""
    for _ in range(BATCH):
        client.send(
            _changed(random, _REQUESTS, _target.WORDS)[:600] if random.random() < 0.7 else random.choice(_REQUESTS)
        )
    client.send(_MARK)
    end = time.monotonic() + DEADLINE
    while not any(datagram == _MARK for datagram, _, _ in loop.take_datagrams()):
        loop.take_log()
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


def _to_error(number: int, text: str) -> Exception:
    return OSError(number, text)


if __name__ == "__main__":
    drive(int(sys.argv[1]))
