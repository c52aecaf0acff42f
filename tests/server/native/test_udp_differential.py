"""A worker with the thread of the compiled module does over UDP what one without it does.

Both get the same datagrams from the same addresses, the same settings, limits and views at the same moments, and must
send the same packets, leave the same to the service, and count and log the same.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from perseid.ledger.log.entry import State
from perseid.ledger.views.answers import Answers
from perseid.ledger.views.answers_reader import AnswersReader, StateFile, boot_id
from perseid.records.site import Transport
from perseid.server.limits.udp import RateLimit, TrafficLimit, short_response
from perseid.server.native.resolution import PublicResolver, ResolutionSettings
from perseid.server.native.resolution_thread import ResolutionThread
from perseid.server.native.udp import UdpLimits, UdpServer
from perseid.server.observe.metrics import WorkerCounters
from perseid.server.processes.datagrams import is_wildcard, set_packet_info
from perseid.wire.codes import OpFlag, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.server import Reply
from tests.ledger.answer_ledgers import MemoryLedger
from tests.server.native.native_servers import make_server
from tests.server.native.resolution_states import NOW, RequestFields, StoredState, governed, homed, value
from tests.server.native.test_resolution_differential import TEMPLATE, RequestGenerator
from tests.server.native.test_udp_thread import untimed

DATAGRAMS = 800
DEADLINE = 30.0
MARK = b"?"
"""A datagram with a response from the event loop, when everything before it has been handled."""

REQUIRED = 10_000
"""An entry that the view does not have."""

MARK_HOST = "127.255.255.254"
IPV4_HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.3.1", "127.9.0.1")
EXEMPT = ((), ("127.0.3.0/24",), ("127.0.0.0/17", "::1"), ("::/0",), ("::ffff:127.0.0.2/128",), ("0.0.0.0/0",))
SETTINGS = (
    ResolutionSettings(),
    ResolutionSettings(serial=300),
    ResolutionSettings(serial=-7, is_primary=False, default_sensitive=True),
    ResolutionSettings(default_scheme="cordra"),
    ResolutionSettings(templates=True),
    ResolutionSettings(servers=2, position=1),
)
PER_SECOND = 0.001
LIMITS = ((0.0, 0.0, 0.0), (PER_SECOND, 100.5, 0.0), (PER_SECOND, 2_000.5, PER_SECOND), (0.0, 300.5, PER_SECOND))
"""Per second, burst and in all: so little per second that no time passes for them."""

MANY = tuple(value(index, f"T{index % 7}.x", b"%d" % index) for index in range(1, 301))
RECORDS = [
    *[homed(f"0.NA/{prefix}") for prefix in ("0.NA", "10", "10.1", "20.5", "30", "0.TYPE", ".".join("p" * 60))],
    homed("40"),
    homed("0.NA/0.NA/10"),
    governed("20.5", "exact"),
    governed("30", "cordra"),
    StoredState("0.NA/10", (value(1), value(2, "HS_SITE.PREFIX"), value(3, "hs_na_delegate"))),
    StoredState("0.NA/10.1", (value(1, "HS_NAMESPACE", TEMPLATE),)),
    *[StoredState(f"10/{name}", (value(1), value(2, "URL.us"), value(3, "EMAIL"))) for name in ("x", "aB", "ü-日本")],
    StoredState("10/private", (value(1), value(2, "HS_SECKEY", public=False))),
    StoredState("10/none", ()),
    StoredState("10/many", MANY),
    StoredState("10/some", MANY[:256]),
    *[StoredState(f"10/long{size}", (value(1, data=bytes(size)),)) for size in (400, 480, 3_000, 7_700, 7_830, 9_000)],
    *[StoredState(f"10/{state.name}", (value(1),), state) for state in (State.TOMBSTONE, State.RESERVED)],
    StoredState("10/hidden", (value(1),), State.UNPUBLISHED),
    *[StoredState(f"20.5/{name}", (value(1), value(2)), exact=True) for name in ("aB", "Ab", "one", "ONE/Two")],
    StoredState("20.5/before", (value(1),)),
    StoredState("30/q", (value(1),)),
    StoredState("40/x", (value(1),)),
    StoredState(".".join("p" * 60) + "/x", (value(1),)),
    StoredState("10/" + "n" * 398, (value(1),)),
    StoredState("10/" + "n" * 397, (value(1),)),
    StoredState("10/" + "n" * 300, (value(1),)),
]


class Service:
    """What a `UdpServer` needs of its service, which sends no response."""

    def __init__(self, reader: AnswersReader, settings: ResolutionSettings) -> None:
        self.counts = WorkerCounters()
        self.native_server = SimpleNamespace(resolution_enabled={Transport.UDP: True})
        self.left: list[tuple[object, ...]] = []
        self.messages: list[Any] = []
        self._reader = reader
        self.use(settings)

    def use(self, settings: ResolutionSettings) -> None:
        self.public_resolver = PublicResolver(self._reader, settings, lambda: NOW, self.counts.tally)

    async def respond(self, frame: Frame, host: str, transport: Transport) -> AsyncIterator[Any]:
        self.left.append((frame.envelope, frame.payload, host, transport))
        for message in self.messages:
            yield message

    def early_failure(self, code: ResponseCode, text: str, answered: Any = None) -> Reply:
        return make_server().early_failure(code, text, NOW, answered=answered)

    def log_invalid(self, *about: object) -> None:
        self.left.append(about)

    def count_drop(self, reason: str) -> None:
        self.counts.count_drop(reason)

    def time(self) -> float:
        return NOW


class AccessLines:
    """An access log without times."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def log_request(self, *parts: object) -> None:
        *line, microseconds = parts
        assert isinstance(microseconds, int)
        assert 0 <= microseconds < DEADLINE * 1e6
        self.lines.append(tuple(line))


