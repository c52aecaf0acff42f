"""The thread of the compiled module over TCP: it answers what the event loop would, and leaves it everything else."""

import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.compiled import native
from perseid.ledger.views.answers_reader import AnswersReader, StateFile
from perseid.registry.installation.settings import Config
from perseid.server.limits.budgets import Connections, get_source
from perseid.server.limits.connections import ConnectionLimits, SharedConnections
from perseid.server.limits.udp import TOO_MUCH_TEXT, TrafficLimit
from perseid.server.native.resolution import PublicResolver, ResolutionSettings
from perseid.server.native.tcp import Connection, NativeAcceptLoop
from perseid.wire.codes import DEFAULT_FLAGS, OpFlag
from tests.server.native.resolution_states import RequestFields
from tests.server.native.test_udp_thread import BARE, DEADLINE, FOUND, LONG, MISSING, NOW, OTHER, folder, untimed

__all__ = ["folder"]

KEEP = int(DEFAULT_FLAGS | OpFlag.KEEP_CONNECTION)
KEPT = RequestFields(b"10.1/x", flags=KEEP).to_bytes()
KEPT_LONG = RequestFields(b"10.1/long", flags=KEEP).to_bytes()
RESET = struct.pack("ii", 1, 0)
HOST = "127.0.0.1"


@dataclass
class Taken:
    """A connection that is left to the event loop."""

    client: socket.socket
    host: str
    is_admitted: bool
    received: bytes
    unsent: bytes | None
    is_kept: bool


@dataclass
class Threaded:
    """A thread on a listening socket."""

    loop: native.Loop
    reader: AnswersReader
    listener: socket.socket
    traffic: int
    shared: SharedConnections
    exempt: tuple[str, ...] = ()
    taken: list[Taken] = field(default_factory=list)

    def configure(self, *, resolves: bool = True, logs: bool = False, most: int = 100, idle: float = 60.0) -> None:
        limit = TrafficLimit(self.traffic, 0, 0, self.exempt)
        self.loop.configure(ResolutionSettings(), limit.buckets, TOO_MUCH_TEXT, resolves=True, logs=False)
        self.loop.configure_tcp(self.limits(most, idle), resolves=resolves, logs=logs)

    def limits(self, most: int, idle: float, most_of_network: int = 10) -> ConnectionLimits:
        return self.shared.limits(most, most_of_network, idle)

    def connect(self, *sent: bytes) -> socket.socket:
        client = socket.create_connection(self.listener.getsockname()[:2], timeout=DEADLINE)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in sent:
            client.sendall(data)
        return client

    def take(self, count: int = 1) -> list[Taken]:
        """Wait for connections that are left to the event loop."""
        taken: list[Taken] = []
        deadline = time.monotonic() + DEADLINE
        while len(taken) < count and time.monotonic() < deadline:
            taken += self.take_some()
        assert len(taken) == count
        return taken

    def take_some(self) -> list[Taken]:
        taken = []
        for descriptor, family, host, is_admitted, received, unsent, is_kept in self.loop.take_connections():
            client = socket.socket(family, socket.SOCK_STREAM, 0, descriptor)
            client.settimeout(DEADLINE)
            taken.append(Taken(client, host, is_admitted, received, unsent, is_kept))
        self.taken += taken
        return taken


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def read(client: socket.socket, size: int) -> bytes:
    """Read so many bytes, or up to the end."""
    data = b""
    while len(data) < size and (part := client.recv(size - len(data))):
        data += part
    return data


def read_all(client: socket.socket) -> bytes:
    with client:
        return read(client, 1 << 30)


def expected(reader: AnswersReader, request: bytes) -> bytes:
    response = PublicResolver(reader, ResolutionSettings(), lambda: NOW)(request)
    assert response is not None
    return response


def is_same(response: bytes, wanted: bytes) -> bool:
    return untimed(response) == untimed(wanted)


