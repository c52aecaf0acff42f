"""Whether a port can be served at, and if not, who has it: for `perseid check`, beside a server or before one starts.

A socket is bound and given back at once. Nothing is shared with a server that runs (SO_REUSEPORT is not set), so no
datagram of its clients comes here. Who has a port says the kernel, for processes of the same user, and for all to root.
"""

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perseid.records.site import Transport

PROC: Final = Path("/proc")
"""Where Linux tells about processes and sockets (proc_net(5), proc_pid_fd(5))."""

_KINDS = {Transport.TCP: socket.SOCK_STREAM, Transport.UDP: socket.SOCK_DGRAM}
_TABLES = {Transport.TCP: ("tcp", "tcp6"), Transport.UDP: ("udp", "udp6")}
_LISTENS = {Transport.TCP: "0A", Transport.UDP: "07"}  # states in the tables of the kernel
_ATTEMPTS, _PAUSE = 3, 0.05  # somebody else may be looking at the same moment
_WORDS = 3  # of a command: `python -m perseid.server.processes.supervisor`


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a port."""

    process: int
    command: str
    """The first words with which it was started; others may be anything, and long."""

    def __str__(self) -> str:
        return f"process {self.process} ({self.command})"


@dataclass(frozen=True, slots=True)
class Looked:
    """What there is to say about a port."""

    problem: str = ""
    """Why it cannot be served at; empty if it can."""
    taken: bool = False
    """Whether somebody has it."""
    holders: tuple[Holder, ...] = ()
    """Who, as far as it can be told."""


def look(host: str, port: int, transport: Transport) -> Looked:
    """Whether a port of an address can be served at."""
    for attempt in range(_ATTEMPTS):
        try:
            _bind(host, port, transport)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return Looked(error.strerror or str(error))
            holders = tuple(_holders(port, transport))
            if holders or attempt == _ATTEMPTS - 1:
                return Looked(error.strerror or str(error), taken=True, holders=holders)
            time.sleep(_PAUSE)
        else:
            break
    return Looked()


def _bind(host: str, port: int, transport: Transport) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=_KINDS[transport])[0]
    with socket.socket(family, kind, protocol) as made:
        if transport == Transport.TCP:  # connections that have ended keep the port from nobody
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        if transport == Transport.TCP:
            made.listen(1)


def _holders(port: int, transport: Transport) -> Iterator[Holder]:
    """The processes that have a port, as far as this one may know."""
    sockets = {f"socket:[{number}]" for number in _sockets(port, transport)}
    for folder in PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):  # it is another user's, or has ended
            if any(_target(handle) in sockets for handle in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().split(b"\0")[:_WORDS]
                yield Holder(int(folder.name), b" ".join(words).decode("utf-8", "replace").strip())


def _sockets(port: int, transport: Transport) -> Iterator[str]:
    """The numbers of the sockets that are bound to a port, and listen."""
    for name in _TABLES[transport]:
        with suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                #   0: 0100007F:0A51 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 123456 …
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _LISTENS[transport]:
                    yield fields[9]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # it was closed meanwhile
        return ""
