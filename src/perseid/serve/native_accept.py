"""Letting TCP connections in, and answering at once those that bring one public resolution.

Deployed clients make a connection for every request, and its making costs more than the answer. So a connection becomes
one of the event loop only if there is more to it. The kernel is asked to hold connections back until something has come
over them (TCP_DEFER_ACCEPT); then one is accepted, read, answered and closed in one go. Whoever sent only a part, asks
for more than the answers view can tell, or wants to keep the connection gets a `Connection` with what came so far.
"""

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Final

from .native_tcp import KEEP, KEEP_AT, Connection

if TYPE_CHECKING:
    from .native_service import NativeService

MAX_AT_ONCE: Final = 64
"""Connections that are taken before others get their turn: a millisecond or two of work."""

HELD_BACK: Final = 5
"""Seconds for which the kernel holds back a connection over which nothing came. One that says nothing for longer is
handed out all the same, and then has the time that every message has."""

NO_DESCRIPTORS_PAUSE: Final = 0.1
"""Seconds without new connections after the system had no descriptor for one. They wait in the kernel meanwhile."""

_READ = 2_048  # more than a public resolution has; what is longer is read on by the connection
_OUT_OF = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Accepting:
    """Takes connections from a listening socket."""

    def __init__(self, service: "NativeService", listener: socket.socket) -> None:
        self._service = service
        self._listener = listener
        self._adopting: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, HELD_BACK)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let clients in."""
        loop.add_reader(self._listener.fileno(), self._readable, loop)

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let nobody in any more."""
        loop.remove_reader(self._listener.fileno())

    @property
    def arriving(self) -> int:
        """Connections on their way into the event loop."""
        return len(self._adopting)

    def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        accept = self._listener.accept
        for _ in range(MAX_AT_ONCE):
            try:
                client, address = accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF:
                    self._service.counts.limited("descriptors")
                    self.stop(loop)
                    loop.call_later(NO_DESCRIPTORS_PAUSE, self._again, loop)
                    return
                continue  # the client went away before it was let in
            self._take(client, address[0])

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._service.draining:
            self.start(loop)

    def _take(self, client: socket.socket, host: str) -> None:
        """Answer a client at once, or make a connection of it."""
        connections = self._service.connections
        if not connections.admit(host):
            client.close()
            return
        try:
            connection = self._answer(client, host)
        except OSError:  # the client has gone
            connection = None
        if connection is None:
            client.close()
            connections.leave(host)
        else:
            task = asyncio.get_running_loop().create_task(self._adopt(client, connection))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    def _answer(self, client: socket.socket, host: str) -> Connection | None:
        """Answer what a client has sent; the connection to be, if there is more to come."""
        try:
            octets = client.recv(_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:  # it was held back as long as can be, and still nothing came
            return Connection(self._service, host)
        if not octets:
            return None
        answer = self._service.answer_at_once(octets, host)
        if answer is None:
            return Connection(self._service, host, unread=octets)
        sent = client.send(answer, socket.MSG_DONTWAIT)
        keep = bool(octets[KEEP_AT] & KEEP)
        return Connection(self._service, host, unsent=answer[sent:], keep=keep) if keep or sent < len(answer) else None

    async def _adopt(self, client: socket.socket, connection: Connection) -> None:
        """Give a client to the event loop."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client)
        except OSError:  # it has gone meanwhile
            client.close()
            self._service.connections.leave(connection.host)
