"""The resolver: it answers public resolution over UDP until the first worker does, and takes nothing else."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from perseid.registry.installation.files import KEYS_NAME, SITE_JSON
from perseid.registry.installation.installation import Installation
from perseid.registry.installation.settings import FILE_NAME
from perseid.server.limits.udp import SLOTS, TrafficLimit
from perseid.server.observe.counters import SharedCounters
from perseid.server.processes.resolver import ResolverCounts, wait_for_end
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.fragments import MAX_PACKET
from perseid.wire.message import RESPONSE_CODE
from perseid.wire.requests import HandleRequest, Resolve
from tests.server.installations import PREFIX, copy_to
from tests.server.live_servers import eventually
from tests.server.native.native_client import NativeClient, Via, serving
from tests.server.running import free_port

PATIENCE = 30.0
RUN = "import sys; from perseid.server.processes.resolver import main; sys.exit(main(sys.argv[1]))"
FOUND = ResponseCode.SUCCESS.to_bytes(4, "big")
ABSENT = ResponseCode.HANDLE_NOT_FOUND.to_bytes(4, "big")


@dataclass
class Running:
    """A resolver without a server, with two sockets, and the socket of the first worker."""

    process: "subprocess.Popen[bytes]"
    sockets: list[socket.socket]
    handover: socket.socket

    def end(self) -> ResolverCounts | None:
        """End it as the first worker does."""
        counts = wait_for_end(self.handover.detach())
        assert self.process.wait(PATIENCE) == 0
        return counts


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An installation with an answers view."""
    copied = copy_to(tmp_path)
    with Installation.open(copied, environ={}) as installation:
        eventually(lambda: installation.ledger.ready, "the view")
    return copied


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[[], Running]]:
    """Start a resolver, which does not wait for news as the fork server does."""
    stack = ExitStack()

    def run() -> Running:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        ours, theirs = socket.socketpair()
        traffic, counters = TrafficLimit.create(SLOTS), SharedCounters.create(1).descriptor
        status, news = os.pipe()
        numbers = [*(sock.fileno() for sock in sockets), traffic, theirs.fileno(), counters, status, news]
        options = {
            "directory": str(directory),
            "state": "",
            "name": "resolver",
            "number": 0,
            "is_first": True,
            "accept_clock": False,
            "counters": counters,
            "status": news,
            "news": status,
            "port": sockets[0].getsockname()[1],
            "udp": numbers[:2],
            "traffic": traffic,
            "handover": theirs.fileno(),
        }
        stack.enter_context(ours)
        process = subprocess.Popen([sys.executable, "-c", RUN, json.dumps(options)], pass_fds=numbers)
        stack.enter_context(process)
        stack.callback(process.kill)
        for number in (traffic, counters, status, news):
            os.close(number)
        theirs.close()
        return Running(process, sockets, ours)

    with stack:
        yield run