@contextmanager
def running(folder: Path, host: str = HOST, defer_seconds: int = 60) -> Iterator[Threaded]:
    traffic, counters = TrafficLimit.create(16), SharedConnections.create(2)
    with ExitStack() as stack:
        for descriptor in (traffic, counters):
            stack.callback(os.close, descriptor)
        listener = stack.enter_context(socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else 2))
        listener.setblocking(False)
        # As servers do. Clients of tests send at once, however busy the machine is.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, defer_seconds)
        reader = stack.enter_context(AnswersReader(folder, compiled=True))
        loop = native.Loop(-1, [listener.fileno()])
        threaded = Threaded(loop, reader, listener, traffic, SharedConnections(counters, 0))
        threaded.configure()
        assert reader.ready
        loop.use(reader.environment)
        loop.start()
        stack.callback(loop.stop)
        yield threaded
        for taken in threaded.taken:
            taken.client.close()


@pytest.fixture
def threaded(folder: Path) -> Iterator[Threaded]:
    with running(folder) as threaded:
        yield threaded


@pytest.mark.parametrize("host", [HOST, "::1"])
def test_response_is_that_of_python_and_ends_the_connection(folder: Path, host: str) -> None:
    with running(folder, host) as threaded:
        for request in (FOUND, MISSING, BARE, LONG):
            assert is_same(read_all(threaded.connect(request)), expected(threaded.reader, request))
        assert threaded.loop.tcp_counts() == ({1: 2, 100: 2}, 0, 0)
        assert threaded.loop.take_tally() == (
            {b"10.1": 2},
            {b"10.1": 1, b"0.NA": 1},
            {b"10.1/none": 1, b"10.7": 1},
        )
        assert threaded.loop.take_connections() == []
        assert threaded.shared.count_kept() == 0


def test_kept_connection_is_served_until_the_client_ends_it(threaded: Threaded) -> None:
    wanted = expected(threaded.reader, KEPT)
    with threaded.connect() as client, threaded.connect() as other:
        for _ in range(3):
            for one in (client, other):
                one.sendall(KEPT)
                assert is_same(read(one, len(wanted)), wanted)
        assert threaded.shared.count_kept() == 2
        assert [threaded.shared._thread[threaded.shared._slot(network)] for network in get_source(HOST)] == [2]
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        other.sendall(FOUND)  # without the flag
        assert is_same(read_all(other), expected(threaded.reader, FOUND))
    eventually(lambda: threaded.shared.count_kept() == 0)
    assert not any(threaded.shared._thread)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_connection_ends_once_if_a_child_process_has_a_copy(threaded: Threaded) -> None:
    """As a process has that is being started, until it executes its program."""
    wanted = expected(threaded.reader, KEPT)
    with threaded.connect(KEPT) as client:
        assert is_same(read(client, len(wanted)), wanted)
        waiting, ending = os.pipe()
        child = os.fork()
        if not child:
            os.close(ending)
            os.read(waiting, 1)
            os._exit(0)
        try:
            client.shutdown(socket.SHUT_RDWR)
            eventually(lambda: threaded.shared.count_kept() == 0)
            for _ in range(3):
                with threaded.connect(KEPT) as other:
                    assert is_same(read(other, len(wanted)), wanted)
                    eventually(lambda: threaded.shared.count_kept() == 1)  # it is counted after its response
                    other.shutdown(socket.SHUT_RDWR)
                    eventually(lambda: threaded.shared.count_kept() == 0)
            assert not any(threaded.shared._thread)
        finally:
            os.close(waiting)
            os.close(ending)
            os.waitpid(child, 0)


def test_counters_of_networks_are_those_of_python(folder: Path) -> None:
    with running(folder, "::1") as threaded, threaded.connect(KEPT) as client:
        shared = threaded.shared
        eventually(lambda: shared.count_kept() == 1)
        wanted = {shared._slot(network) for network in (None, *get_source("::1"))}
        assert len(wanted) == 4
        eventually(lambda: {slot for slot, count in enumerate(shared._thread) if count} == wanted)
        assert client.recv(1)


def test_other_messages_are_left_to_the_event_loop_with_what_was_read(threaded: Threaded) -> None:
    with threaded.connect(OTHER), threaded.connect(KEPT) as kept:
        first = threaded.take()[0]
        assert (first.host, first.is_admitted, first.received, first.unsent) == (HOST, True, OTHER, None)
        assert kept.recv(4096)
        kept.sendall(OTHER + b"more")
        second = threaded.take()[0]
        assert (second.is_admitted, second.received, second.unsent) == (True, OTHER + b"more", None)
        second.client.sendall(b"from the event loop")
        assert kept.recv(100) == b"from the event loop"
        kept.sendall(KEPT)
        assert second.client.recv(4096) == KEPT, "it is for the event loop until it ends"
    assert threaded.shared.count_kept() == 0


