"""A listener in a thread with a small line protocol inside, and clients that use the standard module `ssl`.

The inner protocol reads lines: `who`, `echo TEXT`, `big OCTETS`, `pause`, `finish`, `close`; see `LineProtocol`.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias, TypeVar, cast

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_der_private_key
from cryptography.x509.oid import NameOID
from OpenSSL import SSL

from perseid.records.private_keys import PrivateKey
from perseid.registry.installation.certificates import create_self_signed
from perseid.registry.installation.sections import Listen
from perseid.registry.installation.settings import Config
from perseid.server.http.connection.listener import HttpListener
from perseid.server.http.connection.tls import make_server_context
from perseid.server.limits.budgets import Connections
from perseid.server.observe.metrics import WorkerCounters
from tests.wire.key_material import DSA_KEY, RSA_KEY, SERVER_KEY

T = TypeVar("T")

PATIENCE: Final = 60.0
"""Seconds after which something that should happen has not."""

ClientKey: TypeAlias = rsa.RSAPrivateKey | dsa.DSAPrivateKey | ec.EllipticCurvePrivateKey

BOTH_VERSIONS: Final = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


def tls_key(key: PrivateKey) -> Any:
    """A recorded key of the `cryptography` library."""
    return load_der_private_key(key.to_pkcs8(), None)


@cache
def client_key(kind: str) -> ClientKey:
    """A client key, created or recorded once for all tests."""
    if kind == "dsa":
        return cast("ClientKey", tls_key(DSA_KEY))
    if kind == "recorded":
        return cast("ClientKey", tls_key(RSA_KEY))
    if kind == "ec":
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(65_537, int(kind.removeprefix("rsa")))


@cache
def context_of_server(key: PrivateKey = SERVER_KEY) -> SSL.Context:
    """The server context, with a certificate for one of the recorded keys."""
    made = tls_key(key)
    return make_server_context([create_self_signed(made, ("localhost", "127.0.0.1", "::1"))], made)


def client_certificate(key: ClientKey, identity: str, issuer: ClientKey | None = None) -> x509.Certificate:
    """A certificate as clients of the Handle System have it: for an identity, expired, self-signed."""
    subject = x509.Name([x509.NameAttribute(NameOID.USER_ID, identity)])
    signed_by = subject if issuer is None else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody else")])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signed_by)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2001, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2002, 1, 1, tzinfo=UTC))
    )
    return made.sign(issuer or key, hashes.SHA256())


def pem(certificate: x509.Certificate, key: ClientKey) -> bytes:
    """Certificate and key in one file."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)


def client_context(
    version: ssl.TLSVersion | None = None,
    key: ClientKey | None = None,
    certificate: x509.Certificate | None = None,
    *,
    identity: str = "300:0.NA/12345",
) -> ssl.SSLContext:
    """A client context that does not verify the server; with a key it has a certificate."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    made.set_ciphers("ALL:@SECLEVEL=0")  # as old clients are
    if version is not None:
        made.minimum_version = made.maximum_version = version
    if key is not None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "client.pem"
            path.write_bytes(pem(certificate or client_certificate(key, identity), key))
            made.load_cert_chain(path)
    return made


class LineProtocol(asyncio.Protocol):
    """The protocol inside the listener."""

    def __init__(self, behind: "RunningListener", host: str, secure: bool, certificate: bytes | None) -> None:
        self._behind = behind
        self.host, self.secure, self.certificate = host, secure, certificate
        self.transport: asyncio.Transport | None = None
        self.came = b""
        self.taken = 0
        """Octets that have come in all."""
        self.paused = False
        self.ended = self.lost = False
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._behind.open.append(self)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.taken += len(data)
        *lines, self.came = (self.came + data).split(b"\n")
        for line in lines:
            self._obey(line, self.transport)

    def _obey(self, line: bytes, transport: asyncio.Transport) -> None:
        command, _, rest = line.partition(b" ")
        if command == b"who":
            shown = "none" if self.certificate is None else sha256(self.certificate).hexdigest()
            transport.write(f"{self.host} {self.secure} {shown}\n".encode())
        elif command == b"echo":
            transport.write(rest + b"\n")
        elif command == b"big":
            transport.write(big(int(rest)))
        elif command == b"pause":
            self.paused = True
            transport.pause_reading()
        elif command == b"finish":
            transport.write(b"all\n")
            transport.write_eof()
        elif command == b"close":
            transport.write(b"bye\n")
            transport.close()

    def eof_received(self) -> bool:
        self.ended = True
        if self._behind.answers_after_the_end and self.transport is not None:
            self.transport.write(b"late\n")
            self.transport.close()
            return True
        return False

    def connection_lost(self, _: Exception | None) -> None:
        self.lost = True
        self._behind.gone(self.host)

    def cut(self) -> None:
        """Close the connection immediately."""
        if not self.lost and self.transport is not None:
            self.transport.abort()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True


def big(octets: int) -> bytes:
    """This many bytes, no two positions alike."""
    return (b"%07d " * (octets // 8 + 1) % tuple(range(octets // 8 + 1)))[:octets]


@dataclass
class RunningListener:
    """A running listener and its connections."""

    loop: asyncio.AbstractEventLoop
    front: HttpListener
    address: tuple[str, int]
    counts: WorkerCounters
    open: list[LineProtocol] = field(default_factory=list)
    """All that were made."""
    answers_after_the_end: bool = False
    delays: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Each step of a handshake waits for the first of them."""

    def gone(self, host: str) -> None:
        self.front.connections.leave(host)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in the event loop."""

        async def run() -> T:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE)

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until a condition holds in the event loop."""

        async def wait() -> None:
            while not holds():  # noqa: ASYNC110 - it may be anything
                await asyncio.sleep(0.002)

        try:
            asyncio.run_coroutine_threadsafe(wait(), self.loop).result(PATIENCE)
        except TimeoutError:
            raise AssertionError(f"not within {PATIENCE:.0f} s: {what}") from None

    def later(self, seconds: float) -> None:
        """Check deadlines as if this much time had passed."""

        def look() -> None:
            now = self.front.now
            moment = now() + seconds
            self.front.now = lambda: moment
            self.front.check_deadlines()
            self.front.now = now

        self.call(look)

    @property
    def failures(self) -> dict[str, int]:
        return {str(failure): count for failure, count in self.front.failures.items()}


