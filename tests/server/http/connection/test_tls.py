"""TLS: handshakes, client certificates, large responses, shutdown, and hostile clients."""

import asyncio
import socket
import ssl
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from perseid.registry.installation.certificates import create_self_signed
from perseid.server.http.connection.tls import HANDSHAKE_TIMEOUT, MAX_HANDSHAKE_BYTES, make_server_context
from perseid.server.native.decisions import Busy
from tests.server.http.listeners import (
    BOTH_VERSIONS,
    PATIENCE,
    RunningListener,
    ask,
    big,
    client_certificate,
    client_context,
    client_key,
    context_of_server,
    line_from,
    plain_client,
    read_all,
    run_listener,
    tls_client,
    tls_key,
)
from tests.wire.key_material import RSA_KEY, SERVER_KEY

VERSIONS = pytest.mark.parametrize("version", BOTH_VERSIONS, ids=lambda version: version.name)


def _say_on(client: SSL.Connection) -> None:
    client.do_handshake()
    client.sendall(b"who\n")
    client.recv(10)


def identity(running: RunningListener, context: ssl.SSLContext) -> str:
    with tls_client(running.address, context) as client:
        return ask(client, "who")


# Handshakes


@VERSIONS
def test_client_without_certificate(version: ssl.TLSVersion) -> None:
    with run_listener() as running, tls_client(running.address, client_context(version)) as client:
        assert client.version() == version.name.replace("_", ".")
        assert ask(client, "who") == "127.0.0.1 True none"
        assert ask(client, "echo hello") == "hello"
        assert running.front.handshakes == 1
        assert not running.front.pending


@VERSIONS
@pytest.mark.parametrize("kind", ["rsa1024", "rsa2048", "recorded", "ec"])
def test_self_signed_certificate_is_accepted(version: ssl.TLSVersion, kind: str) -> None:
    certificate = client_certificate(client_key(kind), "300:0.NA/12345")
    digest = sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    with run_listener() as running:
        context = client_context(version, client_key(kind), certificate)
        assert identity(running, context) == f"127.0.0.1 True {digest}"


def test_certificate_is_not_requested_if_disabled() -> None:
    key = tls_key(SERVER_KEY)
    quiet = make_server_context([create_self_signed(key, ("localhost",))], key, request_certificate=False)
    with run_listener(context=quiet) as running:
        for version in BOTH_VERSIONS:
            assert identity(running, client_context(version, client_key("ec"))).endswith("none")


def test_dsa_keys_work_with_tls_1_2_only() -> None:
    key = client_key("dsa")
    certificate = client_certificate(key, "300:0.NA/12345")
    digest = sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    with run_listener() as running:
        assert identity(running, client_context(ssl.TLSVersion.TLSv1_2, key, certificate)).endswith(digest)
        assert identity(running, client_context(ssl.TLSVersion.TLSv1_3, key, certificate)).endswith("none")


@VERSIONS
def test_certificate_signed_by_others_is_accepted(version: ssl.TLSVersion) -> None:
    certificate = client_certificate(client_key("ec"), "300:0.NA/12345", issuer=client_key("rsa2048"))
    digest = sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    with run_listener() as running:
        assert identity(running, client_context(version, client_key("ec"), certificate)).endswith(digest)


@VERSIONS
def test_certificate_without_its_key_is_refused(version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture) -> None:
    """The client sends a certificate of another and signs with a different key."""
    caplog.set_level("INFO", "perseid")
    stolen = client_key("rsa2048")
    assert isinstance(stolen, rsa.RSAPrivateKey)
    numbers = stolen.private_numbers()
    wrong = rsa.RSAPrivateNumbers(
        numbers.p, numbers.q, numbers.d - 2, numbers.dmp1 - 2, numbers.dmq1, numbers.iqmp, numbers.public_numbers
    )
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    number = SSL.TLS1_2_VERSION if version is ssl.TLSVersion.TLSv1_2 else SSL.TLS1_3_VERSION
    context.set_min_proto_version(number)
    context.set_max_proto_version(number)
    context.use_certificate(client_certificate(stolen, "300:0.NA/12345"))
    context.use_privatekey(wrong.private_key(unsafe_skip_rsa_key_validation=True))
    with run_listener() as running, plain_client(running.address) as client:
        client.settimeout(None)
        liar = SSL.Connection(context, client)
        liar.set_connect_state()
        with suppress(SSL.Error):
            liar.do_handshake()
            liar.sendall(b"who\n")
            assert not liar.recv(10)
        running.until(lambda: running.failures == {"refused": 1}, "it was refused")
        assert not running.open
    assert "bad signature" in caplog.records[0].getMessage()


