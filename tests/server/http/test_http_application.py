"""`perseid serve` over HTTP and HTTPS: one port, its certificate, reloading with SIGHUP, and stopping."""

import base64
import json
import os
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from perseid.records.record import Value
from perseid.registry.installation.certificates import create_self_signed
from perseid.wire.codes import OpCode, ResponseCode
from perseid.wire.framing import MEDIA_TYPE, Frame, HttpResponseReader, http_request
from perseid.wire.message import ENVELOPE_LENGTH, Envelope
from perseid.wire.requests import HandleRequest, Resolve
from tests.registry.installation.server_files import furnish
from tests.server.faults.machine import eventually, named
from tests.server.faults.sources import metrics_page
from tests.server.http.client_certificates import library_key
from tests.server.http.listeners import client_context, plain_client, read_all, tls_client
from tests.server.installations import ADMINISTRATOR, PREFIX, SECRET, copy_to
from tests.server.native.native_client import NativeClient, Via
from tests.server.running import Serving, serve_command, serving
from tests.wire.key_material import DSA_KEY, RSA_KEY

PATIENCE = 30.0
BASIC = {
    "Authorization": "Basic " + base64.b64encode(f"{ADMINISTRATOR.replace(':', '%3A')}:{SECRET}".encode()).decode()
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(copy_to(tmp_path_factory.mktemp("http"))) as server:
        yield server


@contextmanager
def connected(server: Serving, context: ssl.SSLContext | None = None) -> Iterator[HTTPConnection]:
    """A persistent connection: plain, or with a context."""
    host, port = server.http
    if context is None:
        made = HTTPConnection(host, port, timeout=PATIENCE)
    else:
        made = HTTPSConnection(host, port, timeout=PATIENCE, context=context)
    try:
        yield made
    finally:
        made.close()


def ask(connection: HTTPConnection, target: str, method: str = "GET", **options: Any) -> tuple[HTTPResponse, bytes]:
    connection.request(method, target, **options)
    response = connection.getresponse()
    return response, response.read()


def fetched(server: Serving, target: str, context: ssl.SSLContext | None = None, **options: Any) -> tuple[int, bytes]:
    with connected(server, context) as connection:
        response, body = ask(connection, target, **options)
        return response.status, body


def trusting(directory: Path) -> ssl.SSLContext:
    """A client context that verifies a copy of the certificate."""
    made = ssl.create_default_context(cafile=str(directory / "keys" / "https.pem"))
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    return made


def directory_of(server: Serving) -> Path:
    assert isinstance(server.process.args, list)
    return Path(server.process.args[server.process.args.index("-d") + 1])


# One port


def test_http_and_https_share_a_logged_port(running: Serving) -> None:
    assert running.announced["http"] == {"host": "127.0.0.1", "port": running.http[1]}
    for context in (None, client_context(), trusting(directory_of(running))):
        status, body = fetched(running, f"/api/handles/{PREFIX}/n1", context)
        assert status == 200
        assert json.loads(body)["handle"] == f"{PREFIX}/n1"
        with connected(running, context) as connection:
            response, _ = ask(connection, f"/{PREFIX}/n1")
            assert (response.status, response.getheader("Location")) == (302, "https://example.org/1")
            again, _ = ask(connection, f"/hdl/{PREFIX}/n2")
            assert (again.status, again.getheader("Location")) == (302, "https://example.org/2")


def test_certificate_has_key_of_site_information(running: Serving) -> None:
    """Clients of the Handle System compare them byte by byte."""
    with tls_client(running.http, client_context()) as client:
        shown = client.getpeercert(binary_form=True)
    assert shown is not None
    site = json.loads(fetched(running, "/api/site")[1])["site"]
    said = base64.urlsafe_b64decode(site["servers"][0]["publicKey"]["value"]["n"] + "==")
    assert said in shown
    assert {"protocol": "HTTP", "port": 8000, "query": True, "admin": True} in site["servers"][0]["interfaces"]


def test_liveness_and_readiness(running: Serving) -> None:
    assert fetched(running, "/healthz") == (200, b"alive\n")
    assert fetched(running, "/readyz", client_context()) == (200, b"ready\n")
    wanted = {"Accept": "application/json"}
    assert fetched(running, "/healthz", headers=wanted) == (200, b'{"alive": true}\n')
    assert fetched(running, "/readyz", headers=wanted) == (200, b'{"ready": true, "accepts_changes": true}\n')
    assert fetched(running, "/healthz", method="HEAD") == (200, b"")
    assert fetched(running, "/readyz", method="DELETE")[0] == 405


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda each: each.name)
def test_self_signed_client_certificate_authenticates(running: Serving, version: ssl.TLSVersion) -> None:
    user, name = f"{PREFIX}/user-{version.name}", f"{PREFIX}/made-{version.name}"
    with NativeClient(running.native, Via.TCP) as administrator:
        administrator.act_as(ADMINISTRATOR, SECRET)
        key = Value(300, "HS_PUBKEY", RSA_KEY.public.to_bytes())
        assert administrator.create(user, (key,)).code is ResponseCode.SUCCESS
    with connected(running, client_context(version, library_key(RSA_KEY), identity=f"300:{user}")) as connection:
        path, headers = f"/api/handles/{name}", {"Content-Type": "application/json"}
        response, body = ask(connection, path, "PUT", body="[]", headers=headers)
        assert response.status == 403, body  # known, and without the permission
        assert json.loads(body)["responseCode"] == ResponseCode.INVALID_ADMIN
    with connected(running, client_context(version)) as connection:
        response, body = ask(connection, path, "PUT", body="[]", headers=headers)
        assert response.status == 401
    with connected(running, client_context(version, library_key(RSA_KEY), identity=f"300:{PREFIX}/n1")) as connection:
        response, body = ask(connection, path, "PUT", body="[]", headers=headers)
        assert response.status == 401


