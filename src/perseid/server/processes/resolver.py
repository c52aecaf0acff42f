"""Resolver process: answers public resolution over UDP while the server starts.

Loading the modules of a worker, and opening the ledger, takes most of a start. What public resolution needs is loaded
first, and this process is forked then. It reads the sockets of all workers. It uses the answers view only if that has
the last entry of the ledger, which it can tell without SQL; otherwise it ends, and requests wait for a worker.

A datagram is removed from its socket only when its response is known. At one that needs more (the ledger, a key, a rate
limit) it leaves that socket alone, and what is in it waits for a worker. The first worker closes its end of a
socket pair before it reads any socket; this process then sends it what it has counted, and ends.
"""

import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Final

import msgspec

from perseid.ledger.errors import LedgerError
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.records.errors import InvalidData
from perseid.records.site import Purpose, Transport
from perseid.registry.installation.public_view import ANSWERS_NAME, is_current, load_settings
from perseid.registry.installation.settings import Config, InvalidConfig
from perseid.registry.installation.site import load_site
from perseid.server.limits.udp import TrafficLimit
from perseid.server.native.resolution import PublicResolver, ResolutionSettings
from perseid.server.observe.tally import RequestTally
from perseid.wire.fragments import MAX_PACKET
from perseid.wire.message import RESPONSE_CODE

from .child import BEAT_SECONDS, ChildOptions, SupervisorLink, parse_options
from .datagrams import wrap_socket

_MAX_READ: Final = MAX_PACKET + 1  # one more than any peer sends, to detect longer ones
_MAX_BATCH: Final = 64  # datagrams of a socket before the others are read
_PROBLEMS: Final = (InvalidConfig, InvalidData, LedgerError, OSError)  # the writer and the worker report them


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverOptions(ChildOptions):
    """Options that the supervisor passes to this process."""

    port: int
    """The native port that was bound."""
    udp: list[int]
    """The sockets of all workers."""
    traffic: int
    """Descriptor of the buckets for bytes over UDP."""
    handover: int
    """Socket, connected with the first worker."""


class ResolverCounts(msgspec.Struct):
    """What this process has answered, for the counters of the first worker."""

    responses: dict[bytes, int]
    """By code, as in the response."""
    udp_bytes: int
    found: dict[bytes, int]
    unknown: dict[bytes, int]
    missing: dict[bytes, int]
    """As in `RequestTally`."""


_decode_counts = msgspec.msgpack.Decoder(ResolverCounts).decode


def wait_for_end(handover: int) -> ResolverCounts | None:
    """In the first worker: wait until the resolver reads the sockets no more; None if it has sent no counts."""
    with socket.socket(fileno=handover) as ours, ours.makefile("rb") as counts:
        ours.shutdown(socket.SHUT_WR)
        data = counts.read()
    try:
        return _decode_counts(data)
    except msgspec.DecodeError:  # it had nothing to send, or was killed
        return None


class Resolver:
    """Answers public resolution from the sockets of all workers."""

    def __init__(self, respond: Callable[[bytes], bytes | None], traffic: TrafficLimit, last: RequestTally) -> None:
        """`respond` counts in `last`, also a request that is then left for a worker, which counts it too."""
        self._respond = respond
        self._traffic = traffic
        self._last = last
        self._tally = RequestTally()
        self._responses: dict[bytes, int] = {}
        self._bytes = 0

    @property
    def counts(self) -> ResolverCounts:
        """What was answered so far."""
        tally = self._tally
        return ResolverCounts(self._responses, self._bytes, tally.native, tally.unknown, tally.missing)

    def run(self, sockets: list[socket.socket], end: socket.socket, beat: Callable[[], None]) -> None:
        """Answer until the other side of a socket is closed."""
        poll = select.poll()
        poll.register(end, select.POLLIN)
        reading = {sock.fileno(): sock for sock in sockets}
        for sock in sockets:
            sock.setblocking(False)
            poll.register(sock, select.POLLIN)
        while True:
            beat()
            for number, _ in poll.poll(BEAT_SECONDS * 1000):
                if number == end.fileno():
                    return
                if not self._answer(reading[number]):
                    poll.unregister(number)

    def _answer(self, udp: socket.socket) -> bool:
        """Answer what waits in a socket; return whether to read it further."""
        wrapped, own_port = wrap_socket(udp), udp.getsockname()[1]
        for _ in range(_MAX_BATCH):
            try:
                datagram, address = udp.recvfrom(_MAX_READ, socket.MSG_PEEK)
                response = None if address[1] == own_port else self._respond(datagram)  # own: it may be forged
                last = self._last.take()
                if response is None or len(response) > MAX_PACKET:
                    return False
                if not self._traffic.allows(address[0], len(response) - len(datagram), monotonic()):
                    return False
                _, return_address = wrapped.receive(_MAX_READ)
                self._tally.add(last.native, last.unknown, last.missing)
                wrapped.send(response, return_address)
            except BlockingIOError:
                return True
            except OSError:  # an error of an earlier response, an unreachable address, or full buffers
                continue
            code = response[RESPONSE_CODE]
            self._responses[code] = self._responses.get(code, 0) + 1
            self._bytes += len(response)
        return True


def _resolution_settings(directory: Path, config: Config, port: int) -> ResolutionSettings | None:
    """The settings of public resolution; None if it must wait for a worker. No private key is read."""
    loaded = load_site(directory, config)
    if loaded is None:
        return None
    site, position = loaded
    accepts = site.purposes(position, {Transport.UDP: port}).get(Transport.UDP, Purpose.QUERY)
    if config.log.access_udp or Purpose.QUERY not in accepts:
        return None
    return ResolutionSettings.of(site, position, config)


def main(text: str) -> int:
    """Run the resolver process."""
    options = parse_options(ResolverOptions, text)
    supervisor = SupervisorLink(options)
    directory = Path(options.directory)
    with socket.socket(fileno=options.handover) as end:
        try:
            config = load_settings(directory)
            settings = _resolution_settings(directory, config, options.port)
            if settings is None:
                return 0
            with AnswersReader(directory / ANSWERS_NAME) as answers:
                with answers.snapshot() as view:
                    if not is_current(directory, config, view):
                        return 0
                limits, last = config.limits, RequestTally()
                rate, burst, total = limits.udp_octets, limits.udp_burst, limits.udp_octets_in_all
                traffic = TrafficLimit(options.traffic, rate, burst, limits.exempt_networks, total)
                resolver = Resolver(PublicResolver(answers, settings, time, last), traffic, last)
                sockets = [socket.socket(fileno=number) for number in options.udp]
                resolver.run(sockets, end, supervisor.beat)
                end.sendall(msgspec.msgpack.encode(resolver.counts))
        except _PROBLEMS:
            pass
    return 0
