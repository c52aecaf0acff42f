"""What the processes of a server have in common: which signals wait until a process is ready for them.

The control process: native TCP, HTTP, what resolvers hand over, the writer, the views, the metrics.

One event loop, which never waits: SQL, the disk and long arithmetic are in threads of their own. The supervisor starts
it with open sockets and hears from it over a pipe: when it is ready and what resolvers are to know, and then once a
second that it is alive.

SIGTERM drains: nothing new is taken, what was begun is finished and answered, and the ledger is closed. SIGHUP reads
settings, keys, certificates and site information again; sessions go on. What needs other sockets (addresses, ports,
the number of resolvers) and the database count from the next start.
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

from perseid.ledger.errors import LedgerError
from perseid.records.errors import InvalidData
from perseid.records.site import Transport
from perseid.registry.installation.certificates import CertificateError
from perseid.registry.installation.installation import ANSWERS_NAME, Installation
from perseid.registry.installation.settings import Config, InvalidConfig
from perseid.registry.policy.policy import PROFILES
from perseid.registry.registry import Registry
from perseid.registry.snapshot import Rules
from perseid.server.http.application import HttpConfig, HttpServer, load_tls_context
from perseid.server.limits.budgets import Connections
from perseid.server.limits.udp import TrafficLimit
from perseid.server.native.authentication import TableLimits
from perseid.server.native.resolution import PublicResolver, settings_to_json
from perseid.server.native.server import NativeServer
from perseid.server.native.service import NativeService
from perseid.server.native.steps import ProtocolServer
from perseid.server.native.tcp import NativeAcceptLoop
from perseid.server.native.udp import UdpServer
from perseid.server.observe import logs
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.control_counts import ControlCounters
from perseid.server.observe.counters import SharedCounters
from perseid.server.observe.metrics import MetricSources, get_ledger_state
from perseid.server.observe.metrics_listener import MetricsListener
from perseid.server.processes import unblock_signals
from perseid.server.processes.site_settings import ServerIdentity, load_identity

from .pools import Pools

DRAIN_SECONDS: Final = 8.0
"""Seconds in which what was begun is finished at the end; the supervisor waits two more."""

PURGE_INTERVAL: Final = 60
"""Seconds between two looks at what has timed out."""

_STARTUP_ERRORS = (
    InvalidConfig,
    InvalidData,
    LedgerError,
    OSError,
)  # with settings and files; their messages say what to do
_SECOND = 1.0
_POLL_INTERVAL = 0.02
_MAX_NEWS_BYTES = 1 << 20  # far more than the supervisor ever has to say at a time

_logger = logging.getLogger(
    "perseid.server.processes.control"
)  # the module is run as a program, and named otherwise then


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """What control is started with."""

    directory: str
    accept_clock: bool
    is_first: bool
    """Whether the server is being started, and not only this process."""
    port: int
    """The native port that was found."""
    listener: int
    http_port: int
    """The port of HTTP that was found."""
    http: list[int]
    """The listening socket of HTTP, if that is served."""
    resolvers: list[int]
    board: int
    traffic: int
    status: int
    """Where the supervisor is told things."""
    news: int
    """Where it tells things; at its end the supervisor has ended."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what the supervisor wrote."""
        return cls(**json.loads(text))


class StartupError(Exception):
    """Serving cannot begin; the message says why."""


