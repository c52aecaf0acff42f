"""Accepting TCP connections: what every listening socket has in common."""

import asyncio
import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from perseid.server.limits.budgets import Connections

MAX_AT_ONCE: Final = 64
"""Connections that are taken before others get their turn: a millisecond or two of work."""

HELD_BACK: Final = 5
"""Seconds for which the kernel holds back a connection over which nothing came. One that says nothing for longer is
handed out all the same, and then has the time that every message has."""

NO_DESCRIPTORS_PAUSE: Final = 0.1
"""Seconds without new connections after the system had no descriptor for one. They wait in the kernel meanwhile."""

_OUT_OF = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class AcceptLoop(ABC):
    """Takes connections from a listening socket."""

    def __init__(self, listener: socket.socket, connections: Connections, limited: Callable[[str], None]) -> None:
        """Take the socket, who says whom to let in, and whom to tell that a limit was reached."""
        self._listener = listener
        self._connections = connections
        self._limited = limited
        self._adopting: set[asyncio.Task[None]] = set()
        self._stopped = True
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, HELD_BACK)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let clients in."""
        self._stopped = False
        loop.add_reader(self._listener.fileno(), self._readable, loop)

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let nobody in any more."""
        self._stopped = True
        loop.remove_reader(self._listener.fileno())

    @property
    def attaching(self) -> int:
        """Connections on their way into the event loop."""
        return len(self._adopting)

    @abstractmethod
    def take(self, client: socket.socket, host: str) -> asyncio.Protocol | None:
        """What becomes of a client that was admitted: a protocol for the event loop, or None if it is done with.

        An OSError says that the client has gone.
        """

    def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        accept = self._listener.accept
        for _ in range(MAX_AT_ONCE):
            try:
                client, address = accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF:
                    self._limited("descriptors")
                    loop.remove_reader(self._listener.fileno())
                    loop.call_later(NO_DESCRIPTORS_PAUSE, self._again, loop)
                    return
                continue  # the client went away before it was let in
            self._take(client, address[0])

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._stopped:
            self.start(loop)

    def _take(self, client: socket.socket, host: str) -> None:
        """Admit a client, and give it to the event loop if there is more to do."""
        if not self._connections.admit(host):
            client.close()
            return
        try:
            protocol = self.take(client, host)
        except OSError:  # the client has gone
            protocol = None
        if protocol is None:
            client.close()
            self._connections.leave(host)
        else:
            task = asyncio.get_running_loop().create_task(self._adopt(client, host, protocol))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _adopt(self, client: socket.socket, host: str, protocol: asyncio.Protocol) -> None:
        """Give a client to the event loop."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, client)
        except OSError:  # it has gone meanwhile
            client.close()
            self._connections.leave(host)
