"""Connections of each network, in memory that all workers share, so that limits hold over all of them.

Each worker has a row of counters and writes to its own row only, so there are no locks. A restarted worker clears its
row: the connections of the last one have ended with it. Counters are chosen by a hash of the network with a random
secret; two networks that share one seldom have many connections both, and nobody can choose to.

The supervisor loads this module, so it imports little.
"""

import mmap
import os
import sys
from struct import Struct
from typing import Final

from .udp import IncompatibleLayout

SLOTS: Final = 1 << 14
"""Counters of a worker, in 64 KiB: four times as many as there are connections by default."""

_HEAD = Struct("=QQQ")  # layout, secret, workers
_HEAD_BYTES = 4096
_LAYOUT = 0x5045_5253_0004
_ROW_BYTES = (1 + SLOTS) * 4
_ALL = 0  # the counter of all connections; those of networks follow


class SharedConnections:
    """The counters of one worker, and a view of those of the others."""

    def __init__(self, descriptor: int, worker: int) -> None:
        """Map memory that `create` made, and clear the row of a worker; the descriptor stays the caller's."""
        size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, size)
        layout, self._secret, workers = _HEAD.unpack_from(self._map)
        if layout != _LAYOUT or size != _HEAD_BYTES + workers * _ROW_BYTES:
            raise IncompatibleLayout("the shared connections were created by another version; restart the server")
        whole = memoryview(self._map)[_HEAD_BYTES:]
        rows = [whole[at : at + _ROW_BYTES].cast("I") for at in range(0, workers * _ROW_BYTES, _ROW_BYTES)]
        self.workers = workers
        self._own = rows.pop(worker)
        self._others = rows
        self._own[:] = memoryview(bytes(_ROW_BYTES)).cast("I")

    @staticmethod
    def create(workers: int) -> int:
        """Create the memory without connections; return its descriptor, which workers inherit."""
        descriptor = os.memfd_create("perseid-connections", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _HEAD_BYTES + workers * _ROW_BYTES)
        os.pwrite(descriptor, _HEAD.pack(_LAYOUT, int.from_bytes(os.urandom(7), sys.byteorder), workers), 0)
        return descriptor

    def count_others(self, network: int | None = None) -> int:
        """Return the connections of a network, or of all, that the other workers have."""
        slot = self._slot(network)
        return sum(row[slot] for row in self._others)

    def add(self, network: int | None, change: int) -> None:
        """Count a connection of this worker, or its end."""
        self._own[self._slot(network)] += change

    def _slot(self, network: int | None) -> int:
        # Hashes of integers are the same in every process.
        return _ALL if network is None else 1 + hash((self._secret, network)) % SLOTS
