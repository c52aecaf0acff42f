"""`perseid serve`: its processes, their sockets, and restarts."""

import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from perseid.records.record import Value
from perseid.records.site import Site
from perseid.server.state.runtime import lock_installation
from perseid.wire.codes import OpCode, OpFlag, ResponseCode
from perseid.wire.requests import Resolve
from perseid.wire.responses import ResolutionResult
from tests.cli.installation import call, examples
from tests.server.faults.machine import silence
from tests.server.installations import ADMINISTRATOR, NAMES, PREFIX, SECRET, copy_to
from tests.server.native.native_client import NativeClient, NoAnswer, Serving, Via, serving
from tests.server.running import DEFAULTS

TRANSPORTS = pytest.mark.parametrize("via", list(Via), ids=lambda via: via.value)
PATIENCE = 30.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installation of `server`."""
    return copy_to(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Serving]:
    with serving(directory) as running:
        yield running


@pytest.fixture
def killable_server(tmp_path: Path) -> Iterator[Serving]:
    """A server whose processes a test may kill."""
    with serving(copy_to(tmp_path), "--workers", "2") as running:
        eventually(lambda: running.errors.count("ready: native protocol") == 2, "two workers")
        yield running


def children(server: Serving, kind: str) -> list[int]:
    """The processes of a server of one kind, oldest first."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                name = (folder / "comm").read_text()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == server.pid and name.startswith(kind):
                found.append(int(folder.name))
    return sorted(found)


def eventually(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(0.02)


def is_answered(server: Serving, via: Via, name: str = f"{PREFIX}/n1") -> bool:
    try:
        with NativeClient(server.native, via, timeout=30, attempts=4) as client:
            return client.resolve(name).code is ResponseCode.SUCCESS
    except (NoAnswer, OSError):
        return False


# Asking


@TRANSPORTS
def test_handle_is_resolved_over_every_transport(server: Serving, via: Via) -> None:
    with NativeClient(server.native, via) as client:
        answer = client.resolve(f"{PREFIX}/n7")
        assert answer.code is ResponseCode.SUCCESS
        assert isinstance(answer.body, ResolutionResult)
        assert [value.type for value in answer.body.values] == ["URL", "DESC", "EMAIL", "HS_ADMIN"]
        assert client.resolve(f"{PREFIX}/absent").code is ResponseCode.HANDLE_NOT_FOUND
        assert client.resolve("54321/elsewhere").code is ResponseCode.SERVER_NOT_RESP


@TRANSPORTS
def test_authenticated_change_is_visible_at_once(server: Serving, via: Via) -> None:
    name = f"{PREFIX}/made-over-{via.value}"
    with NativeClient(server.native, via) as client, NativeClient(server.native, Via.UDP) as anybody:
        client.act_as(ADMINISTRATOR, SECRET)
        assert client.create(name, (Value.text(1, "URL", "https://example.org/new"),)).code is ResponseCode.SUCCESS
        assert anybody.resolve(name).code is ResponseCode.SUCCESS
        client.begin_session()
        assert client.modify(name, Value.text(1, "URL", "https://example.org/newer")).code is ResponseCode.SUCCESS
        found = anybody.resolve(name, types=("URL",)).body
        assert isinstance(found, ResolutionResult)
        assert [value.data for value in found.values] == [b"https://example.org/newer"]
        assert client.delete(name).code is ResponseCode.SUCCESS
        assert anybody.resolve(name).code is ResponseCode.HANDLE_NOT_FOUND
        assert client.end_session() is not None


def test_ten_thousand_requests_get_ten_thousand_responses(server: Serving) -> None:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(1_000)]
    with NativeClient(server.native, Via.UDP) as client:
        requests = [
            client.client.pack(client.request(OpCode.RESOLUTION, Resolve(f"{PREFIX}/n{number % NAMES}".encode())), None)
            for number in range(10)
        ]
    raw = [frame.envelope.to_bytes() + frame.payload for frame in requests]
    wanted = Counter(frame.envelope.request_id for frame in requests)
    for one in sockets:
        one.connect(server.native)
        one.settimeout(PATIENCE)
    for at in range(0, len(sockets), 50):  # so many that they fit into the queues of the kernel, whatever its limits
        some = sockets[at : at + 50]
        for one in some:
            for request in raw:
                one.send(request)
        for one in some:
            got = Counter(int.from_bytes(one.recv(600)[8:12], "big") for _ in raw)
            assert got == wanted
            one.close()


