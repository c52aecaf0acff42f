"""Worker process: serves UDP, native TCP, HTTP and metrics in one event loop.

The loop never blocks for long: reading a few records takes it less time than a thread would; long reads and
computations run in threads, and the writer process appends to the ledger. The supervisor starts the process
with open sockets, those of all workers: it serves its own, and for a while those of a worker that is silent.

If the ledger cannot be opened because the disk is full, it answers public resolution from the answers view and refuses
everything else. It ends as soon as there is space, and the supervisor starts it again.

SIGTERM drains: no new work is accepted, started work is finished and answered, and the ledger is closed. SIGHUP reloads
settings, keys, certificates and site information; sessions continue. Settings that need other sockets (addresses,
ports, the number of workers) and the database take effect at the next start.
"""

import asyncio
import gc
import itertools
import logging
import os
import secrets
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Final

import uvloop

from perseid.client.errors import ClientError
from perseid.compiled import PROBLEM, native
from perseid.ledger.errors import (
    Contention,
    LedgerError,
    LostEntries,
    OutdatedProgram,
    ReadOnlyMode,
    StorageFull,
    StoreUnavailable,
)
from perseid.ledger.ledger import UnopenedLedger
from perseid.ledger.log.log import Log
from perseid.ledger.statistics import StatisticsStore
from perseid.ledger.views.answers_reader import AnswersReader
from perseid.records.errors import InvalidData
from perseid.records.site import Transport
from perseid.registry.installation.certificates import CertificateError
from perseid.registry.installation.files import replace_file
from perseid.registry.installation.installation import KNOWN_CLIENTS, DatabaseUnreachable, Installation
from perseid.registry.installation.logo import Logo, LogoError, load_logo
from perseid.registry.installation.settings import Config, InvalidConfig
from perseid.server.http.application import HttpConfig, HttpServer, load_tls_context
from perseid.server.limits.budgets import Connections
from perseid.server.limits.connections import SharedConnections
from perseid.server.limits.guesses import KnownClients
from perseid.server.limits.udp import RateLimit, TrafficLimit
from perseid.server.native.authentication import TableLimits
from perseid.server.native.resolution import PublicResolver
from perseid.server.native.resolution_thread import ResolutionThread
from perseid.server.native.server import NativeServer
from perseid.server.native.service import NativeService
from perseid.server.native.shared_tables import SharedChallenges, SharedSessions
from perseid.server.native.tcp import NativeAcceptLoop
from perseid.server.native.udp import UdpLimits, UdpServer
from perseid.server.observe import logs
from perseid.server.observe.access_log import AccessLog
from perseid.server.observe.metrics import (
    MetricSources,
    WorkerCounters,
    add_samples,
    decode_samples,
    encode_samples,
    get_ledger_state,
    keep_counters,
    read_worker,
)
from perseid.server.observe.metrics_listener import MetricsListener
from perseid.server.observe.statistics import StatisticsRecorder
from perseid.server.state.jobs import RunningJobs
from perseid.server.state.state import SharedState
from perseid.wire.server import Server

from . import unblock_signals
from .accept import AcceptLoop
from .child import BEAT_SECONDS, ChildOptions, SupervisorLink, parse_options
from .pools import Pools
from .remote_ledger import RemoteLedger
from .resolver import wait_for_end
from .site_settings import ServerIdentity, load_identity

if TYPE_CHECKING:
    from perseid.registry.partition import Partition
    from perseid.server.native.external import ExternalIdentities

DRAIN_SECONDS: Final = 8.0
"""Seconds to finish started work on shutdown; the supervisor waits two more."""

ORPHAN_DRAIN_SECONDS: Final = 0.5
"""Seconds to finish started work after the supervisor has ended: until then, the next server cannot use the ports."""

LOAD_DELAY: Final = 0.05
"""Seconds after the start until the rest of HTTP is loaded, in a thread, because the loop would stand still for a tenth
of a second: requests that wait for the start are answered first."""

REMINDER_INTERVAL: Final = 3600.0
"""Seconds after which it is logged again that changes are refused."""

PURGE_INTERVAL: Final = 60
"""Seconds between purges of expired state."""

SWITCH_SECONDS: Final = 0.0005
"""Seconds after which a thread gives the interpreter lock to another that waits. The event loop gives it up at every
system call, and with the usual 5 ms it would wait as long for each one while a thread computes."""

