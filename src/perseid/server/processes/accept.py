"""Accept loop shared by all listening TCP sockets.

The kernel holds a connection back until data has arrived (`sockets.DEFER_SECONDS`), so a client that only connects
costs nothing. Each connection is admitted by its address, or closed. When the system has no descriptors left, accepting
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

NO_DESCRIPTORS_PAUSE: Final = 0.1
"""Seconds to stop accepting after the system ran out of descriptors. Connections wait in the kernel."""

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class AcceptLoop(ABC):
    """Accepts connections from listening sockets."""

    def __init__(self, connections: Connections, count_limit: Callable[[str], None]) -> None:
        self._connections = connections
        self._count_limit = count_limit
        self._adopting: set[asyncio.Task[None]] = set()
        self._listeners: set[socket.socket] = set()

    def start(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        """Accept connections from a listening socket, too."""
        listener.setblocking(False)
        self._listeners.add(listener)
        loop.add_reader(listener.fileno(), self._readable, loop, listener)

    def stop(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        self._listeners.discard(listener)
        loop.remove_reader(listener.fileno())

    @property
    def attaching(self) -> int:
        """Connections that are being attached to the event loop."""
        return len(self._adopting)

    @abstractmethod
    def take(self, client: socket.socket, host: str) -> asyncio.Protocol | None:
        """Handle an admitted client: return a protocol for the event loop, or None if it is done.

        Raises OSError if the client has disconnected.
        """

    def _readable(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        accept = listener.accept
        for _ in range(MAX_AT_ONCE):
            try:
                client, address = accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._count_limit("descriptors")
                    loop.remove_reader(listener.fileno())
                    loop.call_later(NO_DESCRIPTORS_PAUSE, self._resume, loop, listener)
                    return
                continue  # the client disconnected before it was accepted
            self._take(client, address[0])

    def _resume(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        if listener in self._listeners:
            self.start(loop, listener)

    def _take(self, client: socket.socket, host: str) -> None:
        """Admit a client, and attach it to the event loop if there is more to do."""
        if self._connections.admit(host):
            self._serve(client, host, self.take)
        else:
            client.close()

    def _serve(
        self, client: socket.socket, host: str, take: Callable[[socket.socket, str], asyncio.Protocol | None]
    ) -> None:
        """Serve an admitted client by `take` or something like it."""
        protocol = None
        try:
            protocol = take(client, host)
        except OSError:  # the client has disconnected
            pass
        finally:
            if protocol is None:
                client.close()
                self._connections.leave(host)
        if protocol is not None:
            task = asyncio.get_running_loop().create_task(self._adopt(client, host, protocol))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _adopt(self, client: socket.socket, host: str, protocol: asyncio.Protocol) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, client)
        except OSError:  # the client has disconnected
            client.close()
            self._connections.leave(host)
