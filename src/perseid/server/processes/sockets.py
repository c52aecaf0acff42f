"""Sockets of a server, and checks whether a port is free.

The supervisor creates all sockets first and keeps them for as long as it runs. `check_port` also serves `perseid
check`: it binds a socket and closes it at once, without SO_REUSEPORT, so it never takes a datagram from a running
server. The kernel tells which process has a port: for processes of the same user, or to root for all.
"""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from .datagrams import is_wildcard, set_packet_info

Address: TypeAlias = tuple[str, int]
"""Host and port."""

BACKLOG: Final = 1_024
"""TCP connections waiting to be accepted by one worker: those that arrive until another one accepts them."""

DEFER_SECONDS: Final = 5
"""Seconds for which the kernel holds back a connection without data. After that it is accepted anyway and has the
normal time limit for a message."""

RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Receive buffer of a worker; the system may allow less. Each datagram needs about 768 bytes there, so this is the
load of a twentieth of a second."""

RELEASE_SECONDS: Final = 1.0
"""Seconds to wait for the ports of a killed server: its workers finish started work for half a second, and end."""

_RELEASE_PAUSE = 0.01  # seconds between two looks
_ATTEMPTS = 50  # to find a port that is free for TCP and for UDP


class StartupError(Exception):
    """The server cannot start; the message says why."""


def bind(
    host: str, port: int, workers: int, passed: tuple[list[socket.socket], list[socket.socket]] = ([], [])
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Bind a UDP and a listening TCP socket for each worker to one port; 0 finds a free one.

    If UDP or TCP sockets were passed to the server, the others get their port.
    """
    udp, tcp = passed
    port = next((sock.getsockname()[1] for sock in (*udp, *tcp)), port)
    for attempt in range(_ATTEMPTS):
        with contextlib.ExitStack() as stack:
            try:
                tcp = passed[1] or _listen(stack, host, port, workers)
                bound_port = tcp[0].getsockname()[1]
                udp = passed[0] or [stack.enter_context(_bind_udp(host, bound_port)) for _ in range(workers)]
            except OSError as error:
                if port or attempt == _ATTEMPTS - 1:
                    raise _startup_error("the native protocol", "native", host, port, error) from error
            else:
                stack.pop_all()
                return udp, tcp
    raise AssertionError("the last attempt returns or raises")


def listen(host: str, port: int, workers: int) -> list[socket.socket]:
    """Create a listening TCP socket of HTTP for each worker; port 0 finds a free one."""
    with contextlib.ExitStack() as stack:
        try:
            sockets = _listen(stack, host, port, workers)
        except OSError as error:
            raise _startup_error("HTTP", "http", host, port, error) from error
        stack.pop_all()
        return sockets


def wait_for_release(addresses: Sequence[tuple[str, int]], is_ending: Callable[[], bool]) -> None:
    """Wait until nobody uses these ports, as long as processes of a killed server are ending, but not for long.

    What is still in use is reported by who binds it.
    """
    deadline = time.monotonic() + RELEASE_SECONDS
    while is_ending() and time.monotonic() < deadline and any(_is_used(*address) for address in addresses):
        time.sleep(_RELEASE_PAUSE)


def _is_used(host: str, port: int, kinds: Iterable[socket.SocketKind] | None = None) -> bool:
    for kind in kinds or _TABLES:
        try:
            _try_bind(host, port, kind)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
    return False