def test_record_of_several_packets_is_complete(server: Serving) -> None:
    for via in (Via.UDP, Via.TCP):
        with NativeClient(server.native, via) as client:
            found = client.resolve(f"{PREFIX}/long").body
            assert isinstance(found, ResolutionResult)
            assert sorted(len(value.data) for value in found.values if value.type == "DATA") == [2_000] * 3


def test_large_response_requires_tcp(server: Serving) -> None:
    with NativeClient(server.native, Via.UDP, attempts=1) as client:
        assert [client.resolve(f"{PREFIX}/longer").code for _ in range(4)] == [ResponseCode.ERROR] * 4
    with NativeClient(server.native, Via.TCP) as client:
        assert client.resolve(f"{PREFIX}/longer").code is ResponseCode.SUCCESS


def test_kept_connection_serves_many_requests_and_a_plain_one_ends(server: Serving) -> None:
    with NativeClient(server.native, Via.KEPT) as client:
        for number in range(20):
            assert client.resolve(f"{PREFIX}/n{number}").code is ResponseCode.SUCCESS
            assert client.resolve(f"{PREFIX}/private", flags=None).code is ResponseCode.SUCCESS
        client.act_as(ADMINISTRATOR, SECRET)
        assert len(client.list_handles(f"0.NA/{PREFIX}")) >= NAMES
        assert client.connections == 1
    with NativeClient(server.native, Via.TCP) as client:
        for number in range(3):
            assert client.resolve(f"{PREFIX}/n{number}").code is ResponseCode.SUCCESS
        assert client.connections == 3


def test_requests_may_be_split_and_pipelined(server: Serving) -> None:
    with NativeClient(server.native, Via.KEPT) as client:
        frames = [
            client.client.pack(client.request(OpCode.RESOLUTION, Resolve(f"{PREFIX}/{name}".encode())), None)
            for name in ("n1", "private", "n2", "long", "absent")
        ]
    stream = b"".join(frame.envelope.to_bytes() + frame.payload for frame in frames)
    wanted = [frame.envelope.request_id for frame in frames]
    for pieces in ([stream], [stream[at : at + 1] for at in range(len(stream))]):
        with socket.create_connection(server.native, PATIENCE) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                connection.sendall(piece)
            assert [_request_id(connection) for _ in frames] == wanted


def _request_id(connection: socket.socket) -> int:
    head = connection.recv(20, socket.MSG_WAITALL)
    length = int.from_bytes(head[16:20], "big")
    assert len(connection.recv(length, socket.MSG_WAITALL)) == length
    return int.from_bytes(head[8:12], "big")


def test_invalid_message_gets_one_response_and_the_connection_ends(server: Serving) -> None:
    for raw in (
        b"\x02\x0b\x02\x0b" + bytes(12) + b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    ):
        with socket.create_connection(server.native, PATIENCE) as connection:
            connection.sendall(raw)
            head = connection.recv(20, socket.MSG_WAITALL)
            assert head[8:12] == b"\xff\xff\xff\xff"
            answer = connection.recv(int.from_bytes(head[16:20], "big"), socket.MSG_WAITALL)
            assert int.from_bytes(answer[4:8], "big") == ResponseCode.ERROR
            assert connection.recv(1) == b""