class Control:
    """Everything in the control process."""

    def __init__(self, options: ControlOptions, installation: Installation) -> None:
        self._options = options
        self._installation = installation
        config = installation.config
        server_identity = load_identity(installation.directory, config)
        self._log = logs.configure("control", config.log_format, level=config.log_level)
        self._shared_counters = SharedCounters(options.board)
        self._counts = ControlCounters()
        self._pools = Pools(config)
        native_server, public_resolver = self._create_native_server(config, server_identity)
        self._service = NativeService(
            native_server, public_resolver, self._pools, Connections(config), self._counts, self._access_log(config)
        )
        self._stopping = asyncio.Event()
        self._http = self._create_http(config, server_identity)
        sockets = [socket.socket(fileno=number) for number in options.resolvers]
        self._udp = UdpServer(self._service, sockets, self._traffic(config))
        self._resolver_options = _resolver_options(installation.directory, config, server_identity, native_server)
        self._reloading = asyncio.Lock()
        self._unread_news = b""
        self._news: dict[str, dict[str, int]] = {"processes": {}, "restarts": {}}

    def _traffic(self, config: Config) -> TrafficLimit:
        octets, burst = config.limits_udp_octets, config.limits_udp_burst
        return TrafficLimit(self._options.traffic, octets, burst, config.limits_exempt_networks)

    def _create_native_server(
        self, config: Config, server_identity: ServerIdentity
    ) -> tuple[NativeServer, PublicResolver]:
        for remark in server_identity.remarks:
            _logger.warning("%s", remark)
        ledger = self._installation.ledger
        rules = Rules(
            config.administration,
            PROFILES[config.default_profile],
            config.server_listing_allowed,
            config.templates_delimiter,
        )
        registry = Registry(ledger, rules)
        server = ProtocolServer(server_identity.server_settings(), secrets.token_bytes, TableLimits.of(config))
        server.set_last_id(secrets.randbelow(1 << 31))
        ports = {Transport.UDP: self._options.port, Transport.TCP: self._options.port}
        if self._options.http:
            ports |= {Transport.HTTP: self._options.http_port, Transport.HTTPS: self._options.http_port}
        native_server = NativeServer(
            registry,
            server,
            server_identity.site,
            settings=server_identity.native_settings(ports),
            checkpoint=ledger.checkpoint,
        )
        return native_server, PublicResolver(ledger.answers, server_identity.resolution_settings(), time)

    def _create_http(self, config: Config, server_identity: ServerIdentity) -> HttpServer | None:
        """HTTP, if it is served. Without a certificate a server does not start; one that runs goes on without TLS."""
        if not self._options.http:
            return None
        try:
            context = load_tls_context(self._installation.directory, config, server_identity.key)
        except CertificateError as problem:
            if self._options.is_first:
                raise
            _logger.error("HTTPS is not spoken: %s", problem)  # noqa: TRY400 - said in full
            context = None
        installed = HttpConfig(
            config, server_identity, self._service.native_server.registry, context, self._service.access
        )
        listener = socket.socket(fileno=self._options.http[0])
        return HttpServer(listener, self._service, self._installation.ledger.answers, installed, self._not_ready_reason)

    # Life

    async def run(self) -> None:
        """Serve until told to stop."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(logs.loop_exception_handler)
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the terminal sends it to all
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
            self._send_status({"resolvers": self._resolver_options, "facts": {"metrics": metrics.address}})
            http = f", HTTP at port {self._options.http_port}" if self._http is not None else ""
            _logger.info("ready, at port %d%s", self._options.port, http)
            await self._run_periodic_tasks()
            accept_loop.stop(loop)
            self._udp.stop(loop)
            if self._http is not None:
                self._http.stop(loop)
            await self._drain(accept_loop)
        self._pools.close()

    async def _run_periodic_tasks(self) -> None:
        """What is done once a second, until the end."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        for second in range(1 << 62):
            due += _SECOND
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), max(0.0, due - loop.time()))
                return
            lag = loop.time() - due
            self._counts.loop_lag = lag
            due += max(0.0, lag)
            self._service.close_expired_connections()
            if self._http is not None:
                self._http.check_deadlines()
            if self._service.access is not None:
                self._service.access.flush()
            else:
                self._log.output.flush()
            if second % PURGE_INTERVAL == 0:
                self._service.native_server.purge_expired(time())
                self._udp.purge_expired(monotonic())
                if self._http is not None:
                    self._http.purge_expired()
            self._send_status({})

    async def _drain(self, accept_loop: NativeAcceptLoop) -> None:
        """Finish what was begun, for as long as there is time."""
        self._service.draining = True
        for connection in list(self._service.open):
            connection.close_if_idle()
        deadline = monotonic() + DRAIN_SECONDS
        while (accept_loop.attaching or self._in_flight) and monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)  # many end, each in its own way
        if self._service.access is not None:
            self._service.access.flush()
        if remaining := self._in_flight:
            _logger.warning("stopped; %d requests were not finished in time", remaining)
        else:
            _logger.info("stopped")

    @property
    def _in_flight(self) -> int:
        """What was begun and is not finished."""
        http = self._http.in_flight if self._http is not None else 0
        return len(self._service.open) + self._udp.in_flight + http

    def _not_ready_reason(self) -> str:
        """Why the server should get no requests; empty if it should."""
        if self._stopping.is_set():
            return "stopping"
        return "" if self._installation.ledger.ready else "the answers view does not follow the ledger"

    def _metrics(self) -> MetricsListener:
        """The listener for metrics. Where its port is taken a server does not start; one that runs goes on without."""
        config, sources = self._installation.config, self._sources()
        try:
            return MetricsListener.of(config, sources)
        except OSError as error:
            where = f"{config.metrics_host} port {config.metrics_port}"
            problem = f"metrics cannot be served at {where} (settings metrics.host, metrics.port): {error.strerror}"
            if self._options.is_first:
                raise StartupError(problem) from error
            _logger.warning("%s; this process goes on without", problem)
            return MetricsListener(sources, None)

    def _on_news(self) -> None:
        """Take what the supervisor says: lines of JSON, the last of which counts."""
        octets = os.read(self._options.news, _MAX_NEWS_BYTES)
        *lines, self._unread_news = (self._unread_news + octets).split(b"\n")
        if lines:
            self._news = json.loads(lines[-1])
        if not octets:  # it has ended, and nobody would start this process again
            asyncio.get_running_loop().remove_reader(self._options.news)
            self._stopping.set()

    def _sources(self) -> MetricSources:
        """Where the metrics take their numbers from."""
        ledger, service, pools, http = self._installation.ledger, self._service, self._pools, self._http
        return MetricSources(
            board=self._shared_counters,
            counts=self._counts,
            ready=self._not_ready_reason,
            ledger=lambda: get_ledger_state(ledger),
            connections=lambda: len(service.connections),
            http_connections=lambda: 0 if http is None else http.connections,
            handshakes=lambda: {} if http is None else http.handshakes(),
            sessions=lambda: len(service.native_server.server.sessions) + (0 if http is None else http.sessions),
            challenges=lambda: len(service.native_server.server.challenges),
            pools=pools.stats,
            limits=lambda: {"connections": service.connections.refused},
            restarts=lambda: self._news["restarts"],
            lines_lost=lambda: self._log.output.lost,
            processes=lambda: {"control": os.getpid(), **self._news["processes"]},
        )

    def _reload(self) -> None:
        """Read settings, keys and site information again; what cannot be used changes nothing."""
        asyncio.get_running_loop().create_task(self._run_reload())

    async def _run_reload(self) -> None:
        async with self._reloading:  # one after the other, so that the last one counts
            try:
                await self._reload_settings()
            except Exception as problem:  # noqa: BLE001 - whatever is wrong with them, the server goes on
                known = isinstance(problem, _STARTUP_ERRORS)
                _logger.error("everything stays as it was: %s", problem if known else logs.describe_exception(problem))  # noqa: TRY400
            self._send_status({"resolvers": self._resolver_options, "facts": {}})

    async def _reload_settings(self) -> None:
        directory = self._installation.directory
        config = await asyncio.to_thread(Config.load, directory, os.environ)
        server_identity = await asyncio.to_thread(load_identity, directory, config)
        context = (
            await asyncio.to_thread(load_tls_context, directory, config, server_identity.key) if self._http else None
        )
        if self._service.access is not None:
            self._service.access.flush()
        self._log = await asyncio.to_thread(logs.configure, "control", config.log_format, level=config.log_level)
        native_server, public_resolver = self._create_native_server(config, server_identity)
        native_server.adopt_state(self._service.native_server)
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
        _logger.info("settings, keys, certificates and site information were read again")

    def _access_log(self, config: Config) -> AccessLog | None:
        return AccessLog(self._log) if config.log_access else None

    def _send_status(self, message: dict[str, Any]) -> None:
        """Say something to the supervisor."""
        with suppress(BrokenPipeError):  # it has ended, and the pipe for news says so too
            os.write(self._options.status, json.dumps(message).encode() + b"\n")


def _resolver_options(
    directory: Path, config: Config, server_identity: ServerIdentity, native_server: NativeServer
) -> dict[str, Any]:
    """What resolvers are to know; nothing of it is secret."""
    return {
        "answers": str(directory / ANSWERS_NAME),
        "site": settings_to_json(server_identity.resolution_settings()),
        "resolves": native_server.resolution_enabled[Transport.UDP],
        "octets_per_second": config.limits_udp_octets,
        "burst": config.limits_udp_burst,
        "handovers_per_second": config.limits_udp_handovers,
        "handovers_in_all": config.limits_udp_handovers_in_all,
        "exempt": [str(network) for network in config.limits_exempt_networks],
        "log_format": config.log_format.value,
        "log_level": config.log_level,
        "access_log": config.log_access_udp,
    }


def main(text: str) -> int:
    """The life of the control process."""
    options = ControlOptions.from_json(text)
    try:
        installation = Installation.open(Path(options.directory), accept_clock=options.accept_clock)
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
        gc.freeze()  # what is there now stays; looking through it again and again would be for nothing
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(control.run())
            except StartupError as problem:
                print(f"perseid: {problem}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
