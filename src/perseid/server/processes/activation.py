"""Sockets that the service manager has opened: sd_listen_fds(3) of systemd.

They have ports that the server may not bind, such as 80 and 443, and clients that connect while it is restarted wait in
them. Datagram sockets, and stream sockets with a port of the native protocol, are for that protocol; all other stream
sockets are for HTTP. What is not passed is bound as the settings say.

All workers accept from a passed stream socket. A passed datagram socket has one worker, because requests of several
datagrams are put together by the worker that receives them.
"""

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Final

from .datagrams import is_wildcard, set_packet_info
from .sockets import DEFER_SECONDS, RECEIVE_BUFFER_BYTES, StartupError

FIRST_DESCRIPTOR: Final = 3
"""The first descriptor that the manager passes."""

VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
"""Environment variables for one process only."""


@dataclass(frozen=True, slots=True)
class PassedSockets:
    """The sockets that were passed, by what they are for."""

    udp: list[socket.socket] = field(default_factory=list)
    tcp: list[socket.socket] = field(default_factory=list)
    http: list[socket.socket] = field(default_factory=list)


def take_sockets(environ: MutableMapping[str, str], native_port: int, workers: int) -> PassedSockets:
    """Take the sockets that were passed to this process, if any, with one of each stream socket for each worker."""
    values = [environ.pop(name, "") for name in VARIABLES]
    if values[0] != str(os.getpid()) or not values[1].isdecimal():
        return PassedSockets()
    descriptors = range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(values[1]))
    return sort_sockets([_adopt(descriptor) for descriptor in descriptors], native_port, workers)


def sort_sockets(passed: list[socket.socket], native_port: int, workers: int) -> PassedSockets:
    """Sort sockets by what they are for."""
    udp = [sock for sock in passed if sock.type == socket.SOCK_DGRAM]
    native_ports = {native_port, *(sock.getsockname()[1] for sock in udp)}
    tcp: list[socket.socket] = []
    http: list[socket.socket] = []
    for sock in passed:
        if sock.type == socket.SOCK_STREAM:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER_SECONDS)
            shared = [sock, *(sock.dup() for _ in range(workers - 1))]
            (tcp if sock.getsockname()[1] in native_ports else http).extend(shared)
    for sock in udp:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        set_packet_info(sock, enabled=is_wildcard(sock))
    return PassedSockets(udp, tcp, http)


def _adopt(descriptor: int) -> socket.socket:
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise StartupError(f"Descriptor {descriptor} of LISTEN_FDS is not a socket: {error.strerror}") from error
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        sock.close()
        raise StartupError(f"Descriptor {descriptor} of LISTEN_FDS is not an IP socket. Remove it from the socket unit")
    sock.set_inheritable(False)
    return sock
