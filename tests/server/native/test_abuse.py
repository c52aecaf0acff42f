"""Limits of a running server for untrusted clients: each is reached and exceeded, while others are served."""

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from perseid.records.record import Value
from perseid.wire.challenges import answer_with_secret
from perseid.wire.codes import OpCode, OpFlag, ResponseCode, Version, default_flags
from perseid.wire.message import Envelope
from perseid.wire.requests import Resolve, ValuesRequest, VerifyChallenge
from perseid.wire.responses import VerificationResult
from tests.server.faults.machine import eventually, memory, processes, started
from tests.server.faults.sources import (
    NOBODY_EXEMPT,
    PATIENCE,
    SourceClient,
    connected,
    datagrams,
    metrics,
    read_frames,
    until_cut,
)
from tests.server.installations import ADMINISTRATOR, PREFIX, SECRET, copy_to
from tests.server.native.native_client import Serving, Via, serving

PER_ADDRESS = 4
IN_ALL = 12
FAILURES = 12
BURST = 1 << 16
RATE = 1_000
CHALLENGES = 1_000
CHALLENGE_OCTETS = 1 << 20
_MIB = 1 << 20
ADMIN_HANDLE = ADMINISTRATOR.partition(":")[2]

STRICT = NOBODY_EXEMPT | {
    "PERSEID_LIMITS_CONNECTIONS": str(IN_ALL),
    "PERSEID_LIMITS_CONNECTIONS_PER_ADDRESS": str(PER_ADDRESS),
    "PERSEID_LIMITS_MESSAGE_TIME": "1",
    "PERSEID_LIMITS_IDLE_TIME": "1",
    "PERSEID_LIMITS_TAKE_TIME": "1",
    "PERSEID_LIMITS_FAILED_PROOFS": str(FAILURES),
    "PERSEID_LIMITS_UDP_OCTETS": str(RATE),
    "PERSEID_LIMITS_UDP_BURST": str(BURST),
    "PERSEID_LIMITS_UDP_HANDOVERS": "0",
    "PERSEID_LIMITS_UDP_HANDOVERS_IN_ALL": "4000",
    "PERSEID_LIMITS_UDP_CHALLENGES": str(CHALLENGES),
    "PERSEID_LIMITS_UDP_CHALLENGE_OCTETS": str(CHALLENGE_OCTETS),
    "PERSEID_LOG_ACCESS": "false",
}
KEPT = default_flags(OpCode.RESOLUTION) | OpFlag.KEEP_CONNECTION


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with small limits and no exempt networks. Each test uses its own networks."""
    with serving(copy_to(tmp_path_factory.mktemp("abuse")), "--workers", "1", **STRICT) as running:
        pids = started(running)
        yield running
        assert processes(running) == pids, "a process was started again"
        assert "Internal Error" not in running.errors


def resolution_request(server: Serving, name: str, flags: OpFlag | None = None) -> bytes:
    """An encoded resolution request."""
    return SourceClient(server.native, "").packed(OpCode.RESOLUTION, Resolve(f"{PREFIX}/{name}".encode()), flags)


def is_served(server: Serving, host: str, via: Via = Via.TCP) -> bool:
    try:
        with SourceClient(server.native, host, via) as client:
            return client.resolve(f"{PREFIX}/n1").code is ResponseCode.SUCCESS
    except ConnectionError:
        return False


# Connections


def test_excess_connections_are_refused_until_others_end(server: Serving) -> None:
    request = resolution_request(server, "n1", KEPT)

    def opens(host: str, held: ExitStack) -> bool:
        connection = held.enter_context(connected(host, server.native))
        with suppress(ConnectionError):
            connection.sendall(request)
            return bool(read_frames(connection, 1))
        return False

    # They are kept for a second without a request, so what is to be held is held again until it is seen at a time.
    def fill(held: ExitStack, *hosts: str) -> bool:
        held.close()
        return all(opens(host, held) for host in hosts for _ in range(PER_ADDRESS))

    with ExitStack() as held, ExitStack() as more:
        eventually(lambda: fill(held, "127.10.0.1"), "four connections")
        assert not opens("127.10.0.1", more), "a fifth of one address"
        assert is_served(server, "127.10.0.2"), "another address has its own"
        eventually(
            lambda: fill(held, "127.10.0.1", "127.10.0.2", "127.10.0.3") and not opens("127.10.0.4", more),
            "all that there may be",
        )
        held.close()
        for host in ("127.10.0.1", "127.10.0.4"):
            eventually(lambda host=host: is_served(server, host), "an answer when others have gone")  # type: ignore[misc]
    assert metrics(server)['perseid_limits_triggered_total{limit="connections"}'] >= 2


def test_only_idle_and_slow_clients_are_disconnected(server: Serving) -> None:
    request = resolution_request(server, "n1", KEPT)
    with ExitStack() as stack:
        silent, slow, idle, deaf = (
            stack.enter_context(connected(f"127.11.0.{number}", server.native)) for number in range(4)
        )
        idle.sendall(request)
        assert len(read_frames(idle, 1)) == 1
        # Much more than fits into the buffers of the kernel, and nothing of it is read.
        deaf.sendall(resolution_request(server, "longer", KEPT) * 100)
        with suppress(ConnectionError):
            for octet in request * 1_000:  # a whole message never comes
                slow.sendall(bytes([octet & 0]))
                time.sleep(0.05)
            raise AssertionError("whoever sends an octet now and then may go on for ever")
        assert until_cut(silent) == 0
        until_cut(idle)
        assert until_cut(deaf) < 100 * 200_000, "what nobody read was kept for them all the same"
    assert is_served(server, "127.11.0.9")
    eventually(lambda: metrics(server)["perseid_connections"] == 0, "the end of all connections")


def test_unread_responses_are_bounded(server: Serving) -> None:
    (worker,) = processes(server)["worker"]
    request = resolution_request(server, "longer", KEPT)
    before = memory(worker).own
    for pieces in ([request] * 200, [request * 5] * 60):  # each by itself, and several at a time
        with connected("127.12.0.1", server.native) as connection, suppress(ConnectionError, TimeoutError):
            connection.settimeout(2.0)
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.001)
            time.sleep(0.2)
            assert memory(worker).own - before < 24 * _MIB
    assert is_served(server, "127.12.0.1")


def test_late_reader_gets_all_responses(server: Serving) -> None:
    request = resolution_request(server, "longer", KEPT)
    for pieces in ([request] * 30, [request * 30]):
        with connected("127.12.2.1", server.native) as connection:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.005)
            time.sleep(0.2)
            answers = read_frames(connection, 30)
            assert len(answers) == 30
            assert all(len(frame.payload) > 200_000 for frame in answers)
            connection.sendall(resolution_request(server, "n1"))
            assert len(read_frames(connection, 2)) == 1, "the connection was kept, and ends when that is not asked for"


def test_largest_unfinished_message_is_dropped_over_the_limit(tmp_path: Path) -> None:
    limit = 1 << 20
    settings = NOBODY_EXEMPT | {"PERSEID_LIMITS_TCP_UNFINISHED_OCTETS": str(limit), "PERSEID_LOG_ACCESS": "false"}
    with serving(copy_to(tmp_path), **settings) as server:
        body = ValuesRequest(f"{PREFIX}/long-one".encode(), (Value(1, "DATA", bytes(250 << 10)),))
        message = SourceClient(server.native, "").packed(OpCode.CREATE_HANDLE, body)
        for cut in (1, 2):  # what is finished or cut is no longer counted, or a second time more of them would go
            with ExitStack() as stack:
                longest, *others = (stack.enter_context(connected("127.22.0.1", server.native)) for _ in range(5))
                longest.sendall(message[: 240 << 10])
                for other in others:
                    other.sendall(message[: 200 << 10])  # with the last of them there are 16 KiB too much
                assert until_cut(longest) == 0
                assert is_served(server, "127.22.0.2")
                for other in others:
                    other.sendall(message[200 << 10 :])
                    (answer,) = read_frames(other, 1)
                    assert int.from_bytes(answer.payload[4:8], "big") == ResponseCode.AUTHENTICATION_NEEDED
            assert metrics(server)['perseid_limits_triggered_total{limit="unfinished_bytes"}'] == cut


def test_too_long_message_is_refused_before_it_arrives(server: Serving) -> None:
    head = struct.pack(">BBBBIIII", 2, 11, 2, 11, 0, 7, 0, (1 << 18) + 1)
    with connected("127.12.1.1", server.native) as connection:
        connection.sendall(head)
        (refusal,) = read_frames(connection, 1)
        assert int.from_bytes(refusal.payload[4:8], "big") == ResponseCode.ERROR


# UDP


def test_unfinished_fragments_are_bounded(server: Serving) -> None:
    (worker,) = processes(server)["worker"]
    before = memory(worker).own
    for source in range(100):
        with datagrams(f"127.13.{source}.1", server.native) as sending:
            for number in range(60):
                head = struct.pack(">BBBBIIII", 2, 11, 0x22, 11, 0, 1 + number, number % 500, 1 << 18)
                sending.send(head + bytes(492))
            time.sleep(0.01)
    assert memory(worker).own - before < 16 * _MIB  # 8 MiB is what all unfinished messages may take
    with SourceClient(server.native, "127.13.200.1", Via.UDP) as client:
        values = (Value(1, "DATA", bytes(2_000)),)
        request = client.request(OpCode.CREATE_HANDLE, ValuesRequest(f"{PREFIX}/in-fragments".encode(), values))

        def is_challenged() -> bool:
            return _sent_in_fragments(client, client.client.pack(request, None).payload, request.envelope)

        eventually(is_challenged, "a challenge to a message of several packets")


def _sent_in_fragments(client: SourceClient, payload: bytes, envelope: Envelope) -> bool:
    with datagrams(client.host, client.address) as sending:
        _send_fragments(sending, payload, envelope.request_id)
        sending.settimeout(1.0)
        with suppress(TimeoutError):
            return int.from_bytes(sending.recv(600)[24:28], "big") == ResponseCode.AUTHENTICATION_NEEDED
    return False


def _send_fragments(sending: socket.socket, payload: bytes, request_id: int) -> None:
    for number, at in enumerate(range(0, len(payload), 492)):
        head = struct.pack(">BBBBIIII", 2, 11, 0x22, 11, 0, request_id, number, len(payload))
        sending.send(head + payload[at : at + 492])


def test_udp_challenges_are_bounded_and_do_not_affect_tcp(server: Serving) -> None:
    with SourceClient(server.native, "127.14.0.1") as honest:
        honest.act_as(ADMINISTRATOR, SECRET)
        values = (Value.text(1, "URL", "https://example.org/"),)
        request = honest.request(OpCode.CREATE_HANDLE, ValuesRequest(f"{PREFIX}/among-floods".encode(), values))
        challenge = honest.ask(request)
        assert challenge.code is ResponseCode.AUTHENTICATION_NEEDED

        def pending() -> float:
            return metrics(server)["perseid_challenges_pending"]

        def flood(count: int, size: int) -> None:
            body = ValuesRequest(f"{PREFIX}/never".encode(), (Value(1, "DATA", bytes(size)),))
            payload = honest.client.pack(honest.request(OpCode.CREATE_HANDLE, body), None).payload
            packets = len(payload) // 492 + 1
            for number in range(count):
                if number % (50 // packets + 1) == 0:
                    time.sleep(0.06)  # slower than a busy machine handles them
                with datagrams(f"127.15.{number % 100}.1", server.native) as sending:
                    if packets == 1:
                        sending.send(struct.pack(">BBBBIIII", 2, 11, 2, 11, 0, number + 1, 0, len(payload)) + payload)
                    else:
                        _send_fragments(sending, payload, number + 1)

        before = pending()
        flood(90, 20_000)
        eventually(lambda: pending() - before > 20, "challenges")
        assert pending() - before <= CHALLENGE_OCTETS // 20_000

        def is_full() -> bool:
            flood(300, 10)  # again, because a busy machine loses datagrams
            return pending() - before > CHALLENGES * 0.8

        eventually(is_full, "many challenges")
        flood(CHALLENGES, 10)
        assert pending() - before <= CHALLENGES

        assert honest.ask(honest.answer(challenge, request), about=request).code is ResponseCode.SUCCESS
        assert honest.delete(f"{PREFIX}/among-floods").code is ResponseCode.SUCCESS


def _try(server: Serving, host: str, via: Via, secret: str) -> ResponseCode:
    with SourceClient(server.native, host, via) as client:
        client.act_as(ADMINISTRATOR, secret)
        return client.modify(f"{PREFIX}/n1", Value.text(1, "URL", "https://example.org/1")).code


def test_failures_lock_out_on_that_transport_only(server: Serving) -> None:
    guesser, other = "127.16.0.1", "127.16.0.2"
    for _ in range(FAILURES):
        assert _try(server, guesser, Via.UDP, "wrong") is ResponseCode.AUTHENTICATION_FAILED
    assert _try(server, guesser, Via.UDP, SECRET) is ResponseCode.SERVER_TOO_BUSY
    assert _try(server, guesser, Via.TCP, SECRET) is ResponseCode.SUCCESS, "who forges an address locks nobody out"
    assert _try(server, other, Via.UDP, SECRET) is ResponseCode.SUCCESS
    for _ in range(FAILURES):
        assert _try(server, guesser, Via.TCP, "wrong") is ResponseCode.AUTHENTICATION_FAILED
    assert _try(server, guesser, Via.TCP, SECRET) is ResponseCode.SERVER_TOO_BUSY
    assert _try(server, other, Via.TCP, SECRET) is ResponseCode.SUCCESS
    assert is_served(server, guesser), "resolving needs no proof"
    assert is_served(server, guesser, Via.UDP)


def _verified(
    server: Serving, host: str, secret: str, name: str = ADMIN_HANDLE, via: Via = Via.TCP
) -> VerificationResult | ResponseCode:
    """The result of VERIFY_CHALLENGE for a response made with a secret, or the code of a refusal."""
    nonce, digest = bytes(16), bytes(32)
    cheap = answer_with_secret(secret.encode(), nonce, digest, Version(2, 1), Version(2, 1), b"")
    with SourceClient(server.native, host, via) as client:
        told = client.do(OpCode.VERIFY_CHALLENGE, VerifyChallenge(name.encode(), 300, nonce, digest, cheap))
    return told.body if isinstance(told.body, VerificationResult) else told.code


def test_wrong_verifications_lock_out_like_failures(server: Serving) -> None:
    guesser = "127.20.0.1"
    for number in range(FAILURES):
        assert _verified(server, guesser, "wrong", f"{PREFIX}/n{number}") == VerificationResult(0)
    assert _verified(server, guesser, SECRET) is ResponseCode.SERVER_TOO_BUSY
    assert _try(server, guesser, Via.TCP, SECRET) is ResponseCode.SERVER_TOO_BUSY
    assert _verified(server, "127.20.0.2", SECRET) == VerificationResult(1)
    assert is_served(server, guesser)


def test_guesses_are_limited_over_all_addresses_without_locking_out_the_owner(server: Serving) -> None:
    other_server, administrator = "127.21.0.100", "127.21.0.101"
    assert _verified(server, other_server, SECRET) == VerificationResult(1)
    for number in range(FAILURES):
        assert _verified(server, f"127.21.0.{number}", "wrong") == VerificationResult(0)
    start = time.monotonic()
    assert _verified(server, "127.21.0.50", SECRET) == VerificationResult(1), "after waiting for its turn"
    assert time.monotonic() - start > 1.0
    assert _verified(server, "127.21.0.51", "wrong", f"{PREFIX}/n9") == VerificationResult(0), "another handle"
    assert _verified(server, "127.21.0.52", SECRET, via=Via.UDP) == VerificationResult(1), "another transport"
    assert _verified(server, other_server, SECRET) == VerificationResult(1), "it had right answers before"
    assert _try(server, administrator, Via.TCP, SECRET) is ResponseCode.SUCCESS


def _responses(server: Serving, host: str, request: bytes, count: int) -> list[bytes | None]:
    """The response to each of `count` equal requests: all its packets, or None."""
    with datagrams(host, server.native) as sending:
        for number in range(1, count + 1):
            sending.send(request[:8] + number.to_bytes(4, "big") + request[12:])
        sending.settimeout(5.0)
        got: dict[int, bytes] = {}
        with suppress(TimeoutError):
            while len(got) < count or not all(map(_is_complete, got.values())):
                packet = sending.recv(600)
                number = int.from_bytes(packet[8:12], "big")
                got[number] = got.get(number, b"") + packet
    return [got.get(number) for number in range(1, count + 1)]


def _is_complete(answer: bytes) -> bool:
    """Whether all packets of a response arrived; each has an envelope of 20 bytes and at most 492 after it."""
    length = int.from_bytes(answer[16:20], "big")
    return len(answer) == length + 20 * -(-length // 492)


def _is_short(answer: bytes, request: bytes) -> bool:
    """Whether a response is RC_ERROR, and no longer than the protocol requires or the request was."""
    return int.from_bytes(answer[24:28], "big") == ResponseCode.ERROR and len(answer) <= max(len(request), 85)


def test_network_over_its_limit_gets_short_responses_and_uses_tcp(server: Serving) -> None:
    request = resolution_request(server, "n1")
    begun = time.monotonic()
    answers = _responses(server, "127.17.0.1", request, 100)
    while all(answer is not None and not _is_short(answer, request) for answer in answers):
        answers = _responses(server, "127.17.0.1", request, 100)  # another host of the network would do as well
        assert time.monotonic() - begun < PATIENCE, "there is no end"
    refused = _responses(server, "127.17.0.2", request, 100)
    kinds = Counter("silence" if one is None else "short" if _is_short(one, request) else "whole" for one in refused)
    # The bucket gives a little all the time, so a few are answered; of the others every second gets a word.
    assert kinds["whole"] <= 10 + RATE * (time.monotonic() - begun) / 100
    assert abs(kinds["short"] - kinds["silence"]) <= 10, kinds
    assert kinds["short"] > 20, kinds
    assert is_served(server, "127.17.0.1"), "TCP has no forged addresses"
    assert is_served(server, "127.17.1.1", Via.UDP), "another network draws from its own"


def test_response_of_more_than_sixteen_packets_requires_tcp(server: Serving) -> None:
    request = resolution_request(server, "longer")
    answers = _responses(server, "127.18.0.1", request, 20)
    assert all(answer is not None and _is_short(answer, request) for answer in answers)
    with SourceClient(server.native, "127.18.0.1") as client:
        assert client.resolve(f"{PREFIX}/longer").code is ResponseCode.SUCCESS
    whole = _responses(server, "127.18.1.1", resolution_request(server, "long"), 1)
    assert whole[0] is not None
    assert len(whole[0]) > 6_000, "what is shorter comes in several packets"