_STARTUP_ERRORS = (
    InvalidConfig,
    InvalidData,
    LedgerError,
    OSError,
)  # from settings and files; their messages say how to fix them
_TICK_SECONDS = 1.0
_POLL_INTERVAL = 0.02
_KNOWN_PURPOSE = b"known clients"

_logger = logging.getLogger("perseid.server.processes.worker")  # run as a program, its __name__ is __main__


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions(ChildOptions):
    """Options that the supervisor passes to a worker. Lists are descriptors."""

    worker: int
    """Position among the workers."""
    workers: int
    port: int
    """The native port that was bound."""
    http_port: int
    """The HTTP port that was bound."""
    udp: list[int]
    tcp: list[int]
    http: list[int]
    """The sockets of each worker, see `Worker._create_sockets`; those of HTTP if it is enabled."""
    metrics: list[int]
    """The listening socket of the metrics, if they are enabled."""
    traffic: int
    requests: int
    """Descriptors of the buckets for bytes and requests over UDP."""
    connections: int
    """Descriptor of the counters of connections."""
    handover: int = -1
    """Socket, connected with the resolver; only of the first worker, at the start of the server."""


class ProblemLog:
    """Logs once that changes are refused, not for every request, and once that they are accepted again."""

    def __init__(self) -> None:
        self._last: Exception | None = None
        self._reminder_due = 0.0

    def update(self, problem: Exception | None, now: float, *, resolves: bool = True) -> None:
        """Note why changes are refused at the moment, None if they are accepted; and whether public handles resolve."""
        last, self._last = self._last, problem
        if problem is None:
            if last is not None:
                _logger.warning("changes are accepted again")
        elif type(problem) is not type(last) or now >= self._reminder_due:
            self._reminder_due = now + REMINDER_INTERVAL
            until = " until the database can be used" if type(problem) is StoreUnavailable else ""
            text = str(problem).removesuffix("; retry")  # that is for clients
            level = logging.WARNING if isinstance(problem, ReadOnlyMode) else logging.ERROR
            resolution = (
                "continues" if resolves else "does not work, as the answers view is missing or behind the ledger"
            )
            message = "changes are refused%s; public resolution %s: %s%s"
            _logger.log(level, message, until, resolution, text, _ADVICE.get(type(problem), _CHECK))


_CHECK: Final = ". To see what is wrong, run: perseid check"
_ADVICE: Final[dict[type[Exception], str]] = {
    ReadOnlyMode: ". To accept changes again, run: perseid read-only off",
    StorageFull: ". Free disk space",
    LostEntries: "",  # these say what to do
    OutdatedProgram: "",
    Contention: "",
}
"""What to do about the problems."""


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
            await asyncio.to_thread(lambda: replace_file(self.path, known.dump()))
        except OSError as error:
            known.changed = True
            if not self._has_failed:
                _logger.warning("cannot save %s: %s", self.path, error.strerror)
            self._has_failed = True
        else:
            self._has_failed = False


