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
from perseid.registry.installation.certificates import CertificateProblem, find_or_make
from perseid.registry.installation.setting_http import Listen
from perseid.registry.installation.settings import Config
from perseid.registry.registry import Registry
from perseid.server.http.auth.session_table import SessionTable
from perseid.server.http.connection.connection import Connection
from perseid.server.http.connection.listener import Front
from perseid.server.http.connection.manager import Keeping, Times
from perseid.server.http.connection.tls_handshake import server_context
from perseid.server.http.resolver.fast_path import Fast
from perseid.server.http.v1.state import ApiState
from perseid.server.limits.udp import Networks
from perseid.server.native.service import NativeService
from perseid.server.native.steps import Kind, Work
from perseid.server.observe.access_log import AccessLog
from perseid.server.processes.site_settings import Identified

from .clients import Peer
from .context import HttpSettings, Place, Verdict, suggestion_budget
from .context import by as judged_by
from .messages import Client
from .service import HttpService, Observed, Observing

DONE = "done"
"""What came of a handshake that was made, beside the words of `tls_handshake.Failure`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Installed:
    """What settings and files say; made anew when they are read again."""

    config: Config
    identified: Identified
    registry: Registry
    context: SSL.Context | None
    """With which certificate TLS is spoken; None if it is not."""
    access: AccessLog | None


class HttpServing:
    """All of HTTP in the control process."""

    def __init__(
        self,
        listener: socket.socket,
        native: NativeService,
        view: AnswersReader,
        installed: Installed,
        ready: Callable[[], str],
    ) -> None:
        """Serve at a listening socket, beside the native protocol, whose pools, counters and limits are shared."""
        self._native, self._view, self._ready = native, view, ready
        self._sessions, self._suggesting, self._api = SessionTable(), suggestion_budget(), ApiState()
        self._judge = judged_by(native.pools)
        self._trusted = Networks(())
        self.keeping = Keeping(limited=native.counts.limited)
        self._observing = Observing(HttpService(self._place(installed)), native.counts)
        self.front = Front(
            listener,
            native.connections,
            native.counts,
            make=self._connection,
            work=self._greet,
            context=installed.context,
        )
        self.configure(installed)

    def configure(self, installed: Installed) -> None:
        """Take what settings and files say now."""
        config = installed.config
        place = self._place(installed)
        self._api.rules = installed.registry.rules
        self._trusted = Networks(config.http_trusted_proxies)
        self.keeping.times = Times(body=config.limits_message_time, take=config.limits_take_time)
        self.keeping.unfinished.limit = config.limits_tcp_unfinished_octets
        self.front.context, self.front.listen = installed.context, config.http_listen
        self._observing.service.place = place
        self._observing.access = installed.access
        site = installed.identified.answering_settings()
        self._observing.fast = Fast(self._view, site, place.settings, place.time)
        self._observing.most = config.limits_http_at_once
        self._observing.exempt = Networks(config.limits_exempt_networks)

    # Life

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let clients in."""
        self.front.start(loop)

    def look_after(self) -> None:
        """What is done once a second."""
        self.front.look_after()
        self.keeping.look_after()
        self._observing.taken.clear()

    def tidy(self) -> None:
        """What is done once a minute."""
        self._sessions.purge(time(), self._observing.service.place.settings.session_timeout)

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let nobody in any more, and end what has not begun."""
        self._api.stop()
        self.front.stop(loop)
        self.front.drain()
        self.keeping.drain()

    @property
    def in_flight(self) -> int:
        """Connections that have yet to end."""
        return self.front.arriving + self.connections

    # For the metrics

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self.front.kept) + len(self.keeping.open)

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
        answering = Observed(self._observing, host, secure=secure)
        return Connection(answering, self.keeping, peer, ended=partial(self._native.connections.leave, host))

    def _greet(self, call: Callable[[], object], host: str) -> Awaitable[object]:
        return self._native.pools.do(Work(Kind.HANDSHAKE, call), host, Transport.HTTPS)

    def _place(self, installed: Installed) -> Place:
        identified = installed.identified
        return Place(
            registry=installed.registry,
            site=identified.site,
            position=identified.position,
            key=identified.key,
            settings=HttpSettings.of(installed.config),
            do=self._do,
            time=time,
            random=secrets.token_bytes,
            ready=self._ready,
            judge=self._judged,
            sessions=self._sessions,
            suggesting=self._suggesting,
            api=self._api,
            native=self._native,
        )

    def _do(self, work: Work, client: Client) -> Awaitable[object]:
        return self._native.pools.do(work, client.host, _transport(client))

    def _judged(self, verdict: Verdict, client: Client) -> None:
        if not verdict.right:
            self._native.counts.http_failed_proof(_transport(client))
        self._judge(verdict, client)


def context_of(directory: Path, config: Config, key: PrivateKey) -> SSL.Context | None:
    """With which certificate TLS is to be spoken, made if there is none; None if TLS is not to be spoken.

    `key` is the server's own. Raises `CertificateProblem`, which says what to do.
    """
    if not config.http_enabled or config.http_listen is Listen.HTTP:
        return None
    found = find_or_make(directory, config, key)
    if found.made:
        _logger.info("a self-signed certificate for HTTPS was made: %s; %s", found.path, found.made)
    for remark in found.remarks(config, datetime.now(UTC)):
        _logger.warning("%s", remark)
    try:
        return server_context(found.chain, found.key, asks=config.http_client_certificates)
    except SSL.Error as error:
        words = "; ".join(str(entry[-1]) for entry in error.args[0]) if error.args else "no reason is given"
        raise CertificateProblem(f"the certificate in {found.path} cannot be used for TLS: {words}") from None


def _transport(client: Client) -> Transport:
    return Transport.HTTPS if client.secure else Transport.HTTP