@pytest.mark.parametrize("before", [b"", KEPT])
def test_part_of_a_message_is_left_to_the_event_loop_at_once(threaded: Threaded, before: bytes) -> None:
    """Wherever a message is divided, and whatever comes after it. No byte is lost."""
    for size in range(1, len(KEPT)):
        with threaded.connect(before) as client:
            if before:
                assert client.recv(4096)
            client.sendall(KEPT[:size])
            taken = threaded.take()[0]
            client.sendall(KEPT[size:] + FOUND)
            client.shutdown(socket.SHUT_WR)
            assert taken.received + read_all(taken.client) == KEPT + FOUND


def test_several_messages_at_once_are_left_to_the_event_loop(threaded: Threaded) -> None:
    with threaded.connect(KEPT * 40) as client:
        client.shutdown(socket.SHUT_WR)
        taken = threaded.take()[0]
        assert 0 < len(taken.received) <= 2048
        assert taken.received + read_all(taken.client) == KEPT * 40


def test_client_that_sends_nothing_is_left_to_the_event_loop(folder: Path) -> None:
    with running(folder, defer_seconds=1) as threaded, threaded.connect():
        taken = threaded.take()[0]
    assert (taken.is_admitted, taken.received, taken.unsent) == (True, b"", None)


def test_without_a_view_or_if_disabled_everything_is_left_to_the_event_loop(threaded: Threaded) -> None:
    threaded.loop.use(None)
    with threaded.connect(FOUND):
        assert threaded.take()[0].received == FOUND
    threaded.loop.use(threaded.reader.environment)
    threaded.configure(resolves=False)
    with threaded.connect(FOUND):
        assert threaded.take()[0].received == FOUND
    threaded.configure()
    assert is_same(read_all(threaded.connect(FOUND)), expected(threaded.reader, FOUND))


def test_disconnected_clients_leave_nothing(threaded: Threaded) -> None:
    for sent in (b"", FOUND, KEPT, LONG):
        for is_reset in (False, True):
            client = threaded.connect(sent)
            if is_reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
    with threaded.connect(KEPT) as kept:
        assert kept.recv(4096)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert is_same(read_all(threaded.connect(FOUND)), expected(threaded.reader, FOUND))
    for descriptor, *_ in threaded.loop.take_connections():
        os.close(descriptor)
    eventually(lambda: threaded.shared.count_kept() == 0)


def test_client_that_does_not_read_is_left_to_the_event_loop_with_the_rest(threaded: Threaded) -> None:
    """It has got a part of its response; the rest is what the event loop must send."""
    wanted = expected(threaded.reader, KEPT_LONG)
    threaded.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.settimeout(DEADLINE)
        client.connect(threaded.listener.getsockname())
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        count = 0
        while not threaded.taken:
            count += 1
            client.sendall(KEPT_LONG)
            eventually(lambda answered=count: threaded.loop.tcp_counts()[0].get(1) == answered)  # type: ignore[misc]
            threaded.configure()  # waits for the end of its batch
            threaded.take_some()
        (taken,) = threaded.taken
        assert (taken.is_admitted, taken.received, taken.is_kept) == (True, b"", True)
        assert taken.unsent
        sent = read(client, count * len(wanted) - len(taken.unsent))
        assert is_same((sent + taken.unsent)[-len(wanted) :], wanted)


def test_address_that_may_have_reached_its_limit_is_left_to_python_unread(threaded: Threaded) -> None:
    with ExitStack() as stack:
        kept = [stack.enter_context(threaded.connect(KEPT)) for _ in range(10)]
        for client in kept:
            assert client.recv(4096)
        client = stack.enter_context(threaded.connect(FOUND))
        taken = threaded.take()[0]
        assert (taken.is_admitted, taken.received) == (False, b"")
        assert taken.client.recv(4096) == FOUND
        threaded.exempt = ("127.0.0.0/8",)
        threaded.configure()
        assert is_same(read_all(threaded.connect(FOUND)), expected(threaded.reader, FOUND))
        threaded.configure(most=10)
        stack.enter_context(threaded.connect(FOUND))
        assert not threaded.take()[0].is_admitted, "the limit of all applies to it, too"
        kept[0].close()
        eventually(lambda: threaded.shared.count_kept() == 9)
        assert is_same(read_all(threaded.connect(FOUND)), expected(threaded.reader, FOUND))


