"""The sockets of a server: made by the supervisor, before anything else, and kept for as long as it runs.

Who cannot have a port is told who has it, as far as that can be told.
"""

import contextlib
import errno
import socket
from typing import Final

from perseid.server.handover import QUEUE_OCTETS

from .datagrams import ask_for_local_addresses, is_everywhere

BACKLOG: Final = 1_024
"""TCP connections that wait to be taken: what comes while control is started anew, in a second or two."""

RECEIVE_OCTETS: Final = 4 << 20
"""Room for datagrams that wait for a resolver; the system may allow less. Each takes about 768 octets there, so this is
the load of a twentieth of a second."""

_ATTEMPTS = 50  # to find a port that is free for TCP and for UDP


class CannotServe(Exception):
    """Serving cannot begin; the message says why."""


def bind(host: str, port: int, resolvers: int) -> tuple[socket.socket, list[socket.socket]]:
    """The TCP socket and one UDP socket for each resolver, all on one port; 0 finds a port that is free for all."""
    for attempt in range(_ATTEMPTS):
        with contextlib.ExitStack() as made:
            try:
                listener = made.enter_context(_socket(host, socket.SOCK_STREAM))
                listener.bind((host, port))
                found = listener.getsockname()[1]
                # Several may be bound, but one alone listens. So of two servers that are started at the same time one
                # ends here, and never gets datagrams that are the other's.
                listener.listen(BACKLOG)
                udp = [made.enter_context(_udp(host, found)) for _ in range(resolvers)]
            except OSError as error:
                if port or attempt == _ATTEMPTS - 1:
                    raise _problem("nothing can", "native.port", host, port, error) from error
            else:
                made.pop_all()
                return listener, udp
    raise AssertionError("the last attempt returns or raises")


def listen(host: str, port: int) -> socket.socket:
    """The TCP socket of HTTP; 0 finds a port that is free."""
    with contextlib.ExitStack() as made:
        try:
            listener = made.enter_context(_socket(host, socket.SOCK_STREAM))
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise _problem("HTTP cannot", "http.port", host, port, error) from error
        made.pop_all()
        return listener


def pair() -> tuple[socket.socket, socket.socket]:
    """Control's end and a resolver's end. Messages keep their borders, and the queue is bounded by octets."""
    control, resolver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (control, resolver):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, QUEUE_OCTETS)
    return control, resolver


def _socket(host: str, kind: socket.SocketKind) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if kind == socket.SOCK_STREAM:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _udp(host: str, port: int) -> socket.socket:
    made = _socket(host, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_OCTETS)
    try:
        ask_for_local_addresses(made, wanted=True)  # before anything can come
        made.bind((host, port))
        ask_for_local_addresses(made, wanted=is_everywhere(made))
    except OSError:
        made.close()
        raise
    return made


def _problem(what: str, setting: str, host: str, port: int, error: OSError) -> CannotServe:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return CannotServe(f"{what} be served at {where}: {error.strerror}; {_advice(setting, host, port, error)}")


def _advice(setting: str, host: str, port: int, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "ports below 1024 need a right that this user does not have"
    another = f"choose another one with {setting}"
    if error.errno != errno.EADDRINUSE:
        return f"correct the address, or {another}"
    # Only whoever cannot serve needs it, and the supervisor that can stays in memory.
    from perseid.records.site import Transport  # noqa: PLC0415
    from perseid.server.ports import look  # noqa: PLC0415

    holders = [holder for transport in (Transport.TCP, Transport.UDP) for holder in look(host, port, transport).holders]
    if holders:
        return f"{holders[0]} has the port; stop it, or {another}"
    return f"see that no other server has the port, or {another}"