class Worker:
    """The worker process."""

    def __init__(self, options: WorkerOptions, installation: Installation, supervisor: SupervisorLink) -> None:
        self._options = options
        self._installation = installation
        self._supervisor = supervisor
        config = installation.config
        server_identity = load_identity(installation.directory, config)
        self._log = logs.configure(options.name, config.log.format, level=config.log.level_number)
        self._state = SharedState(Path(options.state))
        self._jobs = RunningJobs(self._state, lambda: supervisor.report("jobs"))
        self._counts = WorkerCounters()
        self._earlier_counts = keep_counters(supervisor.counters.read(options.number))
        self._known_file = KnownClientsFile(installation.directory / KNOWN_CLIENTS)
        self._pools = Pools(config, known=self._load_known_clients(), state=self._state)
        native_server, public_resolver = self._create_native_server(config, server_identity)
        # Without others and a thread there is nothing to share, which costs some microseconds for each connection.
        has_thread = installation.ledger.answers.compiled
        shared = SharedConnections(options.connections, options.worker) if has_thread or options.workers > 1 else None
        connections = Connections(config, shared, native.MAX_UNADMITTED if has_thread else 0)
        self._service = NativeService(native_server, public_resolver, self._pools, connections, self._counts)
        self._accept_loop = NativeAcceptLoop(self._service)
        self._udp = UdpServer(self._service, self._udp_limits(config))
        self._access = AccessLog(self._log)
        self._open_access_log(config)
        self._stopping = asyncio.Event()
        self._attempt: asyncio.Future[bool] | None = None  # to open the ledger
        self._drain_seconds = DRAIN_SECONDS
        self._problem_log = ProblemLog()
        self._http = self._create_http(config, server_identity)
        self._sockets = self._create_sockets()
        self._add_thread()
        self._served: set[int] = set()
        self._sources = self._create_sources()
        self._statistics = StatisticsRecorder(
            self._counts.tally, StatisticsStore(installation.directory), installation.ledger, options.worker == 0
        )
        self._statistics.enabled = config.statistics.enabled
        self._statistics.partition = native_server.registry.rules.partition
        self._statistics.collect = self._udp.collect_tally
        self._reloading = asyncio.Lock()

    def _create_sockets(self) -> list[list[tuple[UdpServer | AcceptLoop, socket.socket]]]:
        """Return the sockets of each worker, with what serves them: UDP and TCP and, if enabled, HTTP.

        A worker has no UDP socket if one was passed for another, and several of HTTP if there are several ports.
        """
        options = self._options
        front = [] if self._http is None else [(self._http.front, options.http)]
        listed: list[tuple[UdpServer | AcceptLoop, list[int]]] = [
            (self._udp, options.udp),
            (self._accept_loop, options.tcp),
            *front,
        ]
        step = options.workers
        return [
            [(server, socket.socket(fileno=number)) for server, numbers in listed for number in numbers[worker::step]]
            for worker in range(step)
        ]

    def _add_thread(self) -> None:
        """Have the compiled module read the native sockets of this worker, if the module reads the view."""
        answers = self._installation.ledger.answers
        if not answers.compiled:
            return
        own = self._sockets[self._options.worker]
        udp = next((sock for server, sock in own if server is self._udp), None)
        listeners = [sock for server, sock in own if server is self._accept_loop]
        thread = ResolutionThread(udp, listeners, answers, self._counts)
        self._udp.add_thread(thread, udp)
        self._accept_loop.add_thread(thread)

    def _load_known_clients(self) -> KnownClients:
        if isinstance(self._installation.ledger, UnopenedLedger):  # nobody can authenticate
            return KnownClients(secrets.token_bytes(32), state=self._state)
        with self._installation.ledger.open_reader() as reader:
            return KnownClients.read(self._known_file.path, reader.secret(_KNOWN_PURPOSE), self._state)

    def _udp_limits(self, config: Config) -> UdpLimits:
        limits = config.limits
        rate, burst, total = limits.udp_octets, limits.udp_burst, limits.udp_octets_in_all
        requests, share = limits.udp_handovers, limits.udp_handovers_in_all / len(self._options.udp)
        return UdpLimits(
            TrafficLimit(self._options.traffic, rate, burst, limits.exempt_networks, total),
            TrafficLimit(self._options.requests, requests, requests, limits.exempt_networks),
            RateLimit(share, share),
        )

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
            external=self._load_external(config, registry.rules.partition),
        )
        resolution = server_identity.resolution_settings()
        return native_server, PublicResolver(ledger.answers, resolution, time, self._counts.tally)

    def _load_external(self, config: Config, partition: "Partition | None") -> "ExternalIdentities | None":
        if not config.identity_root and partition is None:
            return None
        from perseid.server.native.external import ExternalIdentities  # noqa: PLC0415 - few servers need the client

        try:
            return ExternalIdentities.of(config, self._installation.directory, partition)
        except ClientError as problem:
            _logger.error("identities on other servers are refused: %s", problem)  # noqa: TRY400 - it is complete
            return None

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
            config,
            server_identity,
            self._service.native_server.registry,
            context,
            self._service.access,
            self._service.native_server.external,
            self._load_logo(config),
        )
        answers = self._installation.ledger.answers
        return HttpServer(self._service, answers, installed, self._not_ready_reason, self._state, self._jobs)

    def _load_logo(self, config: Config) -> Logo | None:
        """Return the logo. Without it a server does not start; a running one continues with Perseid's."""
        try:
            return load_logo(self._installation.directory, config)
        except LogoError as problem:
            if self._options.is_first:
                raise
            _logger.error("pages have no logo: %s", problem)  # noqa: TRY400 - the message is complete
            return None

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
        metrics = socket.socket(fileno=self._options.metrics[0]) if self._options.metrics else None
        with MetricsListener(self._sources, metrics):
            if self._options.handover >= 0:
                self._replace_resolver()
            self._serve_sockets({self._options.worker})
            self._beat(loop)
            self._supervisor.report("ready", not isinstance(self._installation.ledger, UnopenedLedger))
            http = f", HTTP at port {self._options.http_port}" if self._http is not None else ""
            _logger.info("ready: native protocol at port %d%s", self._options.port, http)
            if self._http is not None:
                loop.call_later(LOAD_DELAY, loop.run_in_executor, None, self._load, self._http)
            await self._run_periodic_tasks()
            loop.remove_reader(self._options.news)
            self._serve_sockets(set())
            if self._http is not None:
                self._http.drain()
            await self._drain()
        for _, sock in itertools.chain(
            *self._sockets
        ):  # if the supervisor has ended, the next server can use the ports
            sock.close()
        self._publish_metrics()
        await self._statistics.finish()
        if isinstance(self._installation.ledger, RemoteLedger):
            self._installation.ledger.disconnect()  # first: threads of the pools may wait for the writer
        self._pools.close()
        await self._known_file.save(self._pools.known)

    def _replace_resolver(self) -> None:
        """Wait until the resolver reads the sockets no more, and continue its counts."""
        with self._supervisor.starting():
            counts = wait_for_end(self._options.handover)
        if counts is not None:
            tally = self._counts.tally
            self._counts.continue_udp(counts.responses, counts.udp_bytes)
            tally.native, tally.unknown, tally.missing = counts.found, counts.unknown, counts.missing

    def _load(self, http: HttpServer) -> None:
        """Load the rest of HTTP. A request that needs it waits in the event loop, for seconds on a busy machine."""
        with self._supervisor.starting():
            http.load()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the supervisor that the event loop is running, and the thread beside it."""
        if self._udp.is_alive:
            self._supervisor.beat()
        loop.call_later(BEAT_SECONDS, self._beat, loop)

    def _on_news(self) -> None:
        news = self._supervisor.read_news()
        if news is None:  # the supervisor has ended, so nothing would restart this process
            asyncio.get_running_loop().remove_reader(self._options.news)
            self._drain_seconds = ORPHAN_DRAIN_SECONDS
            self._stopping.set()
        else:
            self._serve_sockets({self._options.worker, *news.silent})

    def _serve_sockets(self, workers: set[int]) -> None:
        """Serve the sockets of these workers, and no others."""
        loop = asyncio.get_running_loop()
        for worker in workers ^ self._served:
            for server, sock in self._sockets[worker]:
                (server.start if worker in workers else server.stop)(loop, sock)
        self._served = workers

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
            self._counts.lags.add(int(lag * 1_000_000))
            due += max(0.0, lag)
            ledger = self._installation.ledger
            if self._options.worker == 0:  # one of them is enough
                problem = ledger.write_problem
                self._problem_log.update(problem, monotonic(), resolves=problem is None or ledger.ready)
            if isinstance(ledger, UnopenedLedger) and self._can_open(ledger):
                _logger.warning("the ledger can be opened again; this process ends, and the next one opens it")
                self._stopping.set()
                return
            self._service.close_expired_connections()
            if self._http is not None:
                self._http.check_deadlines()
            self._access.flush()
            self._state.sweep()
            if "jobs" not in self._supervisor.news.processes and self._jobs.waiting():
                self._supervisor.report("jobs")  # it has just ended, or a worker that ran a job was killed
            if tick % PURGE_INTERVAL == 0:
                self._udp.purge_expired(monotonic())
                await self._known_file.save(self._pools.known)
            self._publish_metrics()
            self._statistics.tick(tick)

    def _can_open(self, ledger: UnopenedLedger) -> bool:
        """Whether the last attempt succeeded; a thread tries, because a database may keep it waiting."""
        if self._attempt is not None and not self._attempt.done():
            return False
        opened = self._attempt is not None and self._attempt.result()
        self._attempt = asyncio.get_running_loop().run_in_executor(None, ledger.can_open)
        return opened

    async def _drain(self) -> None:
        """Finish started work, within the time limit."""
        self._service.draining = True
        for connection in list(self._service.open):
            connection.close_if_idle()
        deadline = monotonic() + self._drain_seconds
        while (self._accept_loop.attaching or self._in_flight) and monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)  # connections end in many ways
        self._access.flush()
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

    def _create_sources(self) -> MetricSources:
        ledger, service, pools, http = self._installation.ledger, self._service, self._pools, self._http
        supervisor = self._supervisor
        return MetricSources(
            counts=self._counts,
            ready=self._not_ready_reason,
            ledger=lambda: get_ledger_state(ledger),
            accepts_changes=lambda: ledger.write_problem is None,
            tick_age=self._tick_age,
            other_workers=self._other_workers,
            connections=lambda: len(service.connections),
            http_connections=lambda: 0 if http is None else http.connections,
            handshakes=lambda: {} if http is None else http.handshakes(),
            sessions=lambda: len(service.native_server.server.sessions) + (0 if http is None else http.sessions),
            state=self._state.sizes,
            challenges=lambda: len(service.native_server.server.challenges),
            pools=pools.stats,
            limits=lambda: {"connections": service.connections.refused},
            restarts=lambda: supervisor.news.restarts,
            lines_lost=lambda: self._log.output.lost,
            processes=lambda: supervisor.news.processes or {self._options.name: os.getpid()},
        )

    def _tick_age(self) -> float:
        """Seconds since the last heartbeat of the worker, writer or process of jobs that is most behind.

        Those that are starting have none.
        """
        counters = self._supervisor.counters
        beats = [counters.last_beat(number) for number in range(len(counters))]
        return max(0.0, monotonic() - min((beat for beat in beats if beat), default=monotonic()))

    def _other_workers(self) -> list[bytes]:
        counters = self._supervisor.counters
        others = [counters.read(number) for number in range(len(counters)) if number != self._options.number]
        return [self._earlier_counts, *others]

    def _publish_metrics(self) -> None:
        """Publish the numbers of this worker, and of its earlier processes, for the others."""
        samples = add_samples([read_worker(self._sources), decode_samples(self._earlier_counts)])
        self._supervisor.counters.publish(self._options.number, encode_samples(samples))

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
            self._supervisor.report("reloaded")

    async def _reload_settings(self) -> None:
        directory = self._installation.directory
        config = await asyncio.to_thread(Config.load, directory, os.environ)
        server_identity = await asyncio.to_thread(load_identity, directory, config)
        context = (
            await asyncio.to_thread(load_tls_context, directory, config, server_identity.key) if self._http else None
        )
        logo = await asyncio.to_thread(load_logo, directory, config) if self._http else None
        self._log = await asyncio.to_thread(
            logs.configure, self._options.name, config.log.format, level=config.log.level_number
        )
        native_server, public_resolver = self._create_native_server(config, server_identity)
        self._pools.configure(config)
        self._service.connections.configure(config)
        self._service.native_server, self._service.public_resolver = native_server, public_resolver
        self._open_access_log(config)
        if self._http is not None:
            self._http.configure(
                HttpConfig(
                    config,
                    server_identity,
                    native_server.registry,
                    context,
                    self._service.access,
                    native_server.external,
                    logo,
                )
            )
        self._udp.limits = self._udp_limits(config)
        self._udp.configure()
        self._accept_loop.configure()
        self._statistics.enabled = config.statistics.enabled
        self._statistics.partition = native_server.registry.rules.partition
        _logger.info("settings, keys, certificates and site information were reloaded")

    def _open_access_log(self, config: Config) -> None:
        self._access.flush()  # directly before it is replaced, so that no line is lost
        self._access = AccessLog(self._log)
        self._service.access = self._access if config.log.access else None
        self._udp.access = self._access if config.log.access_udp else None


def _open_installation(options: WorkerOptions) -> Installation:
    """Open the installation; on a full disk, or without its database, for public resolution only."""
    directory = Path(options.directory)

    def open_ledger(log: Log, answers: Path) -> RemoteLedger:
        compiled = not PROBLEM and Config.load(directory, os.environ).native.compiled
        return RemoteLedger(log, AnswersReader(answers, compiled=compiled), Path(options.state))

    try:
        return Installation.open(directory, accept_clock=options.accept_clock, open_ledger=open_ledger)
    except (StorageFull, DatabaseUnreachable) as problem:
        return Installation.open_without_ledger(directory, problem)


def main(text: str) -> int:
    """Run a worker process."""
    sys.setswitchinterval(SWITCH_SECONDS)
    options = parse_options(WorkerOptions, text)
    supervisor = SupervisorLink(options)
    with ExitStack() as stack:
        with supervisor.starting():
            if options.is_first and not supervisor.wait_for_writer():
                return 0
            try:
                installation = stack.enter_context(_open_installation(options))
                worker = Worker(options, installation, supervisor)
            except _STARTUP_ERRORS as problem:
                supervisor.report("problem", str(problem))
                return 1
        gc.collect()
        gc.freeze()  # these objects live as long as the process; do not scan them again
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(worker.run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
