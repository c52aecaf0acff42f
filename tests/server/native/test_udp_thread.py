"""The thread of the compiled module answers what the event loop would, and leaves it everything else."""

import asyncio
import gc
import itertools
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from select import select
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perseid.compiled import describe, native
from perseid.ledger.errors import AnswersUnavailable
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader, StateFile
from perseid.records.record import Value
from perseid.server.limits.udp import TOO_MUCH_TEXT, RateLimit, TrafficLimit, find_bucket, short_response
from perseid.server.native import udp as udp_module
from perseid.server.native.resolution import PublicResolver, ResolutionSettings, packets
from perseid.server.native.resolution_thread import ResolutionThread
from perseid.server.native.udp import UdpLimits, UdpServer
from perseid.server.observe.metrics import WorkerCounters
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.message import ENVELOPE_LENGTH, HEADER_LENGTH
from tests.ledger.answer_ledgers import MemoryLedger, process, report_reads, url
from tests.server.native.resolution_states import RequestFields
from tests.server.native.test_native_udp import Service

NOW = 1_794_724_100
FOUND = RequestFields(b"10.1/x").to_bytes()
LONG = RequestFields(b"10.1/long").to_bytes()
MISSING = RequestFields(b"10.1/none").to_bytes()
BARE = RequestFields(b"10.7").to_bytes()
OTHER = RequestFields(b"10.1/x", opcode=OpCode.GET_SITE_INFO).to_bytes()
"""For the event loop."""

DEADLINE = 30.0
TIMES = slice(36, 40)
"""When a response expires, in its first packet."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A view, whose writer has ended."""
    folder = tmp_path_factory.mktemp("view") / "answers"
    ledger = MemoryLedger()
    ledger.append("0.SITE/HOMED/0.NA/10.1", url("homed"))
    ledger.append("0.SITE/HOMED/0.NA/0.NA", url("homed"))
    ledger.append("10.1/x", url("https://example.org/x"), Value.text(2, "EMAIL", "x@example.org"))
    ledger.append("10.1/long", url("y" * 3_000))
    with Answers(folder) as answers:
        assert answers.catch_up(ledger.look)
    return folder


@dataclass
class Threaded:
    """A thread on a socket, and a client."""

    loop: native.Loop
    reader: AnswersReader
    udp: socket.socket
    client: socket.socket
    memory: int

    def configure(
        self, limit: TrafficLimit | None = None, *, resolves: bool = True, logs: bool = False, flags: bool = True
    ) -> None:
        limit = limit or TrafficLimit(self.memory, 0, 0)
        self.loop.configure(
            ResolutionSettings(is_primary=flags), limit.buckets, TOO_MUCH_TEXT, resolves=resolves, logs=logs
        )

    def open_view(self) -> None:
        assert self.reader.ready
        self.loop.use(self.reader.environment)

    def ask(self, *datagrams: bytes, count: int | None = None) -> list[bytes]:
        for datagram in datagrams:
            self.client.send(datagram)
        return [self.client.recv(600) for _ in range(len(datagrams) if count is None else count)]

    def take(self, count: int) -> list[tuple[bytes, tuple[object, ...], bytes]]:
        """Wait for datagrams that are left to the event loop."""
        taken: list[tuple[bytes, tuple[object, ...], bytes]] = []
        deadline = time.monotonic() + DEADLINE
        while len(taken) < count and time.monotonic() < deadline:
            taken += self.loop.take_datagrams()
        return taken


@pytest.fixture(params=["127.0.0.1", "0.0.0.0", "::"])
def bound(request: pytest.FixtureRequest) -> str:
    host: str = request.param
    return host


@pytest.fixture
def threaded(folder: Path) -> Iterator[Threaded]:
    yield from run_thread(folder, "127.0.0.1")


def run_thread(folder: Path, host: str) -> Iterator[Threaded]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    memory = TrafficLimit.create(16)
    with (
        socket.socket(family, socket.SOCK_DGRAM) as udp,
        socket.socket(type=socket.SOCK_DGRAM) as client,
        AnswersReader(folder, compiled=True) as reader,
    ):
        if family == socket.AF_INET6:
            udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        elif host != "127.0.0.1":
            udp.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        udp.bind((host, 0))
        client.settimeout(DEADLINE)
        client.connect(("127.0.0.9" if host != "127.0.0.1" else host, udp.getsockname()[1]))
        threaded = Threaded(native.Loop(udp.fileno()), reader, udp, client, memory)
        threaded.configure()
        threaded.open_view()
        threaded.loop.start()
        yield threaded
        threaded.loop.stop()
    os.close(memory)


