"""Control process: native TCP, HTTP, forwarded datagrams, the writer, the views and the metrics.

One event loop that never blocks: SQL, disk access and long computations run in threads. The supervisor starts the
process with open sockets. Over a pipe the process reports when it is ready and which options resolvers need, and then
once a second that it is alive.

If the ledger cannot be opened because the disk is full, it answers public resolution from the answers view and refuses
everything else. It ends as soon as there is space, and the supervisor starts it again.

SIGTERM drains: no new work is accepted, started work is finished and answered, and the ledger is closed. SIGHUP reloads
settings, keys, certificates and site information; sessions continue. Settings that need other sockets (addresses,
ports, the number of resolvers) and the database take effect at the next start.
"""

import asyncio
import gc
import json
import logging
import os
import secrets
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Any, Final, Self

import uvloop

from perseid.ledger.errors import LedgerError, StorageFull
from perseid.ledger.ledger import UnopenedLedger
from perseid.records.errors import InvalidData
from perseid.records.site import Transport
from perseid.registry.installation.certificates import CertificateError
from perseid.registry.installation.files import replace_file
from perseid.registry.installation.installation import ANSWERS_NAME, KNOWN_CLIENTS, Installation
from perseid.registry.installation.settings import Config, InvalidConfig
from perseid.server.http.application import HttpConfig, HttpServer, load_tls_context
from perseid.server.limits.buckets import Buckets
from perseid.server.limits.budgets import Connections
from perseid.server.limits.guesses import KnownClients
from perseid.server.limits.udp import TrafficLimit
from perseid.server.native.authentication import TableLimits
from perseid.server.native.resolution import PublicResolver, settings_to_json
from perseid.server.native.server import NativeServer
from perseid.server.native.service import NativeService
from perseid.server.native.shared_tables import SharedChallenges, SharedSessions
from perseid.server.native.tcp import NativeAcceptLoop
from perseid.server.native.udp import UdpServer
from perseid.server.observe import logs
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.counters import SharedCounters
from perseid.server.observe.metrics import ControlCounters, MetricSources, get_ledger_state
from perseid.server.observe.metrics_listener import MetricsListener
from perseid.server.state.state import SharedState
from perseid.wire.server import Server

from . import unblock_signals
from .pools import Pools
from .site_settings import ServerIdentity, load_identity
from .sockets import StartupError

DRAIN_SECONDS: Final = 8.0
"""Seconds to finish started work on shutdown; the supervisor waits two more."""

REMINDER_INTERVAL: Final = 3600.0
"""Seconds after which it is logged again that changes are refused."""

PURGE_INTERVAL: Final = 60
"""Seconds between purges of expired state."""

_STARTUP_ERRORS = (
    InvalidConfig,
    InvalidData,
    LedgerError,
    OSError,
)  # from settings and files; their messages say how to fix them
_TICK_SECONDS = 1.0
_POLL_INTERVAL = 0.02
_KNOWN_PURPOSE = b"known clients"
_MAX_NEWS_BYTES = 1 << 20  # far more than the supervisor ever sends at a time

_logger = logging.getLogger("perseid.server.processes.control")  # run as a program, its __name__ is __main__


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """Options that the supervisor passes to the control process. Integers without a comment are descriptors."""

    directory: str
    accept_clock: bool
    is_first: bool
    """Whether the whole server is starting, and not only this process."""
    port: int
    """The native port that was bound."""
    listener: int
    http_port: int
    """The HTTP port that was bound."""
    http: list[int]
    """The listening socket of HTTP, if HTTP is enabled."""
    resolvers: list[int]
    counters: int
    traffic: int
    state: str
    """The directory of the shared state."""
    status: int
    """Pipe to the supervisor."""
    news: int
    """Pipe from the supervisor; end of file means that the supervisor has ended."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


class ProblemLog:
    """Logs once that changes are refused, not for every request, and once that they are accepted again."""

    def __init__(self) -> None:
        self._last: Exception | None = None
        self._reminder_due = 0.0

    def update(self, problem: Exception | None, now: float) -> None:
        """Note why changes are refused at the moment; None if they are accepted."""
        last, self._last = self._last, problem
        if problem is None:
            if last is not None:
                _logger.warning("changes are accepted again")
        elif type(problem) is not type(last) or now >= self._reminder_due:
            self._reminder_due = now + REMINDER_INTERVAL
            _logger.error("changes are refused: %s. To see what is wrong, run: perseid check", problem)


class KnownClientsFile:
    """Saves where identities were proved. A failed save is retried, and logged once until one succeeds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._has_failed = False

    async def save(self, known: KnownClients) -> None:
        """Write the file, if something has changed."""
        if not known.changed:
            return
        try:
            await asyncio.to_thread(replace_file, self.path, known.dump())
        except OSError as error:
            known.changed = True
            if not self._has_failed:
                _logger.warning("cannot save %s: %s", self.path, error.strerror)
            self._has_failed = True
        else:
            self._has_failed = False