def test_change_over_https_is_visible_everywhere(running: Serving) -> None:
    name = f"{PREFIX}/over-https"
    values = [{"index": 1, "type": "URL", "data": "https://example.org/new"}]
    headers = BASIC | {"Content-Type": "application/json"}
    with connected(running, client_context()) as connection:
        response, body = ask(connection, f"/api/handles/{name}", "PUT", body=json.dumps(values), headers=headers)
        assert response.status == 201, body
    with NativeClient(running.native, Via.UDP) as anybody:
        assert anybody.resolve(name).code is ResponseCode.SUCCESS
    with connected(running) as connection:
        response, _ = ask(connection, f"/{name}")
        assert response.getheader("Location") == "https://example.org/new"


# Native messages


def resolution(server: Serving, name: str) -> bytes:
    """A native request as sent over TCP."""
    with NativeClient(server.native, Via.TCP) as client:
        frame = client.client.pack(client.request(OpCode.RESOLUTION, Resolve(name.encode())), None)
    return frame.envelope.to_bytes() + frame.payload


def tunnelled(server: Serving, octets: bytes, context: ssl.SSLContext | None = None) -> Frame:
    """The first message of the response, parsed as clients of the Handle System do."""
    reader = HttpResponseReader()
    host = f"127.0.0.1:{server.http[1]}"
    opened = plain_client(server.http) if context is None else tls_client(server.http, context)
    with opened as client:
        client.sendall(http_request(octets, b"/", host))
        frames: list[Frame] = []
        while not reader.is_finished:
            frames += reader.feed(client.recv(65_536))
    return frames[0]


def code_of(frame: Frame) -> ResponseCode:
    return ResponseCode(int.from_bytes(frame.payload[4:8], "big"))


@pytest.mark.parametrize("secure", [False, True])
def test_native_message_in_post(running: Serving, secure: bool) -> None:
    context = client_context() if secure else None
    octets = resolution(running, f"{PREFIX}/n3")
    frame = tunnelled(running, octets, context)
    assert code_of(frame) is ResponseCode.SUCCESS
    assert frame.envelope.request_id == Envelope.from_bytes(octets[:ENVELOPE_LENGTH]).request_id
    assert b"https://example.org/3" in frame.payload
    assert (
        code_of(tunnelled(running, resolution(running, f"{PREFIX}/absent"), context)) is ResponseCode.HANDLE_NOT_FOUND
    )
    assert code_of(tunnelled(running, b"\r" + octets, context)) is ResponseCode.SUCCESS
    assert code_of(tunnelled(running, octets + b"more", context)) is ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "octets",
    [b"", b"x", bytes(ENVELOPE_LENGTH), b"\r\n" + bytes(40), b"\xff" * 100],
    ids=["empty", "x", "zero", "pair", "ones"],
)
def test_invalid_native_message_gets_native_error(running: Serving, octets: bytes) -> None:
    headers = {"Content-Type": MEDIA_TYPE, "Accept": f"text/html, {MEDIA_TYPE.upper()}"}
    with connected(running) as connection:
        response, body = ask(connection, "/any/path", "POST", body=octets, headers=headers)
        assert response.status == 200
        assert response.getheader("Content-Type") == MEDIA_TYPE
        assert response.getheader("Content-Length") == str(len(body))
        frame = Frame(Envelope.from_bytes(body[:ENVELOPE_LENGTH]), body[ENVELOPE_LENGTH:])
        assert code_of(frame) is ResponseCode.PROTOCOL_ERROR
        response, body = ask(connection, "/any/path", "POST", body=octets, headers={"Content-Type": MEDIA_TYPE})
        assert response.getheader("Content-Type") != MEDIA_TYPE
        response, _ = ask(connection, "/any/path", "PUT", body=octets, headers=headers)
        assert response.status == 405


