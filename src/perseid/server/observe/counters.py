"""Heartbeats and metrics of all processes, in memory that they share.

The supervisor creates the memory, one slot for each of its children, and passes the descriptor on. A process writes to
its own slot only, so there are no locks. It says there that it is alive (`beat`), many times a second, and publishes
its metrics once a second; whoever is asked for metrics adds up those of all. A restarted process continues to count
where the last one ended.

A slot has two halves for the metrics. The one that is not current is written, then it becomes the current one: a
process that is killed while it writes leaves the other half. Words are aligned, have 64 bits, and are written whole.

The supervisor loads this module, so it imports little.
"""

import mmap
import os
import sys
from typing import Final, Self

from perseid.server.limits.udp import IncompatibleLayout

MAX_PUBLISHED: Final = 128 << 10
"""Bytes of the metrics of one process: all codes of all operations over all transports. Unused pages cost nothing."""

_HEAD = 4096  # bytes of a slot before the halves: layout, heartbeat, current half, lengths of both
_SLOT = _HEAD + 2 * MAX_PUBLISHED
_LAYOUT = 0x5045_5253_0003
_LAYOUT_WORD, _BEAT, _CURRENT, _LENGTHS = range(4)
_READ_ATTEMPTS = 3


class SharedCounters:
    """The shared memory."""

    def __init__(self, descriptor: int) -> None:
        """Map memory that `create` made, in any process; the descriptor stays the caller's."""
        size = os.fstat(descriptor).st_size
        if not size or size % _SLOT:
            raise IncompatibleLayout(f"invalid size of the shared counters: {size} bytes")
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)
        self._whole = memoryview(self._map)
        heads = [self._whole[at : at + _HEAD] for at in range(0, size, _SLOT)]
        self._words = [head.cast("Q") for head in heads]
        self._times = [head.cast("d") for head in heads]
        if any(words[_LAYOUT_WORD] != _LAYOUT for words in self._words):
            raise IncompatibleLayout("the shared counters were created by another version; restart the server")

    @classmethod
    def create(cls, processes: int) -> Self:
        """Create the memory. Other processes inherit the descriptor."""
        descriptor = os.memfd_create("perseid-counters", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, processes * _SLOT)
        for at in range(0, processes * _SLOT, _SLOT):
            os.pwrite(descriptor, _LAYOUT.to_bytes(8, sys.byteorder), at)
        return cls(descriptor)

    def __len__(self) -> int:
        return len(self._words)

    def beat(self, process: int, now: float) -> None:
        """Record that a process is alive at a monotonic time; 0 if it has yet to start."""
        self._times[process][_BEAT] = now

    def last_beat(self, process: int) -> float:
        """When a process was last alive; 0 if it has not started."""
        return self._times[process][_BEAT]

    def publish(self, process: int, data: bytes) -> bool:
        """Replace the metrics of a process; return whether they fit."""
        if len(data) > MAX_PUBLISHED:
            return False
        words = self._words[process]
        half = 1 - words[_CURRENT]
        start = process * _SLOT + _HEAD + half * MAX_PUBLISHED
        self._whole[start : start + len(data)] = data
        words[_LENGTHS + half] = len(data)
        words[_CURRENT] = half
        return True

    def read(self, process: int) -> bytes:
        """Return the metrics that a process has published last; empty if there are none."""
        words = self._words[process]
        for _ in range(_READ_ATTEMPTS):  # halves change once a second
            half = words[_CURRENT]
            start = process * _SLOT + _HEAD + half * MAX_PUBLISHED
            data = bytes(self._whole[start : start + words[_LENGTHS + half]])
            if words[_CURRENT] == half:
                return data
        return b""