# Processes


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_other_workers_serve_the_sockets_of_a_silent_one(killable_server: Serving, number: signal.Signals) -> None:
    """Nobody waits for its replacement, which takes seconds on a busy machine. Changes wait for another writer.

    The process that forks the others is silent, too.
    """
    before = children(killable_server, "worker")
    (writer,), (parent,) = (children(killable_server, kind) for kind in ("writer", "forkserver"))
    host, port = killable_server.http
    for process in (parent, before[0], writer):
        silence(process, number)  # a thread that still runs may read a request and not answer it
    for at in range(40):  # the kernel gives about half of them to the sockets of each worker
        for via in (Via.UDP, Via.TCP):
            with NativeClient(killable_server.native, via, timeout=PATIENCE, attempts=1) as client:
                assert client.resolve(f"{PREFIX}/n{at % NAMES}").code is ResponseCode.SUCCESS
        with urlopen(f"http://{host}:{port}/api/handles/{PREFIX}/n{at % NAMES}", timeout=PATIENCE) as response:
            assert json.load(response)["responseCode"] == 1
    with NativeClient(killable_server.native, Via.KEPT, timeout=PATIENCE) as client:
        client.act_as(ADMINISTRATOR, SECRET)
        made = client.create(f"{PREFIX}/after", (Value.text(1, "URL", "https://example.org/"),))
        assert made.code is ResponseCode.SUCCESS
    assert writer not in children(killable_server, "writer")
    eventually(lambda: len(set(children(killable_server, "worker")) - {before[0]}) == 2, "another worker")
    for name in ("worker", "writer", "forkserver"):
        line = re.compile(rf"{name}\S* ended by signal 9 and is restarted")
        eventually(lambda line=line: line.search(killable_server.errors) is not None, "a line in the log")  # type: ignore[misc]
        was_stuck = re.search(rf"{name}\S* has been unresponsive for", killable_server.errors) is not None
        assert was_stuck == (number is signal.SIGSTOP)
    eventually(lambda: killable_server.errors.count("ready: native protocol") == 3, "two workers again")


def test_fork_server_that_is_stopped_while_it_loads_is_replaced(killable_server: Serving) -> None:
    """It has a heartbeat from its start on. A change that waits for another writer is made."""
    (writer,), (parent,) = (children(killable_server, kind) for kind in ("writer", "forkserver"))
    os.kill(parent, signal.SIGKILL)
    eventually(lambda: children(killable_server, "forkserver") not in ([], [parent]), "another fork server")
    (loading,) = children(killable_server, "forkserver")
    os.kill(loading, signal.SIGSTOP)
    os.kill(writer, signal.SIGKILL)
    with NativeClient(killable_server.native, Via.KEPT, timeout=PATIENCE) as client:
        client.act_as(ADMINISTRATOR, SECRET)
        made = client.create(f"{PREFIX}/after", (Value.text(1, "URL", "https://example.org/"),))
        assert made.code is ResponseCode.SUCCESS
    assert loading not in children(killable_server, "forkserver")
    assert re.search(r"forkserver has been unresponsive for", killable_server.errors) is not None


def test_processes_that_are_stopped_while_they_start_are_replaced(killable_server: Serving) -> None:
    stopped = []
    for kind in ("worker", "writer"):
        before = children(killable_server, kind)
        os.kill(before[0], signal.SIGKILL)
        while not (started := set(children(killable_server, kind)) - set(before)):
            assert killable_server.process.poll() is None
        stopped.append(started.pop())
        os.kill(stopped[-1], signal.SIGSTOP)
    with NativeClient(killable_server.native, Via.KEPT, timeout=PATIENCE) as client:
        client.act_as(ADMINISTRATOR, SECRET)
        made = client.create(f"{PREFIX}/after", (Value.text(1, "URL", "https://example.org/"),))
        assert made.code is ResponseCode.SUCCESS
    running = [pid for kind in ("worker", "writer") for pid in children(killable_server, kind)]
    assert not set(stopped) & set(running)
    for kind in ("worker", "writer"):
        assert re.search(rf"{kind}\S* has been unresponsive for", killable_server.errors) is not None


def readiness(server: Serving) -> object:
    host, port = server.http
    try:
        with urlopen(Request(f"http://{host}:{port}/readyz", headers={"Accept": "application/json"})) as response:
            return json.load(response)
    except OSError:  # the workers are being restarted
        return None