def test_flood_at_the_limit_uses_no_more_descriptors_than_are_reserved(threaded: Threaded) -> None:
    """The worker keeps as many for it; the others wait in the kernel while the event loop takes nothing."""
    threaded.shared.add(None, 100)  # the limit of all
    threaded.listener.listen(native.MAX_UNADMITTED * 2)
    flood, before = native.MAX_UNADMITTED + 20, open_descriptors()
    with ExitStack() as stack:
        for _ in range(flood):
            stack.enter_context(threaded.connect(FOUND))
        for _ in range(2):
            stuck = threaded.loop.last_beat + 0.2
            eventually(lambda stuck=stuck: threaded.loop.last_beat > stuck)  # type: ignore[misc]
            assert 0 < open_descriptors() - before - flood <= native.MAX_UNADMITTED
            threaded.take_some()
        threaded.take(flood - len(threaded.taken))
        assert not any(one.is_admitted for one in threaded.taken)


@pytest.mark.parametrize("is_other_worker", [False, True])
def test_connections_of_the_event_loop_and_of_other_workers_count(folder: Path, is_other_worker: bool) -> None:
    with running(folder) as threaded:
        shared = threaded.shared
        other = replace_worker(threaded) if is_other_worker else shared
        (network,) = get_source(HOST)
        other.add(network, 10)
        with threaded.connect(FOUND):
            assert not threaded.take()[0].is_admitted
        other.add(network, -1)
        assert is_same(read_all(threaded.connect(FOUND)), expected(threaded.reader, FOUND))


def replace_worker(threaded: Threaded) -> SharedConnections:
    """The counters of another worker in the same memory."""
    descriptor = SharedConnections.create(2)
    with closing(os.fdopen(descriptor, "rb")):
        threaded.shared = SharedConnections(descriptor, 0)
        other = SharedConnections(descriptor, 1)
    threaded.configure()
    return other


def test_taken_connections_are_counted_by_the_event_loop_from_then_on(threaded: Threaded) -> None:
    with threaded.connect(OTHER):
        eventually(lambda: bool(select([threaded.loop], [], [], 0)[0]))
        assert threaded.shared.count_kept() == 1
        assert threaded.shared.count_others() == 1
        threaded.take()
        assert threaded.shared.count_kept() == 0


def test_idle_connections_are_ended_and_counted(threaded: Threaded) -> None:
    threaded.configure(idle=0.0)
    with threaded.connect(KEPT) as client:
        assert is_same(read_all(client), expected(threaded.reader, KEPT))
    eventually(lambda: threaded.loop.tcp_counts()[1] == 1)
    assert threaded.shared.count_kept() == 0


