"""A resolver process: answers public resolution over UDP from the answers view, and hands everything else over.

One thread receives, answers and sends, and does nothing else: a plain blocking loop takes less of the machine than any
event loop. A second one, which sleeps most of the time, sends what the control process answers to datagrams that were
handed over. The process has no state of its own: killed at any moment, it loses the datagram in its hands, which the
client sends again, and the one that is started in its place reads on from the same socket.

It is started by the supervisor with everything it needs as open descriptors and plain settings; it knows no key, no
ledger and no configuration file.
"""

import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from struct import pack as pack_struct
from time import monotonic, perf_counter_ns, time
from typing import Final, Self

from perseid.ledger.views.answers_reader import AnswersReader
from perseid.server.limits.udp import RateLimit, TrafficLimit, short_response
from perseid.server.native.resolution import PublicResolver, packets, settings_from_json
from perseid.server.observe import logs
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.counters import ResolverCounters, SharedCounters
from perseid.server.processes import unblock_signals
from perseid.wire.fragments import MAX_PACKET

from .datagrams import MAX_FORWARDED_BYTES, ReturnAddress, is_response, pack_datagram, unpack_datagram, wrap_socket

RECEIVE_TIMEOUT: Final = 0.5
"""Seconds after which the loop looks up although nothing came: for the end, and for lines of the log that wait."""

_MAX_READ = MAX_PACKET + 1  # one more than any peer sends, so that a longer one is not taken for a whole one
_OPCODE, _CODE, _NAME_OFFSET = slice(20, 24), slice(24, 28), 48

_logger = logging.getLogger(
    "perseid.server.processes.resolver"
)  # the module is run as a program, and named otherwise then