@VERSIONS
def test_returning_client_is_asked_for_certificate_again(version: ssl.TLSVersion) -> None:
    """No session is resumed: a ticket from before would prevent the request for a certificate."""
    context = client_context(version)
    certificate = client_certificate(client_key("ec"), "300:0.NA/12345")
    later = client_context(version, client_key("ec"), certificate)
    with run_listener() as running:
        with tls_client(running.address, context) as client:
            assert ask(client, "who").endswith("none")
            session = client.session
        with tls_client(running.address, context, session=session) as client:
            assert ask(client, "who").endswith("none")
            assert not client.session_reused
        assert identity(running, later).endswith(sha256(certificate.public_bytes(Encoding.DER)).hexdigest())


@pytest.mark.parametrize(
    ("offered", "chosen"), [(["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), (["h2"], None), ([], None)]
)
def test_alpn_selects_http_1_1(offered: list[str], chosen: str | None) -> None:
    context = client_context()
    if offered:
        context.set_alpn_protocols(offered)
    with run_listener() as running, tls_client(running.address, context) as client:
        assert client.selected_alpn_protocol() == chosen
        assert ask(client, "echo x") == "x"


def test_handshake_may_arrive_byte_by_byte() -> None:
    with run_listener() as running, plain_client(running.address) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        inside = client_context().wrap_bio(incoming, outgoing)
        for _ in range(10):
            try:
                inside.do_handshake()
            except ssl.SSLWantReadError:
                for octet in outgoing.read():
                    client.sendall(bytes([octet]))
                incoming.write(client.recv(65_536))
            else:
                break
        inside.write(b"echo slowly\n")
        for octet in outgoing.read():
            client.sendall(bytes([octet]))
        answer = b""
        while not answer:
            try:
                answer = inside.read(100)
            except ssl.SSLWantReadError:
                incoming.write(client.recv(65_536))
        assert answer == b"slowly\n"


def test_request_may_arrive_with_end_of_handshake() -> None:
    """Nothing that follows the client's last handshake message, or arrives during a step, is lost."""
    with run_listener() as running, plain_client(running.address) as client:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        inside = client_context(ssl.TLSVersion.TLSv1_3).wrap_bio(incoming, outgoing)
        with pytest.raises(ssl.SSLWantReadError):
            inside.do_handshake()
        client.sendall(outgoing.read())
        while True:
            incoming.write(client.recv(65_536))
            try:
                inside.do_handshake()
            except ssl.SSLWantReadError:
                continue
            break
        inside.write(b"echo first\n")
        client.sendall(outgoing.read())
        answer = b""
        while b"\n" not in answer:
            incoming.write(client.recv(65_536))
            try:
                answer += inside.read(100)
            except ssl.SSLWantReadError:
                continue
        assert answer == b"first\n"


# Failed handshakes


def test_old_tls_versions_are_refused_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "perseid")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it is what the test is about
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with run_listener() as running:
        with pytest.raises(ssl.SSLError), tls_client(running.address, context):
            pass
        running.until(lambda: not len(running.front.connections), "it is gone")
        assert running.failures == {"refused": 1}
    (record,) = caplog.records
    assert record.getMessage() == "TLS handshake failed: unsupported protocol"
    assert record.exc_info is None


def test_client_that_distrusts_the_certificate_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "perseid")
    with run_listener() as running:
        strict = ssl.create_default_context()
        with (
            pytest.raises(ssl.SSLCertVerificationError),
            tls_client(running.address, strict, server_hostname="localhost"),
        ):
            pass
        running.until(lambda: running.failures == {"alert": 1}, "the alert is counted")
    assert [record.getMessage() for record in caplog.records] == ["TLS handshake failed: tlsv1 alert unknown ca"]


@pytest.mark.parametrize(
    "octets",
    [
        b"\x16\x03\x01\x00\x05hello",
        b"\x16" * 100,
        b"\x16\x03\x01\x40\x00" + bytes(0x4000),
        bytes.fromhex("1603010004 0e000000"),
    ],
)
def test_invalid_tls_is_closed(octets: bytes) -> None:
    with run_listener() as running, plain_client(running.address) as client:
        client.sendall(octets)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client)[:1] in (b"", b"\x15")
        running.until(lambda: not len(running.front.connections), "it is gone")
        assert sum(running.failures.values()) == 1


def test_client_that_disconnects_is_counted() -> None:
    with run_listener() as running:
        with plain_client(running.address) as client:
            client.sendall(b"\x16")
            running.until(lambda: running.front.pending, "the handshake has begun")
        running.until(lambda: running.failures == {"gone": 1}, "it has gone")


def test_slow_handshake_is_cut() -> None:
    with run_listener() as running, plain_client(running.address) as client:
        client.sendall(b"\x16\x03\x01\x02\x00")
        running.until(lambda: running.front.pending, "the handshake has begun")
        running.later(HANDSHAKE_TIMEOUT - 1)
        assert not running.failures
        running.later(HANDSHAKE_TIMEOUT + 1)
        assert read_all(client) == b""
        assert running.failures == {"slow": 1}
        assert running.counts.limits() == {"slow_connection": 1}