def test_long_native_list_is_complete(running: Serving) -> None:
    """Several messages in one body, with their total length; in a session started over TCP."""
    with NativeClient(running.native, Via.TCP) as client:
        client.act_as(ADMINISTRATOR, SECRET)
        session = client.begin_session()
        expected = client.list_handles(PREFIX)
        assert len(expected) > 50
        request = client.request(OpCode.LIST_HANDLES, HandleRequest(PREFIX.encode()), session=session)
        packed = client.client.pack(request, session)
        headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
        octets = packed.envelope.to_bytes() + packed.payload
        with connected(running) as connection:
            response, body = ask(connection, "/", "POST", body=octets, headers=headers)
        assert response.getheader("Content-Length") == str(len(body))
        count, at = 0, 0
        while at < len(body):
            at += ENVELOPE_LENGTH + Envelope.from_bytes(body[at : at + ENVELOPE_LENGTH]).length
            count += 1
        assert count == len(expected) // 50 + 1


# Metrics and logs


def test_requests_and_handshakes_are_counted_and_logged(tmp_path: Path) -> None:
    with serving(copy_to(tmp_path)) as server:
        assert fetched(server, f"/{PREFIX}/n1")[0] == 302
        assert fetched(server, f"/{PREFIX}/absent", client_context())[0] == 404
        assert fetched(server, "/healthz?token=hush")[0] == 200
        assert fetched(server, f"/api/handles/{PREFIX}/n1?publicOnly=false", client_context(), headers=BASIC)[0] == 200
        wrong = {"Authorization": "Basic " + base64.b64encode(b"300%3A0.NA/12345:wrong").decode()}
        assert fetched(server, f"/api/handles/{PREFIX}/n1", client_context(), headers=wrong)[0] == 401
        with plain_client(server.http) as client:
            client.sendall(b"NONSENSE\r\n\r\n")
            assert read_all(client).startswith(b"HTTP/1.1 400")
        with plain_client(server.http) as client:
            client.sendall(b"\x16\x03\x01\x00\x05hello")
            read_all(client)
        tunnelled(server, resolution(server, f"{PREFIX}/n1"))
        eventually(lambda: server.errors.count(" access ") == 7, "the lines of the log")
        page = metrics_page(server)
        lines = [line.partition(" access ")[2] for line in server.errors.splitlines() if " access " in line]
        failed = [line for line in server.errors.splitlines() if "TLS handshake failed" in line]
    shown = [re.sub(r"microseconds=\d+", "microseconds=", line) for line in lines]
    plain, secure = (f"transport={transport} address=127.0.0.1" for transport in ("http", "https"))
    assert shown == [
        f"{plain} method=GET name={PREFIX}/n1 status=302 code=SUCCESS microseconds= identity=-",
        f"{secure} method=GET name={PREFIX}/absent status=404 code=HANDLE_NOT_FOUND microseconds= identity=-",
        f"{plain} method=GET path=/healthz status=200 code=- microseconds= identity=-",
        f"{secure} method=GET name={PREFIX}/n1 status=200 code=SUCCESS microseconds= identity={ADMINISTRATOR}",
        f"{secure} method=GET name={PREFIX}/n1 status=401 code=AUTHENTICATION_FAILED microseconds= identity=-",
        f'{plain} method=- path="" status=400 code=PROTOCOL_ERROR microseconds= identity=-',
        f"{plain} operation=RESOLUTION name={PREFIX}/n1 code=SUCCESS microseconds= identity=-",
    ]
    assert len(failed) == 1
    assert "address=127.0.0.1" in failed[0]
    for expected in (
        'perseid_http_requests_total{method="GET",status="3xx",transport="http"} 1.0',
        'perseid_http_requests_total{method="GET",status="4xx",transport="https"} 2.0',
        'perseid_http_requests_total{method="other",status="4xx",transport="http"} 1.0',
        'perseid_http_requests_total{method="POST",status="2xx",transport="http"} 1.0',
        'perseid_requests_total{code="success",operation="resolution",transport="http"} 1.0',
        'perseid_tls_handshakes_total{result="done"} 3.0',
        'perseid_tls_handshakes_total{result="refused"} 1.0',
        'perseid_authentication_failures_total{transport="https"} 1.0',
        'perseid_pool_done_total{kind="handshake"}',
        "perseid_http_connections 0.0",
    ):
        assert expected in page, expected


