"""Hostile clients at a running server: slow, many, large, and lying ones.

Each part has its own tests; here the whole server must withstand them, over HTTP and HTTPS. All addresses of
127.0.0.0/8 belong to this machine, so that one machine can be many clients.
"""

import base64
import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from perseid.records.record import Value
from perseid.server.http.connection.requests import MAX_HEADERS
from perseid.server.http.messages import MAX_BODY, MAX_HEAD
from perseid.wire.codes import ResponseCode
from perseid.wire.responses import ResolutionResult
from tests.server.faults.machine import descriptors, eventually, memory, processes, started
from tests.server.faults.sources import NOBODY_EXEMPT, metrics
from tests.server.http.connection.test_connection_refusals import CASES, SMUGGLED
from tests.server.http.contexts import basic
from tests.server.http.raw import NO_LIMITS, Answer, connected, request, see_sound
from tests.server.installations import ADMINISTRATOR, NAMES, PREFIX, SECRET, copy_to, values_of
from tests.server.native.native_client import NativeClient, Via
from tests.server.running import Serving, serving

PROXY = "127.0.0.9"
"""The address of the one proxy that is trusted."""
STRANGER = "127.0.0.8"
AWAY = "203.0.113.5"
"""Somebody whom the proxy asks for."""
AT_A_TIME = 30
GROWTH = 64 << 20
"""Octets by which a worker may grow, of which unfinished requests may be more than the half."""

SETTINGS = {
    **NOBODY_EXEMPT,
    **NO_LIMITS,
    "PERSEID_HTTP_TRUSTED_PROXIES": PROXY,
    "PERSEID_LIMITS_CONNECTIONS_PER_ADDRESS": str(AT_A_TIME),
    "PERSEID_LIMITS_FAILED_PROOFS": "1000",
    # On a fast machine one client that resolves without a pause exceeds the limit, and gets RC_ERROR without a text.
    "PERSEID_LIMITS_UDP_OCTETS": "0",
}
SECURE = pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
JSON = {"Content-Type": "application/json"}
API = f"/api/handles/{PREFIX}/"
REFUSED = 'perseid_limits_triggered_total{limit="connections"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(copy_to(tmp_path_factory.mktemp("hostile")), "--workers", "1", **SETTINGS) as running:
        pids = started(running)
        (worker,) = pids["worker"]
        fetch(running, f"/{PREFIX}/n1?noredirect")
        open_before, own_before = descriptors(worker), memory(worker).own
        yield running
        assert processes(running) == pids, "a process was started again"
        assert fetch(running, f"/{PREFIX}/n1").status == 302
        eventually(lambda: descriptors(worker) <= open_before + 16, "descriptors are closed")
        assert memory(worker).own - own_before < GROWTH
        assert "Internal Error" not in running.errors, running.errors
        assert SECRET not in running.errors


def fetch(
    server: Serving,
    target: str,
    *headers: str,
    source: str = "127.0.0.1",
    secure: bool = False,
    method: str = "GET",
    body: bytes | None = None,
) -> Answer:
    with connected(server.http, source=source, secure=secure) as client:
        answer = client.ask(request(method, target, headers, body), method)
        see_sound(answer, target.encode("latin-1").partition(b"?")[0], SECRET.encode())
        return answer


# Slow clients


def test_slow_clients_time_out_and_delay_nobody(server: Serving) -> None:
    """A head, a body and a handshake that arrive byte by byte; all at once, as they take seconds."""
    put = f"PUT {API}slow HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    beginnings = {
        "head": (False, b"GET /" + PREFIX.encode()),
        "head of an API": (False, f"GET {API}n1 HTTP/1.1\r\nHost: x\r\nX-Y".encode()),
        "head over TLS": (True, b"GET / HTTP/1.1\r\n"),
        "body": (False, f"{put}Content-Length: 100\r\n\r\n[".encode()),
        "body over TLS": (True, f"{put}Content-Length: 1000000\r\n\r\n".encode()),
        "chunks": (False, f"{put}Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n".encode()),
    }
    handshake = bytes.fromhex("1603010200010001fc0303") + bytes(20)
    with ExitStack() as stack:
        clients = {}
        for name, (secure, octets) in beginnings.items():
            clients[name] = stack.enter_context(connected(server.http, source="127.0.0.20", secure=secure))
            clients[name].send(octets)
        greeting = stack.enter_context(connected(server.http, source="127.0.0.20"))
        greeting.send(handshake)
        for octet in b"ABCDEFGHIJKLM":  # one by one, which is no progress
            for client in (*clients.values(), greeting):
                with suppress(OSError):
                    client.send(bytes([octet]))
            for number in range(20):
                assert fetch(server, f"/{PREFIX}/n{number}").header("location") == f"https://example.org/{number}"
        for name, client in clients.items():
            answer = client.read()
            assert (answer.status, answer.header("connection")) == (408, "close"), (name, answer)
            assert ("head" if name.startswith("head") else "body") in answer.body.decode(), (name, answer)
            see_sound(answer, API.encode() if "API" in name or "body" in name else b"/")
            assert client.end() == b"", name
        assert b"HTTP" not in greeting.end()
    assert fetch(server, f"{API}slow").status == 404