def test_without_descriptors_connections_wait_in_the_kernel(threaded: Threaded) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client:
        client.settimeout(DEADLINE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            client.connect(threaded.listener.getsockname())
            client.sendall(FOUND)
            eventually(lambda: threaded.loop.tcp_counts()[2] > 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert is_same(read_all(client), expected(threaded.reader, FOUND))


def test_while_the_event_loop_takes_nothing_connections_wait_in_the_kernel(threaded: Threaded) -> None:
    """Others may serve them there. The thread says that it is alive, and nothing is lost."""
    threaded.exempt = ("127.0.0.0/8",)
    threaded.configure(most=1_000)
    with ExitStack() as stack:
        clients = [stack.enter_context(threaded.connect(OTHER)) for _ in range(20)]
        eventually(lambda: threaded.shared.count_kept() == 20)
        stuck = threaded.loop.last_beat + 0.2
        eventually(lambda: threaded.loop.last_beat > stuck)
        late = stack.enter_context(threaded.connect(FOUND))
        assert not select([late], [], [], 0.1)[0]
        assert select([threaded.listener], [], [], DEADLINE)[0]
        client, _ = threaded.listener.accept()
        with client:
            assert client.recv(4096) == FOUND
        taken = threaded.take(len(clients))
        assert [one.received for one in taken] == [OTHER] * len(clients)
    assert is_same(read_all(threaded.connect(FOUND)), expected(threaded.reader, FOUND))


def test_flood_of_connections_for_the_event_loop_is_taken_completely(threaded: Threaded) -> None:
    """More than the queue has room for."""
    with ExitStack() as stack:
        threaded.exempt = ("127.0.0.0/8",)
        threaded.configure(most=1_000)
        for number in range(400):
            stack.enter_context(threaded.connect(OTHER))
            if number % 3 == 0:
                threaded.take_some()
        threaded.take(400 - len(threaded.taken))
        assert all(one.is_admitted and one.received == OTHER for one in threaded.taken)


@pytest.mark.parametrize("is_first", [True, False])
def test_flood_of_connections_at_one_listener_does_not_delay_those_at_another(
    threaded: Threaded, is_first: bool
) -> None:
    threaded.loop.stop()
    flooded = threaded.listener
    with ExitStack() as stack:
        other = stack.enter_context(socket.create_server((HOST, 0)))
        other.setblocking(False)
        listeners = [flooded, other] if is_first else [other, flooded]
        threaded.loop = native.Loop(-1, [listener.fileno() for listener in listeners])
        threaded.exempt = ("127.0.0.0/8",)
        threaded.configure(most=1_000)
        for _ in range(100):
            stack.enter_context(threaded.connect(OTHER))
        late = stack.enter_context(socket.create_connection(other.getsockname()))
        late.sendall(OTHER)
        assert select([other], [], [], DEADLINE)[0]
        threaded.loop.start()
        stack.callback(threaded.loop.stop)
        peers = [one.client.getpeername() for one in threaded.take(101)]
        assert peers.index(late.getsockname()) < 64


def test_answers_are_logged_if_the_settings_say_so(threaded: Threaded) -> None:
    threaded.configure(logs=True)
    for request in (FOUND, MISSING):
        read_all(threaded.connect(request))
    lines: list[tuple[str, str, int, bytes, int]] = []
    while len(lines) < 2:
        lines += threaded.loop.take_log()
    assert [line[:4] for line in lines] == [("tcp", HOST, 1, b"10.1/x"), ("tcp", HOST, 100, b"10.1/none")]


def test_stopped_thread_ends_kept_connections_and_can_be_started_again(threaded: Threaded) -> None:
    for _ in range(3):
        with threaded.connect(KEPT) as client:
            assert is_same(read(client, len(expected(threaded.reader, KEPT))), expected(threaded.reader, KEPT))
            threaded.loop.stop()
            assert client.recv(1) == b""
        assert not any(threaded.shared._thread)
        with threaded.connect(FOUND) as waiting:
            threaded.loop.start()
            assert is_same(read(waiting, 4096), expected(threaded.reader, FOUND))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left_open(folder: Path) -> None:
    """Of connections that are kept, in the queue, disconnected, or answered, when the thread ends."""
    with running(folder):
        pass
    before = open_descriptors()
    for _ in range(3):
        with running(folder) as threaded, ExitStack() as stack:
            threaded.exempt = ("127.0.0.0/8",)
            threaded.configure()
            clients = [stack.enter_context(threaded.connect(sent)) for sent in (KEPT, OTHER, KEPT, OTHER, FOUND[:30])]
            assert clients[0].recv(4096)
            assert clients[2].recv(4096)
            threaded.connect(KEPT).close()
            assert read_all(threaded.connect(FOUND))
            eventually(lambda shared=threaded.shared: shared.count_kept() == 5)  # type: ignore[misc]
        del threaded
        assert open_descriptors() == before


@pytest.mark.parametrize("count", [65, 1_000])
def test_too_many_listeners_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="more than 64"):
        native.Loop(-1, [0] * count)


def test_counters_must_have_the_row_of_the_thread(threaded: Threaded) -> None:
    limits = threaded.limits(1, 1.0)
    for wrong in (replace(limits, own_row=4), replace(limits, counters=memoryview(bytearray(8)))):
        with pytest.raises(ValueError, match="no "):
            threaded.loop.configure_tcp(wrong, resolves=True, logs=False)


@pytest.mark.parametrize(("unsent", "deadline"), [(None, 130.0), (b"", 400.0), (b"rest", 400.0)])
def test_answered_connection_may_be_idle_as_long_as_any_other(unsent: bytes | None, deadline: float) -> None:
    """It waits for the next message, not for the first one."""
    limits = SimpleNamespace(message_timeout=30.0, idle_timeout=300.0)
    service: Any = SimpleNamespace(now=lambda: 100.0, connections=limits, open=set())
    connection = Connection(service, HOST, unsent=unsent)
    connection.connection_made(Mock())
    assert connection.deadline == deadline


def test_error_with_a_connection_leaves_none_open_and_none_counted() -> None:
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(3)]
        clients = [stack.enter_context(client) for client, _ in pairs]
        for client in clients:
            client.settimeout(DEADLINE)
        clients[1].send(FOUND)
        left = [
            (ours.detach(), socket.AF_UNIX, HOST, number != 1, FOUND, None, False)
            for number, (_, ours) in enumerate(pairs)
        ]
        resolve = Mock(side_effect=[b"a response", ValueError("an error")])
        connections = Connections(Config.parse("", {}))
        service: Any = SimpleNamespace(connections=connections, counts=Mock(), try_fast_path=resolve)
        accept_loop = NativeAcceptLoop(service)
        accept_loop._thread = Mock(compiled=Mock(take_connections=lambda: left))
        with pytest.raises(ValueError, match="an error"):
            accept_loop._take_from_thread()
        assert [client.recv(100) for client in clients] == [b"a response", b"", b""]
        assert len(connections) == 0