def expected(reader: AnswersReader, datagram: bytes) -> list[bytes]:
    """What Python sends, without the time."""
    response = PublicResolver(reader, ResolutionSettings(), lambda: NOW)(datagram)
    assert response is not None
    return [untimed(packet) for packet in packets(response)]


def untimed(packet: bytes) -> bytes:
    """A packet without the time, which only the first one has."""
    if int.from_bytes(packet[12:16], "big"):
        return packet
    return packet[: TIMES.start] + packet[TIMES.stop :]


def test_response_is_that_of_python_from_the_address_that_was_asked(folder: Path, bound: str) -> None:
    """The client is connected, so it gets nothing from another address."""
    for threaded in run_thread(folder, bound):
        for datagram in (FOUND, MISSING, BARE, LONG):
            wanted = expected(threaded.reader, datagram)
            assert [untimed(packet) for packet in threaded.ask(datagram, count=len(wanted))] == wanted
        assert threaded.loop.take_datagrams() == []


def test_other_messages_are_left_to_the_event_loop_with_their_sender(folder: Path, bound: str) -> None:
    for threaded in run_thread(folder, bound):
        threaded.client.send(OTHER)
        threaded.client.send(bytes(600))
        ((datagram, sender, info), (cut, _, _)) = threaded.take(2)
        assert datagram == OTHER
        assert cut == bytes(513)
        assert sender[:2] == (f"{'::ffff:' * (':' in bound)}127.0.0.1", threaded.client.getsockname()[1])
        assert len(info) == {"127.0.0.1": 0, "::": 20}.get(bound, 12)


def test_without_a_view_everything_is_left_to_the_event_loop(threaded: Threaded) -> None:
    threaded.loop.use(None)
    threaded.client.send(FOUND)
    assert threaded.take(1)[0][0] == FOUND
    threaded.open_view()
    assert threaded.ask(FOUND)
    threaded.reader.close()
    threaded.client.send(FOUND)
    assert threaded.take(1)[0][0] == FOUND


def test_view_behind_the_ledger_is_not_used(threaded: Threaded, folder: Path) -> None:
    state = StateFile(folder / "state", writable=True)
    state.require(5)
    threaded.client.send(FOUND)
    assert threaded.take(1)[0][0] == FOUND
    state.forget(5)
    assert threaded.ask(FOUND)
    state.close()


def test_generation_that_is_not_the_current_one_is_not_used(threaded: Threaded, folder: Path) -> None:
    state = StateFile(folder / "state", writable=True)
    number = threaded.reader._words[2]
    state.switch(number + 1)
    threaded.client.send(FOUND)
    assert threaded.take(1)[0][0] == FOUND
    state.switch(number)
    assert threaded.ask(FOUND)
    state.close()


def test_disabled_resolution_is_left_to_the_event_loop(threaded: Threaded) -> None:
    threaded.configure(resolves=False)
    threaded.client.send(FOUND)
    assert threaded.take(1)[0][0] == FOUND


def test_request_from_the_port_of_the_server_is_left_to_the_event_loop(threaded: Threaded) -> None:
    """Its sender is forged; only Python finds out."""
    threaded.udp.sendto(FOUND, threaded.udp.getsockname())
    ((datagram, sender, _),) = threaded.take(1)
    assert (datagram, sender) == (FOUND, threaded.udp.getsockname())


def test_every_other_request_over_the_limit_gets_a_short_refusal(threaded: Threaded) -> None:
    threaded.configure(TrafficLimit(threaded.memory, 1, 1))
    answers = threaded.ask(FOUND, FOUND, FOUND, count=2)
    short = short_response(FOUND, NOW)
    assert short is not None
    assert [untimed(answer) for answer in answers] == [untimed(short)] * 2
    responses, sent, rate_limited, unsent, lost = threaded.loop.counts()
    assert (responses, sent) == ({int(ResponseCode.ERROR): 2}, 2 * len(short))
    assert (rate_limited, unsent, lost) == (3, 0, 0)