# Settings


def certificate_files(directory: Path, name: str) -> tuple[bytes, bytes]:
    """Write a certificate for a name and its key to `web.pem` and `web.key`; return the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = create_self_signed(key, (name, "127.0.0.1"))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for file, octets in (("web.pem", made.public_bytes(Encoding.PEM)), ("web.key", private)):
        (directory / file).touch(0o600)
        (directory / file).write_bytes(octets)
    return made.public_bytes(Encoding.DER), private


def shown_certificate(server: Serving) -> bytes | None:
    with tls_client(server.http, client_context()) as client:
        return client.getpeercert(binary_form=True)


def reload(server: Serving, mark: str) -> None:
    count = server.errors.count(mark)
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: server.errors.count(mark) > count, f"a line in the log: {mark}")


def test_new_certificate_after_sighup_keeps_open_connections(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    first, _ = certificate_files(directory, "first.example.org")
    files = {"PERSEID_HTTP_CERTIFICATE_FILE": "web.pem", "PERSEID_HTTP_KEY_FILE": "web.key"}
    url = "https://second.example.org"
    with serving(directory, PERSEID_HTTP_PUBLIC_URL=url, **files) as server:
        assert "is not valid for second.example.org, the host of http.public_url" in server.errors
        assert shown_certificate(server) == first
        with connected(server, client_context()) as pending:
            assert ask(pending, "/healthz")[0].status == 200
            second, _ = certificate_files(directory, "second.example.org")
            reload(server, "certificates and site information were reloaded")
            assert shown_certificate(server) == second
            assert ask(pending, "/healthz")[0].status == 200
            (directory / "web.key").write_text("nothing")
            reload(server, "reload failed, nothing was changed: ")
            assert "web.key contains no PEM private key" in server.errors
            assert shown_certificate(server) == second
            assert ask(pending, "/healthz")[0].status == 200
        # A worker that is started again goes on without TLS rather than not at all.
        os.kill(named(server)["worker-0"], signal.SIGKILL)
        eventually(lambda: "HTTPS is disabled: " in server.errors, "the reason in the log")
        eventually(lambda: is_alive(server), "HTTP is back")
        with pytest.raises(ssl.SSLError):
            shown_certificate(server)


def is_alive(server: Serving) -> bool:
    try:
        return fetched(server, "/healthz")[0] == 200
    except OSError:
        return False


def test_settings_apply_after_sighup(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    settings = directory / "perseid.toml"
    settings.write_text("")
    with serving(directory) as server:
        assert fetched(server, f"/{PREFIX}/n1")[0] == 302
        assert fetched(server, f"/id/{PREFIX}/n1")[0] in (400, 404)
        settings.write_text('[http]\nredirect_status = 307\nresolver_forms = ["id"]\nlisten = "http"\n')
        reload(server, "were reloaded")
        assert fetched(server, f"/id/{PREFIX}/n1")[0] == 307
        assert fetched(server, f"/{PREFIX}/n1")[0] == 404
        with pytest.raises(ssl.SSLError):
            shown_certificate(server)


def test_new_server_key_gets_new_certificate(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    with serving(directory) as server:
        before = shown_certificate(server)
        subprocess.run([*serve_command(directory)[:3], "key", "rotate", "server", "-d", str(directory)], check=True)
        reload(server, "created a self-signed certificate for HTTPS")
        eventually(lambda: shown_certificate(server) != before, "another certificate")
        assert fetched(server, "/healthz", trusting(directory))[0] == 200


@pytest.mark.parametrize("listen", ["http", "https"])
def test_http_or_https_only(tmp_path: Path, listen: str) -> None:
    with serving(copy_to(tmp_path), PERSEID_HTTP_LISTEN=listen) as server:
        if listen == "http":
            assert fetched(server, "/healthz")[0] == 200
            with pytest.raises(ssl.SSLError):
                shown_certificate(server)
        else:
            assert fetched(server, "/healthz", client_context())[0] == 200
            assert fetched(server, "/healthz") == (400, b"This server accepts HTTPS only.\n")


def test_http_can_be_disabled(tmp_path: Path) -> None:
    with serving(copy_to(tmp_path), PERSEID_HTTP_ENABLED="no") as server:
        assert "http" not in server.announced


def test_missing_certificate_is_created_at_start(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    (directory / "keys" / "https.pem").unlink()
    with serving(directory) as server:
        assert "created a self-signed certificate for HTTPS" in server.errors
        assert fetched(server, "/healthz", trusting(directory))[0] == 200


def run(directory: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    environ = os.environ | {"PERSEID_METRICS_PORT": "0"} | environment
    return subprocess.run(
        serve_command(directory), capture_output=True, text=True, timeout=60, check=False, env=environ
    )


def test_unusable_certificate_is_reported_at_start(tmp_path: Path) -> None:
    done = run(copy_to(tmp_path), PERSEID_HTTP_PORT="0", PERSEID_HTTP_CERTIFICATE_FILE="absent.pem")
    assert done.returncode == 1
    assert re.search(r"perseid: Cannot read .*absent\.pem: No such file .*http\.certificate_file", done.stderr)
    assert "Traceback" not in done.stderr


def test_port_in_use_is_reported(running: Serving, tmp_path: Path) -> None:
    done = run(copy_to(tmp_path), PERSEID_HTTP_PORT=str(running.http[1]))
    assert done.returncode == 1
    assert (
        f"Cannot serve HTTP at 127.0.0.1:{running.http[1]}: Address already in use. The port is used by process "
        in done.stderr
    )
    assert "choose another port with --http-port PORT or the setting http.port" in done.stderr
    assert "Traceback" not in done.stderr


def test_options_override_settings(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, metrics = one.getsockname()[1], other.getsockname()[1]
    options = ("--http-host", "127.0.0.2", "--http-port", str(port), "--metrics-port", str(metrics))
    with serving(copy_to(tmp_path), *options) as server:
        assert server.http == ("127.0.0.2", port)
        assert server.metrics == ("127.0.0.1", metrics)
        assert fetched(server, "/healthz")[0] == 200


# Stopping


def test_requests_in_progress_finish_at_stop(tmp_path: Path) -> None:
    """A request with a slow body, an idle connection, and one before its handshake."""
    with serving(copy_to(tmp_path)) as server:
        body = json.dumps([{"index": 1, "type": "URL", "data": "https://example.org/slow"}]).encode()
        head = (
            f"PUT /api/handles/{PREFIX}/slow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: {BASIC['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        with tls_client(server.http, client_context()) as slow, plain_client(server.http) as idle:
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(4_096).startswith(b"HTTP/1.1 200")
            slow.sendall(head + body[:10])
            eventually(lambda: fetched(server, "/healthz")[0] == 200, "what came before was read")
            server.process.send_signal(signal.SIGTERM)
            assert read_all(idle) == b""
            slow.sendall(body[10:])
            answer = read_all(slow)
        assert answer.startswith(b"HTTP/1.1 201 ")
        assert b"Connection: close" in answer
        server.stop()
        assert "not finished in time" not in server.errors


def test_killed_worker_returns_on_same_port(tmp_path: Path) -> None:
    with serving(copy_to(tmp_path)) as server:
        before = shown_certificate(server)
        os.kill(named(server)["worker-0"], signal.SIGKILL)
        # The socket is the supervisor's: who comes meanwhile waits in its queue.
        status, body = fetched(server, f"/api/handles/{PREFIX}/n5")
        assert (status, json.loads(body)["responseCode"]) == (200, 1)
        assert shown_certificate(server) == before
        assert "worker-0 ended by signal 9 and is restarted" in server.errors


def test_many_concurrent_clients(running: Serving) -> None:
    contexts = [None, client_context(), client_context(key=library_key(RSA_KEY))]
    connections = []
    for number in range(60):
        context = contexts[number % 3]
        host, port = running.http
        made = HTTPConnection(host, port, timeout=PATIENCE)
        if context is not None:
            made = HTTPSConnection(host, port, timeout=PATIENCE, context=context)
        made.request("GET", f"/api/handles/{PREFIX}/n{number % 50}")
        connections.append(made)
    for number, made in enumerate(connections):
        assert json.loads(made.getresponse().read())["handle"] == f"{PREFIX}/n{number % 50}"
        made.close()


def test_server_key_without_tls_support(tmp_path: Path) -> None:
    """The server's own key may be DSA, as in old installations; the certificate then has its own key."""
    directory = copy_to(tmp_path)
    for name in ("siteinfo.bin", "siteinfo.json", "keys/privkey.bin", "keys/pubkey.bin", "keys/https.pem"):
        (directory / name).unlink()
    furnish(directory, DSA_KEY)
    with serving(directory) as server:
        assert fetched(server, "/healthz", trusting(directory))[0] == 200
        assert (directory / "keys" / "https.key").stat().st_mode & 0o777 == 0o600
