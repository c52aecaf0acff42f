"""Connections of each network, in memory that all workers share, so that limits hold over all of them.

Each worker has a row of counters for the connections of its event loop, and one for those that the thread of the
compiled module keeps. Each writes to its own row only, so there are no locks. A restarted worker clears its rows: the
connections of the last one have ended with it. Counters are chosen by a hash of the network with a random secret; two
networks that share one seldom have many connections both, and nobody can choose to.

The supervisor loads this module, so it imports little.
"""

import mmap
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final

from .udp import IncompatibleLayout, find_bucket

SLOTS: Final = 1 << 14
"""Counters of a row, in 64 KiB: four times as many as there are connections by default."""

MAX_CACHED: Final = 1 << 14
"""Networks whose counter is cached, in some 2 MiB."""

_HEAD = Struct("=QQQ")  # layout, secret, workers
_HEAD_BYTES = 4096
_LAYOUT = 0x5045_5253_0005
_ROW_BYTES = (1 + SLOTS) * 4
_ALL = 0  # the counter of all connections; those of networks follow
_BITS, _BITS_MASK, _BITS_SHIFT = 8, 0xFF, 56  # of the length of a network in its number, and in what is hashed


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections for the compiled module."""

    counters: "memoryview[int]"
    """All rows; the first counter of each is that of all connections."""
    rows: int
    own_row: int
    """The row of the thread."""
    secret: int
    most: int
    """Connections with which the next one may be too many, of all addresses and of one."""
    most_of_network: int
    idle_seconds: float


class SharedConnections:
    """The counters of the event loop of one worker, and a view of all others."""

    def __init__(self, descriptor: int, worker: int) -> None:
        """Map memory that `create` made, and clear the rows of a worker; the descriptor stays the caller's."""
        size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, size)
        layout, self._secret, workers = _HEAD.unpack_from(self._map)
        if layout != _LAYOUT or size != _HEAD_BYTES + 2 * workers * _ROW_BYTES:
            raise IncompatibleLayout("the shared connections were created by another version; restart the server")
        self._whole = memoryview(self._map)[_HEAD_BYTES:]
        rows = [self._whole[at : at + _ROW_BYTES].cast("I") for at in range(0, len(self._whole), _ROW_BYTES)]
        self.workers = workers
        self._thread_row = workers + worker
        self._thread: memoryview[int] = rows[self._thread_row]
        self._own = rows.pop(worker)
        self._others = rows
        for row in (self._own, self._thread):
            row[:] = memoryview(bytes(_ROW_BYTES)).cast("I")

    @staticmethod
    def create(workers: int) -> int:
        """Create the memory without connections; return its descriptor, which workers inherit."""
        descriptor = os.memfd_create("perseid-connections", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _HEAD_BYTES + 2 * workers * _ROW_BYTES)
        os.pwrite(descriptor, _HEAD.pack(_LAYOUT, int.from_bytes(os.urandom(7), sys.byteorder), workers), 0)
        return descriptor

    def count_others(self, network: int | None = None) -> int:
        """Return the connections of a network, or of all, that other workers and the thread of this one have."""
        slot = self._slot(network)
        return sum([row[slot] for row in self._others])

    def count_kept(self) -> int:
        """Return the connections that the thread of this worker has."""
        return self._thread[_ALL]

    def add(self, network: int | None, change: int) -> None:
        """Count a connection of this event loop, or its end."""
        self._own[self._slot(network)] += change

    def limits(self, most: int, most_of_network: int, idle_seconds: float) -> ConnectionLimits:
        """Return the limits for the thread of this worker."""
        rows, secret = 2 * self.workers, self._secret
        return ConnectionLimits(self._whole, rows, self._thread_row, secret, most, most_of_network, idle_seconds)

    def _slot(self, network: int | None) -> int:
        return _ALL if network is None else _find_slot(self._secret, network)


@lru_cache(MAX_CACHED)
def _find_slot(secret: int, network: int) -> int:
    """The counter of a network; the compiled module finds the same."""
    return 1 + find_bucket(secret, network >> _BITS ^ (network & _BITS_MASK) << _BITS_SHIFT, SLOTS)
