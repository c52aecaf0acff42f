"""Public resolution over TCP with workers whose thread accepts connections."""

import os
import re
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from perseid.compiled import native
from perseid.server.limits.budgets import OTHER_DESCRIPTORS
from perseid.wire.codes import DEFAULT_FLAGS, OpCode, OpFlag
from tests.server.faults.sources import metrics_page
from tests.server.installations import PREFIX, copy_to
from tests.server.live_servers import PATIENCE, eventually
from tests.server.native.live_vectors import make_installation, over_tcp
from tests.server.native.native_client import Serving, serving
from tests.server.native.resolution_states import RequestFields
from tests.server.native.test_live_udp_thread import stopped, threads
from tests.server.native.test_resolution_vectors import VECTOR_FILES, is_left_to_the_server
from tests.server.native.test_tcp_thread import is_same, read
from tests.wire.recorded import exchanges

NAME = f"{PREFIX}/n1".encode()
KEEP = DEFAULT_FLAGS | OpFlag.KEEP_CONNECTION
ONCE = RequestFields(NAME).to_bytes()
KEPT = RequestFields(NAME, flags=KEEP).to_bytes()
LINE = f"transport=tcp address=127.0.0.1 operation=RESOLUTION name={NAME.decode()} code=SUCCESS "
OTHER_KEPT = RequestFields(NAME, opcode=OpCode.GET_SITE_INFO, flags=KEEP).to_bytes()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = copy_to(tmp_path_factory.mktemp("serving"))
    (directory / "perseid.toml").write_text("[log]\naccess = true\n")
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Serving]:
    _, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    try:
        with serving(directory, "--workers", "2") as running:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            eventually(lambda: running.errors.count("ready: native protocol") == 2, "two workers")
            yield running
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module")
def wanted(server: Serving) -> bytes:
    """The response to each resolution."""
    return over_tcp(server.native, ONCE)


def connect(server: Serving) -> socket.socket:
    client = socket.create_connection(server.native, PATIENCE)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def metric(server: Serving, name: str) -> int:
    found = re.search(rf"^{re.escape(name)} (\d+)", metrics_page(server), re.MULTILINE)
    return int(found[1]) if found else 0


def count_sockets(process: int) -> int:
    count = 0
    for path in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            count += path.readlink().name.startswith("socket:")
    return count


def test_recorded_resolutions_get_the_recorded_bytes(tmp_path: Path) -> None:
    """All but the time."""
    vectors = [one for one in exchanges(*VECTOR_FILES) if one.transport == "tcp" and not is_left_to_the_server(one)]
    assert len(vectors) >= 12
    with serving(make_installation(tmp_path, "tcp"), PERSEID_LOG_ACCESS="false") as running:
        for vector in vectors:
            ((request,), response) = vector.request, b"".join(vector.response)
            with connect(running) as client:
                client.sendall(request)
                assert is_same(read(client, len(response)), response), vector
        assert len(threads(running)) == 1, running.errors
        assert "transport=tcp" not in running.errors, "without an access log"


def test_requests_get_the_same_responses_wherever_they_are_divided(server: Serving, wanted: bytes) -> None:
    """Two on each connection, in any two parts, after one for the thread or none; then the client ends its half."""
    both = KEPT + ONCE
    for before in (0, 1):
        with ExitStack() as stack:
            clients = [stack.enter_context(connect(server)) for _ in range(1, len(both))]
            for client in clients * before:
                client.sendall(KEPT)
                assert is_same(read(client, len(wanted)), wanted)
            for size, client in enumerate(clients, 1):
                client.sendall(both[:size])
            for size, client in enumerate(clients, 1):
                client.sendall(both[size:])
                client.shutdown(socket.SHUT_WR)
            for client in clients:
                answers = read(client, 1 << 20)
                assert is_same(answers[: len(wanted)], wanted)
                assert is_same(answers[len(wanted) :], wanted)


def test_kept_connection_changes_between_thread_and_event_loop(server: Serving, wanted: bytes) -> None:
    with connect(server) as client:
        for _ in range(3):
            client.sendall(KEPT)
            assert is_same(read(client, len(wanted)), wanted)
        client.sendall(OTHER_KEPT)
        head = read(client, 20)
        assert len(read(client, int.from_bytes(head[16:20], "big"))) > 100
        client.sendall(KEPT * 5)
        for _ in range(5):
            assert is_same(read(client, len(wanted)), wanted)
        client.sendall(ONCE)
        assert is_same(read(client, 1 << 20), wanted)


