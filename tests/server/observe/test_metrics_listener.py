"""The metrics listener responds to valid requests, and clients cannot block it."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from perseid.registry.installation.settings import Config
from perseid.server.observe import metrics_listener
from perseid.server.observe.metrics import FAMILIES, LedgerState, MetricSources, WorkerCounters
from perseid.server.observe.metrics_listener import MAX_CONNECTIONS, MetricsListener
from perseid.server.processes.sockets import listen_for_metrics


class Server:
    """The sources of the listener."""

    def __init__(self) -> None:
        self.counts = WorkerCounters()
        self.reason = ""
        self.sources = MetricSources(
            counts=self.counts,
            ready=self.ready,
            ledger=lambda: LedgerState(1, 1, 1, ready=True),
        )

    def ready(self) -> str:
        if self.reason == "raise":
            raise ConnectionError("secret")
        return self.reason


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def listener(server: Server) -> Iterator[MetricsListener]:
    with MetricsListener(server.sources, listen_for_metrics("127.0.0.1", 0)) as listening:
        yield listening


def port_of(listener: MetricsListener) -> int:
    assert listener.address is not None
    return int(listener.address.removeprefix("http://127.0.0.1:").removesuffix("/metrics"))


def get(listener: MetricsListener, path: str, method: str = "GET", accept: str = "*/*") -> tuple[HTTPResponse, str]:
    connection = HTTPConnection("127.0.0.1", port_of(listener), timeout=30)
    connection.request(method, path, headers={"Accept": accept})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def raw(listener: MetricsListener, data: bytes) -> bytes:
    """Send raw bytes; return what is received until the end."""
    with socket.create_connection(("127.0.0.1", port_of(listener)), timeout=30) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        found = b""
        while part := client.recv(4096):
            found += part
        return found


def cut_off(client: socket.socket) -> bool:
    """Whether the listener closes a connection without a response."""
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_metrics_are_in_the_text_format(listener: MetricsListener, server: Server) -> None:
    server.counts.count_fast_response((1).to_bytes(4, "big"))
    response, text = get(listener, "/metrics?x=1")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert response.headers["Connection"] == "close"
    assert 'perseid_requests_total{code="success",operation="resolution",transport="tcp"} 1.0\n' in text


def test_metrics_are_openmetrics_on_request(listener: MetricsListener) -> None:
    response, text = get(listener, "/metrics", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    assert {name.removesuffix("_total") for name in FAMILIES} == families.keys()
    assert text.endswith("# EOF\n")


def test_invalid_version_gets_the_text_format(listener: MetricsListener) -> None:
    response, _ = get(listener, "/metrics", accept="application/openmetrics-text;version=x")
    assert (response.status, response.headers["Content-Type"][:10]) == (200, "text/plain")


def test_ready_returns_the_reason(listener: MetricsListener, server: Server) -> None:
    response, text = get(listener, "/ready")
    assert (response.status, text) == (200, "ready\n")
    server.reason = "the answers view is built anew"
    response, text = get(listener, "/ready")
    assert (response.status, text) == (503, "not ready: the answers view is built anew\n")
    assert get(listener, "/live")[0].status == 200
    server.reason = "raise"
    response, text = get(listener, "/ready")
    assert (response.status, "secret" in text) == (503, False)


def test_a_stuck_event_loop_is_neither_live_nor_ready(
    listener: MetricsListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_listener, "MAX_TICK_AGE", -1.0)
    for path in ("/live", "/ready"):
        response, text = get(listener, path)
        assert response.status == 503
        assert "stuck" in text


def test_head_has_no_body(listener: MetricsListener) -> None:
    response, body = get(listener, "/metrics", "HEAD")
    assert (response.status, body) == (200, "")
    assert int(response.headers["Content-Length"]) > 0


def test_invalid_requests_are_refused(listener: MetricsListener) -> None:
    assert get(listener, "/")[0].status == 404
    assert get(listener, "/metrics/../etc/passwd")[0].status == 404
    response, _ = get(listener, "/metrics", "POST")
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"
    assert raw(listener, b"\x16\x03\x01 no HTTP\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(listener, b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")  # without a host
    assert raw(listener, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000).startswith(b"HTTP/1.1 431 ")
    assert raw(listener, b"") == b""
    assert raw(listener, b"GET /live HTT").startswith(b"HTTP/1.1 400 ")
    assert get(listener, "/live")[0].status == 200


def test_slow_clients_are_disconnected_and_block_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_listener, "TIMEOUT", 0.3)
    with MetricsListener(server.sources, listen_for_metrics("127.0.0.1", 0)) as listener:
        port = port_of(listener)
        slow = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(MAX_CONNECTIONS)]
        for client in slow:
            with suppress(ConnectionError):  # on a slow machine the first ones are cut off by now
                client.sendall(b"GET /metrics HT")
        for client in slow:
            assert cut_off(client)
            client.close()
        assert get(listener, "/live")[0].status == 200


def test_connections_are_limited(listener: MetricsListener) -> None:
    port = port_of(listener)
    clients = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(MAX_CONNECTIONS)]
    deadline = time.monotonic() + 30
    while len(listener._connections) < MAX_CONNECTIONS:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as refused:
        assert cut_off(refused)
    for client in clients:
        client.close()
    while listener._connections:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert get(listener, "/live")[0].status == 200


def test_listener_without_a_socket_does_nothing(server: Server) -> None:
    with MetricsListener(server.sources, None) as listener:
        assert listener.address is None
    with MetricsListener(server.sources, listen_for_metrics("::1", 0)) as listener:
        assert listener.address is not None
        assert listener.address.startswith("http://[::1]:")
    assert Config.parse("", {}).metrics.host == "127.0.0.1"


def test_port_is_free_after_exit(server: Server) -> None:
    with MetricsListener(server.sources, listen_for_metrics("127.0.0.1", 0)) as listener:
        port = port_of(listener)
        get(listener, "/metrics")
    listen_for_metrics("127.0.0.1", port).close()