def listen_for_metrics(host: str, port: int) -> socket.socket:
    """Create the listening socket of the metrics, which all workers share; port 0 finds a free one."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise _startup_error("metrics", "metrics", host, port, error) from error


def require_free(native: Address, http: Address, metrics: Address) -> None:
    """Report all ports that are in use at once. An address without a host or a port is not checked."""
    error = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    services = ("the native protocol", "native", native), ("HTTP", "http", http), ("metrics", "metrics", metrics)
    problems = [
        str(_startup_error(what, section, *address, error))
        for what, section, address in services
        if all(address) and _is_used(*address, kinds=_TABLES if section == "native" else (socket.SOCK_STREAM,))
    ]
    if problems:
        raise StartupError("\nperseid: ".join(problems))


def _listen(stack: contextlib.ExitStack, host: str, port: int, workers: int) -> list[socket.socket]:
    """Listen with one socket for each worker.

    With SO_REUSEPORT alone, a second server of the same user could join. So one socket listens exclusively first, and
    until the others do: at no time can another server listen.
    """
    with _create_socket(host, socket.SOCK_STREAM) as first:
        first.bind((host, port))
        first.listen(BACKLOG)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sockets = []
        for _ in range(workers):
            sock = stack.enter_context(_create_socket(host, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((host, first.getsockname()[1]))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER_SECONDS)
            sock.listen(BACKLOG)
            sockets.append(sock)
    return sockets


def _create_socket(host: str, kind: socket.SocketKind) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if kind == socket.SOCK_STREAM:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def _bind_udp(host: str, port: int) -> socket.socket:
    sock = _create_socket(host, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    try:
        set_packet_info(sock, enabled=True)  # before the first datagram can arrive
        sock.bind((host, port))
        set_packet_info(sock, enabled=is_wildcard(sock))
    except OSError:
        sock.close()
        raise
    return sock


def _startup_error(what: str, section: str, host: str, port: int, error: OSError) -> StartupError:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return StartupError(f"Cannot serve {what} at {where}: {error.strerror}. {_advice(section, host, port, error)}")


def _advice(section: str, host: str, port: int, error: OSError) -> str:
    option = f"--{section}-port PORT or the setting {section}.port"
    if isinstance(error, PermissionError):
        return f"Ports below 1024 require CAP_NET_BIND_SERVICE. Choose a higher one with {option}."
    another = f"choose another port with {option}."
    if error.errno != errno.EADDRINUSE:
        return f"Correct the address, or {another}"
    owners = [owner for udp in (False, True) for owner in check_port(host, port, udp=udp).owners]
    if owners:
        return f"The port is used by {owners[0]}. Stop it, or {another}"
    return f"Stop the process that uses the port, or {another}"


PROC: Final = Path("/proc")
"""Where Linux describes processes and sockets (proc_net(5), proc_pid_fd(5))."""

_TABLES = {socket.SOCK_STREAM: ("tcp", "tcp6"), socket.SOCK_DGRAM: ("udp", "udp6")}
_LISTEN_STATES = {socket.SOCK_STREAM: "0A", socket.SOCK_DGRAM: "07"}  # states in the kernel's tables
_CHECK_ATTEMPTS, _PAUSE = 3, 0.05  # another check may hold the port at the same moment
_COMMAND_WORDS = 4  # of a command: `python -P -m perseid.server.processes.fork_server`


@dataclass(frozen=True, slots=True)
class PortOwner:
    """A process that uses a port."""

    process: int
    command: str
    """The first words of its command line."""

    def __str__(self) -> str:
        return f"process {self.process} ({self.command})"


@dataclass(frozen=True, slots=True)
class PortStatus:
    """Result of `check_port`."""

    problem: str = ""
    """Why the port cannot be used; empty if it can."""
    in_use: bool = False
    owners: tuple[PortOwner, ...] = ()
    """The processes that use it, if known."""


def check_port(host: str, port: int, *, udp: bool) -> PortStatus:
    """Check whether a port of an address can be bound, for UDP or TCP."""
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    for attempt in range(_CHECK_ATTEMPTS):
        try:
            _try_bind(host, port, kind)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return PortStatus(error.strerror or str(error))
            owners = tuple(_find_owners(port, kind))
            if owners or attempt == _CHECK_ATTEMPTS - 1:
                return PortStatus(error.strerror or str(error), in_use=True, owners=owners)
            time.sleep(_PAUSE)
        else:
            break
    return PortStatus()


def _try_bind(host: str, port: int, kind: socket.SocketKind) -> None:
    family, _, protocol, _, address = socket.getaddrinfo(host, port, type=kind)[0]
    with socket.socket(family, kind, protocol) as sock:
        if kind == socket.SOCK_STREAM:  # closed connections do not block the port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen(1)


def _find_owners(port: int, kind: socket.SocketKind) -> Iterator[PortOwner]:
    """The processes that use a port, as far as this process can see."""
    sockets = {f"socket:[{number}]" for number in _find_sockets(port, kind)}
    for folder in PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):  # another user's, or ended
            if any(_read_link(handle) in sockets for handle in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().split(b"\0")[:_COMMAND_WORDS]
                yield PortOwner(int(folder.name), b" ".join(words).decode("utf-8", "replace").strip())


def _find_sockets(port: int, kind: socket.SocketKind) -> Iterator[str]:
    """The inodes of the sockets that listen at a port."""
    for name in _TABLES[kind]:
        with suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                #   0: 0100007F:0A51 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 123456 …
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _LISTEN_STATES[kind]:
                    yield fields[9]


def _read_link(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed in the meantime
        return ""