def test_exempt_networks_have_no_limit(threaded: Threaded) -> None:
    threaded.configure(TrafficLimit(threaded.memory, 1, 1, ["10.0.0.0/8", "127.0.0.0/9"]))
    assert [untimed(answer) for answer in threaded.ask(FOUND)] == expected(threaded.reader, FOUND)


def test_limits_are_those_that_python_counts_in(threaded: Threaded) -> None:
    limit = TrafficLimit(threaded.memory, 1, 1_000)
    threaded.configure(limit)
    cost = len(threaded.ask(FOUND)[0]) - len(FOUND)
    now = time.monotonic()
    assert not limit.allows("127.0.0.200", 1_000 - cost + 30, now)
    assert limit.allows("127.0.0.200", 1_000 - cost - 30, now)


def test_requests_are_counted(threaded: Threaded) -> None:
    answers = threaded.ask(FOUND, FOUND, MISSING, BARE)
    responses, sent, *others = threaded.loop.counts()
    assert responses == {int(ResponseCode.SUCCESS): 2, int(ResponseCode.HANDLE_NOT_FOUND): 2}
    assert sent == sum(map(len, answers))
    assert others == [0, 0, 0]
    tally = ({b"10.1": 2}, {b"10.1": 1, b"0.NA": 1}, {b"10.1/none": 1, b"10.7": 1})
    assert threaded.loop.take_tally() == tally
    assert threaded.loop.take_tally() == ({}, {}, {})


def test_many_different_names_are_counted_together(threaded: Threaded) -> None:
    """They leave room for namespaces: nobody can hide from the statistics what is resolved."""
    for start in range(0, 3_000, 50):
        threaded.ask(*[RequestFields(b"10.1/n%d" % number).to_bytes() for number in range(start, start + 50)])
    threaded.ask(FOUND)
    found, unknown, missing = threaded.loop.take_tally()
    assert (found, unknown) == ({b"10.1": 1}, {b"10.1": 3_000})
    assert 900 < len(missing) <= 1_000


def test_names_with_the_hash_of_a_namespace_do_not_hide_it(threaded: Threaded) -> None:
    names = [b"10.1/%d" % number for number in range(5_000)]
    slot = fnv1a(1, b"10.1") % 2_048  # of records found
    hidden = [name for name in names if (fnv1a(3, name) - slot) % 2_048 < 16]
    assert len(hidden) > 16
    threaded.ask(*[RequestFields(name).to_bytes() for name in hidden])
    threaded.ask(FOUND)
    found, unknown, _ = threaded.loop.take_tally()
    assert (found, unknown) == ({b"10.1": 1}, {b"10.1": len(hidden)})


def fnv1a(kind: int, name: bytes) -> int:
    """The hash of the tally."""
    number = (2_166_136_261 ^ kind) * 16_777_619 & 0xFFFF_FFFF
    for byte in name:
        number = (number ^ byte) * 16_777_619 & 0xFFFF_FFFF
    return number


def test_answers_are_logged_if_the_settings_say_so(threaded: Threaded) -> None:
    threaded.configure(logs=True)
    threaded.ask(FOUND, MISSING)
    lines: list[tuple[str, str, int, bytes, int]] = []
    while len(lines) < 2:
        lines += threaded.loop.take_log()
    assert [line[:4] for line in lines] == [
        ("udp", "127.0.0.1", 1, b"10.1/x"),
        ("udp", "127.0.0.1", 100, b"10.1/none"),
    ]


def test_socket_is_left_alone_while_the_event_loop_takes_nothing(threaded: Threaded) -> None:
    """So that other workers can serve it; what was read before is not lost."""
    threaded.client.send(OTHER)
    deadline = time.monotonic() + DEADLINE
    left: list[bytes] = []
    while not left and time.monotonic() < deadline:
        threaded.client.send(MISSING)
        threaded.client.settimeout(0.3)
        try:
            threaded.client.recv(600)
        except TimeoutError:
            with suppress(BlockingIOError):  # the machine was busy, and the thread has taken it now
                left.append(threaded.udp.recv(600, socket.MSG_DONTWAIT))
    assert left == [MISSING]
    assert time.monotonic() - threaded.loop.last_beat < DEADLINE, "it says that it is alive"
    with suppress(TimeoutError):  # late responses
        while True:
            threaded.client.recv(600)
    threaded.client.settimeout(DEADLINE)
    assert threaded.take(1)[0][0] == OTHER
    assert [untimed(answer) for answer in threaded.ask(FOUND)] == expected(threaded.reader, FOUND)