# Many clients


def test_connections_per_address_are_limited(server: Serving) -> None:
    before = metrics(server)[REFUSED]
    with ExitStack() as stack:
        mine = [stack.enter_context(connected(server.http, source="127.0.0.30")) for _ in range(3 * AT_A_TIME)]
        served, cut = 0, 0
        for number, client in enumerate(mine):
            try:
                served += client.get(f"/{PREFIX}/n{number % NAMES}").status == 302
            except (AssertionError, OSError):  # no answer, but an end
                cut += 1
        assert served == AT_A_TIME
        assert cut == 2 * AT_A_TIME
        assert fetch(server, f"/{PREFIX}/n1", source="127.0.0.31").status == 302
        assert fetch(server, f"/{PREFIX}/n1", source="127.0.0.31", secure=True).status == 302
        kept = [client for client in mine[:AT_A_TIME] if client.get(f"{API}n2").status == 200]
        assert len(kept) == AT_A_TIME, "who is there goes on"
    eventually(lambda: is_served(server, "127.0.0.30"), "there is room again")
    assert metrics(server)[REFUSED] >= before + 2 * AT_A_TIME


def is_served(server: Serving, source: str) -> bool:
    try:
        return fetch(server, "/healthz", source=source).status == 200
    except (AssertionError, OSError):
        return False


def test_many_abandoned_handshakes(server: Serving) -> None:
    for _ in range(5):
        with ExitStack() as stack:
            for number in range(AT_A_TIME):
                client = stack.enter_context(connected(server.http, source=f"127.0.0.{40 + number % 5}"))
                client.send(bytes.fromhex("1603010200010001fc0303")[: 1 + number % 11])
        assert fetch(server, f"/{PREFIX}/n1", secure=True).status == 302


# Large requests


@SECURE
def test_large_requests_are_refused_early(server: Serving, secure: bool) -> None:
    fill = "X-Fill: "
    for path, size, status in ((f"/{PREFIX}/n1", MAX_HEAD, 302), (f"{API}n1", MAX_HEAD, 200)):
        empty = len(request("GET", path, [fill]))
        assert fetch(server, path, fill + "x" * (size - empty), secure=secure).status == status
        for more in (1, 2, 1_000, 60_000):
            answer = fetch(server, path, fill + "x" * (size - empty + more), secure=secure)
            assert (answer.status, answer.header("connection")) == (431, "close")
    assert fetch(server, f"{API}n1", *["X: y"] * (MAX_HEADERS - 1), secure=secure).status == 200
    assert fetch(server, f"{API}n1", *["X: y"] * MAX_HEADERS, secure=secure).json["responseCode"] == 4
    assert fetch(server, f"{API}{'x' * MAX_HEAD}", secure=secure).status == 431
    put = f"PUT {API}large HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for framing in (
        f"Content-Length: {MAX_BODY + 1}\r\n\r\n",
        "Content-Length: 9999999999999999\r\n\r\n",
        f"Transfer-Encoding: chunked\r\n\r\n{MAX_BODY + 1:x}\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        f"Expect: 100-continue\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n",
    ):
        with connected(server.http, secure=secure) as client:
            answer = client.ask((put + framing).encode())
            assert (answer.status, answer.json["responseCode"], answer.early) == (413, 4, ()), framing
            assert client.end() == b""


@SECURE
def test_compressed_bodies_are_refused(server: Serving, secure: bool) -> None:
    """A megabyte that would expand to a gigabyte is never decompressed."""
    bomb = gzip.compress(bytes(16 << 20))
    for coding in ("gzip", "GZIP", "deflate", "br", "zstd", "x-gzip", "gzip, identity", "identity, gzip"):
        with connected(server.http, secure=secure) as client:
            answer = client.ask(request("PUT", f"{API}packed", basic() | JSON | {"Content-Encoding": coding}, bomb))
            assert (answer.status, answer.json["responseCode"]) == (415, 4), coding
            see_sound(answer, API.encode(), SECRET.encode())
    with connected(server.http, secure=secure) as client:
        answer = client.ask(f"PUT {API}packed HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n".encode())
        assert answer.status == 501


