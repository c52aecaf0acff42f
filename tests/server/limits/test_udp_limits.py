"""UDP limits of a network apply to all processes together; beyond them it gets a short response, or none."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseid.server.limits import udp
from perseid.server.limits.udp import (
    TOO_MUCH_TEXT,
    IncompatibleLayout,
    NetworkSet,
    RateLimit,
    TrafficLimit,
    network_to_int,
    short_response,
)
from perseid.wire.client import Client
from perseid.wire.codes import CURRENT_VERSION, DEFAULT_FLAGS, OpCode, OpFlag, ResponseCode, Version
from perseid.wire.framing import Frame
from perseid.wire.message import Envelope, Message
from perseid.wire.requests import Resolve
from perseid.wire.responses import Failure

NOW = 1_794_724_100.0
START = 1_000.0  # of the monotonic clock
HOST = "192.0.2.17"

DRAWER = """
import sys
from perseid.server.limits.udp import TrafficLimit

traffic = TrafficLimit(int(sys.argv[1]), 1000, 10_050, (), 12_050)
print(sum(traffic.allows(sys.argv[2], 100, 1000.0) for _ in range(60)))
"""


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = TrafficLimit.create(1 << 10)
    yield descriptor
    os.close(descriptor)


# Networks


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("192.0.2.1", "192.0.2.254"),
        ("192.0.2.1", "::ffff:192.0.2.9"),
        ("2001:db8:1:2::1", "2001:db8:1:ff:ffff::"),
        ("fe80::1%lo", "fe80::2"),
    ],
)
def test_addresses_of_one_network_are_equal(one: str, other: str) -> None:
    assert network_to_int(one) == network_to_int(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("192.0.2.1", "192.0.3.1"), ("2001:db8:1:100::1", "2001:db8:1:200::1"), ("0.0.0.1", "::1")],
)
def test_addresses_of_two_networks_differ(one: str, other: str) -> None:
    assert network_to_int(one) != network_to_int(other)


def test_network_set_contains_only_its_addresses() -> None:
    networks = NetworkSet(("10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::/0"))
    held = ("10.255.0.1", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8:ffff::1", "::1", "fe80::1%eth0")
    assert [host for host in held if host not in networks] == []
    assert [host for host in ("11.0.0.1", "192.0.2.8", "::ffff:11.0.0.1") if host in networks] == []
    assert "1.2.3.4" in NetworkSet(("0.0.0.0/0",))
    assert "127.8.9.1" in NetworkSet(("127.0.0.0/8", "::1/128"))


@pytest.mark.parametrize(
    ("network", "same"),
    [
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:a00:0/104", "10.0.0.0/8"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("::ffff:192.0.2.7/128", "192.0.2.7/32"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
    ],
)
def test_ipv4_network_may_be_written_as_mapped_ipv6(network: str, same: str) -> None:
    mapped, plain = NetworkSet((network,)), NetworkSet((same,))
    hosts = ("10.1.2.3", "::ffff:10.255.0.1", "11.0.0.1", "192.0.2.7", "192.0.2.8", "::1", "2001:db8::1", "a00::1")
    assert [host in mapped for host in hosts] == [host in plain for host in hosts]
    assert any(host in mapped for host in hosts)


# Buckets

DRAWS = st.lists(
    st.tuples(st.floats(0, 5), st.integers(1, 8_192)), min_size=1, max_size=40
)  # seconds since the last one, octets


@given(DRAWS, st.integers(1, 100_000), st.integers(8_200, 100_000))
def test_network_never_gets_more_than_burst_and_rate(draws: list[tuple[float, int]], rate: int, burst: int) -> None:
    descriptor = TrafficLimit.create(1)
    traffic = TrafficLimit(descriptor, rate, burst)
    allowed: list[tuple[float, int]] = []
    now = START
    for pause, size in draws:
        now += pause
        if traffic.allows(HOST, size, now):
            allowed.append((now, size))
    for first in range(len(allowed)):
        drawn = 0
        for moment, size in allowed[first:]:
            drawn += size
            assert drawn <= burst + rate * (moment - allowed[first][0]) + 1
    assert len(allowed) > 0  # the first one always fits
    traffic.close()
    os.close(descriptor)


@given(DRAWS, st.integers(1, 100_000), st.integers(8_200, 100_000))
def test_traffic_below_the_rate_is_never_refused(draws: list[tuple[float, int]], rate: int, burst: int) -> None:
    pace, now = RateLimit(rate, burst), START
    for pause, size in draws:
        now += pause + size / rate
        assert pace.take(now, size)


def test_refused_response_costs_nothing(memory: int) -> None:
    traffic = TrafficLimit(memory, 100, 1_000)
    assert traffic.allows(HOST, 900, START)
    assert not traffic.allows(HOST, 200, START)
    assert traffic.allows(HOST, 100, START)
    assert not traffic.allows(HOST, 1, START)
    assert traffic.allows(HOST, 100, START + 1)


def test_other_networks_have_their_own_buckets(memory: int) -> None:
    traffic = TrafficLimit(memory, 100, 1_000)
    assert traffic.allows(HOST, 1_000, START)
    assert not traffic.allows("192.0.2.18", 1, START)
    others = [f"198.51.{number}.1" for number in range(50)]
    assert sum(traffic.allows(host, 1_000, START) for host in others) > 40  # a few share one


def test_all_networks_together_have_a_limit(memory: int) -> None:
    traffic = TrafficLimit(memory, 100, 1_000, (), 5_000)
    hosts = [f"198.51.{number}.1" for number in range(50)]
    assert sum(traffic.allows(host, 100, START) for host in hosts) == 50
    assert not any(traffic.allows(f"203.0.{number}.1", 100, START) for number in range(50)), "a second of the total"
    later = [traffic.allows(f"203.0.{number}.1", 100, START + 0.5) for number in range(50)]
    assert sum(later) == 25
    assert TrafficLimit(memory, 0, 0, (), 0).allows(HOST, 1 << 30, START), (
        "the limit can be removed while it is used up"
    )


def test_total_admits_the_burst_of_one_network(memory: int) -> None:
    traffic = TrafficLimit(memory, 100, 1_000, (), 10)
    assert traffic.allows(HOST, 1_000, START)
    assert not traffic.allows("198.51.100.1", 1, START)


def test_response_no_longer_than_its_request_is_free(memory: int) -> None:
    """And gives nothing back."""
    traffic = TrafficLimit(memory, 100, 1_000, (), 1_000)
    assert traffic.allows(HOST, 1_000, START)
    assert all(traffic.allows(HOST, cost, START) for cost in (0, -1_000))
    assert not traffic.allows(HOST, 1, START)


def test_exempt_networks_and_rate_zero_have_no_limit(memory: int) -> None:
    traffic = TrafficLimit(memory, 100, 1_000, ("127.0.0.0/8", "::1/128"))
    assert all(traffic.allows("127.0.0.1", 1 << 30, START) for _ in range(3))
    assert traffic.allows("::1", 1 << 30, START)
    assert not traffic.allows(HOST, 1 << 30, START)
    assert TrafficLimit(memory, 100, 1_000, ("127.0.0.0/8",), 1).allows("127.0.0.1", 1 << 30, START)
    unlimited = TrafficLimit(memory, 0, 0)
    assert unlimited.allows(HOST, 1 << 30, START)
    assert unlimited.allows(HOST, 1 << 30, START)
    assert RateLimit(0, 0).take(START, 1 << 30)


def test_number_of_cached_addresses_is_limited(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp, "MAX_HOSTS", 4)
    traffic = TrafficLimit(memory, 100, 1_000)
    for number in range(50):
        traffic.allows(f"10.0.{number}.1", 1, START)
        assert len(traffic._slot_cache) <= 4
    assert not traffic.allows("10.0.0.9", 1_000, START)  # the bucket itself is not forgotten


def test_all_processes_use_the_same_buckets(memory: int) -> None:
    """That of a network, and that of all together; regardless of the hash seed of each interpreter."""
    command = [sys.executable, "-c", DRAWER, str(memory)]
    counts = []
    for seed, host in (("1", HOST), ("2", "::ffff:192.0.2.99"), ("3", "2001:db8::1")):
        done = subprocess.run(
            [*command, host],
            pass_fds=[memory],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        counts.append(int(done.stdout))
    assert counts == [60, 40, 20]
    assert not TrafficLimit(memory, 1_000, 10_050).allows(HOST, 100, START)


def test_memory_of_another_version_is_refused(memory: int) -> None:
    os.pwrite(memory, b"\x99", 0)
    with pytest.raises(IncompatibleLayout, match="another version"):
        TrafficLimit(memory, 1, 1)
    os.ftruncate(memory, 100)
    with pytest.raises(IncompatibleLayout, match="100 bytes"):
        TrafficLimit(memory, 1, 1)


# The short response


def make_request(
    name: bytes, flags: OpFlag = DEFAULT_FLAGS, version: Version = CURRENT_VERSION
) -> tuple[Client, Message, bytes]:
    client = Client(lambda count: b"\x2a" * count, version)
    request = client.request(OpCode.RESOLUTION, Resolve(name), NOW, flags=flags, peer_version=version)
    return client, request, request.envelope.to_bytes() + request.payload()


@pytest.mark.parametrize("minor", range(1, 12))
@pytest.mark.parametrize("flags", [DEFAULT_FLAGS, DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST | OpFlag.DO_NOT_REFER])
@pytest.mark.parametrize("name", [b"1/2", b"20.500.99999/" + b"x" * 60])
def test_clients_parse_the_short_response(name: bytes, flags: OpFlag, minor: int) -> None:
    client, request, raw = make_request(name, flags, Version(2, minor))
    short = short_response(raw, NOW)
    assert short is not None
    answer = client.read(Frame(Envelope.from_bytes(short), short[20:]), request, NOW)
    assert answer.code == ResponseCode.ERROR
    assert isinstance(answer.body, Failure)
    assert (answer.digest is not None) == (OpFlag.REQUEST_DIGEST in flags)
    assert answer.body.sentence in ("", TOO_MUCH_TEXT.decode())
    assert len(short) <= max(len(raw), 52 + 33)


def test_short_response_has_a_text_if_it_fits() -> None:
    short = short_response(make_request(b"20.500.99999/a-name-of-usual-length")[2], NOW)
    assert short is not None
    assert TOO_MUCH_TEXT in short


def test_version_without_digests_gets_none() -> None:
    raw = bytearray(make_request(b"1/2", DEFAULT_FLAGS | OpFlag.REQUEST_DIGEST)[2])
    raw[0:4] = bytes((2, 0, 0, 0))
    short = short_response(bytes(raw), NOW)
    assert short is not None
    assert Envelope.from_bytes(short).version == Version(2, 0)
    assert len(short) == 52


def test_unreadable_request_gets_no_response() -> None:
    raw = bytearray(make_request(b"1/2")[2])
    assert short_response(bytes(raw[:43]), NOW) is None
    raw[2] |= 0x40  # encrypted
    assert short_response(bytes(raw), NOW) is None


@given(st.binary(min_size=44, max_size=600))
def test_short_response_is_hardly_longer_than_the_request(datagram: bytes) -> None:
    short = short_response(datagram, NOW)
    assert short is None or len(short) <= max(len(datagram), 85)