def test_more_datagrams_than_the_queue_has_room_for_are_counted(threaded: Threaded) -> None:
    threaded.loop.stop()
    for _ in range(300):
        threaded.client.send(OTHER)
    threaded.loop.start()
    taken = threaded.take(256)
    deadline = time.monotonic() + DEADLINE
    while len(taken) + threaded.loop.counts()[4] < 300 and time.monotonic() < deadline:
        taken += threaded.loop.take_datagrams()
    assert len(taken) + threaded.loop.counts()[4] == 300


def test_without_a_view_datagrams_wait_in_the_socket_until_there_is_room(threaded: Threaded) -> None:
    threaded.loop.use(None)
    threaded.loop.stop()
    for _ in range(300):
        threaded.client.send(FOUND)
    threaded.loop.start()
    assert select([threaded.loop], [], [], DEADLINE)[0]
    start, deadline = threaded.loop.last_beat, time.monotonic() + DEADLINE
    while threaded.loop.last_beat < start + 0.01 and time.monotonic() < deadline:
        pass  # until it has read all that it reads
    assert len(threaded.take(300)) == 300
    assert threaded.loop.counts()[4] == 0


def test_lines_that_nobody_takes_any_more_do_not_stop_the_thread(threaded: Threaded) -> None:
    threaded.configure(logs=True)
    threaded.client.settimeout(0.5)
    with suppress(TimeoutError):
        for _ in range(1024):
            threaded.ask(FOUND)
        raise AssertionError("it waits until lines are taken")
    threaded.configure(logs=False)
    threaded.client.settimeout(DEADLINE)
    assert [untimed(answer) for answer in threaded.ask(count=1)] == expected(threaded.reader, FOUND)
    assert threaded.loop.take_log() == []


def test_many_exempt_networks_are_left_to_python(threaded: Threaded, caplog: pytest.LogCaptureFixture) -> None:
    def configure(count: int) -> None:
        networks = [f"10.{number // 256}.{number % 256}.0/24" for number in range(count)]
        limit = TrafficLimit(threaded.memory, 0, 0, networks)
        thread.configure(ResolutionSettings(), limit, resolves=True, logs=False)

    threaded.loop.stop()
    thread = ResolutionThread(threaded.udp, (), threaded.reader, WorkerCounters())
    thread.use_view()
    thread.compiled.start()
    for count, is_left in ((257, True), (300, True), (256, False), (257, True)):
        configure(count)
        threaded.client.send(FOUND)
        if is_left:
            assert select([thread.compiled], [], [], DEADLINE)[0]
            os.read(thread.compiled.fileno(), 8)
            taken = thread.take_datagrams()
            assert taken is not None
            assert taken.receive(600)[0] == FOUND
        else:
            assert len(threaded.ask(count=1)) == 1
    thread.compiled.stop()
    assert [line for line in caplog.messages if "in Python" in line] == [
        f"public resolution over UDP and TCP runs {describe(enabled=True, exempt_networks=257, several_servers=False)}"
    ] * 2


def test_site_of_several_servers_is_left_to_python(threaded: Threaded, caplog: pytest.LogCaptureFixture) -> None:
    threaded.loop.stop()
    thread = ResolutionThread(threaded.udp, (), threaded.reader, WorkerCounters())
    thread.use_view()
    thread.compiled.start()
    for servers in (2, 3, 1):
        limit = TrafficLimit(threaded.memory, 0, 0)
        thread.configure(ResolutionSettings(servers=servers), limit, resolves=True, logs=False)
        threaded.client.send(FOUND)
        if servers > 1:
            assert select([thread.compiled], [], [], DEADLINE)[0]
            os.read(thread.compiled.fileno(), 8)
            assert thread.take_datagrams() is not None
        else:
            assert len(threaded.ask(count=1)) == 1
    thread.compiled.stop()
    reason = "in Python (the site has several servers)"
    assert caplog.messages == [f"public resolution over UDP and TCP runs {reason}"]
    assert describe(enabled=True, exempt_networks=0, several_servers=True) == reason


