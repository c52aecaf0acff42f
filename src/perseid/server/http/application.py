"""HTTP in the control process: the parts put together, looked after, and put together anew when settings change.

What belongs to connections (those that are open, the sessions, the counters) stays; what follows from settings and
files (the certificate, the forms of URLs, who is trusted) is exchanged at once, for requests and connections that come
later. A connection goes on with the certificate with which it began.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import time

from OpenSSL import SSL

from perseid.ledger.views.answers_reader import AnswersReader
from perseid.records.private_keys import PrivateKey
from perseid.records.site import Transport
from perseid.registry.installation.certificates import CertificateError, find_or_create
from perseid.registry.installation.setting_http import Listen
from perseid.registry.installation.settings import Config
from perseid.registry.registry import Registry
from perseid.server.http.auth.session_table import SessionTable
from perseid.server.http.connection.connection import Connection
from perseid.server.http.connection.listener import HttpListener
from perseid.server.http.connection.manager import ConnectionManager, Timeouts
from perseid.server.http.connection.tls_handshake import make_server_context
from perseid.server.http.resolver.fast_path import FastPath
from perseid.server.http.v1.state import ApiState
from perseid.server.limits.udp import NetworkSet
from perseid.server.native.service import NativeService
from perseid.server.native.steps import Work, WorkKind
from perseid.server.observe.access_log import AccessLog
from perseid.server.processes.site_settings import ServerIdentity

from .clients import Peer
from .context import HttpSettings, ProofResult, ServerContext, make_suggestion_budget
from .context import make_proof_recorder as judged_by
from .messages import Client
from .service import HttpService, MonitoredService, ServiceMonitor

DONE = "done"
"""What came of a handshake that was made, beside the words of `tls_handshake.Failure`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """What settings and files say; made anew when they are read again."""

    config: Config
    server_identity: ServerIdentity
    registry: Registry
    context: SSL.Context | None
    """With which certificate TLS is spoken; None if it is not."""
    access: AccessLog | None


class HttpServer:
    """All of HTTP in the control process."""

    def __init__(
        self,
        listener: socket.socket,
        native: NativeService,
        view: AnswersReader,
        installed: HttpConfig,
        ready: Callable[[], str],
    ) -> None:
        """Serve at a listening socket, beside the native protocol, whose pools, counters and limits are shared."""
        self._native, self._view, self._ready = native, view, ready
        self._sessions, self._suggestion_budget, self._api = SessionTable(), make_suggestion_budget(), ApiState()
        self._record_proof = judged_by(native.pools)
        self._trusted = NetworkSet(())
        self.manager = ConnectionManager(limited=native.counts.limited)
        self._observing = ServiceMonitor(HttpService(self._place(installed)), native.counts)
        self.front = HttpListener(
            listener,
            native.connections,
            native.counts,
            make=self._connection,
            work=self._run_handshake,
            context=installed.context,
        )
        self.configure(installed)

    def configure(self, installed: HttpConfig) -> None:
        """Take what settings and files say now."""
        config = installed.config
        place = self._place(installed)
        self._api.rules = installed.registry.rules
        self._trusted = NetworkSet(config.http_trusted_proxies)
        self.manager.times = Timeouts(body=config.limits_message_time, take=config.limits_take_time)
        self.manager.unfinished.limit = config.limits_tcp_unfinished_octets
        self.front.context, self.front.listen = installed.context, config.http_listen
        self._observing.service.place = place
        self._observing.access = installed.access
        site = installed.server_identity.resolution_settings()
        self._observing.fast = FastPath(self._view, site, place.settings, place.time)
        self._observing.most = config.limits_http_at_once
        self._observing.exempt = NetworkSet(config.limits_exempt_networks)

    # Life

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let clients in."""
        self.front.start(loop)

    def check_deadlines(self) -> None:
        """What is done once a second."""
        self.front.check_deadlines()
        self.manager.check_deadlines()
        self._observing.taken.clear()

    def purge_expired(self) -> None:
        """What is done once a minute."""
        self._sessions.purge(time(), self._observing.service.place.settings.session_timeout)

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let nobody in any more, and end what has not begun."""
        self._api.stop()
        self.front.stop(loop)
        self.front.drain()
        self.manager.drain()

    @property
    def in_flight(self) -> int:
        """Connections that have yet to end."""
        return self.front.attaching + self.connections

    # For the metrics

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self.front.pending) + len(self.manager.open)

    @property
    def sessions(self) -> int:
        """Sessions that were begun over HTTP."""
        return len(self._sessions)

    def handshakes(self) -> Mapping[str, int]:
        """TLS handshakes by what came of them."""
        failures = {str(failure): count for failure, count in self.front.failures.copy().items()}
        return {DONE: self.front.handshakes, **failures}

    # What the parts are given

    def _connection(self, host: str, *, secure: bool, certificate: bytes | None) -> Connection:
        peer = Peer(host, secure, certificate, self._trusted)
        answering = MonitoredService(self._observing, host, secure=secure)
        return Connection(answering, self.manager, peer, ended=partial(self._native.connections.leave, host))

    def _run_handshake(self, call: Callable[[], object], host: str) -> Awaitable[object]:
        return self._native.pools.do(Work(WorkKind.HANDSHAKE, call), host, Transport.HTTPS)

    def _place(self, installed: HttpConfig) -> ServerContext:
        server_identity = installed.server_identity
        return ServerContext(
            registry=installed.registry,
            site=server_identity.site,
            position=server_identity.position,
            key=server_identity.key,
            settings=HttpSettings.of(installed.config),
            do=self._do,
            time=time,
            random=secrets.token_bytes,
            ready=self._ready,
            record_proof=self._count_proof,
            sessions=self._sessions,
            suggestion_budget=self._suggestion_budget,
            api=self._api,
            native=self._native,
        )

    def _do(self, work: Work, client: Client) -> Awaitable[object]:
        return self._native.pools.do(work, client.host, _transport(client))

    def _count_proof(self, verdict: ProofResult, client: Client) -> None:
        if not verdict.succeeded:
            self._native.counts.count_http_failed_proof(_transport(client))
        self._record_proof(verdict, client)


def load_tls_context(directory: Path, config: Config, key: PrivateKey) -> SSL.Context | None:
    """With which certificate TLS is to be spoken, made if there is none; None if TLS is not to be spoken.

    `key` is the server's own. Raises `CertificateProblem`, which says what to do.
    """
    if not config.http_enabled or config.http_listen is Listen.HTTP:
        return None
    found = find_or_create(directory, config, key)
    if found.made:
        _logger.info("a self-signed certificate for HTTPS was made: %s; %s", found.path, found.made)
    for remark in found.remarks(config, datetime.now(UTC)):
        _logger.warning("%s", remark)
    try:
        return make_server_context(found.chain, found.key, request_certificate=config.http_client_certificates)
    except SSL.Error as error:
        words = "; ".join(str(entry[-1]) for entry in error.args[0]) if error.args else "no reason is given"
        raise CertificateError(f"the certificate in {found.path} cannot be used for TLS: {words}") from None


def _transport(client: Client) -> Transport:
    return Transport.HTTPS if client.secure else Transport.HTTP