def test_endless_handshake_is_cut() -> None:
    """Records with parts of a message that would be very long."""
    hello = b"\x01" + (1 << 20).to_bytes(3, "big")
    record = b"\x16\x03\x01" + struct.pack(">H", 1_000) + hello + bytes(996)
    filler = b"\x16\x03\x01" + struct.pack(">H", 1_000) + bytes(1_000)
    with run_listener() as running, plain_client(running.address) as client:
        client.sendall(record)
        try:
            for _ in range(2 * MAX_HANDSHAKE_BYTES // 1_000):
                client.sendall(filler)
        except OSError:
            pass
        read_all(client)
        running.until(lambda: sum(running.failures.values()) == 1, "it has ended")
        assert set(running.failures) <= {"too long", "refused"}


def test_busy_server_closes_handshake() -> None:
    async def refuse() -> None:
        raise Busy

    with run_listener() as running:
        running.delays.append(refuse)
        with pytest.raises((ssl.SSLError, ConnectionResetError)), tls_client(running.address, client_context()):
            pass
        running.until(lambda: running.failures == {"busy": 1}, "it is counted")
        assert identity(running, client_context()).endswith("none")


def test_client_that_disconnects_during_step_leaves_nothing() -> None:
    with run_listener() as running:
        release = running.call(asyncio.Event)

        async def wait() -> None:
            await release.wait()

        running.delays.append(wait)
        with plain_client(running.address) as client:
            inside = client_context().wrap_bio(ssl.MemoryBIO(), outgoing := ssl.MemoryBIO())
            with pytest.raises(ssl.SSLWantReadError):
                inside.do_handshake()
            client.sendall(outgoing.read())
            running.until(lambda: not running.delays, "the step has begun")
            running.later(HANDSHAKE_TIMEOUT + 1)
        running.call(release.set)
        running.until(lambda: not len(running.front.connections), "it is gone")
        assert running.failures == {"slow": 1}
        assert not running.open


def test_failures_are_all_counted_and_few_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "perseid")
    with run_listener() as running:
        for _ in range(80):
            with plain_client(running.address) as client:
                client.sendall(b"\x16\x03\x01\x00\x05hello")
                read_all(client)
        running.until(lambda: sum(running.failures.values()) == 80, "all are counted")
    assert 50 <= len(caplog.records) < 80


def test_renegotiation_is_refused() -> None:
    with run_listener() as running, plain_client(running.address) as client:
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        context.set_max_proto_version(SSL.TLS1_2_VERSION)
        again = SSL.Connection(context, client)
        again.set_connect_state()
        client.settimeout(None)
        again.do_handshake()
        again.sendall(b"echo one\n")
        assert again.recv(10) == b"one\n"
        again.renegotiate()
        with pytest.raises(SSL.Error):
            _say_on(again)


# Data


@VERSIONS
def test_large_response_is_complete(version: ssl.TLSVersion) -> None:
    size = 5_000_001
    with run_listener() as running, tls_client(running.address, client_context(version)) as client:
        client.sendall(b"big %d\nclose\n" % size)
        assert read_all(client) == big(size) + b"bye\n"


@VERSIONS
@pytest.mark.parametrize("together", [False, True], ids=["behind the handshake", "with its last words"])
def test_many_records_may_arrive_at_once(version: ssl.TLSVersion, together: bool) -> None:
    """Many records arrive together; each line in them is executed, in order.

    In TLS 1.3 the client sends the last handshake message and may continue at once; both then arrive in one read.
    """
    lines = b"".join(b"echo %06d\n" % number for number in range(20_000)) + b"close\n"
    # Over memory, for two threads must not use one TLS socket at the same time.
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    speaking = client_context(version).wrap_bio(incoming, outgoing)
    with run_listener() as running, plain_client(running.address) as client:
        while True:
            try:
                speaking.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.sendall(outgoing.read())
                incoming.write(client.recv(65_536))
        if not together:
            client.sendall(outgoing.read())
        speaking.write(lines)
        sender = threading.Thread(target=client.sendall, args=(outgoing.read(),))
        sender.start()
        incoming.write(read_all(client))
        incoming.write_eof()
        sender.join()
        assert not running.failures
        assert b"".join(_decrypted(speaking)) == lines.replace(b"echo ", b"").replace(b"close", b"bye")


def _decrypted(speaking: ssl.SSLObject) -> Iterator[bytes]:
    while True:
        try:
            piece = speaking.read(65_536)
        except ssl.SSLWantReadError:
            return
        if not piece:
            return
        yield piece


