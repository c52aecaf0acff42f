"""Floods of expensive requests and invalid data: resolution continues.

Nothing here measures speed: every request during a flood must get its correct response. `pytest -s` shows what each
flood took.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.records.errors import InvalidData
from perseid.records.record import Value
from perseid.wire.client import VerifiedResponse
from perseid.wire.codes import OpCode, OpFlag, ResponseCode
from perseid.wire.framing import Frame
from perseid.wire.message import Message
from perseid.wire.requests import HandleRequest, RequestBody, Resolve, ValuesRequest, VerifyChallenge
from perseid.wire.responses import ResolutionResult
from tests.conftest import EXAMPLES
from tests.server.faults.flood import Flood, Kind
from tests.server.faults.machine import cpu_seconds, eventually, memory, named, processes, started
from tests.server.faults.sources import (
    NOBODY_EXEMPT,
    SourceClient,
    connected,
    datagrams,
    frame_bytes,
    frames_in,
    metrics,
    read_frames,
)
from tests.server.installations import ADMINISTRATOR, NAMES, PREFIX, SECRET, copy_to, values_of
from tests.server.native.native_client import NativeClient, NoAnswer, Serving, Via, serving

RESOLUTIONS = EXAMPLES // 2
"""Handles that each client resolves during a flood; more in `make soak`."""
UDP_PATIENCE = 4.0
UDP_ATTEMPTS = 50
"""A flood fills the queue of datagrams. On a busy machine a request waits for seconds in it, and most are lost; whoever
repeats a request and waits gets its response."""
GROWTH = 48 << 20
"""Octets by which a worker may grow while it is flooded: sessions, challenges and answers that it keeps for a while."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The limits that a server has, and nobody exempt from them.

    But whoever floods it fails as often as they like: locked out, they would cost nothing.
    """
    settings = NOBODY_EXEMPT | {"PERSEID_LOG_ACCESS": "false", "PERSEID_LIMITS_FAILED_PROOFS": "1000000"}
    with serving(copy_to(tmp_path_factory.mktemp("floods")), "--workers", "1", **settings) as running:
        pids = started(running)
        yield running
        assert processes(running) == pids, "a process was started again"
        assert "Internal Error" not in running.errors, running.errors


# Floods


class Honest(threading.Thread):
    """A client that resolves handles one after the other, and must always get a response."""

    def __init__(self, server: Serving, via: Via) -> None:
        super().__init__(name=via.value)
        timeout, self._attempts = (UDP_PATIENCE, UDP_ATTEMPTS) if via is Via.UDP else (120.0, 1)
        self._client = NativeClient(server.native, via, timeout=timeout, attempts=4)
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            with self._client as client:
                for number in range(RESOLUTIONS):
                    answer = self._resolve(client, f"{PREFIX}/n{number % NAMES}")
                    assert answer.code is ResponseCode.SUCCESS, answer
                    assert isinstance(answer.body, ResolutionResult)
                    assert answer.body.values[0].data == values_of(number % NAMES)[0].data
                    time.sleep(0.05)  # so that the flood is in full swing for most of them
        except Exception as problem:  # noqa: BLE001 - it is told where the thread is joined
            self.problem = problem

    def _resolve(self, client: NativeClient, handle: str) -> VerifiedResponse:
        for _ in range(self._attempts):
            with suppress(NoAnswer):
                return client.resolve(handle)
        raise NoAnswer(f"{self._attempts} attempts")


def resolve_over_all_transports(server: Serving) -> None:
    everybody = [Honest(server, via) for via in Via]
    for one in everybody:
        one.start()
    for one in everybody:
        one.join()
        assert one.problem is None, f"over {one.name}: {one.problem!r}"


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_resolution_continues_during_a_flood_of_expensive_requests(
    server: Serving, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "tests.server.faults.flood", kind.value, *map(str, server.native)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == b"started\n"
        before, begun = _used(server), time.monotonic()
        resolve_over_all_transports(server)
        sent, _ = flood.communicate()
    after, seconds = _used(server), time.monotonic() - begun
    counts = json.loads(sent)
    assert counts["over TCP"] > 0
    assert counts["over UDP"] > 0
    shares = {name: (after[name] - before[name]) / seconds for name in after}
    shown = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share > 0.005)
    with capsys.disabled():
        requests = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        print(f"\n{kind.value}: {seconds:.1f} s; {requests}; {shown}")


def _used(server: Serving) -> dict[str, float]:
    """CPU seconds of each process, and of each pool."""
    found = {name: cpu_seconds(pid) for name, pid in named(server).items()}
    for name, value in metrics(server).items():
        if name.startswith("perseid_pool_cpu_seconds_total"):
            found[name.partition('"')[2].rstrip('"}')] = value
    return found


def test_session_floods_of_three_addresses_leave_some_to_a_fourth(server: Serving) -> None:
    by_address = [Counter[str]() for _ in range(3)]
    ended = threading.Event()
    floods = [
        threading.Thread(target=_request_sessions, args=(server, f"127.32.{number}.1", counts, ended))
        for number, counts in enumerate(by_address)
        for _ in range(3)
    ]
    for flood in floods:
        flood.start()
    try:
        eventually(lambda: all(counts["SERVER_TOO_BUSY"] for counts in by_address), "refusals for all three")
        for _ in range(15):  # a fraction of what an address may do at once
            with SourceClient(server.native, "127.32.100.1") as honest:
                honest.begin_session()
    finally:
        ended.set()
        for flood in floods:
            flood.join()


def _request_sessions(server: Serving, host: str, counts: Counter[str], ended: threading.Event) -> None:
    flood = Flood(Kind.SESSIONS, server.native, counts)
    with suppress(OSError), connected(host, server.native) as connection:
        while not ended.is_set():
            flood.ask(connection)


def test_anonymous_changes_do_not_use_the_write_budget(server: Serving) -> None:
    before = metrics(server)
    values = (Value.text(1, "URL", "https://example.org/"),)
    for number in range(20):
        with SourceClient(server.native, f"127.33.{number}.1") as stranger:
            answer = stranger.create(f"{PREFIX}/of-a-stranger", values)
            assert answer.code is ResponseCode.AUTHENTICATION_NEEDED
    after = metrics(server)
    name = 'perseid_pool_done_total{kind="write"}'
    assert after[name] == before[name]
    with SourceClient(server.native, "127.33.100.1") as writer:
        writer.act_as(ADMINISTRATOR, SECRET)
        # The first ones may be told to retry: on a busy machine checking a secret uses up its share of time.
        eventually(
            lambda: writer.create(f"{PREFIX}/of-a-writer", values).code is ResponseCode.SUCCESS, "a change is made"
        )
    assert metrics(server)[name] == before[name] + 1


# Octets that mean nothing


def messages() -> list[bytes]:
    """One request of each kind."""
    client = SourceClient(("127.0.0.1", 0), "127.0.0.1")
    values = (Value.text(1, "URL", "https://example.org/"),)
    handle = f"{PREFIX}/never".encode()
    bodies: list[tuple[OpCode, RequestBody]] = [
        (OpCode.RESOLUTION, Resolve(f"{PREFIX}/n1".encode(), (1, 2), ("URL", "DESC"))),
        (OpCode.GET_SITE_INFO, HandleRequest()),
        (OpCode.CREATE_HANDLE, ValuesRequest(handle, values)),
        (OpCode.MODIFY_VALUE, ValuesRequest(handle, values)),
        (OpCode.DELETE_HANDLE, HandleRequest(handle)),
        (OpCode.LIST_HANDLES, HandleRequest(f"0.NA/{PREFIX}".encode())),
        (OpCode.VERIFY_CHALLENGE, VerifyChallenge(b"0.NA/12345", 300, bytes(16), bytes(32), b"\x02" + bytes(20))),
        (OpCode.BACKUP_SERVER, HandleRequest()),
    ]
    wish = client.client.begin_session(None, time.time())
    return [client.packed(opcode, body) for opcode, body in bodies] + [
        frame_bytes(client.client.pack(wish.request, None)),
        client.packed(OpCode.RESOLUTION, Resolve(b"\xff\x00\n/" * 20), OpFlag(0xFFFF_FFFF)),
    ]


MESSAGES = messages()
NUMBERS = st.sampled_from((0, 1, 0x7F, 0x80, 0xFF, 0xFFFF_FFFF, 0x7FFF_FFFF, 1 << 18, (1 << 18) + 1))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A message with something changed, missing or added."""
    raw = bytearray(draw(st.sampled_from(MESSAGES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw) - 1))
        if draw(st.booleans()):
            raw[at] = draw(st.integers(0, 255))
        else:  # a word, where lengths and numbers stand
            at = at // 4 * 4
            raw[at : at + 4] = draw(NUMBERS).to_bytes(4, "big")
    cut = draw(st.sampled_from((None, None, None, 20, 44, -1, -4, len(raw) // 2)))
    return bytes(raw[:cut]) + draw(st.sampled_from((b"", b"", b"\0" * 4, b"\xff" * 30)))


SENT = st.lists(st.one_of(mutated(), st.binary(max_size=600)), min_size=1, max_size=6)


def assert_is_answer(frame: Frame) -> None:
    """Check that a frame is a response."""
    with suppress(InvalidData):
        message = Message.from_bytes(frame.envelope, frame.payload, int(time.time()))
        assert not message.header.is_request
        return
    raise AssertionError(f"this is no message: {frame}")


@given(SENT)
def test_any_bytes_over_udp_get_a_response_or_none(server: Serving, sent: list[bytes]) -> None:
    good = SourceClient(server.native, "").packed(OpCode.RESOLUTION, Resolve(f"{PREFIX}/n1".encode()))
    with datagrams("127.31.0.1", server.native) as sending:
        sending.settimeout(30.0)
        for raw in sent:
            sending.send(raw)
        sending.send(good)  # from the same port, so the same worker reads it, behind all the others
        while (packet := sending.recv(2_048))[8:12] != good[8:12]:
            assert len(packet) <= 512
            for frame in frames_in(packet):
                assert_is_answer(frame)


@given(SENT)
def test_any_bytes_over_tcp_get_a_response_or_the_end_of_the_connection(server: Serving, sent: list[bytes]) -> None:
    for frame in answers_to(server, "127.31.1.1", *sent):
        assert_is_answer(frame)


def answers_to(server: Serving, host: str, *sent: bytes) -> list[Frame]:
    """The frames received until the connection ends; fails if it does not end."""
    with connected(host, server.native) as connection:
        with suppress(OSError):  # it may have ended in the middle
            for raw in sent:
                connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            return read_frames(connection, 1 << 20)
        return []


def test_after_the_floods_the_same_processes_run_within_their_limits(server: Serving) -> None:
    """Much more of the same, without reading the responses."""
    (worker,) = processes(server)["worker"]
    before = {name: memory(pid).own for name, pid in named(server).items()}
    parts = [raw[:at] + raw[at + 1 :] for raw in MESSAGES for at in range(0, len(raw), 3)]
    with datagrams("127.31.2.1", server.native) as sending:
        for number, (one, other) in enumerate(pairwise(parts)):
            sending.send(one)
            sending.send((one[:20] + other[20:])[:512])
            if number % 50 == 0:
                time.sleep(0.01)
    for raw in parts[::20]:
        answers_to(server, "127.31.3.1", raw)
    with SourceClient(server.native, "127.31.4.1") as client:
        assert client.resolve(f"{PREFIX}/n1").code is ResponseCode.SUCCESS
    after = {name: memory(pid).own for name, pid in named(server).items()}
    assert after.keys() == before.keys()
    assert processes(server)["worker"] == [worker]
    for name, own in after.items():
        assert own - before[name] < GROWTH, f"{name} grew by {own - before[name]:,} bytes"
