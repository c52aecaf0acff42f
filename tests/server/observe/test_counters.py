"""Counters are visible to other processes, survive restarts, and reject another layout."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from perseid.server.limits.udp import IncompatibleLayout
from perseid.server.observe.counters import PAGE, CounterTotals, SharedCounters
from perseid.wire.codes import ResponseCode

RESOLVER = """
import sys
from perseid.server.observe.counters import SharedCounters

shared_counters = SharedCounters(int(sys.argv[1]))
counters = shared_counters.counters(int(sys.argv[2]))
answer = bytes(27) + bytes((int(sys.argv[3]),)) + bytes(12)
for number in range(int(sys.argv[4])):
    counters.answered(answer)
    counters.forwarded()
print("counted", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def shared_counters() -> Iterator[SharedCounters]:
    made = SharedCounters.create(3)
    yield made
    made.close()
    os.close(made.descriptor)


def answer(code: int, size: int = 40) -> bytes:
    return bytes(24) + code.to_bytes(4, "big") + bytes(size - 28)


def test_each_kind_of_event_has_its_counter(shared_counters: SharedCounters) -> None:
    counters = shared_counters.counters(1)
    for code in (1, 1, 1, 100, 301, 12_345):
        counters.answered(answer(code))
    counters.forwarded()
    counters.forwarded()
    counters.dropped()
    counters.sent(400)
    counters.relayed(600)
    expected = CounterTotals(
        {ResponseCode.SUCCESS: 3, ResponseCode.HANDLE_NOT_FOUND: 1, ResponseCode.SERVER_NOT_RESP: 1}, 1, 2, 1, 1_240
    )
    assert counters.read() == expected
    assert (expected.answered, expected.received) == (6, 9)
    assert shared_counters.read() == [CounterTotals(), expected, CounterTotals()]
    assert shared_counters.total() == expected
    assert len(shared_counters) == 3


def test_every_response_code_has_its_counter(shared_counters: SharedCounters) -> None:
    for number, code in enumerate(ResponseCode, 1):
        for _ in range(number):
            shared_counters.counters(0).answered(answer(code))
    assert shared_counters.total().by_code == {code: number for number, code in enumerate(ResponseCode, 1)}
    assert shared_counters.total().other_code == 0


def test_totals_are_added() -> None:
    first = CounterTotals({ResponseCode.SUCCESS: 1, ResponseCode.ERROR: 2}, 3, 4, 5, 6)
    second = CounterTotals({ResponseCode.SUCCESS: 10}, 30, 40, 50, 60)
    assert first + second == CounterTotals({ResponseCode.SUCCESS: 11, ResponseCode.ERROR: 2}, 33, 44, 55, 66)


def test_counts_of_other_processes_are_visible_during_and_after_their_life(shared_counters: SharedCounters) -> None:
    """The third resolver is killed and restarted: it continues where it ended."""

    def start(resolver: int, code: int, times: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", RESOLVER, *map(str, (shared_counters.descriptor, resolver, code, times))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(command, pass_fds=(shared_counters.descriptor,), **pipes)  # type: ignore[call-overload,no-any-return]

    resolvers = [start(0, 1, 1_000), start(1, 100, 2_000), start(2, 200, 300)]
    try:
        for resolver in resolvers:
            assert resolver.stdout is not None
            assert resolver.stdout.readline() == b"counted\n"
        assert [count.answered for count in shared_counters.read()] == [1_000, 2_000, 300]
        resolvers[2].kill()
        resolvers[2].communicate()
        resolvers[2] = start(2, 200, 33)
        resolvers[2].communicate(b"\n")
    finally:
        for resolver in resolvers:
            resolver.kill()
            resolver.communicate()
    expected = {ResponseCode.SUCCESS: 1_000, ResponseCode.HANDLE_NOT_FOUND: 2_000, ResponseCode.VALUES_NOT_FOUND: 333}
    assert shared_counters.total() == CounterTotals(expected, forwarded=3_333, bytes_sent=40 * 3_333)


def test_counter_never_decreases_for_a_reader(shared_counters: SharedCounters) -> None:
    counters, done = shared_counters.counters(0), threading.Event()

    def count() -> None:
        for _ in range(200_000):
            counters.sent(255)
        done.set()

    thread = threading.Thread(target=count)
    thread.start()
    seen = 0
    while not done.is_set():
        now = shared_counters.counters(0).read().bytes_sent
        assert now >= seen
        assert now % 255 == 0
        seen = now
    thread.join()
    assert shared_counters.total().bytes_sent == 200_000 * 255


def test_two_threads_of_a_resolver_never_share_a_word(shared_counters: SharedCounters) -> None:
    """If an addition is interrupted, one of two would be lost."""
    counters = shared_counters.counters(0)

    def changed(*calls: Callable[[], None]) -> set[int]:
        before = bytes(shared_counters._whole[:PAGE])
        for call in calls:
            call()
        return {at // 8 for at, old in enumerate(before) if shared_counters._whole[at] != old}

    by_one = changed(
        lambda: counters.answered(answer(1)), counters.dropped, counters.forwarded, partial(counters.sent, 1)
    )
    by_relay = changed(lambda: counters.relayed(5))
    assert len(by_relay) == 1
    assert not by_one & by_relay


@pytest.mark.parametrize("raw", [b"", b"x", bytes(PAGE), bytes(PAGE + 8)])
def test_memory_with_another_layout_is_refused(raw: bytes) -> None:
    descriptor = os.memfd_create("something-else")
    try:
        os.write(descriptor, raw)
        with pytest.raises(IncompatibleLayout):
            SharedCounters(descriptor)
    finally:
        os.close(descriptor)


def test_invalid_number_of_resolvers_leaves_nothing_open() -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are what is compared
    with pytest.raises(IncompatibleLayout):
        SharedCounters.create(0)
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