@dataclass(frozen=True, slots=True)
class ResolverOptions:
    """What a resolver is started with: descriptors it inherits, and settings."""

    number: int
    """Which of the resolvers it is."""
    resolvers: int
    answers: str
    """The folder of the answers view."""
    udp: int
    control: int
    board: int
    traffic: int
    handovers: int
    lifeline: int
    """Ends when the supervisor does."""
    ready: int
    """Where an octet says that the resolver reads its socket."""
    site: str
    """What the site is; see `answering_text`."""
    resolves: bool
    """Whether resolution is answered over UDP; otherwise the site record keeps it out, and control says so."""
    octets_per_second: float
    burst: float
    handovers_per_second: float
    handovers_in_all: float
    """What all resolvers together may hand over in a second; each has its part of it."""
    exempt: tuple[str, ...]
    log_format: str
    log_level: int
    access_log: bool

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what the supervisor wrote."""
        return cls(**json.loads(text))


class Resolver:
    """The two loops of a resolver process."""

    def __init__(  # noqa: PLR0913 - everything it works with, made by `main`
        self,
        udp: socket.socket,
        control: socket.socket,
        public_resolver: Callable[[bytes], bytes | None],
        counters: ResolverCounters,
        traffic: TrafficLimit,
        handovers: TrafficLimit,
        *,
        all_handovers: RateLimit,
        access: AccessLog | None = None,
    ) -> None:
        self._datagrams = wrap_socket(udp)
        self._port: int = udp.getsockname()[1]
        self._control = control
        self._answer = public_resolver
        self._counters = counters
        self._traffic = traffic
        self._handovers = handovers
        self._all_handovers = all_handovers
        self._access = access
        self._refusals = 0
        self._stopping = False
        # The kernel's own time limit: Python's would ask the kernel twice for every datagram.
        seconds, parts = divmod(int(RECEIVE_TIMEOUT * 1_000_000), 1_000_000)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack_struct("@ll", seconds, parts))

    def stop(self) -> None:
        """Have the loops end, soon."""
        self._stopping = True

    def run(self) -> None:
        """Answer datagrams until told to stop."""
        receive, send, is_own = self._datagrams.receive, self._datagrams.send, self._datagrams.is_own
        answer_to, allows, answered = self._answer, self._traffic.allows, self._counters.answered
        access, own_port = self._access, self._port
        started = 0
        while not self._stopping:
            try:
                datagram, return_address = receive(_MAX_READ)
                if return_address[1] == own_port and is_own(
                    return_address
                ):  # forged: what is sent there would only come here again
                    self._counters.dropped()
                    continue
                if access is not None:
                    started = perf_counter_ns()
                answer = answer_to(datagram)
                if answer is None:
                    self._hand_over(datagram, return_address)
                elif len(answer) <= MAX_PACKET and allows(return_address[0], len(answer), monotonic()):
                    send(answer, return_address)
                    answered(answer)
                else:
                    self._send_packets(datagram, answer, return_address)
            except BlockingIOError:  # nothing came for a while
                self._flush_access_log()
            except OSError:  # an address that cannot be reached from here, or no room in the network
                self._counters.dropped()
            else:
                if answer is not None and access is not None:
                    self._log_request(access, datagram, answer, return_address, started)
        self._flush_access_log()

    def _send_packets(self, datagram: bytes, answer: bytes, return_address: ReturnAddress) -> None:
        """Send an answer of several packets, or a short word instead if its network has drawn too much."""
        if not self._traffic.allows(return_address[0], len(answer), monotonic()):
            refusal = self._refuse(datagram)
            if refusal is None:
                self._counters.dropped()
                return
            answer = refusal
        octets = 0
        for packet in packets(answer):
            self._datagrams.send(packet, return_address)
            octets += len(packet)
        self._counters.answered(answer)
        self._counters.sent(octets - len(answer))

    def _flush_access_log(self) -> None:
        if self._access is not None:
            self._access.flush()

    def _hand_over(self, datagram: bytes, return_address: ReturnAddress) -> None:
        # First what gets no answer anyway: who forges it must not use up what others may hand over. Nobody has port 0.
        now = monotonic()
        if (
            return_address[1]
            and not is_response(datagram)
            and self._all_handovers.take(now)
            and self._handovers.allows(return_address[0], 1, now)
        ):
            address, local = self._datagrams.split_address(return_address)
            try:
                self._control.send(pack_datagram(now, address, datagram, local), socket.MSG_DONTWAIT)
            except OSError:  # control is away, or has more than it can do
                pass
            else:
                self._counters.handed_over()
                return
        self._counters.dropped()

    def _refuse(self, datagram: bytes) -> bytes | None:
        """What a source gets that has drawn too much: a short word for every other request, and silence."""
        self._refusals += 1
        return short_response(datagram, time()) if self._refusals & 1 else None

    def _log_request(
        self, access: AccessLog, datagram: bytes, answer: bytes, return_address: ReturnAddress, started: int
    ) -> None:
        length = int.from_bytes(datagram[44:48], "big")
        access.log_request(
            return_address[0],
            "udp",
            int.from_bytes(datagram[_OPCODE], "big"),
            int.from_bytes(answer[_CODE], "big"),
            datagram[_NAME_OFFSET : _NAME_OFFSET + length],
            (perf_counter_ns() - started) // 1000,
        )

    def forward(self, lifeline: int) -> None:
        """Send what control answers, until the supervisor ends.

        If that cannot go on the process ends, and the supervisor starts it again: otherwise it would live on, answer
        what it can itself, and keep all that control says to itself.
        """
        try:
            self._forward(lifeline)
        except Exception:
            _logger.exception("answers of control cannot be sent any more")
            os._exit(1)

    def _forward(self, lifeline: int) -> None:
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(lifeline, select.POLLIN)
        while not self._stopping:
            for descriptor, _ in poll.poll():
                octets = b"" if descriptor == lifeline else self._control.recv(MAX_FORWARDED_BYTES)
                if not octets:  # the supervisor has ended: nobody would start this process again, nor stop it
                    os._exit(0)
                forwarded = unpack_datagram(octets)
                return_address = self._datagrams.join_address(forwarded.address, forwarded.local)
                try:
                    self._datagrams.send(forwarded.datagram, return_address)
                except OSError as error:
                    _logger.debug("an answer was not sent: %s", error.strerror)
                else:
                    self._counters.forwarded(len(forwarded.datagram))


def _resolve_nothing(_: bytes) -> None:
    """Answer nothing here."""


def main(options: ResolverOptions) -> None:
    """The life of a resolver process."""
    log = logs.configure(f"resolver-{options.number}", options.log_format, level=options.log_level)
    udp, control = socket.socket(fileno=options.udp), socket.socket(fileno=options.control)
    counters = SharedCounters(options.board).counters(options.number)
    traffic = TrafficLimit(options.traffic, options.octets_per_second, options.burst, options.exempt)
    per_second, part = options.handovers_per_second, options.handovers_in_all / options.resolvers
    handovers = TrafficLimit(options.handovers, per_second, per_second, options.exempt)
    answers = AnswersReader(Path(options.answers))
    public_resolver: Callable[[bytes], bytes | None] = PublicResolver(answers, settings_from_json(options.site), time)
    if not options.resolves:
        public_resolver = _resolve_nothing
    access = AccessLog(log) if options.access_log else None
    resolver = Resolver(
        udp, control, public_resolver, counters, traffic, handovers, all_handovers=RateLimit(part, part), access=access
    )
    signal.signal(signal.SIGTERM, lambda *_: resolver.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the supervisor says when to stop
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    unblock_signals()
    threading.Thread(target=resolver.forward, args=(options.lifeline,), name="answers of control", daemon=True).start()
    gc.collect()
    gc.freeze()  # what is there now stays; looking through it again and again would be for nothing
    os.write(options.ready, b".")
    resolver.run()


if __name__ == "__main__":
    main(ResolverOptions.from_json(sys.argv[1]))
