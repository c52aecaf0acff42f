"""Letting TCP connections in, and answering at once those that bring one public resolution.

Deployed clients make a connection for every request, and its making costs more than the answer. So a connection becomes
one of the event loop only if there is more to it. The kernel holds it back until something has come; then it is
accepted, read, answered and closed in one go. Whoever sent only a part, asks for more than the answers view can tell,
or wants to keep the connection gets a `Connection` with what came so far.
"""

import socket
from typing import TYPE_CHECKING

from perseid.server.native.tcp import KEEP, KEEP_AT, Connection

from .accepting import AcceptLoop

if TYPE_CHECKING:
    from perseid.server.native.service import NativeService

_READ = 2_048  # more than a public resolution has; what is longer is read on by the connection


class Accepting(AcceptLoop):
    """Takes connections from a listening socket."""

    def __init__(self, service: "NativeService", listener: socket.socket) -> None:
        super().__init__(listener, service.connections, service.counts.limited)
        self._service = service

    def take(self, client: socket.socket, host: str) -> Connection | None:
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
