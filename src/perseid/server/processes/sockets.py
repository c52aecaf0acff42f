"""The sockets of a server: made by the supervisor, before anything else, and kept for as long as it runs.

Who cannot have a port is told who has it, as far as that can be told.

Whether a port can be served at, and if not, who has it: for `perseid check`, beside a server or before one starts.

A socket is bound and given back at once. Nothing is shared with a server that runs (SO_REUSEPORT is not set), so no
datagram of its clients comes here. Who has a port says the kernel, for processes of the same user, and for all to root.

Letting connections in: what every listening TCP socket has in common.

The kernel is asked to hold connections back until something has come over them (TCP_DEFER_ACCEPT), so whoever only
knocks costs nothing. Each is admitted by its address, or closed. When the system has no descriptors left, nobody is let
in for a moment, and connections wait in the kernel.
"""

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perseid.records.site import Transport

from .datagrams import QUEUE_BYTES, is_wildcard, set_packet_info

BACKLOG: Final = 1_024
"""TCP connections that wait to be taken: what comes while control is started anew, in a second or two."""

RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Room for datagrams that wait for a resolver; the system may allow less. Each takes about 768 octets there, so this is
the load of a twentieth of a second."""

_ATTEMPTS = 50  # to find a port that is free for TCP and for UDP


class StartupError(Exception):
    """Serving cannot begin; the message says why."""


def bind(host: str, port: int, resolvers: int) -> tuple[socket.socket, list[socket.socket]]:
    """The TCP socket and one UDP socket for each resolver, all on one port; 0 finds a port that is free for all."""
    for attempt in range(_ATTEMPTS):
        with contextlib.ExitStack() as made:
            try:
                listener = made.enter_context(_create_socket(host, socket.SOCK_STREAM))
                listener.bind((host, port))
                found = listener.getsockname()[1]
                # Several may be bound, but one alone listens. So of two servers that are started at the same time one
                # ends here, and never gets datagrams that are the other's.
                listener.listen(BACKLOG)
                udp = [made.enter_context(_bind_udp(host, found)) for _ in range(resolvers)]
            except OSError as error:
                if port or attempt == _ATTEMPTS - 1:
                    raise _startup_error("nothing can", "native.port", host, port, error) from error
            else:
                made.pop_all()
                return listener, udp
    raise AssertionError("the last attempt returns or raises")


def listen(host: str, port: int) -> socket.socket:
    """The TCP socket of HTTP; 0 finds a port that is free."""
    with contextlib.ExitStack() as made:
        try:
            listener = made.enter_context(_create_socket(host, socket.SOCK_STREAM))
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise _startup_error("HTTP cannot", "http.port", host, port, error) from error
        made.pop_all()
        return listener


def pair() -> tuple[socket.socket, socket.socket]:
    """Control's end and a resolver's end. Messages keep their borders, and the queue is bounded by octets."""
    control, resolver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (control, resolver):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, QUEUE_BYTES)
    return control, resolver


def _create_socket(host: str, kind: socket.SocketKind) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if kind == socket.SOCK_STREAM:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _bind_udp(host: str, port: int) -> socket.socket:
    made = _create_socket(host, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    try:
        set_packet_info(made, enabled=True)  # before anything can come
        made.bind((host, port))
        set_packet_info(made, enabled=is_wildcard(made))
    except OSError:
        made.close()
        raise
    return made


def _startup_error(what: str, setting: str, host: str, port: int, error: OSError) -> StartupError:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return StartupError(f"{what} be served at {where}: {error.strerror}; {_advice(setting, host, port, error)}")


def _advice(setting: str, host: str, port: int, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "ports below 1024 need a right that this user does not have"
    another = f"choose another one with {setting}"
    if error.errno != errno.EADDRINUSE:
        return f"correct the address, or {another}"
    # Only whoever cannot serve needs it, and the supervisor that can stays in memory.
    from perseid.records.site import Transport  # noqa: PLC0415

    owners = [
        owner for transport in (Transport.TCP, Transport.UDP) for owner in check_port(host, port, transport).owners
    ]
    if owners:
        return f"{owners[0]} has the port; stop it, or {another}"
    return f"see that no other server has the port, or {another}"


PROC: Final = Path("/proc")
"""Where Linux tells about processes and sockets (proc_net(5), proc_pid_fd(5))."""

_KINDS = {Transport.TCP: socket.SOCK_STREAM, Transport.UDP: socket.SOCK_DGRAM}
_TABLES = {Transport.TCP: ("tcp", "tcp6"), Transport.UDP: ("udp", "udp6")}
_LISTEN_STATES = {Transport.TCP: "0A", Transport.UDP: "07"}  # states in the tables of the kernel
_CHECK_ATTEMPTS, _PAUSE = 3, 0.05  # somebody else may be looking at the same moment
_COMMAND_WORDS = 3  # of a command: `python -m perseid.server.processes.supervisor`


@dataclass(frozen=True, slots=True)
class PortOwner:
    """A process that has a port."""

    process: int
    command: str
    """The first words with which it was started; others may be anything, and long."""

    def __str__(self) -> str:
        return f"process {self.process} ({self.command})"


@dataclass(frozen=True, slots=True)
class PortStatus:
    """What there is to say about a port."""

    problem: str = ""
    """Why it cannot be served at; empty if it can."""
    in_use: bool = False
    """Whether somebody has it."""
    owners: tuple[PortOwner, ...] = ()
    """Who, as far as it can be told."""


def check_port(host: str, port: int, transport: Transport) -> PortStatus:
    """Whether a port of an address can be served at."""
    for attempt in range(_CHECK_ATTEMPTS):
        try:
            _try_bind(host, port, transport)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return PortStatus(error.strerror or str(error))
            owners = tuple(_find_owners(port, transport))
            if owners or attempt == _CHECK_ATTEMPTS - 1:
                return PortStatus(error.strerror or str(error), in_use=True, owners=owners)
            time.sleep(_PAUSE)
        else:
            break
    return PortStatus()


def _try_bind(host: str, port: int, transport: Transport) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=_KINDS[transport])[0]
    with socket.socket(family, kind, protocol) as made:
        if transport == Transport.TCP:  # connections that have ended keep the port from nobody
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        if transport == Transport.TCP:
            made.listen(1)


def _find_owners(port: int, transport: Transport) -> Iterator[PortOwner]:
    """The processes that have a port, as far as this one may know."""
    sockets = {f"socket:[{number}]" for number in _find_sockets(port, transport)}
    for folder in PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):  # it is another user's, or has ended
            if any(_read_link(handle) in sockets for handle in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().split(b"\0")[:_COMMAND_WORDS]
                yield PortOwner(int(folder.name), b" ".join(words).decode("utf-8", "replace").strip())


def _find_sockets(port: int, transport: Transport) -> Iterator[str]:
    """The numbers of the sockets that are bound to a port, and listen."""
    for name in _TABLES[transport]:
        with suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                #   0: 0100007F:0A51 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 123456 …
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _LISTEN_STATES[transport]:
                    yield fields[9]


def _read_link(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # it was closed meanwhile
        return ""
