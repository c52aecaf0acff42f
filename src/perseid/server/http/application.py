"""HTTP in a worker: setup, periodic tasks and reloading of settings.

Connections, sessions and counters survive a reload. What depends on settings and files (certificate, URL forms,
trusted networks) is replaced for later requests and connections; an open connection keeps its certificate.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Final

from OpenSSL import SSL

from perseid.ledger.views.answers_reader import AnswersReader
from perseid.records.private_keys import PrivateKey
from perseid.records.site import Transport
from perseid.registry.installation.certificates import CertificateError, find_or_create
from perseid.registry.installation.logo import Logo
from perseid.registry.installation.settings import Config
from perseid.registry.registry import Registry
from perseid.server.http.auth.session_table import SessionTable
from perseid.server.http.auth.web_sessions import WebSessions
from perseid.server.http.connection.connection import Connection
from perseid.server.http.connection.listener import ConnectionManager, HttpListener, Timeouts
from perseid.server.http.connection.tls import make_server_context
from perseid.server.http.resolver.fast_path import FastPath
from perseid.server.http.v1.job_events import Listeners
from perseid.server.http.v1.state import ApiState, RateLimiter, SharedClaims
from perseid.server.limits.buckets import Buckets
from perseid.server.limits.turns import Turns
from perseid.server.limits.udp import NetworkSet
from perseid.server.native.service import NativeService
from perseid.server.native.work import Work, WorkKind
from perseid.server.observe.access_log import AccessLog
from perseid.server.processes.site_settings import ServerIdentity
from perseid.server.state.jobs import RunningJobs
from perseid.server.state.state import SharedState

from .clients import Peer
from .context import HttpSettings, ProofResult, ServerContext, make_proof_recorder, make_suggestion_budget
from .messages import Client
from .service import HttpService, MonitoredService, ServiceMonitor

if TYPE_CHECKING:
    from perseid.server.native.external import ExternalIdentities

DONE = "done"
"""The outcome of a successful handshake in metrics, besides the values of `tls.HandshakeFailure`."""

FAST_SLOTS: Final = 1 << 17
"""Words for the limits of fast responses by address, two for each: 1 MiB."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Settings and files that HTTP uses; replaced on reload."""

    config: Config
    server_identity: ServerIdentity
    registry: Registry
    context: SSL.Context | None
    """The TLS context; None if TLS is disabled."""
    access: AccessLog | None
    external: "ExternalIdentities | None" = None
    """Asks other servers about identities; shared with the native protocol."""
    logo: Logo | None = None
    """The logo of the service."""


