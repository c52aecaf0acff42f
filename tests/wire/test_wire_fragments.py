"""Messages in UDP packets: split, reassembled in any order, and limited for untrusted peers."""

import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from perseid.records.errors import InvalidData
from perseid.wire import fragments
from perseid.wire.codes import Version
from perseid.wire.fragments import (
    MAX_AGE,
    MAX_PACKET,
    MAX_PARTIAL_MESSAGES,
    MAX_SOURCE_BYTES,
    MAX_TOTAL_BYTES,
    PACKET_PAYLOAD,
    Reassembler,
    packet_count,
    split,
)
from perseid.wire.message import MAX_MESSAGE, Envelope
from tests.wire.strategies import EXAMPLES, envelopes


def packet(request_id: int, sequence: int, length: int, part: bytes | None = None) -> bytes:
    """One packet of a message of `length` bytes."""
    size = min(PACKET_PAYLOAD, length - sequence * PACKET_PAYLOAD)
    data = bytes(max(0, size)) if part is None else part
    return Envelope(request_id=request_id, sequence=sequence, length=length, truncated=True).to_bytes() + data


def incomplete_packet(request_id: int) -> bytes:
    """The smallest packet of an incomplete message: its last byte."""
    return packet(request_id, 1, PACKET_PAYLOAD + 1)


# Splitting


def test_packet_of_512_bytes_carries_492_message_bytes() -> None:
    assert (MAX_PACKET, PACKET_PAYLOAD) == (512, 492)


@pytest.mark.parametrize(
    ("length", "count"), [(0, 1), (1, 1), (492, 1), (493, 2), (984, 2), (985, 3), (MAX_MESSAGE, 533)]
)
def test_packet_count_depends_on_message_length(length: int, count: int) -> None:
    packets = split(Envelope(), bytes(length), request=True)
    assert packet_count(length) == len(packets) == count
    assert all(len(part) == MAX_PACKET for part in packets[:-1])
    assert len(packets[-1]) <= MAX_PACKET
    assert [Envelope.from_bytes(part).sequence for part in packets] == list(range(count))
    assert {Envelope.from_bytes(part).length for part in packets} == {length}


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("length", [492, 493])
def test_every_request_packet_has_the_tc_bit_and_responses_echo_it(length: int, truncated: bool) -> None:
    envelope = Envelope(truncated=truncated)
    for part in split(envelope, bytes(length), request=True):
        assert Envelope.from_bytes(part).truncated is (length > 492 or truncated)
    for part in split(envelope, bytes(length), request=False):
        assert Envelope.from_bytes(part).truncated is truncated


@EXAMPLES
@given(envelopes(), st.binary(max_size=2000), st.randoms(use_true_random=False), st.booleans())
def test_packets_are_reassembled_in_any_order_with_duplicates(
    envelope: Envelope, payload: bytes, order: random.Random, request: bool
) -> None:
    packets = split(envelope, payload, request=request)
    shuffled = packets + order.choices(packets, k=3)
    order.shuffle(shuffled)
    reassembler, whole = Reassembler(), []
    for part in shuffled:
        result = reassembler.receive("source", part, 0.0)
        if result is not None:
            whole.append(result)
            break
    ((found, data),) = whole
    assert data == payload
    assert found == replace(Envelope.from_bytes(packets[0]), sequence=0)
    assert (len(reassembler), reassembler.size) == (0, 0)


# Reassembly


def test_messages_of_different_sources_and_ids_are_separate() -> None:
    reassembler = Reassembler()
    parts = {
        (source, number): split(Envelope(request_id=number), bytes((number,)) * 500, request=True)
        for source in ("a", "b")
        for number in (1, 2)
    }
    for (source, _), (first, _last) in parts.items():
        assert reassembler.receive(source, first, 0.0) is None
    assert len(reassembler) == 4
    for (source, number), (_first, last) in parts.items():
        whole = reassembler.receive(source, last, 0.0)
        assert whole is not None
        assert whole[1] == bytes((number,)) * 500
    assert len(reassembler) == 0


def test_single_packet_is_a_complete_message() -> None:
    reassembler = Reassembler()
    assert reassembler.receive("a", packet(1, 0, 5, b"hello"), 0.0) is not None
    assert len(reassembler) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        packet(1, 2, 493),
        packet(1, -1, 493),
        packet(1, 1, 493, b""),
        packet(1, 1, 493, b"xx"),
        packet(1, 0, 493, bytes(491)),
        packet(1, 0, 493, bytes(493)),
        packet(1, 0, 0, b"x"),
        packet(1, 0, -1, b""),
        packet(1, 0, MAX_MESSAGE + 1, bytes(492)),
    ],
    ids=["beyond", "before", "empty", "long", "short", "over", "none", "negative", "huge"],
)
def test_packet_that_does_not_match_its_message_is_dropped(wrong: bytes) -> None:
    reassembler = Reassembler()
    assert reassembler.receive("a", wrong, 0.0) is None
    assert (len(reassembler), reassembler.size) == (0, 0)