def test_deep_and_long_bodies_are_parsed_or_refused(server: Serving) -> None:
    value = '{"index":1,"type":"URL","data":"x"}'
    for body in (
        "[" * 500_000,
        '{"a":' * 150_000,
        f"[{value}{',1' * 300_000}]",
        f"[{','.join([value] * 20_000)}]",
        '{"values":' + "9" * 900_000 + "}",
        '["' + "\\u0000" * 100_000 + '"]',
        '{"' + "x" * 900_000 + '":1}',
    ):
        answer = fetch(server, f"{API}deep", *lines(basic() | JSON), method="PUT", body=body.encode())
        assert answer.status in (400, 409, 413), (body[:40], answer)


def lines(headers: dict[str, str]) -> list[str]:
    return [f"{name}: {value}" for name, value in headers.items()]


# Smuggling


@SECURE
def test_ambiguous_requests_are_refused_and_end_connection(server: Serving, secure: bool) -> None:
    """Content-Length with Transfer-Encoding, lines that end with LF only, and other known attacks."""
    for name, (status, octets) in CASES.items():
        with connected(server.http, secure=secure) as client:
            client.send(request("GET", f"{API}n1"))
            assert client.read().status == 200
            with suppress(ConnectionError, BrokenPipeError):
                client.send(octets + SMUGGLED)
            answer = client.read()
            assert answer.status == (400 if octets.startswith(b"\r\n\r\n") else status), (name, answer)
            assert answer.header("connection") == "close", name
            see_sound(answer, b"/a/b")
            assert client.end() == b"", f"{name}: there is a second answer"
    assert "smuggled" not in server.errors


def test_request_in_body_is_not_a_request(server: Serving) -> None:
    inner = request("DELETE", f"{API}n3", basic() | JSON)
    for octets in (
        request("POST", f"{API}n4", {"Content-Type": "text/plain"}, inner),
        request("GET", f"{API}n4", (), inner),
        b"POST " + API.encode() + b"n4 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner),
    ):
        with connected(server.http) as client:
            answer = client.ask(octets + request("GET", "/healthz"))
            assert answer.json["handle"] == f"{PREFIX}/n4"
            assert client.read().body == b"alive\n"
    assert fetch(server, f"{API}n3").status == 200


# Forwarding headers