def test_datagrams_are_taken_once_in_each_turn_of_the_event_loop(threaded: Threaded) -> None:
    """However often the thread wakes it: other work gets its turn in between."""
    taken: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        turn = 0

        def take() -> bool:
            taken.append(turn)
            os.write(thread.compiled.fileno(), (1).to_bytes(8, sys.byteorder))
            return len(taken) < 30

        thread.start(loop, take)
        os.write(thread.compiled.fileno(), (1).to_bytes(8, sys.byteorder))
        while len(taken) < 20:
            turn += 1
            await asyncio.sleep(0)
        thread.stop(loop)

    threaded.loop.stop()
    thread = ResolutionThread(threaded.udp, (), threaded.reader, WorkerCounters())
    asyncio.run(run())
    assert taken[:20] == [*range(taken[0], taken[0] + 20)]


def test_what_is_left_after_an_error_is_taken_without_further_news(threaded: Threaded) -> None:
    """The thread has none while its queues are full."""
    events: list[str] = []

    async def run() -> None:
        loop, is_taken = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda _, context: events.append(str(context["exception"])))

        def take() -> bool:
            if not events:
                raise ValueError("an error")
            events.append("taken")
            is_taken.set()
            return False

        thread.start(loop, take)
        os.write(thread.compiled.fileno(), (1).to_bytes(8, sys.byteorder))
        await asyncio.wait_for(is_taken.wait(), DEADLINE)
        thread.stop(loop)

    threaded.loop.stop()
    thread = ResolutionThread(threaded.udp, (), threaded.reader, WorkerCounters())
    asyncio.run(run())
    assert events[:2] == ["an error", "taken"]