class Worker:
    """The UDP part of a worker, with two generations of the view, and its clients."""

    def __init__(self, stack: ExitStack, folder: Path, host: str, memory: int, *, has_thread: bool) -> None:
        ledger = MemoryLedger()
        for record in RECORDS:
            ledger.append(record.name, *record.values, state=record.state, exact=record.exact)
        with Answers(folder) as answers:
            assert answers.catch_up(ledger.look)
        self.state = StateFile(folder / "state", writable=True)
        stack.callback(self.state.close)
        self.generation = self.state.usable_generation(boot_id())
        self.reader = stack.enter_context(AnswersReader(folder, compiled=has_thread))
        self.udp = stack.enter_context(bind(host))
        self.port = self.udp.getsockname()[1]
        hosts = ("::1", *IPV4_HOSTS) if host == "::" else IPV4_HOSTS
        self.clients = [stack.enter_context(connect(each, self.port)) for each in hosts]
        self.mark = stack.enter_context(connect(MARK_HOST, self.port))
        self.memory = memory
        self.refusals = self.refusal_bytes = 0
        self.service = Service(self.reader, SETTINGS[0])
        self.server = UdpServer(self.service, self.limits(0, 0, 0, ()))  # type: ignore[arg-type]
        if has_thread:
            thread = ResolutionThread(self.udp, (), self.reader, self.service.counts)
            self.server.add_thread(thread, self.udp)

    def limits(self, per_second: float, burst: float, total: float, exempt: tuple[str, ...]) -> UdpLimits:
        traffic = TrafficLimit(self.memory, per_second, burst, (*exempt, MARK_HOST), total)
        return UdpLimits(traffic, TrafficLimit(self.memory, 0, 0), RateLimit(0, 0))

    @property
    def limited(self) -> int:
        return self.service.counts.drops()["rate_limit"]

    @property
    def answered_by_thread(self) -> int:
        compiled = self.service.counts.compiled
        return 0 if compiled is None else sum(compiled.counts()[0].values())

    def counted(self) -> tuple[object, ...]:
        """All counts, without refusals."""
        counts = self.service.counts
        requests = counts.requests()
        requests["udp", "resolution", "error"] -= self.refusals
        assert requests["udp", "resolution", "success"] > DATAGRAMS / 20
        tally = counts.tally
        return requests, counts.drops(), counts.sent_udp_bytes() - self.refusal_bytes, tally.sums(), tally.missing

    def charged(self) -> list[float]:
        """Bytes that each network was charged, where the limit was so low that none have been refilled."""
        slots = self.server.limits.traffic.buckets.slots
        return [max(0.0, (due - monotonic()) * PER_SECOND) for due in slots]

    async def ask(self, client: int, datagram: bytes) -> list[bytes]:
        """Send a datagram, and return all packets of its response."""
        self.clients[client].send(datagram)
        self.mark.send(MARK)
        await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.mark, 600), DEADLINE)
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self.clients[client].recv(600))
        return [untimed(packet) for packet in found]


def bind(host: str) -> socket.socket:
    udp = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    udp.bind((host, 0))
    set_packet_info(udp, enabled=is_wildcard(udp))
    return udp