class _Running:
    """A listener in its own event loop."""

    def __init__(self, listener: socket.socket, context: SSL.Context, listen: Listen, config: Config) -> None:
        self._listener, self._context, self._listen, self._config = listener, context, listen, config
        self.ready = threading.Event()
        self.behind: RunningListener | None = None
        self._stop: asyncio.Event | None = None

    def run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(self._serve(), 3 * PATIENCE))

    def stop(self) -> None:
        assert self.behind is not None
        assert self._stop is not None
        self.behind.call(self._stop.set)

    async def _serve(self) -> None:
        loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        counts = WorkerCounters()

        async def work(call: Callable[[], object], _: str) -> object:
            if behind.delays:
                await behind.delays.pop(0)()
            return await loop.run_in_executor(None, call)

        def make(host: str, *, secure: bool, certificate: bytes | None) -> asyncio.Protocol:
            return LineProtocol(behind, host, secure, certificate)

        front = HttpListener(
            Connections(self._config),
            counts,
            make=make,
            work=work,
            context=self._context,
            listen=self._listen,
        )
        self.behind = behind = RunningListener(loop, front, self._listener.getsockname()[:2], counts)
        front.start(loop, self._listener)
        self.ready.set()
        await self._stop.wait()
        front.stop(loop, self._listener)
        for one in list(front.pending):
            one.cut()
        for small in behind.open:
            small.cut()
        while len(front.connections):  # noqa: ASYNC110 - many end, each in its own way
            await asyncio.sleep(0.002)


@contextmanager
def run_listener(
    *, context: SSL.Context | None = None, listen: Listen = "both", host: str = "127.0.0.1", **settings: str
) -> Iterator[RunningListener]:
    """A listener on a free port, in a thread; at the end no connection may be left."""
    config = Config.parse("", {f"PERSEID_{name}": value for name, value in settings.items()})
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as listener:
        running = _Running(listener, context or context_of_server(), listen, config)
        thread = threading.Thread(target=running.run)
        thread.start()
        try:
            assert running.ready.wait(PATIENCE)
            assert running.behind is not None
            yield running.behind
        finally:
            running.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()


@contextmanager
def plain_client(address: tuple[str, int]) -> Iterator[socket.socket]:
    """A TCP connection."""
    with socket.create_connection(address, PATIENCE) as client:
        yield client


@contextmanager
def tls_client(address: tuple[str, int], context: ssl.SSLContext, **options: Any) -> Iterator[ssl.SSLSocket]:
    """A TLS connection."""
    with socket.create_connection(address, PATIENCE) as client, context.wrap_socket(client, **options) as wrapped:
        yield wrapped


def line_from(client: socket.socket) -> str:
    """The next line."""
    octets = b""
    while not octets.endswith(b"\n"):
        octet = client.recv(1)
        if not octet:
            raise EOFError(octets)
        octets += octet
    return octets.decode().strip()


def ask(client: socket.socket, line: str) -> str:
    """Send a line and read one."""
    client.sendall(line.encode() + b"\n")
    return line_from(client)


def read_all(client: socket.socket) -> bytes:
    """Read until the end."""
    octets = bytearray()
    with suppress(ConnectionResetError):
        while part := client.recv(65_536):
            octets += part
    return bytes(octets)