def test_packet_with_another_length_does_not_affect_the_message() -> None:
    reassembler = Reassembler()
    first, last = split(Envelope(request_id=1), b"x" * 500, request=True)
    reassembler.receive("a", first, 0.0)
    assert reassembler.receive("a", packet(1, 1, 600), 0.0) is None
    whole = reassembler.receive("a", last, 0.0)
    assert whole is not None
    assert whole[1] == b"x" * 500


def test_different_second_attempt_is_not_mixed_with_the_first() -> None:
    """A client in a session repeats its request with the same id but a new MAC and ciphertext."""
    first, second = [split(Envelope(request_id=1), byte * 1300, request=True) for byte in (b"1", b"2")]
    for came, order in [((0, 1), (0, 1, 2)), ((1, 2), (1, 0, 2)), ((0, 2), (2, 1, 0))]:
        reassembler = Reassembler()
        for number in came:
            assert reassembler.receive("a", first[number], 0.0) is None
        *before, whole = [reassembler.receive("a", second[number], 0.5) for number in order]
        assert before == [None, None]
        assert whole is not None
        assert whole[1] == b"2" * 1300
        assert (len(reassembler), reassembler.size) == (0, 0)


def test_packet_shorter_than_an_envelope_is_refused() -> None:
    with pytest.raises(InvalidData):
        Reassembler().receive("a", bytes(19), 0.0)


def test_longest_message_is_reassembled() -> None:
    reassembler, payload = Reassembler(), bytes(range(256)) * 1024
    assert len(payload) == MAX_MESSAGE
    results = [reassembler.receive("a", part, 0.0) for part in split(Envelope(), payload, request=True)]
    whole = results[-1]
    assert results[:-1] == [None] * 532
    assert whole is not None
    assert whole[1] == payload


# Limits


def test_incomplete_message_expires_after_five_seconds() -> None:
    assert MAX_AGE == 5.0
    # A clock that is set back a little, or read by another thread, does not change the age of a message.
    for age, is_alive in [(5.0, True), (5.001, False), (-5.0, True), (-5.001, False)]:
        reassembler = Reassembler()
        reassembler.receive("a", packet(1, 0, 493), 100.0)
        whole = reassembler.receive("a", packet(1, 1, 493), 100.0 + age)
        assert (whole is not None) is is_alive
        assert len(reassembler) == (not is_alive)


@pytest.mark.parametrize(
    "other", [{"session_id": 9}, {"encrypted": True}, {"version": Version(2, 4)}, {"suggested": Version(2, 4)}]
)
def test_packets_with_different_envelopes_are_not_combined(other: dict[str, Any]) -> None:
    reassembler = Reassembler()
    envelope = Envelope(session_id=7, request_id=1, length=493, truncated=True)
    assert reassembler.receive("a", envelope.to_bytes() + bytes(492), 0.0) is None
    second = replace(envelope, sequence=1)
    assert reassembler.receive("a", replace(second, **other).to_bytes() + b"x", 0.0) is None
    assert reassembler.receive("a", second.to_bytes() + b"x", 0.0) == (envelope, bytes(492) + b"x")


def test_expired_messages_are_removed_without_a_new_packet() -> None:
    reassembler = Reassembler()
    for number in range(3):
        reassembler.receive("a", incomplete_packet(number), float(number))
    reassembler.expire(6.0)
    assert len(reassembler) == 2
    reassembler.expire(8.0)
    assert (len(reassembler), reassembler.size) == (0, 0)


def test_one_source_has_64_incomplete_messages_and_the_oldest_is_evicted() -> None:
    assert MAX_PARTIAL_MESSAGES == 64
    reassembler = Reassembler()
    for number in range(MAX_PARTIAL_MESSAGES):
        reassembler.receive("a", incomplete_packet(number), 0.0)
    assert len(reassembler) == 64
    reassembler.receive("b", incomplete_packet(1), 0.0)
    reassembler.receive("a", incomplete_packet(64), 0.0)
    assert len(reassembler) == 65, "that of the other source stays"
    assert reassembler.receive("a", packet(1, 0, 493), 0.0) is not None, "the second oldest is still there"
    assert reassembler.receive("a", packet(0, 0, 493), 0.0) is None, "the oldest is not"