def ask(target: socket.socket, *requests: bytes) -> list[bytes]:
    """Send requests from one port; return their responses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(target.getsockname())
        client.settimeout(PATIENCE)
        for request in requests:
            client.send(request)
        return [client.recv(MAX_PACKET) for _ in requests]


def resolve(name: str) -> bytes:
    client = NativeClient(("127.0.0.1", 1), Via.UDP)
    return client.request(OpCode.RESOLUTION, Resolve(f"{PREFIX}/{name}".encode())).to_bytes()


def successes(metrics: tuple[str, int]) -> float:
    """The successful requests over UDP that a server has counted."""
    text = urlopen(f"http://{metrics[0]}:{metrics[1]}/metrics", timeout=PATIENCE).read().decode()
    lines = [line for line in text.splitlines() if line.startswith("perseid_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if '"udp"' in line and "success" in line)


def test_public_resolution_is_answered_and_counted(start: Callable[[], Running], directory: Path) -> None:
    for path in (directory / KEYS_NAME).iterdir():
        path.unlink()  # no private key is read
    running = start()
    first = ask(running.sockets[0], resolve("n1"), resolve("absent"), resolve("n2"))
    second = ask(running.sockets[1], resolve("n3"))
    assert [response[RESPONSE_CODE] for response in (*first, *second)] == [FOUND, ABSENT, FOUND, FOUND]
    counts = running.end()
    assert counts is not None
    assert counts.responses == {FOUND: 3, ABSENT: 1}
    assert counts.udp_bytes == sum(map(len, (*first, *second)))
    assert (counts.found, counts.unknown) == ({PREFIX.encode(): 3}, {PREFIX.encode(): 1})
    assert counts.missing == {f"{PREFIX}/absent".encode(): 1}


@pytest.mark.parametrize("kind", ["not public", "long"])
def test_what_needs_a_worker_stays_in_its_socket(start: Callable[[], Running], kind: str) -> None:
    running = start()
    request = NativeClient(("127.0.0.1", 1), Via.UDP).request(OpCode.GET_SITE_INFO, HandleRequest()).to_bytes()
    waiting = [request if kind == "not public" else resolve("long"), resolve("n1")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for datagram in waiting:
            client.sendto(datagram, running.sockets[0].getsockname())
        assert ask(running.sockets[1], resolve("n1"))[0][RESPONSE_CODE] == FOUND, "the other socket is read"
        counts = running.end()
        assert counts is not None
        assert counts.responses == {FOUND: 1}
        assert counts.found == {PREFIX.encode(): 1}, "the worker counts what it answers"
        running.sockets[0].setblocking(True)
        assert [running.sockets[0].recv(MAX_PACKET) for _ in waiting] == waiting


@pytest.mark.parametrize("reason", ["no view", "access log", "no settings", "two sites"])
def test_requests_wait_for_a_worker_if_the_view_does_not_suffice(
    start: Callable[[], Running], directory: Path, reason: str
) -> None:
    if reason == "no view":
        for path in (directory / "answers").iterdir():
            if path.is_file():
                path.unlink()
    elif reason == "access log":
        with (directory / FILE_NAME).open("a") as settings:
            settings.write("\n[log]\naccess_udp = true\n")
    elif reason == "two sites":  # the worker chooses by its key
        text = (directory / SITE_JSON).read_text()
        (directory / SITE_JSON).write_text(text.replace('"serialNumber": 1', '"serialNumber": 2'))
    else:
        (directory / FILE_NAME).unlink()
    running = start()
    assert running.process.wait(PATIENCE) == 0, "it has ended by itself"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(request := resolve("n1"), running.sockets[0].getsockname())
    assert running.sockets[0].recv(MAX_PACKET) == request
    assert running.end() is None


def test_counts_of_a_killed_resolver_are_lost_only() -> None:
    counts = msgspec.msgpack.encode(ResolverCounts({FOUND: 1}, 100, {b"12345": 1}, {}, {b"12345/absent": 1}))
    for length, taken in ((0, False), (len(counts) // 2, False), (len(counts), True)):
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(counts[:length])
        assert (wait_for_end(ours.detach()) is not None) is taken


def test_requests_during_a_start_are_counted_once(directory: Path) -> None:
    """By whoever answers them: the resolver first, then the worker."""
    port = free_port()
    answered = 0
    ready = threading.Event()

    def keep_asking() -> None:
        nonlocal answered
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect(("127.0.0.1", port))
            client.settimeout(PATIENCE)
            while not (ready.is_set() and answered):
                try:
                    client.send(resolve("n1"))
                    assert client.recv(MAX_PACKET)[RESPONSE_CODE] == FOUND
                except ConnectionRefusedError:  # the server has no socket yet, or none any more
                    if ready.wait(0.01):
                        return
                else:
                    answered += 1

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        with serving(directory, "--native-port", str(port), PERSEID_METRICS_HOST="127.0.0.1") as server:
            ready.set()
            asking.join()
            assert answered
            # A worker publishes its numbers once a second. A request that is counted twice stays counted twice.
            eventually(lambda: successes(server.metrics or ("", 0)) == answered, "the counts of all workers")
    finally:
        ready.set()
        asking.join()
