"""Blocking HTTP connections, kept open and shared by threads, on the standard library: it loads quickly.

A transport opens the response to one request; `Client` and `AsyncClient` read it. `api_async` has the other one.
"""

import os
import select
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from errno import ECONNREFUSED
from http.client import BadStatusLine, HTTPConnection, HTTPException, RemoteDisconnected
from http.client import HTTPResponse as WireResponse
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from .api_exchange import Failure, HttpRequest, NoResponse, Origin, Upload
from .connections import LookupTimeout, open_stream

MAX_IDLE: Final = 16
"""Connections that are kept open without a request: more than the threads of most programs."""

IDLE_SECONDS: Final = 5.0
"""Seconds that a connection is kept: servers and firewalls close idle ones, and a request is then lost."""

RECEIVE_SIZE: Final = 65_536
"""Bytes read at a time."""


@dataclass(frozen=True, slots=True)
class ResponseStream:
    """A response whose body is still to be read; the names of headers are in lowercase."""

    status: int
    headers: dict[str, str]
    pieces: Iterator[bytes]
    """The body. Raises `NoResponse` if it ends too early."""


class Transport(Protocol):
    """How requests are sent."""

    def open(self, request: HttpRequest, timeout: float) -> AbstractContextManager[ResponseStream]:
        """Send a request, and wait some seconds for each part of its response; raises `NoResponse`."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy."""

    host: str
    port: int
    headers: dict[str, str] = field(repr=False)
    """They may contain a password."""

    @classmethod
    def parse(cls, url: str) -> "Proxy":
        """Parse `http://HOST:PORT`, with `USER:PASSWORD@` if it needs them; raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url.rpartition('@')[2]!r} is not the URL of a proxy. Use http://HOST:PORT")
        headers = {}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            headers["Proxy-Authorization"] = f"Basic {b64encode(pair).decode()}"
        return cls(parts.hostname, parts.port or 80, headers)


class Connections:
    """The connections to one server."""

    def __init__(self, origin: Origin, context: ssl.SSLContext | None, proxy: Proxy | None) -> None:
        """`context` is for HTTPS."""
        self._origin, self._context, self._proxy = origin, context, proxy
        self._idle: list[tuple[HTTPConnection, float]] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def open(self, request: HttpRequest, timeout: float) -> Iterator[ResponseStream]:
        """Send a request over a kept connection, or a new one."""
        connection = self._take() or self._connect(timeout)
        response: WireResponse | None = None
        try:
            response = self._send(connection, request, timeout)
            headers = {name.lower(): value for name, value in response.getheaders()}
            yield ResponseStream(response.status, headers, _read(response, timeout))
        finally:
            is_complete = response is not None and response.isclosed() and not response.length
            if response is not None:
                response.close()
            if is_complete and connection.sock is not None:
                self._keep(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the connections; those in use are closed after their response."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _send(self, connection: HTTPConnection, request: HttpRequest, timeout: float) -> WireResponse:
        target, headers = "/" + request.url.split("/", 3)[3], dict(request.headers)
        if self._proxy is not None and self._context is None:  # the proxy itself reads the request
            target = request.url
            headers |= self._proxy.headers
        try:
            connection.sock.settimeout(timeout)
            try:
                connection.request(request.method, target, request.body or None, headers)
            except (BrokenPipeError, ConnectionResetError):
                if not isinstance(request.body, Upload):
                    raise
                # The server may have refused the file before its end: the response says why.
            return connection.getresponse()
        except (OSError, HTTPException) as error:
            raise NoResponse(describe_failure(error, timeout)) from error

    def _take(self) -> HTTPConnection | None:
        """A kept connection that is still open."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, kept = self._idle.pop()
            if time.monotonic() - kept < IDLE_SECONDS and not _is_readable(connection):
                return connection
            connection.close()

    def _keep(self, connection: HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def _connect(self, timeout: float) -> HTTPConnection:
        origin, proxy = self._origin, self._proxy
        connection = HTTPConnection(origin.host, origin.port)
        connection.default_port = 443 if origin.is_https else 80  # the Host field does not name it
        connection.auto_open = 0
        try:
            if proxy is None:
                connection.sock = open_stream(origin.host, origin.port, timeout)
            elif self._context is None:
                connection.sock = open_stream(proxy.host, proxy.port, timeout)
            else:
                connection.set_tunnel(origin.host, origin.port, proxy.headers)
                connection.sock = open_stream(proxy.host, proxy.port, timeout)
                connection._tunnel()  # type: ignore[attr-defined] # noqa: SLF001 - what `connect` does
            if self._context is not None:
                connection.sock = self._context.wrap_socket(connection.sock, server_hostname=origin.host)
        except (OSError, HTTPException) as error:
            connection.close()
            raise NoResponse(describe_failure(error, timeout, sent=False)) from error
        except BaseException:
            connection.close()
            raise
        return connection


def _read(response: WireResponse, timeout: float) -> Iterator[bytes]:
    try:
        while piece := response.read1(RECEIVE_SIZE):
            yield piece
        if response.length:
            raise NoResponse(Failure("the connection ended in the middle of the response"))
        response.close()
    except (OSError, HTTPException) as error:
        raise NoResponse(describe_failure(error, timeout)) from error


def _is_readable(connection: HTTPConnection) -> bool:
    """Whether the server has closed an idle connection, or sent what nobody asked for."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def describe_failure(error: BaseException, timeout: float, *, sent: bool = True) -> Failure:
    """Describe why there is no response."""
    causes = list(_find_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            advice = "Use ca_file with the certificate of the server, or fingerprint"
            reason = f"its certificate is not trusted ({cause.verify_message})"
            return Failure(reason, sent=False, advice=advice, final=True)
        if isinstance(cause, ssl.SSLError) and not sent:
            reason = f"no TLS connection ({(cause.reason or 'unknown reason').lower().replace('_', ' ')})"
            return Failure(reason, sent=False, advice="Check the port: it may not be that of HTTPS")
    if isinstance(error, BadStatusLine) and not isinstance(error, RemoteDisconnected):
        return Failure("the answer is not HTTP", advice="Check the port: it may be that of the native protocol")
    if isinstance(error, TimeoutError) and not isinstance(error, LookupTimeout):
        return Failure(f"no answer within {timeout:g} s", sent=sent)
    if any(isinstance(each, OSError) and each.errno == ECONNREFUSED for each in causes):
        return Failure(os.strerror(ECONNREFUSED), sent=sent, advice="Check that the server is running, and its port")
    if not isinstance(error, OSError):  # the first cause says more than the text of a library
        numbers = [each.errno for each in causes if isinstance(each, OSError) and each.errno and each.errno > 0]
        if numbers:
            return Failure(os.strerror(numbers[-1]), sent=sent)
    return Failure(getattr(error, "strerror", None) or str(error) or type(error).__name__, sent=sent)


def _find_causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and the errors that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


# Certificates


def load_authorities(ca_file: Path | None) -> ssl.SSLContext:
    """Trust the certificates of a file, in PEM, or of the system; raises ValueError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise ValueError(f"ca_file {ca_file} has no certificates in PEM") from error
    except OSError as error:
        raise ValueError(f"Cannot read ca_file {ca_file}: {error.strerror}") from error


def load_certificate(context: ssl.SSLContext, file: Path) -> None:
    """Use the certificate and private key of a file, in PEM; raises ValueError."""
    try:
        context.load_cert_chain(file, password=lambda: "")  # otherwise it asks at the terminal
    except ssl.SSLError as error:
        raise ValueError(
            f"certificate {file} does not have a certificate and its private key without a passphrase, in PEM"
        ) from error
    except OSError as error:
        raise ValueError(f"Cannot read certificate {file}: {error.strerror}") from error


def read_certificate(host: str, port: int, timeout: float) -> bytes:
    """Return the certificate (DER) that a server shows, trusted or not; raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with open_stream(host, port, timeout) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
        return tls.getpeercert(binary_form=True) or b""
