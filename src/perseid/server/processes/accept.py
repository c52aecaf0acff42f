"""Accept loop shared by all listening TCP sockets.

The kernel holds a connection back until data has arrived (TCP_DEFER_ACCEPT), so a client that only connects costs
nothing. Each connection is admitted by its address, or closed. When the system has no descriptors left, accepting
pauses for a moment and connections wait in the kernel.
"""

import asyncio
import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from perseid.server.limits.budgets import Connections

MAX_AT_ONCE: Final = 64
"""Connections accepted before other tasks get their turn: one or two milliseconds of work."""

DEFER_SECONDS: Final = 5
"""Seconds for which the kernel holds back a connection without data. After that it is accepted anyway and has the
normal time limit for a message."""

NO_DESCRIPTORS_PAUSE: Final = 0.1
"""Seconds to stop accepting after the system ran out of descriptors. Connections wait in the kernel."""

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class AcceptLoop(ABC):
    """Accepts connections from a listening socket."""

    def __init__(self, listener: socket.socket, connections: Connections, limited: Callable[[str], None]) -> None:
        self._listener = listener
        self._connections = connections
        self._limited = limited
        self._adopting: set[asyncio.Task[None]] = set()
        self._stopped = True
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER_SECONDS)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stopped = False
        loop.add_reader(self._listener.fileno(), self._readable, loop)

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stopped = True
        loop.remove_reader(self._listener.fileno())

    @property
    def attaching(self) -> int:
        """Connections that are being attached to the event loop."""
        return len(self._adopting)

    @abstractmethod
    def take(self, client: socket.socket, host: str) -> asyncio.Protocol | None:
        """Handle an admitted client: return a protocol for the event loop, or None if it is done.

        Raises OSError if the client has disconnected.
        """

    def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        accept = self._listener.accept
        for _ in range(MAX_AT_ONCE):
            try:
                client, address = accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._limited("descriptors")
                    loop.remove_reader(self._listener.fileno())
                    loop.call_later(NO_DESCRIPTORS_PAUSE, self._resume, loop)
                    return
                continue  # the client disconnected before it was accepted
            self._take(client, address[0])

    def _resume(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._stopped:
            self.start(loop)

    def _take(self, client: socket.socket, host: str) -> None:
        """Admit a client, and attach it to the event loop if there is more to do."""
        if not self._connections.admit(host):
            client.close()
            return
        try:
            protocol = self.take(client, host)
        except OSError:  # the client has disconnected
            protocol = None
        if protocol is None:
            client.close()
            self._connections.leave(host)
        else:
            task = asyncio.get_running_loop().create_task(self._adopt(client, host, protocol))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _adopt(self, client: socket.socket, host: str, protocol: asyncio.Protocol) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, client)
        except OSError:  # the client has disconnected
            client.close()
            self._connections.leave(host)