def test_datagrams_that_are_left_are_handled_in_the_next_turn(
    threaded: Threaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error in one of them, and if more were taken than are handled in a turn."""
    handled: list[bytes] = []

    class Resolver:
        settings = ResolutionSettings()

        def __call__(self, datagram: bytes) -> bytes:
            handled.append(datagram)
            if len(handled) % 3 == 0:
                raise ValueError("an error")
            return bytes(ENVELOPE_LENGTH + HEADER_LENGTH)

    threaded.loop.stop()
    monkeypatch.setattr(udp_module, "MAX_BATCH", 2)
    service, limit = Service(), TrafficLimit(threaded.memory, 0, 0)
    service.public_resolver = Resolver()  # type: ignore[method-assign]
    thread = ResolutionThread(threaded.udp, (), threaded.reader, WorkerCounters())  # without a view
    server = UdpServer(service, UdpLimits(limit, limit, RateLimit(0, 0)))  # type: ignore[arg-type]
    server.add_thread(thread, threaded.udp)
    sent = [bytes([number]) for number in range(10)]
    for datagram in sent:
        threaded.client.send(datagram)
    thread.compiled.start()
    deadline = time.monotonic() + DEADLINE
    while len(handled) < len(sent) and time.monotonic() < deadline:
        with suppress(ValueError):
            server._take_from_thread()
    thread.compiled.stop()
    assert handled == sent


def test_thread_can_be_stopped_and_started(threaded: Threaded) -> None:
    for _ in range(3):
        threaded.loop.stop()
        threaded.client.send(FOUND)
        threaded.loop.start()
        assert len(threaded.ask(count=1)) == 1


def test_unreachable_sender_does_not_stop_the_others(threaded: Threaded) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        gone.sendto(FOUND, threaded.udp.getsockname())
    for _ in range(3):
        assert threaded.ask(FOUND)


def test_environment_reads_what_python_reads(folder: Path) -> None:
    with AnswersReader(folder) as reader:
        seen = reader.get_pair(b"10.1", b"10.1/x"), reader.applied, reader.stamp, reader.get(b"10.1/none")
    with AnswersReader(folder, compiled=True) as compiled:
        assert (
            compiled.get_pair(b"10.1", b"10.1/x"),
            compiled.applied,
            compiled.stamp,
            compiled.get(b"10.1/none"),
        ) == seen
        assert compiled.environment is not None
        with compiled.snapshot() as first, compiled.snapshot() as second:
            assert first.stamp == second.stamp


def test_folder_can_be_open_only_once(folder: Path) -> None:
    """Closing one of two environments would release the locks of both."""
    with AnswersReader(folder, compiled=True) as reader, AnswersReader(folder, compiled=True) as second:
        assert reader.ready
        with pytest.raises(AnswersUnavailable, match="already open"):
            second.get(b"10.1/x")
        reader.close()
        assert second.ready


def test_transaction_in_a_cycle_of_garbage_is_ended(folder: Path) -> None:
    """The collector clears what a cycle refers to in any order."""

    class Cycle:
        def __init__(self, txn: object) -> None:
            self.txn, self.itself = txn, self

    with AnswersReader(folder, compiled=True) as reader:
        assert reader.ready
        assert reader.environment is not None
        for _ in range(10):
            Cycle(reader.environment.begin())
            gc.collect()
        assert reader.ready


def test_reader_in_another_process_follows_the_writer(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    ledger.append("10.1/x", url("1"))
    with (
        Answers(tmp_path) as answers,
        process(report_reads, tmp_path, b"10.1/x", True) as (_, pipe),
    ):
        assert answers.catch_up(ledger.look)
        assert pipe.recv() == "reading"
        for number in range(2, 5):
            entry = ledger.append("10.1/x", url(str(number)))
            assert answers.apply([entry])
            pipe.send("look")
            assert pipe.recv() == (tuple(entry.contents), False)
            assert answers.rebuild(ledger.look)
            pipe.send("look")
            assert pipe.recv() == (tuple(entry.contents), False)
        pipe.send("stop")


# Writes


def serve_udp(pipe: Connection, folder: Path) -> None:
    """Serve public resolution as a worker does, until the other side sends something; report the counts."""
    memory = TrafficLimit.create(16)
    with socket.socket(type=socket.SOCK_DGRAM) as udp, AnswersReader(folder, compiled=True) as reader:
        udp.bind(("127.0.0.1", 0))
        resolver = PublicResolver(reader, ResolutionSettings(), lambda: NOW)
        loop = native.Loop(udp.fileno())
        limit = TrafficLimit(memory, 0, 0)
        loop.configure(ResolutionSettings(), limit.buckets, TOO_MUCH_TEXT, resolves=True, logs=False)
        loop.start()
        pipe.send(udp.getsockname())
        left: list[tuple[bytes, Any]] = []
        while not pipe.poll():
            if select([loop], [], [], 0.001)[0]:
                os.read(loop.fileno(), 8)
            left += [(datagram, sender) for datagram, sender, _ in loop.take_datagrams()]
            for datagram, sender in left.copy():
                if (response := resolver(datagram)) is not None:
                    udp.sendto(response, sender)
                    left.remove((datagram, sender))
            loop.use(reader.environment)
        loop.stop()
        pipe.send(loop.counts()[0])


def test_every_response_has_what_was_acknowledged_before_its_request(tmp_path: Path) -> None:
    """Also while the view is built again, and a client asks all the time."""
    ledger, acknowledged, is_over = MemoryLedger(), 0, Event()
    ledger.append("0.SITE/HOMED/0.NA/10.1", url("homed"))
    ledger.append("10.1/x", url("number 000;"))

    def ask(client: socket.socket) -> None:
        least = acknowledged
        client.send(FOUND)
        number = re.search(rb"number (\d+);", client.recv(600))
        assert number is not None
        assert int(number[1]) >= least

    def ask_always() -> int:
        with socket.socket(type=socket.SOCK_DGRAM) as client:
            client.settimeout(DEADLINE)
            client.connect(address)
            for count in itertools.count():
                if is_over.is_set():
                    return count
                ask(client)
        raise AssertionError

    with (
        Answers(tmp_path) as answers,
        process(serve_udp, tmp_path) as (_, pipe),
        ThreadPoolExecutor() as pool,
        socket.socket(type=socket.SOCK_DGRAM) as client,
    ):
        assert answers.catch_up(ledger.look)
        address = pipe.recv()
        client.settimeout(DEADLINE)
        client.connect(address)
        asked = pool.submit(ask_always)
        try:
            for number in range(1, 201):
                assert answers.apply([ledger.append("10.1/x", url(f"number {number:03};"))])
                acknowledged = number
                ask(client)
                if number % 20 == 0:
                    assert answers.rebuild(ledger.look)
                    ask(client)
        finally:
            is_over.set()
        total = asked.result(DEADLINE) + 210
        pipe.send("stop")
        found = pipe.recv()[int(ResponseCode.SUCCESS)]
    assert total / 2 < found <= total, "the others are those after a new generation"


def test_pages_are_used_again_while_no_request_comes(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    ledger.append("0.SITE/HOMED/0.NA/10.1", url("homed"))
    ledger.append("10.1/x", url("0"))
    with (
        Answers(tmp_path) as answers,
        process(serve_udp, tmp_path) as (_, pipe),
        socket.socket(type=socket.SOCK_DGRAM) as client,
    ):
        assert answers.catch_up(ledger.look)
        client.settimeout(DEADLINE)
        client.connect(pipe.recv())
        for _ in range(20):  # the first one opens the view
            client.send(FOUND)
            assert client.recv(600)
        sizes = []
        for number in range(1, 301):
            assert answers.apply([ledger.append("10.1/x", url(str(number)))])
            sizes.append((tmp_path / "1" / "data.mdb").stat().st_size)
        assert sizes[-1] == sizes[20], "an open transaction would keep all pages of later ones"
        pipe.send("stop")
        assert pipe.recv()[int(ResponseCode.SUCCESS)] > 0


# What it has in common with Python


@given(secret=st.integers(0, (1 << 56) - 1), network=st.integers(0, (1 << 57) - 1), size=st.integers(1, 1 << 40))
def test_buckets_are_those_of_python(secret: int, network: int, size: int) -> None:
    assert native.find_bucket(secret, network, size) == find_bucket(secret, network, size)


@given(
    name=st.binary(min_size=1, max_size=300),
    flags=st.integers(0, (1 << 32) - 1),
    minor=st.integers(0, 11),
    suggested=st.integers(0, 11) | st.none(),
    text=st.sampled_from((TOO_MUCH_TEXT, b"", b"x" * 60)),
)
@settings(deadline=None)
def test_refusal_is_that_of_python(name: bytes, flags: int, minor: int, suggested: int | None, text: bytes) -> None:
    version = None if suggested is None else Version(2, suggested)
    datagram = RequestFields(name, flags=flags, version=Version(2, minor), suggested=version).to_bytes()
    assert native.refuse(datagram, text, NOW) == short_response(datagram, NOW, text)


class AnyView:
    """A view with any bytes."""

    def __init__(self, handles: bytes | None, prefixes: bytes | None) -> None:
        self._handles, self._prefixes = handles, prefixes

    def get_pair(self, _prefix: bytes, _name: bytes) -> tuple[bytes | None, bytes | None]:
        return self._prefixes, self._handles

    def get_prefix(self, _prefix: bytes) -> bytes | None:
        return self._prefixes

    def find(self, store: str, _key: bytes) -> bytes | None:
        return self._handles if store == "handles" else self._prefixes


VALUE = url("https://example.org/x").to_bytes()
ITEM = bytes([0x01, *bytes(13), 1, len(VALUE)]) + VALUE
some_bytes = st.binary(max_size=80)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """An item with some bytes replaced, removed or added."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


REFERRALS = bytes([0x01, 0, 1, len(VALUE)]) + VALUE


@given(
    handles=st.none() | damaged(ITEM) | some_bytes,
    prefixes=st.none() | damaged(b"\x01\x00\x00") | damaged(REFERRALS) | some_bytes,
    datagram=damaged(FOUND) | damaged(BARE) | damaged(RequestFields(b"10.1/x", (1,), ("URL", "e.")).to_bytes()),
    public_only=st.booleans(),
)
@settings(max_examples=1_000, deadline=None)
def test_any_bytes_give_the_response_of_python_or_none(
    handles: bytes | None, prefixes: bytes | None, datagram: bytes, public_only: bool
) -> None:
    if public_only and len(datagram) > 32:
        flags = int.from_bytes(datagram[28:32], "big") | int(DEFAULT_FLAGS | OpFlag.PUBLIC_ONLY)
        datagram = datagram[:28] + flags.to_bytes(4, "big") + datagram[32:]
    view: Any = AnyView(handles, prefixes)
    compiled = native.answer(ResolutionSettings(), view.find, datagram, NOW)
    python = PublicResolver(view, ResolutionSettings(), lambda: NOW)(datagram)
    assert compiled in (None, python)
