"""Resolver process: answers public resolution over UDP from the answers view and forwards the rest.

One thread receives, answers and sends in a plain blocking loop, which costs less than any event loop. A second thread,
mostly asleep, sends the responses of the control process to forwarded datagrams. The process has no state: killed at
any moment it loses one datagram, which the client sends again, and its successor continues to read the same socket.

The supervisor starts it with open descriptors and plain settings; it has no key, no ledger and no configuration file.
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
from perseid.wire.fragments import MAX_PACKET, packet_count
from perseid.wire.message import BODY_OFFSET, ENVELOPE_LENGTH, OPCODE, RESPONSE_CODE

from . import unblock_signals
from .datagrams import MAX_FORWARDED_BYTES, ReturnAddress, is_response, pack_datagram, unpack_datagram, wrap_socket

RECEIVE_TIMEOUT: Final = 0.5
"""Seconds after which the loop wakes up without a datagram: to stop, and to flush the log."""

_MAX_READ = MAX_PACKET + 1  # one more than any peer sends, to detect longer ones
_NAME_OFFSET = BODY_OFFSET + 4

_logger = logging.getLogger("perseid.server.processes.resolver")  # run as a program, its __name__ is __main__


@dataclass(frozen=True, slots=True)
class ResolverOptions:
    """Options of a resolver: inherited descriptors (integers without a comment) and settings."""

    number: int
    """Position among the resolvers."""
    resolvers: int
    answers: str
    """The directory of the answers view."""
    udp: int
    control: int
    counters_descriptor: int
    traffic: int
    forward_limit: int
    lifeline: int
    """Reaches end of file when the supervisor ends."""
    ready: int
    """Written to when the resolver starts to read its socket."""
    site: str
    """The site settings; see `resolution.settings_to_json`."""
    resolves: bool
    """Whether resolution is answered over UDP; otherwise control refuses it, as the site record says."""
    bytes_per_second: float
    burst: float
    total_bytes_per_second: float
    forwards_per_second: float
    total_forwards_per_second: float
    """Limit for all resolvers together; each has an equal part."""
    exempt: tuple[str, ...]
    log_format: str
    log_level: int
    access_log: bool

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


class Resolver:
    """The two loops of a resolver process."""

    def __init__(  # noqa: PLR0913 - all its parts, created by `main`
        self,
        udp: socket.socket,
        control: socket.socket,
        public_resolver: Callable[[bytes], bytes | None],
        counters: ResolverCounters,
        traffic: TrafficLimit,
        forward_limit: TrafficLimit,
        *,
        total_forward_limit: RateLimit,
        access: AccessLog | None = None,
    ) -> None:
        self._datagrams = wrap_socket(udp)
        self._port: int = udp.getsockname()[1]
        self._control = control
        self._respond = public_resolver
        self._counters = counters
        self._traffic = traffic
        self._forward_limit = forward_limit
        self._total_forward_limit = total_forward_limit
        self._access = access
        self._refusals = 0
        self._stopping = False
        # The kernel's own timeout: Python's would need two system calls for every datagram.
        seconds, parts = divmod(int(RECEIVE_TIMEOUT * 1_000_000), 1_000_000)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack_struct("@ll", seconds, parts))

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        """Answer datagrams until told to stop."""
        receive, send, is_own = self._datagrams.receive, self._datagrams.send, self._datagrams.is_own
        respond, allows, answered = self._respond, self._traffic.allows, self._counters.answered
        access, own_port = self._access, self._port
        started = 0
        while not self._stopping:
            try:
                datagram, return_address = receive(_MAX_READ)
                # A forged sender: a response would only come back to this socket.
                if return_address[1] == own_port and is_own(return_address):
                    self._counters.dropped()
                    continue
                if access is not None:
                    started = perf_counter_ns()
                response = respond(datagram)
                if response is None:
                    self._forward_to_control(datagram, return_address)
                elif len(response) <= MAX_PACKET and allows(
                    return_address[0], len(response) - len(datagram), monotonic()
                ):
                    send(response, return_address)
                    answered(response)
                else:
                    self._send_packets(datagram, response, return_address)
            except BlockingIOError:  # timeout
                self._flush_access_log()
            except OSError:  # unreachable address, or full buffers
                self._counters.dropped()
            else:
                if response is not None and access is not None:
                    self._log_request(access, datagram, response, return_address, started)
        self._flush_access_log()

    def _send_packets(self, datagram: bytes, response: bytes, return_address: ReturnAddress) -> None:
        """Send a response of several packets, or a short refusal if its network is over the limit."""
        size = len(response) + ENVELOPE_LENGTH * (packet_count(len(response) - ENVELOPE_LENGTH) - 1)
        if not self._traffic.allows(return_address[0], size - len(datagram), monotonic()):
            refusal = self._refuse(datagram)
            if refusal is None:
                self._counters.dropped()
                return
            response, size = refusal, len(refusal)
        for packet in packets(response):
            self._datagrams.send(packet, return_address)
        self._counters.answered(response)
        self._counters.sent(size - len(response))

    def _flush_access_log(self) -> None:
        if self._access is not None:
            self._access.flush()

    def _forward_to_control(self, datagram: bytes, return_address: ReturnAddress) -> None:
        # First what gets no response anyway: forged datagrams must not use up the limit of others. Port 0 is invalid.
        now = monotonic()
        if (
            return_address[1]
            and not is_response(datagram)
            and self._total_forward_limit.take(now)
            and self._forward_limit.allows(return_address[0], 1, now)
        ):
            address, local = self._datagrams.split_address(return_address)
            try:
                self._control.send(pack_datagram(now, address, datagram, local), socket.MSG_DONTWAIT)
            except OSError:  # control is not running, or overloaded
                pass
            else:
                self._counters.forwarded()
                return
        self._counters.dropped()

    def _refuse(self, datagram: bytes) -> bytes | None:
        """Return a short response for every other request of a network over its limit; else None."""
        self._refusals += 1
        return short_response(datagram, time()) if self._refusals & 1 else None

    def _log_request(
        self, access: AccessLog, datagram: bytes, response: bytes, return_address: ReturnAddress, started: int
    ) -> None:
        length = int.from_bytes(datagram[BODY_OFFSET:_NAME_OFFSET], "big")
        access.log_request(
            return_address[0],
            "udp",
            int.from_bytes(datagram[OPCODE], "big"),
            int.from_bytes(response[RESPONSE_CODE], "big"),
            datagram[_NAME_OFFSET : _NAME_OFFSET + length],
            (perf_counter_ns() - started) // 1000,
        )

    def forward(self, lifeline: int) -> None:
        """Send the responses of control, until the supervisor ends.

        On an error the process exits and the supervisor restarts it: otherwise it would live on without ever sending
        what control answers.
        """
        try:
            self._forward(lifeline)
        except Exception:
            _logger.exception("cannot send the responses of control; exiting")
            os._exit(1)

    def _forward(self, lifeline: int) -> None:
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(lifeline, select.POLLIN)
        while not self._stopping:
            for descriptor, _ in poll.poll():
                data = b"" if descriptor == lifeline else self._control.recv(MAX_FORWARDED_BYTES)
                if not data:  # the supervisor has ended: nothing would restart or stop this process
                    os._exit(0)
                forwarded = unpack_datagram(data)
                return_address = self._datagrams.join_address(forwarded.address, forwarded.local)
                try:
                    self._datagrams.send(forwarded.datagram, return_address)
                except OSError as error:
                    _logger.debug("cannot send a response: %s", error.strerror)
                else:
                    self._counters.relayed(len(forwarded.datagram))


def _resolve_nothing(_: bytes) -> None:
    """Forward everything to control."""


def main(options: ResolverOptions) -> None:
    """Run a resolver process."""
    log = logs.configure(f"resolver-{options.number}", options.log_format, level=options.log_level)
    udp, control = socket.socket(fileno=options.udp), socket.socket(fileno=options.control)
    counters = SharedCounters(options.counters_descriptor).counters(options.number)
    traffic = TrafficLimit(
        options.traffic, options.bytes_per_second, options.burst, options.exempt, options.total_bytes_per_second
    )
    per_second, share = options.forwards_per_second, options.total_forwards_per_second / options.resolvers
    forward_limit = TrafficLimit(options.forward_limit, per_second, per_second, options.exempt)
    answers = AnswersReader(Path(options.answers))
    public_resolver: Callable[[bytes], bytes | None] = PublicResolver(answers, settings_from_json(options.site), time)
    if not options.resolves:
        public_resolver = _resolve_nothing
    access = AccessLog(log) if options.access_log else None
    resolver = Resolver(
        udp,
        control,
        public_resolver,
        counters,
        traffic,
        forward_limit,
        total_forward_limit=RateLimit(share, share),
        access=access,
    )
    signal.signal(signal.SIGTERM, lambda *_: resolver.stop())
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal sends it to all processes; the supervisor says when to stop
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    unblock_signals()
    threading.Thread(target=resolver.forward, args=(options.lifeline,), name="control responses", daemon=True).start()
    gc.collect()
    gc.freeze()  # these objects live as long as the process; do not scan them again
    os.write(options.ready, b".")
    resolver.run()


if __name__ == "__main__":
    main(ResolverOptions.from_json(sys.argv[1]))