def test_one_source_uses_one_mebibyte_and_the_oldest_message_is_evicted() -> None:
    assert MAX_SOURCE_BYTES == 1 << 20
    reassembler = Reassembler()
    almost = [split(Envelope(request_id=number), bytes(MAX_MESSAGE), request=True)[:-1] for number in range(4)]
    for parts in almost[:3]:
        for part in parts:
            reassembler.receive("a", part, 0.0)
    assert len(reassembler) == 3
    for part in almost[3]:
        reassembler.receive("a", part, 0.0)
        assert reassembler.size <= MAX_SOURCE_BYTES
    assert len(reassembler) == 3
    reassembler.receive("b", incomplete_packet(1), 0.0)
    assert len(reassembler) == 4


def test_all_sources_use_eight_mebibytes_and_the_oldest_message_is_evicted() -> None:
    assert MAX_TOTAL_BYTES == 8 << 20
    reassembler = Reassembler()
    parts = split(Envelope(request_id=1), bytes(MAX_MESSAGE), request=True)[:-1]
    sources = 30
    greatest = 0
    for source in range(sources):
        for part in parts:
            reassembler.receive(source, part, 0.0)
            greatest = max(greatest, reassembler.size)
    assert MAX_TOTAL_BYTES - MAX_MESSAGE < greatest <= MAX_TOTAL_BYTES
    assert len(reassembler) < sources
    last = split(Envelope(request_id=1), bytes(MAX_MESSAGE), request=True)[-1]
    assert reassembler.receive(sources - 1, last, 0.0) is not None, "the newest is there"
    assert reassembler.receive(0, last, 0.0) is None, "the oldest is not"


def test_limit_matches_real_memory_use_even_for_the_smallest_packets() -> None:
    packets = [(f"10.{number >> 8}.{number & 255}.1", incomplete_packet(number)) for number in range(12_000)]
    reassembler = Reassembler()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for source, data in packets:
            reassembler.receive(source, data, 0.0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reassembler.size > MAX_TOTAL_BYTES * 0.99
    assert after - before < MAX_TOTAL_BYTES * 1.25


class HostilePackets(RuleBasedStateMachine):
    """Untrusted peers send anything; stored data stays within its limits and expires."""

    def __init__(self) -> None:
        super().__init__()
        self.reassembler = Reassembler()
        self.now = 0.0

    @rule(
        source=st.integers(0, 3),
        request_id=st.integers(0, 80),
        length=st.sampled_from([0, 1, 492, 493, 5000, MAX_MESSAGE, -1, MAX_MESSAGE + 1]),
        sequences=st.lists(st.integers(-1, 540), max_size=40),
    )
    def send(self, source: int, request_id: int, length: int, sequences: list[int]) -> None:
        for sequence in sequences:
            self.reassembler.receive(source, packet(request_id, sequence, length), self.now)

    @rule(source=st.integers(0, 3), data=st.binary(min_size=20, max_size=600))
    def send_anything(self, source: int, data: bytes) -> None:
        self.reassembler.receive(source, data, self.now)

    @rule(source=st.integers(0, 3), first=st.integers(0, 1000))
    def begin_many(self, source: int, first: int) -> None:
        for number in range(first, first + 70):
            self.reassembler.receive(source, incomplete_packet(number), self.now)

    @rule(source=st.integers(0, 3), request_id=st.integers(2000, 2010))
    def send_almost_all(self, source: int, request_id: int) -> None:
        for sequence in range(532):
            self.reassembler.receive(source, packet(request_id, sequence, MAX_MESSAGE), self.now)

    @rule(seconds=st.floats(0.0, 6.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def wait_long(self) -> None:
        self.now += MAX_AGE + 1.0
        self.reassembler.expire(self.now)
        assert (len(self.reassembler), self.reassembler.size) == (0, 0)
        assert not self.reassembler._sources

    @invariant()
    def stays_within_bounds(self) -> None:
        sources = self.reassembler._sources.values()
        assert self.reassembler.size == sum(source.size for source in sources) <= MAX_TOTAL_BYTES
        assert len(self.reassembler) == sum(len(source.messages) for source in sources)
        for source in sources:
            assert source.size <= MAX_SOURCE_BYTES
            assert len(source.messages) <= MAX_PARTIAL_MESSAGES
            total = sum(len(part) for message in source.messages.values() for part in message.parts.values())
            assert total < source.size


HostilePackets.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
test_hostile_packets_never_exceed_the_limits = HostilePackets.TestCase


def test_many_untrusted_peers_stay_within_the_limit_and_expire() -> None:
    chance = random.Random(7)
    reassembler = Reassembler()
    for _ in range(30_000):
        length = chance.choice((493, 5_000, 50_000, MAX_MESSAGE))
        number = chance.randrange(packet_count(length))
        reassembler.receive(chance.randrange(500), packet(chance.randrange(40), number, length), chance.random())
        assert reassembler.size <= MAX_TOTAL_BYTES
    reassembler.expire(7.0)
    assert (len(reassembler), reassembler.size) == (0, 0)
    assert fragments.Reassembler is Reassembler