CLAIMS = (
    ("X-Forwarded-For: 192.0.2.77", "X-Forwarded-Proto: https"),
    ("X-Real-IP: 192.0.2.77", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil.example"),
    ("Forwarded: for=192.0.2.77;proto=https;host=evil.example",),
    ("Via: 1.1 evil.example", "X-Forwarded-Port: 443"),
)


def test_forwarding_headers_of_untrusted_clients_are_ignored(server: Serving) -> None:
    """Their own address and connection are used."""
    body = json.dumps([{"index": 1, "type": "URL", "data": "https://example.org/"}]).encode()
    for number, claims in enumerate(CLAIMS):
        path, headers = f"{API}claimed-{number}", (*claims, *lines(basic() | JSON))
        for source in ("127.0.0.1", STRANGER):
            answer = fetch(server, path, *headers, source=source, method="PUT", body=body)
            assert (answer.status, answer.json["responseCode"]) == (403, 402), (claims, answer)
            assert "HTTPS" in answer.json["message"], answer
            assert answer.header("www-authenticate") is None
            page = fetch(server, f"/{PREFIX}/n1?noredirect", *claims, source=source)
            assert b"evil" not in page.body
            assert fetch(server, "/resolver.json", *claims).json["forms"][0]["template"] == "/{handle}"
        # Over TLS what they say does no harm either.
        assert fetch(server, path, *headers, source=STRANGER, secure=True, method="PUT", body=body).status == 201
    eventually(lambda: bool(accesses(server, f"address={STRANGER}", "claimed-3", "status=201")), "a line in the log")
    assert accesses(server, "192.0.2.77") == []


def accesses(server: Serving, *words: str) -> list[str]:
    """Lines of the access log that contain some words."""
    found = [line for line in server.errors.splitlines() if " access " in line]
    return [line for line in found if all(word in line for word in words)]


def test_country_and_ip_require_trusted_peer(server: Serving) -> None:
    places = "".join(
        [
            f'<location href="https://{place}.example/" {said} weight="0"/>'
            for place, said in (("gb", 'country="gb"'), ("net", 'addresses="198.51.100.0/24"'))
        ]
    )
    xml = f'<locations chooseby="locatt,address,country,weighted">{places}<location href="https://any.example/"/></locations>'
    body = json.dumps([{"index": 1, "type": "10320/loc", "data": xml}]).encode()
    created = fetch(server, f"{API}placed", *lines(basic() | JSON), secure=True, method="PUT", body=body)
    assert created.status == 201

    def led(query: str, *headers: str, source: str) -> str | None:
        return fetch(server, f"/{PREFIX}/placed{query}", *headers, source=source).header("location")

    for query in ("", "?country=gb", "?ip=198.51.100.7"):
        assert led(query, source=STRANGER) == "https://any.example/", query
    assert led("", "X-Forwarded-For: 198.51.100.7", source=STRANGER) == "https://any.example/"
    assert led("?country=gb", source=PROXY) == "https://gb.example/"
    assert led("?ip=198.51.100.7", source=PROXY) == "https://net.example/"
    assert led("", "X-Forwarded-For: 198.51.100.7", source=PROXY) == "https://net.example/"


def test_secrets_on_insecure_connection_are_refused_with_reason(server: Serving) -> None:
    body = json.dumps([{"index": 1, "type": "URL", "data": "https://example.org/"}]).encode()
    basic_, path = lines(basic() | JSON), f"{API}proxied"
    away = f"X-Forwarded-For: {AWAY}"
    for claims in ((away,), (away, "X-Forwarded-Proto: http"), (away, "X-Forwarded-Proto: https, http")):
        for method, sent in (("PUT", body), ("DELETE", None)):
            answer = fetch(server, path, *claims, *basic_, source=PROXY, method=method, body=sent)
            assert (answer.status, answer.json["responseCode"]) == (403, 402), (claims, answer)
            assert "HTTPS" in answer.json["message"], answer
            assert answer.header("location") is None, "it is never redirected"
        session = fetch(server, "/api/sessions", *claims, *basic_[:1], source=PROXY, method="POST", body=b"{}")
        assert session.status == 403, session
        public = fetch(server, f"{API}n1", *claims, *basic_[:1], source=PROXY)
        assert public.status == 200, "what everybody may read is told"
    answer = fetch(server, path, away, "X-Forwarded-Proto: https", *basic_, source=PROXY, method="PUT", body=body)
    assert answer.status == 201, answer
    assert fetch(server, path, *basic_, source="127.0.0.1", method="DELETE").status == 200, "from this machine itself"
    eventually(lambda: bool(accesses(server, f"address={AWAY}", "proxied", "status=201")), "a line in the log")
    assert accesses(server, f"address={AWAY}", "status=403")
    assert SECRET not in server.errors
    assert base64.b64encode(SECRET.encode()).decode()[:-2] not in server.errors


# Load


def test_native_resolution_continues_during_http_load(server: Serving) -> None:
    """Both are answered correctly under load."""
    stop = threading.Event()
    told: list[int | Exception] = []
    octets = b"".join([request("GET", f"/{PREFIX}/n{number}") for number in range(NAMES)])

    def flood(secure: bool, source: str) -> None:
        count = 0
        try:
            with connected(server.http, secure=secure, source=source) as client:
                while not stop.is_set():
                    client.send(octets)
                    for number in range(NAMES):
                        assert client.read().header("location") == f"https://example.org/{number}"
                        count += 1
            told.append(count)
        except Exception as problem:  # noqa: BLE001 - it is told where the thread is joined
            told.append(problem)

    threads = [threading.Thread(target=flood, args=(bool(number % 2), f"127.0.0.{60 + number}")) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        with NativeClient(server.native, Via.UDP, timeout=60.0, attempts=8) as client:
            end = time.monotonic() + 3.0
            resolved = 0
            while time.monotonic() < end or resolved < 200:
                number = resolved % NAMES
                answer = client.resolve(f"{PREFIX}/n{number}")
                assert answer.code is ResponseCode.SUCCESS
                assert isinstance(answer.body, ResolutionResult)
                assert answer.body.values[0].data == values_of(number)[0].data
                resolved += 1
        with NativeClient(server.native, Via.TCP, timeout=60.0) as administrator:
            administrator.act_as(ADMINISTRATOR, SECRET)
            made = administrator.create(f"{PREFIX}/during", (Value.text(1, "URL", "https://example.org/during"),))
            assert made.code is ResponseCode.SUCCESS
        assert fetch(server, f"/{PREFIX}/during").header("location") == "https://example.org/during"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    problems = [each for each in told if isinstance(each, Exception)]
    assert problems == []
    assert sum(each for each in told if isinstance(each, int)) >= 4 * NAMES


def test_disconnecting_clients_leave_nothing(server: Serving) -> None:
    (worker,) = processes(server)["worker"]
    before = descriptors(worker)
    for number in range(200):
        secure = number % 4 == 3
        with suppress(OSError), connected(server.http, secure=secure, source=f"127.0.0.{70 + number % 10}") as client:
            client.send(request("GET", f"/{PREFIX}/longer?noredirect") * 3)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # with a reset
    eventually(lambda: descriptors(worker) <= before + 8, "connections are forgotten")
    assert fetch(server, f"/{PREFIX}/n1").status == 302