names = st.sampled_from(
    (b"10.1/x", b"10.1/X", b"10.1/long", b"10.1/none", b"10.7", b"10.1", b"0.NA/10.1.2", b"x/y", b"/")
)
requests = st.builds(
    lambda name, indexes, types, flags: RequestFields(name, indexes, types, flags=flags | KEEP).to_bytes(),
    names,
    st.lists(st.integers(1, 3), max_size=2).map(tuple),
    st.lists(st.sampled_from(("URL", "E.", "EMAIL", "ü")), max_size=2).map(tuple),
    st.sampled_from([0, *(int(flag) for flag in OpFlag)]),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A request with some bytes replaced, removed or added."""
    data = bytearray(draw(requests))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


def test_any_bytes_get_the_response_of_python_or_are_left_to_it(folder: Path) -> None:
    """Over one connection after the other, each as long as it is kept."""
    with running(folder) as threaded, ExitStack() as stack:
        resolve = PublicResolver(threaded.reader, ResolutionSettings(), lambda: NOW)
        client: list[socket.socket] = []

        @given(requests | damaged())
        @settings(max_examples=300, deadline=None, database=None)
        def ask(data: bytes) -> None:
            if not data:
                return
            if not client:
                client.append(stack.enter_context(threaded.connect()))
            client[0].sendall(data)
            ready = select([client[0].fileno(), threaded.loop.fileno()], [], [], DEADLINE)[0]
            if client[0].fileno() in ready:
                wanted = resolve(data)
                assert wanted is not None
                assert is_same(read(client[0], len(wanted)), wanted)
                if data[28] & 2:
                    return
                assert client[0].recv(1) == b""
            else:
                os.read(threaded.loop.fileno(), 8)
                taken = threaded.take()[0]
                assert (taken.received, taken.unsent) == (data, None)
                taken.client.close()
            client.pop().close()

        ask()
        assert threaded.loop.tcp_counts()[0].keys() >= {1, 100}


def test_request_after_an_acknowledged_change_is_not_answered_from_before(threaded: Threaded, folder: Path) -> None:
    """Also if it arrives while the thread handles connections that were waiting already."""
    state = StateFile(folder / "state", writable=True)
    answered = []
    for _ in range(20):
        threaded.loop.stop()
        waiting = [threaded.connect(FOUND) for _ in range(60)]
        threaded.loop.start()
        assert select(waiting, [], [], DEADLINE)[0]
        state.require(5)
        answered.append(is_answered(threaded, threaded.connect(FOUND)))
        state.forget(5)
        for client in (*waiting, *[taken.client for taken in threaded.taken]):
            client.close()
        threaded.taken.clear()
    state.close()
    assert not any(answered)


def is_answered(threaded: Threaded, client: socket.socket) -> bool:
    """Wait until a client is answered, or left to the event loop."""

    def is_left() -> bool:
        threaded.take_some()
        return client.getsockname() in [taken.client.getpeername() for taken in threaded.taken]

    with client:
        eventually(lambda: bool(select([client], [], [], 0)[0]) or is_left())
        return not is_left()
