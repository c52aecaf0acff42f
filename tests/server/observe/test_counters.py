"""Heartbeats and published metrics are visible to other processes, and another layout is refused."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from perseid.server.limits.udp import IncompatibleLayout
from perseid.server.observe.counters import MAX_PUBLISHED, SharedCounters

OTHER_PROCESS = """
import sys
from perseid.server.observe.counters import SharedCounters

shared_counters = SharedCounters(int(sys.argv[1]))
shared_counters.beat(1, 7.5)
for number in range(1000):
    shared_counters.publish(1, b"metrics %d" % number)
"""


@pytest.fixture
def shared_counters() -> Iterator[SharedCounters]:
    made = SharedCounters.create(3)
    yield made
    os.close(made.descriptor)


def test_other_processes_are_seen(shared_counters: SharedCounters) -> None:
    command = [sys.executable, "-c", OTHER_PROCESS, str(shared_counters.descriptor)]
    subprocess.run(command, pass_fds=(shared_counters.descriptor,), check=True)
    assert [shared_counters.last_beat(number) for number in range(len(shared_counters))] == [0.0, 7.5, 0.0]
    assert [shared_counters.read(number) for number in range(len(shared_counters))] == [b"", b"metrics 999", b""]


def test_interrupted_publication_leaves_the_last_one(shared_counters: SharedCounters) -> None:
    """The half that is not current is written, so a process can be killed after any byte."""
    for data in (b"first", b"second, longer", b"third"):
        before = shared_counters.read(2)
        half = shared_counters._words[2][2]
        assert shared_counters.publish(2, data)
        assert shared_counters.read(2) == data
        shared_counters._words[2][2] = half  # as if it had been killed just before
        assert shared_counters.read(2) == before
        assert shared_counters.publish(2, data)


def test_long_metrics_are_not_published(shared_counters: SharedCounters) -> None:
    assert shared_counters.publish(0, bytes(MAX_PUBLISHED))
    assert not shared_counters.publish(0, bytes(MAX_PUBLISHED + 1))
    assert shared_counters.read(0) == bytes(MAX_PUBLISHED)
    assert shared_counters.read(1) == b""


@pytest.mark.parametrize("raw", [b"", b"x", bytes(4096), bytes(4096 + 2 * MAX_PUBLISHED)])
def test_memory_with_another_layout_is_refused(raw: bytes) -> None:
    descriptor = os.memfd_create("something-else")
    try:
        os.write(descriptor, raw)
        with pytest.raises(IncompatibleLayout):
            SharedCounters(descriptor)
    finally:
        os.close(descriptor)