class HttpServer:
    """The HTTP server of a worker."""

    def __init__(
        self,
        native: NativeService,
        view: AnswersReader,
        installed: HttpConfig,
        ready: Callable[[], str],
        state: SharedState,
        jobs: RunningJobs,
    ) -> None:
        """Share pools, counters and limits with the native protocol."""
        self._native, self._view, self._ready = native, view, ready
        self._sessions, self._suggestion_budget = SessionTable(state), make_suggestion_budget(state)
        self._web_sessions = WebSessions(state)
        self._api = ApiState(RateLimiter.shared(state), SharedClaims(state), jobs, Listeners(state))
        self._turns = Turns()
        self._record_proof = make_proof_recorder(native.pools)
        self._trusted = NetworkSet(())
        self.manager = ConnectionManager(count_limit=native.counts.count_limit)
        self._monitor = ServiceMonitor(
            HttpService(self._server_context(installed)),
            native.counts,
            buckets=Buckets.shared(state, "http_limits", FAST_SLOTS),
        )
        self.front = HttpListener(
            native.connections,
            native.counts,
            make=self._connection,
            work=self._run_handshake,
            context=installed.context,
        )
        self.configure(installed)

    def configure(self, installed: HttpConfig) -> None:
        """Apply the current settings and files."""
        config = installed.config
        server = self._server_context(installed)
        self._trusted = NetworkSet(config.http.trusted_proxies)
        self.manager.times = Timeouts(body=config.limits.message_time, take=config.limits.take_time)
        self.manager.unfinished.limit = self._native.connections.unfinished.limit
        self.front.context, self.front.listen = installed.context, config.http.listen
        self._monitor.service.server = server
        self._monitor.access = installed.access
        site = installed.server_identity.resolution_settings()
        self._monitor.fast = FastPath(self._view, site, server.settings, server.time)
        self._monitor.limit_fast(config.limits.http_at_once)
        self._monitor.exempt = NetworkSet(config.limits.exempt_networks)

    # Lifecycle

    def load(self) -> None:
        """Load the handlers of what the fast path does not answer; if the process was forked with them, do nothing."""
        from . import dispatch as dispatch  # noqa: PLC0414, PLC0415 - the server starts in less time without
        from .console.application import get_router  # noqa: PLC0415
        from .v1.application import get_api  # noqa: PLC0415

        get_api()
        get_router()

    def check_deadlines(self) -> None:
        """Close what is overdue; called once per second."""
        self.front.check_deadlines()
        self.manager.check_deadlines()
        self._monitor.end_second()

    def drain(self) -> None:
        """End connections without a request in progress, and the others after their response."""
        self._api.stop()
        self.front.drain()
        self.manager.drain()

    @property
    def in_flight(self) -> int:
        """Connections that have not ended yet."""
        return self.front.attaching + self.connections

    # For the metrics

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self.front.pending) + len(self.manager.open)

    @property
    def sessions(self) -> int:
        """Sessions started over HTTP."""
        return len(self._sessions)

    def handshakes(self) -> Mapping[str, int]:
        """TLS handshakes by outcome."""
        failures = {str(failure): count for failure, count in self.front.failures.copy().items()}
        return {DONE: self.front.handshakes, **failures}

    # Factories and callbacks of the parts

    def _connection(self, host: str, *, secure: bool, certificate: bytes | None) -> Connection:
        peer = Peer(host, secure, certificate, self._trusted)
        answering = MonitoredService(self._monitor, host, secure=secure)
        return Connection(answering, self.manager, peer, ended=partial(self._native.connections.leave, host))

    def _run_handshake(self, call: Callable[[], object], host: str) -> Awaitable[object]:
        return self._native.pools.do(Work(WorkKind.HANDSHAKE, call), host, Transport.HTTPS)

    def _server_context(self, installed: HttpConfig) -> ServerContext:
        server_identity = installed.server_identity
        return ServerContext(
            registry=installed.registry,
            site=server_identity.site,
            position=server_identity.position,
            key=server_identity.key,
            settings=HttpSettings.of(installed.config, installed.logo),
            do=self._do,
            time=time,
            random=secrets.token_bytes,
            ready=self._ready,
            record_proof=self._count_proof,
            sessions=self._sessions,
            web_sessions=self._web_sessions,
            suggestion_budget=self._suggestion_budget,
            turns=self._turns,
            api=self._api,
            external=installed.external,
            native=self._native,
        )

    def _do(self, work: Work, client: Client) -> Awaitable[object]:
        return self._native.pools.do(work, client.host, _transport(client))

    def _count_proof(self, result: ProofResult, client: Client) -> None:
        if result.succeeded is False:
            self._native.counts.count_http_failed_proof(_transport(client))
        self._record_proof(result, client)


def load_tls_context(directory: Path, config: Config, key: PrivateKey) -> SSL.Context | None:
    """Load the TLS context, creating a self-signed certificate if there is none; None if TLS is disabled.

    `key` is the server's own key. Raises `CertificateError`.
    """
    if not config.http.enabled or config.http.listen == "http":
        return None
    certificate = find_or_create(directory, config, key)
    if certificate.made:
        _logger.info("created a self-signed certificate for HTTPS: %s; %s", certificate.path, certificate.made)
    for remark in certificate.remarks(config, datetime.now(UTC)):
        _logger.warning("%s", remark)
    try:
        return make_server_context(
            certificate.chain, certificate.key, request_certificate=config.http.client_certificates
        )
    except SSL.Error as error:
        reason = "; ".join(str(entry[-1]) for entry in error.args[0]) if error.args else "unknown reason"
        raise CertificateError(f"the certificate in {certificate.path} cannot be used for TLS: {reason}") from None


def _transport(client: Client) -> Transport:
    return Transport.HTTPS if client.secure else Transport.HTTP