def connect(host: str, port: int) -> socket.socket:
    client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    client.bind((host, 0))
    client.connect(("::1" if ":" in host else "127.0.0.1", port))
    client.setblocking(False)
    return client


def datagrams(random: Random) -> Iterator[bytes]:
    """Requests for a resolver, for the service, and for nobody."""
    generator = RequestGenerator(random, RECORDS)
    names = [record.name.encode() for record in RECORDS if record.name.startswith(("10/", "20.5/", "30/", "0.NA/10"))]
    while True:
        if random.random() < 0.6:
            indexes, types = random.choice(((), (1, 256), (1, 4))), random.choice(((), ("URL.",), ("T3.", "email")))
            requested = RequestFields(random.choice(names), indexes, types, generator.flags() | OpFlag.PUBLIC_ONLY)
        else:
            requested = generator.request()
        datagram = requested.to_bytes()
        if random.random() < 0.1:
            changed = bytearray(datagram)
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
            datagram = bytes(changed)
        elif random.random() < 0.05:
            datagram = random.choice(
                (datagram[: random.randrange(len(datagram))], datagram + bytes(500), b"", b"x" * 20)
            )
        yield datagram


@contextmanager
def workers(folder: Path, host: str) -> Iterator[tuple[Worker, Worker]]:
    first = TrafficLimit.create(16)
    second = os.memfd_create("copy")
    os.pwrite(second, os.pread(first, 1 << 16, 0), 0)  # with the same secret
    with ExitStack() as stack:
        stack.callback(os.close, first)
        stack.callback(os.close, second)
        with_thread = Worker(stack, folder / "thread", host, first, has_thread=True)
        yield with_thread, Worker(stack, folder / "event-loop", host, second, has_thread=False)


def change(random: Random, worker: Worker, settings: ResolutionSettings, access: AccessLines | None) -> None:
    """Apply other settings, limits or a state of the view. Draws the same numbers for each worker."""
    worker.server.limits = worker.limits(*random.choice(LIMITS), random.choice(EXEMPT))
    worker.service.native_server.resolution_enabled[Transport.UDP] = random.random() < 0.95
    worker.service.use(settings)
    worker.server.access = access  # type: ignore[assignment]
    worker.server.configure()
    worker.state.forget(REQUIRED)
    worker.state.switch(worker.generation if random.random() < 0.9 else 0)
    if random.random() < 0.1:
        worker.state.require(REQUIRED)


async def compare(both: tuple[Worker, Worker], logged: tuple[AccessLines, AccessLines], random: Random) -> None:
    """Send the same to both, and compare all packets of each response."""
    requests = datagrams(random)
    limited = 0
    for number in range(DATAGRAMS):
        if number % 40 == 0:
            seed, settings, logs = random.random(), random.choice(SETTINGS), random.random() < 0.5
            for worker, lines in zip(both, logged, strict=True):
                change(Random(seed), worker, settings, lines if logs else None)
        datagram, client = next(requests), random.randrange(len(both[0].clients))
        before = [worker.limited for worker in both]
        answers = [await worker.ask(client, datagram) for worker in both]
        if [worker.limited for worker in both] == before:
            assert answers[0] == answers[1], (number, datagram)
            continue
        limited += 1
        short = short_response(datagram, NOW) or b""
        for worker, answer in zip(both, answers, strict=True):
            # Every other request gets a short response; which one does not matter.
            assert answer in ([], [untimed(short)]), (number, datagram)
            worker.refusals += len(answer)
            worker.refusal_bytes += len(answer) * len(short)
    assert limited > DATAGRAMS / 50


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_thread_does_what_the_event_loop_does(tmp_path: Path, host: str) -> None:
    random = Random(host)
    logged = AccessLines(), AccessLines()

    async def run(both: tuple[Worker, Worker]) -> None:
        loop = asyncio.get_running_loop()
        for worker in both:
            worker.server.start(loop, worker.udp)
        try:
            await compare(both, logged, random)
        finally:
            for worker in both:
                worker.server.stop(loop, worker.udp)
                worker.server.collect_tally()

    with workers(tmp_path, host) as both:
        asyncio.run(run(both))
        assert both[0].counted() == both[1].counted()
        assert both[0].service.left == both[1].service.left
        assert logged[0].lines == logged[1].lines
        for one, other in zip(both[0].charged(), both[1].charged(), strict=True):
            assert abs(one - other) < 0.5
        assert both[0].answered_by_thread > DATAGRAMS / 10