class Control:
    """The control process."""

    def __init__(self, options: ControlOptions, installation: Installation) -> None:
        self._options = options
        self._installation = installation
        config = installation.config
        server_identity = load_identity(installation.directory, config)
        self._log = logs.configure("control", config.log.format, level=config.log.level_number)
        self._shared_counters = SharedCounters(options.counters)
        self._state = SharedState(Path(options.state))
        self._counts = ControlCounters()
        self._known_file = KnownClientsFile(installation.directory / KNOWN_CLIENTS)
        self._pools = Pools(config, known=self._load_known_clients(), buckets=Buckets.shared(self._state, "budgets"))
        native_server, public_resolver = self._create_native_server(config, server_identity)
        self._service = NativeService(
            native_server, public_resolver, self._pools, Connections(config), self._counts, self._access_log(config)
        )
        self._stopping = asyncio.Event()
        self._problem_log = ProblemLog()
        self._http = self._create_http(config, server_identity)
        sockets = [socket.socket(fileno=number) for number in options.resolvers]
        self._udp = UdpServer(self._service, sockets, self._traffic(config))
        self._resolver_options = _resolver_options(installation.directory, config, server_identity, native_server)
        self._reloading = asyncio.Lock()
        self._unread_news = b""
        self._news: dict[str, dict[str, int]] = {"processes": {}, "restarts": {}}

    def _load_known_clients(self) -> KnownClients:
        if isinstance(self._installation.ledger, UnopenedLedger):  # nobody can authenticate
            return KnownClients(secrets.token_bytes(32), state=self._state)
        with self._installation.ledger.open_reader() as reader:
            return KnownClients.read(self._known_file.path, reader.secret(_KNOWN_PURPOSE), self._state)

    def _traffic(self, config: Config) -> TrafficLimit:
        limits = config.limits
        rate, burst, total = limits.udp_octets, limits.udp_burst, limits.udp_octets_in_all
        return TrafficLimit(self._options.traffic, rate, burst, limits.exempt_networks, total)

    def _create_native_server(
        self, config: Config, server_identity: ServerIdentity
    ) -> tuple[NativeServer, PublicResolver]:
        for remark in server_identity.remarks:
            _logger.warning("%s", remark)
        ledger = self._installation.ledger
        registry = self._installation.registry(config)
        settings, limits = server_identity.server_settings(), TableLimits.of(config)
        sessions = SharedSessions(self._state, limits.sessions, limits.unproved_sessions)
        challenges = SharedChallenges(self._state, settings.challenge_life, limits.challenges, limits.udp_challenges)
        server = Server(settings, secrets.token_bytes, sessions, challenges)
        ports = {Transport.UDP: self._options.port, Transport.TCP: self._options.port}
        if self._options.http:
            ports |= {Transport.HTTP: self._options.http_port, Transport.HTTPS: self._options.http_port}
        native_server = NativeServer(
            registry,
            server,
            server_identity.site,
            settings=server_identity.native_settings(ports),
            checkpoint=ledger.checkpoint,
            run=self._pools.do,
            state=self._state,
        )
        return native_server, PublicResolver(ledger.answers, server_identity.resolution_settings(), time)

    def _create_http(self, config: Config, server_identity: ServerIdentity) -> HttpServer | None:
        """Return the HTTP server, if enabled.

        Without a certificate a server does not start; a running one continues without TLS.
        """
        if not self._options.http:
            return None
        try:
            context = load_tls_context(self._installation.directory, config, server_identity.key)
        except CertificateError as problem:
            if self._options.is_first:
                raise
            _logger.error("HTTPS is disabled: %s", problem)  # noqa: TRY400 - the message is complete
            context = None
        installed = HttpConfig(
            config, server_identity, self._service.native_server.registry, context, self._service.access
        )
        listener = socket.socket(fileno=self._options.http[0])
        answers = self._installation.ledger.answers
        return HttpServer(listener, self._service, answers, installed, self._not_ready_reason, self._state)

    # Life

    async def run(self) -> None:
        """Serve until told to stop."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(logs.loop_exception_handler)
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # a terminal sends it to all processes
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        unblock_signals()
        loop.add_reader(self._options.news, self._on_news)
        with self._metrics() as metrics:
            listener = socket.socket(fileno=self._options.listener)
            accept_loop = NativeAcceptLoop(self._service, listener)
            accept_loop.start(loop)
            self._udp.start(loop)
            if self._http is not None:
                self._http.start(loop)
            opened = not isinstance(self._installation.ledger, UnopenedLedger)
            details = {"metrics": metrics.address}
            self._send_status({"resolvers": self._resolver_options, "details": details, "opened": opened})
            http = f", HTTP at port {self._options.http_port}" if self._http is not None else ""
            _logger.info("ready: native protocol at port %d%s", self._options.port, http)
            await self._run_periodic_tasks()
            accept_loop.stop(loop)
            self._udp.stop(loop)
            if self._http is not None:
                self._http.stop(loop)
            await self._drain(accept_loop)
        self._pools.close()
        await self._known_file.save(self._pools.known)

    async def _run_periodic_tasks(self) -> None:
        """Run the once-a-second tasks until shutdown."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        for tick in range(1 << 62):
            due += _TICK_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), max(0.0, due - loop.time()))
                return
            lag = loop.time() - due
            self._counts.loop_lag = lag
            due += max(0.0, lag)
            ledger = self._installation.ledger
            self._problem_log.update(ledger.write_problem, monotonic())
            if isinstance(ledger, UnopenedLedger) and await asyncio.to_thread(ledger.can_open):
                _logger.warning("there is space again; this process ends, and the next one opens the ledger")
                self._stopping.set()
                return
            self._service.close_expired_connections()
            if self._http is not None:
                self._http.check_deadlines()
            if self._service.access is not None:
                self._service.access.flush()
            else:
                self._log.output.flush()
            self._state.sweep()
            if tick % PURGE_INTERVAL == 0:
                self._udp.purge_expired(monotonic())
                await self._known_file.save(self._pools.known)
            self._send_status({})

    async def _drain(self, accept_loop: NativeAcceptLoop) -> None:
        """Finish started work, within the time limit."""
        self._service.draining = True
        for connection in list(self._service.open):
            connection.close_if_idle()
        deadline = monotonic() + DRAIN_SECONDS
        while (accept_loop.attaching or self._in_flight) and monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)  # connections end in many ways
        if self._service.access is not None:
            self._service.access.flush()
        if remaining := self._in_flight:
            _logger.warning("stopped; %d requests did not finish in time", remaining)
        else:
            _logger.info("stopped")

    @property
    def _in_flight(self) -> int:
        http = self._http.in_flight if self._http is not None else 0
        return len(self._service.open) + self._udp.in_flight + http

    def _not_ready_reason(self) -> str:
        """Why the server should not get requests; empty if it should."""
        if self._stopping.is_set():
            return "stopping"
        return "" if self._installation.ledger.ready else "the answers view is not up to date"

    def _metrics(self) -> MetricsListener:
        """Return the metrics listener.

        If its port is in use, a server does not start; a running one continues without.
        """
        config, sources = self._installation.config, self._sources()
        try:
            return MetricsListener.of(config, sources)
        except OSError as error:
            where = f"{config.metrics.host} port {config.metrics.port}"
            problem = f"Cannot serve metrics at {where}: {error.strerror}. Change metrics.host or metrics.port"
            if self._options.is_first:
                raise StartupError(problem) from error
            _logger.warning("%s; continuing without metrics", problem)
            return MetricsListener(sources, None)

    def _on_news(self) -> None:
        """Read the supervisor's lines of JSON; only the last one matters."""
        data = os.read(self._options.news, _MAX_NEWS_BYTES)
        *lines, self._unread_news = (self._unread_news + data).split(b"\n")
        if lines:
            self._news = json.loads(lines[-1])
        if not data:  # the supervisor has ended, so nothing would restart this process
            asyncio.get_running_loop().remove_reader(self._options.news)
            self._stopping.set()

    def _sources(self) -> MetricSources:
        ledger, service, pools, http = self._installation.ledger, self._service, self._pools, self._http
        return MetricSources(
            shared_counters=self._shared_counters,
            counts=self._counts,
            ready=self._not_ready_reason,
            ledger=lambda: get_ledger_state(ledger),
            connections=lambda: len(service.connections),
            http_connections=lambda: 0 if http is None else http.connections,
            handshakes=lambda: {} if http is None else http.handshakes(),
            sessions=lambda: len(service.native_server.server.sessions) + (0 if http is None else http.sessions),
            state=self._state.sizes,
            challenges=lambda: len(service.native_server.server.challenges),
            pools=pools.stats,
            limits=lambda: {"connections": service.connections.refused},
            restarts=lambda: self._news["restarts"],
            lines_lost=lambda: self._log.output.lost,
            processes=lambda: {"control": os.getpid(), **self._news["processes"]},
        )

    def _reload(self) -> None:
        """Reload settings, keys and site information; on an error nothing changes."""
        asyncio.get_running_loop().create_task(self._run_reload())

    async def _run_reload(self) -> None:
        async with self._reloading:  # one at a time, so that the last one wins
            try:
                await self._reload_settings()
            except Exception as problem:  # noqa: BLE001 - whatever is wrong, the server continues
                text = str(problem) if isinstance(problem, _STARTUP_ERRORS) else logs.describe_exception(problem)
                _logger.error("reload failed, nothing was changed: %s", text)  # noqa: TRY400
            self._send_status({"resolvers": self._resolver_options, "details": {}})

    async def _reload_settings(self) -> None:
        directory = self._installation.directory
        config = await asyncio.to_thread(Config.load, directory, os.environ)
        server_identity = await asyncio.to_thread(load_identity, directory, config)
        context = (
            await asyncio.to_thread(load_tls_context, directory, config, server_identity.key) if self._http else None
        )
        if self._service.access is not None:
            self._service.access.flush()
        self._log = await asyncio.to_thread(logs.configure, "control", config.log.format, level=config.log.level_number)
        native_server, public_resolver = self._create_native_server(config, server_identity)
        self._pools.configure(config)
        self._service.connections.configure(config)
        self._service.native_server, self._service.public_resolver = native_server, public_resolver
        self._service.access = self._access_log(config)
        if self._http is not None:
            self._http.configure(
                HttpConfig(config, server_identity, native_server.registry, context, self._service.access)
            )
        self._udp.traffic = self._traffic(config)
        self._resolver_options = _resolver_options(directory, config, server_identity, native_server)
        _logger.info("settings, keys, certificates and site information were reloaded")

    def _access_log(self, config: Config) -> AccessLog | None:
        return AccessLog(self._log) if config.log.access else None

    def _send_status(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the supervisor has ended; `_on_news` notices too
            os.write(self._options.status, json.dumps(message).encode() + b"\n")


def _resolver_options(
    directory: Path, config: Config, server_identity: ServerIdentity, native_server: NativeServer
) -> dict[str, Any]:
    """Return the options of resolvers; none of them is secret."""
    return {
        "answers": str(directory / ANSWERS_NAME),
        "site": settings_to_json(server_identity.resolution_settings()),
        "resolves": native_server.resolution_enabled[Transport.UDP],
        "bytes_per_second": config.limits.udp_octets,
        "burst": config.limits.udp_burst,
        "total_bytes_per_second": config.limits.udp_octets_in_all,
        "forwards_per_second": config.limits.udp_handovers,
        "total_forwards_per_second": config.limits.udp_handovers_in_all,
        "exempt": list(config.limits.exempt_networks),
        "log_format": config.log.format,
        "log_level": config.log.level_number,
        "access_log": config.log.access_udp,
    }


def _open_installation(options: ControlOptions) -> Installation:
    """Open the installation; on a full disk for public resolution only."""
    directory = Path(options.directory)
    try:
        return Installation.open(directory, accept_clock=options.accept_clock)
    except StorageFull as problem:
        return Installation.open_without_space(directory, problem)


def main(text: str) -> int:
    """Run the control process."""
    options = ControlOptions.from_json(text)
    try:
        installation = _open_installation(options)
    except (LedgerError, InvalidConfig) as problem:
        print(f"perseid: {problem}", file=sys.stderr)
        return 1
    with installation:
        try:
            control = Control(options, installation)
        except _STARTUP_ERRORS as problem:
            print(f"perseid: {problem}", file=sys.stderr)
            return 1
        gc.collect()
        gc.freeze()  # these objects live as long as the process; do not scan them again
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(control.run())
            except StartupError as problem:
                print(f"perseid: {problem}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