def test_connections_are_counted_and_requests_logged(server: Serving, wanted: bytes) -> None:
    answered = 'perseid_requests_total{code="success",operation="resolution",transport="tcp"}'
    with connect(server) as client:
        for _ in range(10):
            client.sendall(KEPT)
            assert is_same(read(client, len(wanted)), wanted)
        eventually(lambda: metric(server, "perseid_connections") >= 1, "a kept connection")
        for _ in range(10):
            assert is_same(over_tcp(server.native, ONCE), wanted)
        eventually(lambda: server.errors.count(LINE) >= 20, "20 lines")
        eventually(lambda: metric(server, answered) == server.errors.count(LINE), "as many requests as lines")


def test_worker_can_open_as_many_files_as_a_flood_at_its_limit_uses(server: Serving) -> None:
    needed = 4_096 + OTHER_DESCRIPTORS + native.MAX_UNADMITTED
    assert resource.prlimit(threads(server)[0], resource.RLIMIT_NOFILE)[0] == needed


def test_another_worker_serves_the_listener_of_a_stuck_thread(server: Serving, wanted: bytes) -> None:
    with stopped(threads(server)[0]):
        for _ in range(20):
            assert is_same(over_tcp(server.native, ONCE), wanted)


def test_connections_of_a_killed_worker_end_and_others_are_served(server: Serving, wanted: bytes) -> None:
    killed, clients = threads(server)[0], []
    before = count_sockets(killed)
    with ExitStack() as stack:

        def add_clients() -> bool:
            """Until both workers have some: after the test above, one serves both listeners for a moment."""
            for _ in range(10):
                clients.append(stack.enter_context(connect(server)))
                clients[-1].sendall(KEPT)
                assert is_same(read(clients[-1], len(wanted)), wanted)
            return before < count_sockets(killed) < before + len(clients)

        eventually(add_clients, "connections of both workers")
        ready = server.errors.count("ready: native protocol")
        os.kill(int(Path(f"/proc/{killed}/status").read_text().split("Tgid:")[1].split()[0]), signal.SIGKILL)
        eventually(lambda: server.errors.count("ready: native protocol") > ready, "another worker")
        ended = 0
        for client in clients:
            try:
                client.sendall(KEPT)
                ended += not read(client, len(wanted))
            except ConnectionError:
                ended += 1
        assert 0 < ended < len(clients)
    for _ in range(10):
        assert is_same(over_tcp(server.native, ONCE), wanted)
    eventually(lambda: metric(server, "perseid_connections") <= 1, "only that of the metrics, if any")


def test_kept_connections_end_when_the_server_stops(tmp_path: Path, wanted: bytes) -> None:
    with serving(copy_to(tmp_path)) as running:
        client = connect(running)
        eventually(lambda: len(threads(running)) == 1, "the thread")
        client.sendall(KEPT)
        assert is_same(read(client, len(wanted)), wanted)
    with client:
        assert read(client, 1) == b""


def test_limit_of_an_address_holds_over_threads_and_event_loops(tmp_path: Path, wanted: bytes) -> None:
    """Also while kept connections change from a thread to its event loop."""
    directory = copy_to(tmp_path)
    (directory / "perseid.toml").write_text("[limits]\nconnections_per_address = 6\nexempt_networks = []\n")
    with serving(directory, "--workers", "2") as running, ExitStack() as stack:
        eventually(lambda: running.errors.count("ready: native protocol") == 2, "two workers")
        clients = [stack.enter_context(connect(running)) for _ in range(6)]
        for number, client in enumerate(clients):
            client.sendall(KEPT)
            assert is_same(read(client, len(wanted)), wanted)
            if number % 2:
                client.sendall(OTHER_KEPT)
                assert read(client, 20)
        for _ in range(4):
            with connect(running) as refused:
                try:
                    refused.sendall(KEPT)
                    assert refused.recv(1) == b""
                except ConnectionError:
                    pass
        clients[0].close()
        clients[1].close()
        limit = 'perseid_limits_triggered_total{limit="connections"}'
        eventually(lambda: metric(running, limit) == 4, "four refusals")
        eventually(lambda: is_served(running), "the ends of two connections are seen")


def is_served(server: Serving) -> bool:
    """Whether another connection is within the limit."""
    try:
        return over_tcp(server.native, ONCE) != b""
    except ConnectionError:
        return False