def test_public_handles_resolve_until_there_is_space_to_open_the_ledger(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the shared-memory file of the database does not fit."""
    with serving(copy_to(tmp_path), "--workers", "1") as running:
        check_full_disk(running)


def check_full_disk(killable_server: Serving) -> None:
    host, port = killable_server.http
    ready = {"ready": True, "accepts_changes": True}
    eventually(lambda: readiness(killable_server) == ready, "ready")
    (parent,) = children(killable_server, "forkserver")
    resource.prlimit(parent, resource.RLIMIT_FSIZE, (1 << 14, resource.RLIM_INFINITY))
    os.kill(parent, signal.SIGSTOP)  # the last one to close the database removes the file, before the next ones open it
    for process in (*children(killable_server, "writer"), *children(killable_server, "worker")):
        os.kill(process, signal.SIGTERM)  # a clean stop; the next ones inherit the limit
    eventually(lambda: not children(killable_server, "writer") + children(killable_server, "worker"), "the end of both")
    os.kill(parent, signal.SIGCONT)
    full = {"ready": True, "accepts_changes": False, "reason": "storage-full"}
    eventually(lambda: readiness(killable_server) == full, "a server without a ledger")
    for via in Via:
        assert is_answered(killable_server, via)
        with NativeClient(killable_server.native, via) as client:
            new = client.create(f"{PREFIX}/new", (Value.text(1, "URL", "https://example.org/"),))
            assert new.code is ResponseCode.SERVER_BACKUP
    with urlopen(f"http://{host}:{port}/api/handles/{PREFIX}/n1") as response:
        assert json.load(response)["responseCode"] == 1
    record = f"http://{host}:{port}/api/v1/handles/{PREFIX}%2Fn1"
    with urlopen(record) as response:
        assert json.load(response)["handle"] == f"{PREFIX}/n1"
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{record}/history")
    assert (refused.value.code, refused.value.headers["Retry-After"]) == (503, "60")
    assert json.load(refused.value)["type"].endswith("#storage-full")
    eventually(lambda: killable_server.errors.count("The ledger cannot be opened") == 1, "the reason in the log")
    processes = (*children(killable_server, "writer"), *children(killable_server, "worker"))
    for process in (parent, *processes):
        resource.prlimit(process, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    eventually(lambda: readiness(killable_server) == ready, "recovery")


_STARTS_OF_THE_WRITER = """
import socket, sys
from perseid.server.processes import fork_server
from perseid.server.processes.supervisor import ServerOptions, Supervisor
supervisor = Supervisor(ServerOptions(sys.argv[1], "127.0.0.1", 0, 1, accept_clock=True))
fork_server.request = lambda channel, module, options, descriptors: print(options["accept_clock"], flush=True)
supervisor._channel = socket.socket()
writer, worker = supervisor._children[:2]
for child, opened in ((writer, False), (writer, True), (worker, True), (writer, False), (worker, False)):
    supervisor._start(child)
    supervisor._on_status(child, {"ready": opened})
"""


def test_clock_stays_accepted_until_the_ledger_is_opened(tmp_path: Path) -> None:
    """On a full disk the first process opens no ledger; the clock is accepted by the one that does."""
    command = [sys.executable, "-c", _STARTS_OF_THE_WRITER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.split() if line in ("True", "False")] == [*["True"] * 2, *["False"] * 3]


def test_session_survives_the_death_of_every_process_that_serves_it(killable_server: Serving) -> None:
    serving_now = children(killable_server, "worker")
    values = (Value.text(1, "URL", "https://example.org/"),)
    with NativeClient(killable_server.native) as client:
        client.act_as(ADMINISTRATOR, SECRET)
        client.begin_session()
        assert client.create(f"{PREFIX}/before", values).code is ResponseCode.SUCCESS
        for process in serving_now:
            os.kill(process, signal.SIGKILL)
        eventually(lambda: not {*serving_now} & {*children(killable_server, "worker")}, "other processes")
        eventually(lambda: is_answered(killable_server, Via.TCP), "an answer over TCP")
        client.identity = None  # it answers no challenge
        assert client.create(f"{PREFIX}/after", values).code is ResponseCode.SUCCESS


def test_killed_writer_is_restarted_and_no_change_is_lost(killable_server: Serving) -> None:
    """Changes wait for the next writer; reads go on."""
    values = (Value.text(1, "URL", "https://example.org/"),)
    with NativeClient(killable_server.native, Via.KEPT, timeout=PATIENCE) as client:
        client.act_as(ADMINISTRATOR, SECRET)
        client.begin_session()
        for number in range(3):
            (writer,) = children(killable_server, "writer")
            assert client.create(f"{PREFIX}/w{number}", values).code is ResponseCode.SUCCESS
            os.kill(writer, signal.SIGKILL)
            assert is_answered(killable_server, Via.UDP, f"{PREFIX}/w{number}")
            assert client.create(f"{PREFIX}/v{number}", values).code is ResponseCode.SUCCESS
            eventually(lambda: len(children(killable_server, "writer")) == 1, "another writer")
        eventually(lambda: killable_server.errors.count("writer ready for changes") == 4, "each writer says so")
        for number in range(3):
            assert is_answered(killable_server, Via.TCP, f"{PREFIX}/w{number}")
            assert is_answered(killable_server, Via.TCP, f"{PREFIX}/v{number}")


def test_killed_workers_are_restarted_and_keep_their_queues(killable_server: Serving) -> None:
    """Also if the process from which they are forked is killed with them."""
    before = children(killable_server, "worker")
    assert len(before) == 2
    (writer,), (parent,) = (children(killable_server, kind) for kind in ("writer", "forkserver"))
    for process in (parent, *before):
        os.kill(process, signal.SIGKILL)
    eventually(lambda: not any(_runs(process) for process in before), "the end of both")
    # Sent while nobody reads: it waits in a socket that the supervisor keeps.
    for via in (Via.UDP, Via.TCP):
        with NativeClient(killable_server.native, via, timeout=PATIENCE, attempts=1) as client:
            assert client.resolve(f"{PREFIX}/n1").code is ResponseCode.SUCCESS
    eventually(lambda: len(children(killable_server, "worker")) == 2, "two workers")
    assert not set(children(killable_server, "worker")) & set(before)
    assert children(killable_server, "writer") == [writer], "others go on"
    assert children(killable_server, "forkserver") not in ([], [parent])
    assert "forkserver ended by signal 9 and is restarted" in killable_server.errors


def test_no_process_survives_the_supervisor(tmp_path: Path) -> None:
    """While it runs there is no second server; when it is killed, the next one starts at once, at the same ports."""
    directory = copy_to(tmp_path)
    with ExitStack() as stack:
        running = stack.enter_context(serving(directory))
        (native, native_port), (http, http_port) = running.native, running.http
        second = run(directory, "--native-port", str(native_port))
        ports = f"native protocol at {native} port {native_port}, HTTP at {http} port {http_port}"
        what = f"A server of {directory} is already running: process {running.pid}, {ports}"
        fix = f"Stop it first, for example with `kill {running.pid}`, or serve another installation with -d DIR"
        assert (second.returncode, second.stderr) == (1, f"perseid: {what}. {fix}\n")
        left = [pid for kind in ("forkserver", "writer", "worker") for pid in children(running, kind)]
        assert len(left) == 3
        with socket.create_connection(running.native) as unfinished:
            unfinished.sendall(b"\2")  # the worker waits for the rest of the request for a moment
            assert is_answered(running, Via.TCP), "so the connection before was accepted, too"
            os.kill(running.pid, signal.SIGKILL)
            running.process.wait()
            with serving(directory, "--native-port", str(native_port), "--http-port", str(http_port)) as again:
                assert is_answered(again, Via.UDP)
        eventually(lambda: not any(_runs(process) for process in left), "the end of all processes")
        with pytest.raises(AssertionError, match="exit code -9"):
            stack.close()


def _runs(process: int) -> bool:
    return _state(process) not in ("", "Z")


def _state(process: int) -> str:
    """The state of a process as the kernel names it; empty if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_sighup_reloads_settings_and_site_information(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    with serving(directory, "--workers", "2") as running:
        eventually(lambda: running.errors.count("ready: native protocol") == 2, "two workers")
        with NativeClient(running.native, Via.KEPT) as client:
            client.act_as(ADMINISTRATOR, SECRET)
            client.begin_session()
            before = client.site()
            rotate = [sys.executable, "-c", "from perseid.cli import main; main()", "key", "rotate", "server"]
            subprocess.run([*rotate, "-d", str(directory)], check=True, capture_output=True)
            running.process.send_signal(signal.SIGHUP)

            def site() -> Site:
                with NativeClient(running.native) as other:
                    return other.site()

            eventually(lambda: running.errors.count("were reloaded") == 2, "both have reloaded")
            assert all(site().serial == before.serial + 1 for _ in range(8))
            assert site().servers[0].public_key != before.servers[0].public_key
            made = client.create(f"{PREFIX}/in-the-session", (Value.text(1, "URL", "https://example.org/"),))
            assert made.code is ResponseCode.SUCCESS, "a session goes on"

        def serial_over_udp() -> int:
            with NativeClient(running.native, Via.UDP) as other:
                (frame,) = other.exchange(other.request(OpCode.RESOLUTION, Resolve(f"{PREFIX}/n1".encode())))
                return int.from_bytes(frame.payload[12:14], "big")

        assert all(serial_over_udp() == before.serial + 1 for _ in range(8))


def test_invalid_settings_change_nothing(server: Serving, directory: Path) -> None:
    settings = directory / "perseid.toml"
    before = settings.read_text()
    settings.write_text(f"{before}\n[native]\nport = 'many'\n")
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: "reload failed, nothing was changed" in server.errors, "a line in the log")
    settings.write_text(before)
    assert is_answered(server, Via.UDP)
    assert is_answered(server, Via.TCP)


def test_hangup_during_the_start_does_not_end_the_server(tmp_path: Path) -> None:
    """Each process blocks the signal until it can handle it, from the moment at which the command starts the server."""

    def blocks(status: str) -> bool:
        return bool(int(status.partition("SigBlk:")[2].split()[0], 16) >> (signal.SIGHUP - 1) & 1)

    copy_to(tmp_path).rename(tmp_path / "perseid-data")
    with command(tmp_path, "serve --json") as process:
        eventually(lambda: blocks(Path(f"/proc/{process.pid}/status").read_text()), "the signal is blocked")
        ended = threading.Event()

        def hang_up() -> None:
            while not ended.wait(0.005):
                os.killpg(process.pid, signal.SIGHUP)  # as a terminal does

        with ThreadPoolExecutor() as pool:
            try:
                pool.submit(hang_up)
                assert "native" in until(process, "native")
            finally:
                ended.set()


def test_quick_reloads_do_not_crash(killable_server: Serving) -> None:
    for _ in range(4):
        killable_server.process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
    # The kernel keeps one signal for a process that is busy, so the number of reloads depends on the machine.
    eventually(lambda: killable_server.errors.count("were reloaded") >= 2, "a reload by each")
    for count in (1, 2):
        process = children(killable_server, "worker")[0]
        os.kill(process, signal.SIGKILL)
        eventually(lambda count=count: killable_server.errors.count("ended by signal 9") == count, "a line in the log")  # type: ignore[misc]
        ready = 2 + count
        eventually(lambda ready=ready: killable_server.errors.count("ready: native") == ready, "two workers")  # type: ignore[misc]
    assert is_answered(killable_server, Via.UDP)


def test_limits_take_effect_after_a_reload(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    settings = directory / "perseid.toml"

    def drawn(server: Serving) -> int:
        """Bytes of responses to a network that nothing exempts."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, NativeClient(server.native) as client:
            asking.bind(("127.9.9.9", 0))
            asking.connect(server.native)
            asking.settimeout(0.5)
            size = 0
            for _ in range(30):
                request = client.request(OpCode.RESOLUTION, Resolve(f"{PREFIX}/long".encode()), flags=OpFlag.CERTIFY)
                frame = client.client.pack(request, None)
                asking.send(frame.envelope.to_bytes() + frame.payload)
                with suppress(TimeoutError):
                    while size < 1 << 17:
                        size += len(asking.recv(600))
                        asking.settimeout(0.05)
            return size

    settings.write_text("[limits]\nexempt_networks = []\nudp_octets = 0\n")
    with serving(directory) as running:
        sizes: list[int] = []

        def draw_more() -> bool:
            sizes.append(drawn(running))
            return sum(sizes) > 1 << 16

        eventually(draw_more, "more than the later limit")
        settings.write_text("[limits]\nexempt_networks = []\nudp_octets = 1\nudp_burst = 65536\n")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "were reloaded" in running.errors, "a line in the log")
        assert drawn(running) <= (1 << 16) + 30 * 100, "and what was sent"


# Starting


def run(directory: Path, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from perseid.cli import main; main()", "serve", "-d", str(directory), *options]
    environ = os.environ | DEFAULTS | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)


def test_a_second_server_on_the_same_port_is_refused(server: Serving, tmp_path: Path) -> None:
    done = run(copy_to(tmp_path), "--native-port", str(server.native[1]))
    assert done.returncode == 1
    assert "Cannot serve the native protocol at 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_metrics_port_in_use_is_reported_at_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(copy_to(tmp_path), "--native-port", "0", PERSEID_METRICS_PORT=port)
    assert done.returncode == 1
    assert f"Cannot serve metrics at 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_standard_output_does_not_stop_the_server(tmp_path: Path) -> None:
    copy_to(tmp_path).rename(tmp_path / "perseid-data")
    with command(tmp_path, "serve --json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        for line in process.stderr:
            if "cannot write to standard output" in line:
                break
        assert process.poll() is None


def test_missing_installation_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path / "nothing")
    assert done.returncode == 1
    assert "perseid init" in done.stderr


def test_installation_that_is_being_upgraded_is_not_served(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    lock = lock_installation(directory)
    assert lock is not None
    done = run(directory, "--native-port", "0")
    os.close(lock)
    assert (done.returncode, done.stderr) == (
        1,
        f"perseid: {directory} is in use: a server is starting there, or it is being upgraded. Retry after that\n",
    )


def test_missing_server_key_is_reported(tmp_path: Path) -> None:
    directory = copy_to(tmp_path)
    for path in (directory / "keys").glob("*.bin"):
        path.unlink()
    done = run(directory, "--native-port", "0")
    assert done.returncode == 1
    assert "perseid" in done.stderr
    assert "Traceback" not in done.stderr


@contextmanager
def command(directory: Path, words: str, *python: str) -> Iterator["subprocess.Popen[str]"]:
    """A serve command in a directory, as a user would type it; interrupted at the end."""
    arguments = [sys.executable, *python, "-c", "from perseid.cli import main; main()", *shlex.split(words)]
    ports = DEFAULTS | {"PERSEID_NATIVE_PORT": "0"}
    with subprocess.Popen(
        arguments,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ports,
        start_new_session=True,
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def until(process: "subprocess.Popen[str]", mark: str) -> str:
    """The output of a process up to the line with a mark."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if mark in line:
            return "".join(lines)
    raise AssertionError(f"it ended without saying {mark}: {lines}")


(DEMO,) = (example for example in examples("serve") if "--init-demo" in example)


def test_demo_of_the_help_prints_commands_that_work(tmp_path: Path) -> None:
    with command(tmp_path, DEMO) as process:
        text = until(process, "Ctrl-C")
        (port,) = re.findall(r"port (\d+), over UDP and TCP", text)
        with NativeClient(("127.0.0.1", int(port)), Via.UDP) as client:
            assert client.resolve("102.100.272/D7J1G0DQH").code is ResponseCode.SUCCESS
        tried = re.findall(r"^    perseid (.+)$", text, re.MULTILINE)
        assert len(tried) == 4
        for words in tried:
            assert call(*shlex.split(words)).code == 0, words
        clicked = re.findall(r"^    (http://.+)$", text, re.MULTILINE)
        assert len(clicked) == 4
        for url in clicked:
            with urlopen(url) as page:
                assert page.status == 200


@pytest.mark.parametrize("example", [example for example in examples("serve") if example != DEMO])
def test_other_examples_of_the_help_work_and_load_no_module_from_the_working_directory(
    tmp_path: Path, example: str
) -> None:
    copy_to(tmp_path).rename(tmp_path / "perseid-data")
    for name in ("selectors", "queue", "lmdb", "uvloop"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the working directory was loaded')\n")
    with command(tmp_path, example, "-P") as process:
        assert "port" in until(process, "native" if "--json" in example else "Ctrl-C")