def test_slow_client_pauses_writing() -> None:
    """The inner protocol is told to pause writing, and later to resume."""
    with run_listener() as running, tls_client(running.address, client_context()) as client:
        client.sendall(b"big 30000000\n")
        running.until(lambda: running.open and not running.open[0].writable, "it is told to wait")
        left = 30_000_000
        while left:
            left -= len(client.recv(min(left, 65_536)))
        running.until(lambda: running.open[0].writable, "it may go on")
        assert ask(client, "echo still here") == "still here"


def test_paused_reading_pauses_client() -> None:
    with run_listener() as running, tls_client(running.address, client_context()) as client:
        client.sendall(b"pause\n")
        running.until(lambda: running.open and running.open[0].paused, "it reads no more")
        small = running.open[0]
        client.setblocking(False)
        full = 0
        while full < 100:  # nothing more fits between the two, again and again
            try:
                client.send(b"echo 12345678901234567890\n" * 500)
                full = 0
            except ssl.SSLWantWriteError:
                full += 1
                running.call(lambda: None)
        taken = small.taken
        assert taken < 2 << 20
        assert small.transport is not None
        running.call(small.transport.resume_reading)
        running.until(lambda: small.taken > taken, "it reads on")


@VERSIONS
def test_reading_can_pause_between_any_records(version: ssl.TLSVersion) -> None:
    with run_listener() as running, tls_client(running.address, client_context(version)) as client:
        for number in range(20):
            client.sendall(b"pause\n")
            client.sendall(b"echo %d\n" % number)
            running.until(lambda: running.open and running.open[0].paused, "it reads no more")
            small = running.open[0]
            small.paused = False
            assert small.transport is not None
            running.call(small.transport.resume_reading)
            assert line_from(client) == str(number)


# Shutdown


@VERSIONS
def test_close_notify_is_sent(version: ssl.TLSVersion) -> None:
    """It shows that the data was not truncated by others."""
    context = client_context(version)
    with run_listener() as running, tls_client(running.address, context, suppress_ragged_eofs=False) as client:
        client.sendall(b"close\n")
        assert read_all(client) == b"bye\n"
        running.until(lambda: running.open[0].lost, "it is over")


def test_server_reads_after_write_eof() -> None:
    with run_listener() as running, tls_client(running.address, client_context(), suppress_ragged_eofs=False) as client:
        client.sendall(b"finish\n")
        assert read_all(client) == b"all\n"
        client.sendall(b"echo more\n")
        running.until(lambda: running.open[0].taken == 17, "it is read")


@pytest.mark.parametrize("says_so", [True, False])
def test_half_closed_client_gets_response(says_so: bool) -> None:
    """After close_notify, or after a TCP half-close."""
    with run_listener() as running, plain_client(running.address) as client:
        running.answers_after_the_end = True
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        inside = SSL.Connection(context, client)
        client.settimeout(None)
        inside.set_connect_state()
        inside.do_handshake()
        inside.sendall(b"echo x\n")
        assert inside.recv(10) == b"x\n"
        if says_so:
            inside.shutdown()
        else:
            client.shutdown(socket.SHUT_WR)
        assert inside.recv(10) == b"late\n"
        with pytest.raises((SSL.ZeroReturnError, SSL.SysCallError)):
            inside.recv(10)
        running.until(lambda: running.open[0].lost, "it is over")


def test_closed_client_is_removed() -> None:
    with run_listener() as running:
        with tls_client(running.address, client_context()) as client:
            assert ask(client, "echo x") == "x"
        running.until(lambda: running.open[0].lost, "it is gone")
        assert running.open[0].ended
        assert not len(running.front.connections)


@pytest.mark.parametrize("octets", [b"GET / HTTP/1.1\r\n\r\n", b"\x17\x03\x03\x00\x20" + bytes(32), b"\x16" * 64])
def test_invalid_record_ends_connection(octets: bytes) -> None:
    with run_listener() as running, plain_client(running.address) as client:
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        inside = SSL.Connection(context, client)
        client.settimeout(None)
        inside.set_connect_state()
        inside.do_handshake()
        inside.sendall(b"echo x\n")
        assert inside.recv(10) == b"x\n"
        client.settimeout(PATIENCE)
        client.sendall(octets)
        read_all(client)
        running.until(lambda: running.open[0].lost, "it is over")


def test_new_certificate_applies_to_new_connections() -> None:
    with run_listener() as running, tls_client(running.address, client_context()) as first:
        before = first.getpeercert(binary_form=True)
        other = context_of_server(RSA_KEY)

        def change() -> None:
            running.front.context = other

        running.call(change)
        with tls_client(running.address, client_context()) as second:
            assert second.getpeercert(binary_form=True) != before
            assert ask(second, "echo new") == "new"
        assert ask(first, "echo old") == "old"
