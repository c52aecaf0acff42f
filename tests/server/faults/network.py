"""A bad network: a UDP relay that loses, duplicates, delays and reorders packets in both directions."""

import contextlib
import heapq
import itertools
import random
import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final, Self

from tests.server.running import Address

FORGOTTEN_AFTER: Final = 15.0
"""Seconds without a packet after which a client is removed: longer than any waits for a response."""

_PACKET = 2_048
_LOOK_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class Conditions:
    """Probabilities, and seconds."""

    lost: float = 0.05
    doubled: float = 0.05
    delayed: float = 0.15
    delay: float = 0.1
    """The longest normal delay, enough to reorder packets."""
    late: float = 0.01
    """The probability of a much later copy."""
    very_late: float = 3.0


@dataclass(slots=True)
class _Client:
    """A client, with its own socket to the server."""

    address: Address
    socket: socket.socket
    last_seen: float


class BadNetwork:
    """The relay, with its own thread while it is entered."""

    def __init__(self, server: Address, seed: str, conditions: Conditions | None = None) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._conditions = conditions or Conditions()
        self._near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._near.bind(("127.0.0.1", 0))
        self._near.setblocking(False)
        self.address: Address = self._near.getsockname()
        self.counts: Counter[str] = Counter()
        self._clients: dict[Address, _Client] = {}
        self._waiting: list[tuple[float, int, socket.socket, Address | None, bytes]] = []
        self._number = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._near, selectors.EVENT_READ)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        for client in self._clients.values():
            client.socket.close()
        self._near.close()
        self._selector.close()

    def _run(self) -> None:
        last_check = time.monotonic()
        while not self._ending.is_set():
            wait = self._waiting[0][0] - time.monotonic() if self._waiting else _LOOK_EVERY
            for key, _ in self._selector.select(min(max(wait, 0.0), _LOOK_EVERY)):
                if key.data is None:
                    self._from_client()
                else:
                    self._from_server(key.data)
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                _, _, sending, address, packet = heapq.heappop(self._waiting)
                self._send(sending, address, packet)
            if now - last_check > _LOOK_EVERY:
                last_check = now
                self._forget(now)

    def _from_client(self) -> None:
        with contextlib.suppress(BlockingIOError):
            packet, address = self._near.recvfrom(_PACKET)
            client = self._clients.get(address)
            if client is None:
                far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                far.setblocking(False)
                far.connect(self._server)
                client = self._clients[address] = _Client(address, far, 0.0)
                self._selector.register(far, selectors.EVENT_READ, client)
            client.last_seen = time.monotonic()
            self._pass(client.socket, None, packet)

    def _from_server(self, client: _Client) -> None:
        # ECONNREFUSED means that nobody listens; it is treated as a lost packet.
        with contextlib.suppress(OSError):
            self._pass(self._near, client.address, client.socket.recv(_PACKET))

    def _pass(self, sending: socket.socket, address: Address | None, packet: bytes) -> None:
        conditions, chance = self._conditions, self._random.random
        self.counts["packets"] += 1
        if chance() < conditions.lost:
            self.counts["lost"] += 1
            return
        if chance() < conditions.doubled:
            self.counts["doubled"] += 1
            self._later(chance() * conditions.delay, sending, address, packet)
        if chance() < conditions.late:
            self.counts["late"] += 1
            self._later(chance() * conditions.very_late, sending, address, packet)
        if chance() < conditions.delayed:
            self.counts["delayed"] += 1
            self._later(chance() * conditions.delay, sending, address, packet)
        else:
            self._send(sending, address, packet)

    def _later(self, seconds: float, sending: socket.socket, address: Address | None, packet: bytes) -> None:
        entry = (time.monotonic() + seconds, next(self._number), sending, address, packet)
        heapq.heappush(self._waiting, entry)

    def _send(self, sending: socket.socket, address: Address | None, packet: bytes) -> None:
        with contextlib.suppress(OSError):
            if address is None:
                sending.send(packet)
            else:
                sending.sendto(packet, address)

    def _forget(self, now: float) -> None:
        waiting = {id(entry[2]) for entry in self._waiting}
        for address, client in list(self._clients.items()):
            if now - client.last_seen > FORGOTTEN_AFTER and id(client.socket) not in waiting:
                self._selector.unregister(client.socket)
                client.socket.close()
                del self._clients[address]
